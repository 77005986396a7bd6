//! The benchmark's child processes, as their parent sees them: this same program, told which part to play.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::role::{READY, Received, ScopeName};

/// A broker in a process of its own. It ends when its standard input does.
pub(crate) struct BrokerProcess {
    process: Child,
    /// Its address.
    pub(crate) server: String,
    _directory: tempfile::TempDir,
}

impl BrokerProcess {
    pub(crate) fn start() -> Result<Self, Box<dyn Error>> {
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("keyway.sock");
        let mut process =
            this_program()?.arg("broker").arg(&socket).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        expect_ready(&mut process)?;
        Ok(Self { process, server: format!("keyway+unix://{}", socket.display()), _directory: directory })
    }

    pub(crate) fn stop(mut self) -> Result<(), Box<dyn Error>> {
        drop(self.process.stdin.take());
        succeeded(self.process.wait()?, "broker")
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        // Only an error left it running; then nothing depends on how it ends.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// So many records of such a size, to one consumer.
pub(crate) struct Run {
    pub(crate) scope: ScopeName,
    pub(crate) size: usize,
    pub(crate) records: u64,
    pub(crate) epoch: Duration,
}

impl Run {
    /// Starts a consumer, then, once it has subscribed, a producer, and waits for both.
    pub(crate) fn carry_out(&self, broker: &BrokerProcess) -> Result<Received, Box<dyn Error>> {
        let records = self.records.to_string();
        let mut consumer = this_program()?
            .args(["consumer", &broker.server, &self.scope.to_string(), &self.epoch.as_micros().to_string(), &records])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = expect_ready(&mut consumer)?;
        let producer = this_program()?.args(["producer", &broker.server, &self.size.to_string(), &records]).status()?;
        succeeded(producer, "producer")?;
        let mut line = String::new();
        output.read_line(&mut line)?;
        succeeded(consumer.wait()?, "consumer")?;
        Ok(serde_json::from_str(&line)?)
    }
}

fn this_program() -> Result<Command, std::io::Error> {
    std::env::current_exe().map(Command::new)
}

/// Waits until a child says that it is ready.
fn expect_ready(child: &mut Child) -> Result<BufReader<ChildStdout>, Box<dyn Error>> {
    let mut output = BufReader::new(child.stdout.take().ok_or("the child's output is not piped")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    if line.trim_end() == READY { Ok(output) } else { Err("a child process ended before it was ready".into()) }
}

fn succeeded(status: std::process::ExitStatus, who: &str) -> Result<(), Box<dyn Error>> {
    if status.success() { Ok(()) } else { Err(format!("the {who} ended with {status}").into()) }
}
