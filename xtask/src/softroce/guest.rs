//! A guest machine with Soft-RoCE: Debian's kernel under qemu, over this machine's own files.

#![allow(clippy::disallowed_methods, reason = "a runner with a time limit reads the clock")]

use std::fmt;
use std::fs::{self, File};
use std::io::{BufReader, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::agent::CHANNEL;
use super::error::Error;
use super::frames::Frame;
use super::initramfs::{self, Share};
use super::job::{Job, LOOK_AGAIN};
use super::kernel::{self, Kernel};
use crate::step::program;
use crate::{interrupt, tools};

/// The emulator.
pub(super) const QEMU: &str = "qemu-system-x86_64";

/// With hardware support a guest is up in two or three seconds, on a machine where it works at all.
const BOOT_KVM: Duration = Duration::from_secs(20);

/// Without, it takes ten or fifteen, and more where other programs want the processors too.
const BOOT_TCG: Duration = Duration::from_secs(240);

/// How many frames may wait until they have been printed.
const FRAMES_MAX: usize = 64;

/// How much of the console is shown of a guest that did not do what it should.
const CONSOLE_LINES: usize = 30;

/// What else the guest's kernel is told: no greeting, and an end instead of a hang where it fails.
const COMMAND_LINE: &str = "console=ttyS0 quiet oops=panic panic=-1 edd=off mitigations=off";

/// What executes the guest's instructions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Accelerator {
    Kvm,
    Tcg,
}

impl Accelerator {
    /// As the emulator's option has it.
    fn option(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,thread=multi",
        }
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Kvm => "KVM",
            Self::Tcg => "emulated",
        })
    }
}

/// What a guest is given.
pub(super) struct Machine {
    pub(super) memory_mib: u32,
    /// Where what the command writes stays.
    pub(super) writable: Vec<PathBuf>,
    pub(super) time_limit: Option<Duration>,
}

/// Boots a guest, runs the job in it, and returns its status.
pub(super) fn run(job: &Job, machine: Machine) -> Result<u8, Error> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Error::Architecture(std::env::consts::ARCH));
    }
    let missing: Vec<_> =
        [QEMU, "setpriv", "ip", "rdma"].into_iter().filter(|tool| tools::find(tool).is_none()).collect();
    if !missing.is_empty() {
        return Err(Error::Missing { missing: missing.join(", ") });
    }
    let kernel = kernel::get()?;
    let directory = tempfile::Builder::new().prefix("keyway-softroce-").tempdir();
    let directory = directory.map_err(Error::file("cannot make a directory in", std::env::temp_dir()))?;
    let shares = initramfs::shares(machine.writable);
    initramfs::write(&directory.path().join("initramfs"), &kernel, &shares, program())?;

    let mut guest = boot(&kernel, &directory, machine.memory_mib, &shares)?;
    guest.send(job)?;
    guest.run(machine.time_limit)
}

/// A guest that is ready, with hardware support if that works here.
fn boot(kernel: &Kernel, directory: &TempDir, memory_mib: u32, shares: &[Share]) -> Result<Guest, Error> {
    let start = |accelerator, limit| {
        let began = Instant::now();
        let mut guest = Guest::start(command(accelerator, kernel, directory.path(), memory_mib, shares), directory)?;
        guest.until_ready(limit)?;
        eprintln!(
            "softroce: the guest was up in {:.1} s ({}, {accelerator}, 2 processors, {memory_mib} MiB)",
            began.elapsed().as_secs_f64(),
            kernel.package
        );
        Ok(guest)
    };
    if let Some(broken) = Broken::unless_known()? {
        match start(Accelerator::Kvm, BOOT_KVM) {
            Err(error @ (Error::Boot { .. } | Error::Died { .. })) => {
                let why = match error {
                    Error::Boot { limit, .. } => format!("a guest was not ready within {limit:?}"),
                    other => other.to_string(),
                };
                eprintln!("softroce: KVM is there but does not work, so it is left alone until the next boot: {why}");
                broken.note();
            }
            result => return result,
        }
    }
    start(Accelerator::Tcg, BOOT_TCG)
}

/// Whether KVM was tried since this machine started and did not work, so as not to wait for it again.
struct Broken {
    note: PathBuf,
    boot: String,
}

impl Broken {
    /// None if it is known not to work, or is not there to be tried.
    fn unless_known() -> Result<Option<Self>, Error> {
        if File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return Ok(None);
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let note = kernel::cache()?.join("kvm-did-not-work-in-boot");
        let known = fs::read_to_string(&note).is_ok_and(|noted| noted == boot);
        Ok((!known).then_some(Self { note, boot }))
    }

    fn note(&self) {
        // Without it the next run tries once more, which costs nothing but time.
        let _ = fs::write(&self.note, &self.boot);
    }
}

/// The command that starts the emulator. Its standard input is the channel.
fn command(accelerator: Accelerator, kernel: &Kernel, directory: &Path, memory_mib: u32, shares: &[Share]) -> Command {
    // A guest without its runner is of no use to anybody, however the runner came to its end.
    let mut command = tools::command("setpriv");
    command.args(["--pdeathsig", "KILL", QEMU]);
    command.args(["-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-machine", "pc", "-smp", "2"]);
    command.args(["-accel", accelerator.option(), "-cpu", "max", "-m", &memory_mib.to_string()]);
    command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(directory.join("initramfs"));
    command.args(["-append", COMMAND_LINE]);
    let console = escaped(&directory.join("console"));
    command.args(["-chardev", &format!("file,id=console,path={console}"), "-serial", "chardev:console"]);
    command.args(["-device", "virtio-serial-pci", "-chardev", "socket,id=channel,fd=0"]);
    command.args(["-device", &format!("virtserialport,chardev=channel,name={CHANNEL}")]);
    let root = Share { tag: "root".into(), path: "/".into() };
    let all = shares.iter().map(|share| (share, "off")).chain([(&root, "on")]);
    for (Share { tag, path }, readonly) in all {
        let path = escaped(path);
        let local = format!("local,id={tag},path={path},security_model=none,multidevs=remap,readonly={readonly}");
        command.args(["-fsdev", &local, "-device", &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}")]);
    }
    command
}

/// A path inside one of qemu's lists of options, which commas separate.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// What the guest has said, or that it says no more.
enum Event {
    Frame(Frame),
    Closed(Option<std::io::Error>),
}

/// A running guest, which is gone once this is dropped.
struct Guest {
    emulator: Child,
    channel: UnixStream,
    events: Receiver<Event>,
    console: PathBuf,
    messages: PathBuf,
}

impl Guest {
    fn start(mut command: Command, directory: &TempDir) -> Result<Self, Error> {
        let (channel, theirs) = UnixStream::pair()?;
        let messages = directory.path().join("messages");
        let log = File::create(&messages).map_err(Error::file("cannot write", &messages))?;
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(log);
        // An interrupt from the terminal is for the runner alone.
        command.process_group(0);
        let emulator = command.spawn().map_err(|source| Error::Spawn { program: QEMU.into(), source })?;
        // With the command goes our copy of the guest's end, so that the channel ends when the guest does.
        drop(command);
        let (to, events) = sync_channel(FRAMES_MAX);
        let from = BufReader::new(channel.try_clone()?);
        let listen = move || listen(from, &to);
        std::thread::Builder::new().name("frames".into()).spawn(listen)?;
        Ok(Self { emulator, channel, events, console: directory.path().join("console"), messages })
    }

    fn until_ready(&mut self, limit: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + limit;
        match self.next(Some(deadline))? {
            Some(Frame::Ready) => Ok(()),
            Some(Frame::Failed(why)) => Err(Error::Inside(why)),
            Some(other) => Err(Error::Inside(format!("{other:?} where it should have said that it is ready"))),
            None => Err(Error::Boot { limit, console: self.last_words() }),
        }
    }

    fn send(&mut self, job: &Job) -> Result<(), Error> {
        let mut line = serde_json::to_string(job)?;
        line.push('\n');
        Ok(self.channel.write_all(line.as_bytes())?)
    }

    /// Passes on what the command writes until it ends.
    fn run(&mut self, time_limit: Option<Duration>) -> Result<u8, Error> {
        let deadline = time_limit.map(|limit| Instant::now() + limit);
        loop {
            match self.next(deadline)? {
                // Nobody who closed our standard output wants the rest, but the status is wanted all the same.
                Some(Frame::Output(bytes)) => drop(print(&mut std::io::stdout().lock(), &bytes)),
                Some(Frame::Error(bytes)) => drop(print(&mut std::io::stderr().lock(), &bytes)),
                Some(Frame::Exit(status)) => {
                    self.report_warnings();
                    return Ok(status);
                }
                Some(Frame::Failed(why)) => return Err(Error::Inside(why)),
                Some(Frame::Ready) => return Err(Error::Inside("it says twice that it is ready".into())),
                None => return Err(Error::TimeLimit(time_limit.expect("a wait without a deadline has no end"))),
            }
        }
    }

    /// The next frame; none if there is none before the deadline.
    fn next(&mut self, deadline: Option<Instant>) -> Result<Option<Frame>, Error> {
        loop {
            if interrupt::came() {
                return Err(Error::Interrupted);
            }
            match self.events.recv_timeout(LOOK_AGAIN) {
                Ok(Event::Frame(frame)) => return Ok(Some(frame)),
                Ok(Event::Closed(Some(error))) => return Err(error.into()),
                Ok(Event::Closed(None)) | Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Died { console: self.last_words() });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
        }
    }

    /// What the emulator complained of, and the end of the guest's console.
    fn last_words(&self) -> String {
        let read = |file| String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned();
        let said = read(&self.messages) + &read(&self.console);
        let lines: Vec<_> = said.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        match &lines[lines.len().saturating_sub(CONSOLE_LINES)..] {
            [] => "  (nothing)".into(),
            lines => lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n"),
        }
    }

    /// The kernel's complaints are nobody's output, and would be lost with the guest.
    fn report_warnings(&self) {
        let console = String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned();
        if console.contains("WARNING:") || console.contains("BUG:") {
            eprintln!("softroce: the guest's kernel complained; its console ends with:\n{}", self.last_words());
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The guest has nothing that must be put in order: it wrote through to this machine's files.
        let _ = self.channel.shutdown(Shutdown::Both);
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}

/// Reads frames until there are no more.
fn listen(mut from: BufReader<UnixStream>, to: &SyncSender<Event>) {
    loop {
        let event = match Frame::read(&mut from) {
            Ok(Some(frame)) => Event::Frame(frame),
            Ok(None) => Event::Closed(None),
            Err(error) => Event::Closed(Some(error)),
        };
        let over = matches!(event, Event::Closed(_));
        if to.send(event).is_err() || over {
            return;
        }
    }
}

fn print(to: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}
