//! The runner's other half, inside the guest: makes the devices, runs the job that it is sent, and sends back what the job
//! writes and how it ended.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, setrlimit};

use super::error::Error;
use super::frames::{Frame, LEN_MAX};
use super::job::{Job, shell_status};
use super::links::Links;
use crate::tools::Rights;

/// The name of the channel to the runner, as both sides know it.
pub(super) const CHANNEL: &str = "keyway";

/// As much as a broker with thousands of clients needs.
const FILES_MAX: u64 = 65536;

/// The way to the runner, for whoever has something to say.
type Channel = Arc<Mutex<File>>;

/// Does the guest's work. What goes wrong before the runner listens is on the console.
pub(crate) fn serve() -> Result<(), Error> {
    let place = channel()?;
    let open = || File::options().read(true).write(true).open(&place).map_err(Error::file("cannot open", &place));
    let file = open()?;
    let mut from = BufReader::new(file.try_clone()?);
    let to = Arc::new(Mutex::new(file));
    let said = match job(&mut from, &to) {
        Ok(status) => Frame::Exit(status),
        // As a shell has it.
        Err(error @ Error::Spawn { .. }) => {
            send(&to, &Frame::Error(format!("{error}\n").into_bytes()))?;
            Frame::Exit(error.status())
        }
        Err(error) => Frame::Failed(error.to_string()),
    };
    send(&to, &said)?;
    // The runner closes its end once it has everything.
    from.read_to_end(&mut Vec::new())?;
    Ok(())
}

fn job(from: &mut impl BufRead, to: &Channel) -> Result<u8, Error> {
    lift_limits()?;
    let _links = Links::make(Rights::Root)?;
    send(to, &Frame::Ready)?;
    let mut line = String::new();
    from.read_line(&mut line)?;
    run(&serde_json::from_str(&line)?, to)
}

/// Runs the command to its end, passing on all that it writes.
fn run(job: &Job, to: &Channel) -> Result<u8, Error> {
    let mut command = job.command();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = job.spawn(&mut command)?;
    let output = child.stdout.take().expect("standard output is a pipe");
    let error = child.stderr.take().expect("standard error is a pipe");
    let copies = [copy(output, to, Frame::Output)?, copy(error, to, Frame::Error)?];
    let status = child.wait()?;
    // What it left running would hold the pipes open, and nobody waits for it.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    for copy in copies {
        copy.join().expect("copying does not panic")?;
    }
    Ok(shell_status(status))
}

/// A thread that sends what comes out of a pipe until it ends.
fn copy(
    mut from: impl Read + Send + 'static,
    to: &Channel,
    frame: fn(Vec<u8>) -> Frame,
) -> std::io::Result<JoinHandle<std::io::Result<()>>> {
    let to = Arc::clone(to);
    let copy = move || {
        let mut buffer = vec![0; LEN_MAX];
        loop {
            match from.read(&mut buffer)? {
                0 => return Ok(()),
                len => send(&to, &frame(buffer[..len].to_vec()))?,
            }
        }
    };
    std::thread::Builder::new().name("copy".into()).spawn(copy)
}

fn send(to: &Channel, frame: &Frame) -> std::io::Result<()> {
    frame.write(&mut *to.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Registered memory is locked memory, and a bus has many descriptors.
fn lift_limits() -> Result<(), Error> {
    let limits = [
        (Resource::Memlock, Rlimit { current: None, maximum: None }),
        (Resource::Nofile, Rlimit { current: Some(FILES_MAX), maximum: Some(FILES_MAX) }),
    ];
    for (resource, limit) in limits {
        setrlimit(resource, limit).map_err(std::io::Error::from)?;
    }
    Ok(())
}

/// The device of the channel with our name.
fn channel() -> Result<PathBuf, Error> {
    let ports = PathBuf::from("/sys/class/virtio-ports");
    for entry in std::fs::read_dir(&ports).map_err(Error::file("cannot list", &ports))?.flatten() {
        if std::fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim() == CHANNEL) {
            return Ok(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    Err(Error::Inside(format!("there is no channel named {CHANNEL} among those in {}", ports.display())))
}
