//! Reading ahead: a thread of its own reads the input in blocks, so that reading and publishing overlap and a signal can
//! end the wait for a terminal or pipe that says nothing.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use crate::failure::Failure;
use crate::interrupt::Interrupt;

/// How much is read at once: large enough that neither system calls nor the hand-over are felt.
const BLOCK: usize = 256 * 1024;
/// How many blocks may wait to be taken.
const AHEAD: usize = 4;
/// How often a wait for input looks for a signal.
const LOOK: Duration = Duration::from_millis(50);

/// A file or standard input, read ahead. Ends early, as if the input had, when a signal comes.
#[derive(Debug)]
pub(crate) struct Input {
    blocks: Receiver<io::Result<Vec<u8>>>,
    block: Vec<u8>,
    at: usize,
    interrupt: Interrupt,
}

impl Input {
    /// Reads a file.
    pub(crate) fn file(path: &Path, interrupt: &Interrupt) -> Result<Self, Failure> {
        let refuse = |source| Failure::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(refuse)?;
        if file.metadata().map_err(refuse)?.is_dir() {
            return Err(refuse(io::ErrorKind::IsADirectory.into()));
        }
        Self::start(file, interrupt)
    }

    /// Reads standard input.
    pub(crate) fn standard(interrupt: &Interrupt) -> Result<Self, Failure> {
        Self::start(io::stdin(), interrupt)
    }

    fn start(from: impl Read + Send + 'static, interrupt: &Interrupt) -> Result<Self, Failure> {
        let (sender, blocks) = sync_channel(AHEAD);
        // Never joined: it may be in a read that only the process's end ends.
        thread::Builder::new()
            .name("keyway-input".into())
            .spawn(move || read_ahead(from, &sender))
            .map_err(|source| Failure::Thread { source })?;
        Ok(Self { blocks, block: Vec::new(), at: 0, interrupt: interrupt.clone() })
    }
}

impl BufRead for Input {
    /// The bytes at hand, after waiting for some; none at the end, or once a signal came.
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.at == self.block.len() {
            if self.interrupt.is_raised() {
                return Ok(&[]);
            }
            match self.blocks.recv_timeout(LOOK) {
                Ok(block) => (self.block, self.at) = (block?, 0),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(&[]),
            }
        }
        Ok(&self.block[self.at..])
    }

    fn consume(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

impl Read for Input {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        self.consume(len);
        Ok(len)
    }
}

/// Sends blocks until the input ends, fails, or nobody takes them any more.
fn read_ahead(mut from: impl Read, to: &SyncSender<io::Result<Vec<u8>>>) {
    loop {
        let mut block = vec![0; BLOCK];
        match from.read(&mut block) {
            Ok(0) => return,
            Ok(read) => {
                block.truncate(read);
                if to.send(Ok(block)).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                // Nobody is left to be told if this fails.
                let _ = to.send(Err(error));
                return;
            }
        }
    }
}

#[cfg(test)]
impl Input {
    /// Input that arrives in these pieces.
    pub(crate) fn of(pieces: &[&[u8]]) -> Self {
        let (sender, blocks) = sync_channel(pieces.len().max(1));
        for piece in pieces {
            sender.send(Ok(piece.to_vec())).unwrap();
        }
        Self { blocks, block: Vec::new(), at: 0, interrupt: Interrupt::default() }
    }
}
