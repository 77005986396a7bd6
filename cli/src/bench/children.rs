//! The processes that `keyway bench` starts, seen from the one that started them.

#![allow(clippy::disallowed_methods, reason = "whoever waits for processes does so by the clock")]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::Bar;
use super::wire::{Order, Task, Word, tell};
use crate::failure::Failure;
use crate::interrupt::Interrupt;

/// Words that wait for the parent. A process says a few dozen a second; the next one waits in the pipe.
const WORDS_MAX: usize = 64;

/// How often a wait for words looks for a signal.
const LOOK: Duration = Duration::from_millis(50);

/// What takes longer has gone wrong: beyond what a process itself waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running process.
struct Running {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    /// It has said what it has come to, and may end.
    is_through: bool,
}

/// All processes, in the order in which they were started. The first is the last to end.
pub(super) struct Children<'a> {
    running: Vec<Running>,
    words: Receiver<(usize, Option<Word>)>,
    /// For those that are still to come.
    sender: SyncSender<(usize, Option<Word>)>,
    interrupt: &'a Interrupt,
    bar: &'a Bar,
    verbose: u8,
}

impl<'a> Children<'a> {
    pub(super) fn new(interrupt: &'a Interrupt, bar: &'a Bar, verbose: u8) -> Self {
        let (sender, words) = sync_channel(WORDS_MAX);
        Self { running: Vec::new(), words, sender, interrupt, bar, verbose }
    }

    /// Starts this program once more, for a task, and waits until it is ready. Returns its number.
    pub(super) fn start(&mut self, name: String, task: &Task) -> Result<usize, Failure> {
        let failed = |what: &'static str| move |source| Failure::Process { what, source };
        let program = std::env::current_exe().map_err(failed("find this program"))?;
        let mut command = Command::new(program);
        command.arg("bench-part").stdin(Stdio::piped()).stdout(Stdio::piped());
        command.args(std::iter::repeat_n("-v", self.verbose.into()));
        let mut child = command.spawn().map_err(failed("start a process of the benchmark"))?;
        let number = self.running.len();
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("its output is a pipe");
        self.running.push(Running { name, child, stdin, is_through: false });
        let words = self.sender.clone();
        let read = move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            for word in lines.map_while(|line| serde_json::from_str(&line).ok()) {
                if words.send((number, Some(word))).is_err() {
                    return;
                }
            }
            // Nobody hears it any more once the measurement is over.
            let _ = words.send((number, None));
        };
        let reader = std::thread::Builder::new().name("bench-words".into()).spawn(read);
        reader.map_err(|source| Failure::Thread { source })?;
        self.line(number, task)?;
        match self.next()? {
            (from, Word::Ready) if from == number => Ok(number),
            (from, word) => Err(self.unexpected(from, &word)),
        }
    }

    /// Tells a process something.
    pub(super) fn order(&mut self, number: usize, order: &Order) -> Result<(), Failure> {
        self.line(number, order)
    }

    fn line(&mut self, number: usize, line: &impl serde::Serialize) -> Result<(), Failure> {
        let running = &mut self.running[number];
        let stdin = running.stdin.as_mut().expect("a process is told something before it is told to end");
        match tell(stdin, line) {
            Ok(()) => Ok(()),
            // It has ended, and has said why.
            Err(_) => Err(self.reason(number)),
        }
    }

    fn reason(&mut self, number: usize) -> Failure {
        loop {
            match self.next() {
                Ok(_) => {}
                Err(failure @ Failure::Part { .. }) => return failure,
                Err(_) => return self.ended(number, "it has ended"),
            }
        }
    }

    /// The next word of any process.
    pub(super) fn next(&mut self) -> Result<(usize, Word), Failure> {
        let deadline = Instant::now() + PATIENCE;
        match self.next_until(deadline)? {
            Some(word) => Ok(word),
            None => Err(Failure::Part { name: "all of them".into(), reason: "nothing was heard for a minute".into() }),
        }
    }

    /// The next word of any process, if there is one until then.
    pub(super) fn next_until(&mut self, deadline: Instant) -> Result<Option<(usize, Word)>, Failure> {
        loop {
            if self.interrupt.is_raised() {
                return Err(Failure::Interrupted);
            }
            self.bar.at();
            let left = deadline.saturating_duration_since(Instant::now());
            match self.words.recv_timeout(left.min(LOOK)) {
                Ok((number, Some(Word::Failed(reason)))) => return Err(self.ended(number, &reason)),
                Ok((number, Some(word))) => {
                    self.running[number].is_through |= matches!(word, Word::Published { .. } | Word::Received(_));
                    return Ok(Some((number, word)));
                }
                Ok((number, None)) if self.running[number].is_through => {}
                Ok((number, None)) => return Err(self.ended(number, "it has ended before its time")),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("this side holds a sender too"),
            }
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// A word that does not belong here.
    pub(super) fn unexpected(&self, number: usize, word: &Word) -> Failure {
        self.ended(number, &format!("it says {word:?} where that means nothing"))
    }

    fn ended(&self, number: usize, reason: &str) -> Failure {
        Failure::Part { name: self.running[number].name.clone(), reason: reason.to_owned() }
    }

    /// Lets all end, the last one first, and waits for them.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        while let Some(mut running) = self.running.pop() {
            drop(running.stdin.take());
            let status = running.child.wait();
            let status = status.map_err(|source| Failure::Process { what: "wait for a process", source })?;
            if !status.success() {
                return Err(Failure::Part { name: running.name, reason: format!("it ended with {status}") });
            }
        }
        Ok(())
    }
}

impl Drop for Children<'_> {
    fn drop(&mut self) {
        // Only a failure left them running, and then nothing depends on how they end.
        for running in &mut self.running {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}
