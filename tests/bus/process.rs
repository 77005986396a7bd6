//! The real binaries as processes: built once, started on free ports, killed on drop.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use tempfile::TempDir;

use super::until;

/// The status that a program ends with when it was called wrongly.
pub(crate) const USAGE: i32 = 2;

/// The status that a program ends with when it was called rightly and failed.
pub(crate) const FAILURE: i32 = 1;

/// A path as an argument.
pub(crate) fn display(path: &Path) -> &str {
    path.to_str().expect("a temporary directory's path is text")
}

/// Processes that a hanging test has to take with it.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Kills every process that this test program has started.
pub(crate) fn kill_all() {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    for id in running.iter() {
        // There is nobody to tell if it fails: the program is about to abort.
        let _ = Command::new("kill").args(["-KILL", &id.to_string()]).status();
    }
}

/// The binaries of this workspace.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Binary {
    Broker,
    Cli,
}

impl Binary {
    fn path(self) -> &'static Path {
        static BUILT: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
        let (broker, cli) = BUILT.get_or_init(build);
        match self {
            Self::Broker => broker,
            Self::Cli => cli,
        }
    }
}

/// Where both binaries lie, if they were built beforehand; on a device there may be no compiler at hand.
const BINARIES: &str = "KEYWAY_BINARIES";

/// Builds both binaries in the profile and with the features of this test, unless that was done beforehand. Nothing is
/// done if they are up to date.
fn build() -> (PathBuf, PathBuf) {
    let both = |directory: &Path| (directory.join("keyway-broker"), directory.join("keyway"));
    if let Some(directory) = std::env::var_os(BINARIES) {
        return both(Path::new(&directory));
    }
    let program = std::env::current_exe().expect("a test knows its own program");
    // target/PROFILE/deps/PROGRAM
    let directory = program.ancestors().nth(2).expect("a test program lies in its profile's directory");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "keyway-broker", "--package", "keyway-cli", "--bins"]);
    if directory.ends_with("release") {
        cargo.arg("--release");
    }
    if cfg!(feature = "verbs") {
        cargo.args(["--features", "verbs"]);
    }
    let target = directory.parent().expect("a profile's directory lies in the target directory");
    cargo.arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
    let status = cargo.status().expect("cargo can be run");
    assert!(status.success(), "the binaries cannot be built");
    both(directory)
}

/// The arguments of a command line without quotes.
pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// What a process has written so far, and the thread that collects it.
struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    fn start(mut from: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&bytes);
        let collect = move || {
            let mut buffer = [0; 64 * 1024];
            while let Ok(len @ 1..) = from.read(&mut buffer) {
                collected.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..len]);
            }
        };
        let thread =
            std::thread::Builder::new().name("capture".into()).spawn(collect).expect("a thread can be started");
        Self { bytes, thread: Some(thread) }
    }

    fn so_far(&self) -> Vec<u8> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn end(&mut self) -> Vec<u8> {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("collecting does not panic");
        }
        std::mem::take(&mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A process that was started by a test.
pub(crate) struct Process {
    child: Child,
    command: String,
    stdout: Capture,
    stderr: Capture,
    over: Option<ExitStatus>,
}

/// What has become of a process.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) command: String,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ended {
    /// Its output, provided that it ended well.
    #[track_caller]
    pub(crate) fn success(self) -> Vec<u8> {
        assert!(self.status.success(), "{} ended with {}: {}", self.command, self.status, self.stderr);
        self.stdout
    }

    /// What it said on standard error, provided that it ended with this status and said it in one line.
    #[track_caller]
    pub(crate) fn one_line(self, status: i32) -> String {
        assert_eq!(self.status.code(), Some(status), "{} ended with {}: {}", self.command, self.status, self.stderr);
        let line = self.stderr.trim_end();
        assert!(!line.is_empty() && !line.contains('\n'), "{} says more or less than one line: {line:?}", self.command);
        line.to_owned()
    }
}

impl Process {
    /// Starts a binary with these arguments and nothing on its standard input.
    pub(crate) fn start(binary: Binary, arguments: &[&str]) -> Self {
        Self::start_with_input(binary, arguments, Vec::new())
    }

    /// Starts a binary with this on its standard input.
    pub(crate) fn start_with_input(binary: Binary, arguments: &[&str], input: Vec<u8>) -> Self {
        let mut command = Command::new(binary.path());
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // What a developer has set for their own use must not reach a test.
        command.env_remove("KEYWAY_SERVER").env_remove("KEYWAY_LOG");
        let mut child = command.spawn().expect("a binary that was built can be started");
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).push(child.id());
        let mut stdin = child.stdin.take().expect("standard input is a pipe");
        let stdout = Capture::start(child.stdout.take().expect("standard output is a pipe"));
        let stderr = Capture::start(child.stderr.take().expect("standard error is a pipe"));
        if !input.is_empty() {
            // A pipe holds less than a test may write. The process may end before it has read everything.
            let write = move || drop(stdin.write_all(&input));
            std::thread::Builder::new().name("input".into()).spawn(write).expect("a thread can be started");
        }
        let command = format!("{binary:?} {}", arguments.join(" "));
        Self { child, command, stdout, stderr, over: None }
    }

    /// Runs a binary to its end.
    pub(crate) fn run(binary: Binary, arguments: &[&str]) -> Ended {
        Self::start(binary, arguments).wait()
    }

    /// Runs a binary to its end with this on its standard input.
    pub(crate) fn run_with_input(binary: Binary, arguments: &[&str], input: Vec<u8>) -> Ended {
        Self::start_with_input(binary, arguments, input).wait()
    }

    /// Its number in the system.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Ended {
        let what = format!("the end of {}", self.command);
        let status = until(&what, || self.poll());
        let stderr = String::from_utf8_lossy(&self.stderr.end()).into_owned();
        Ended { command: self.command.clone(), status, stdout: self.stdout.end(), stderr }
    }

    /// How it ended, if it has.
    pub(crate) fn poll(&mut self) -> Option<ExitStatus> {
        if self.over.is_none() {
            self.over = self.child.try_wait().expect("a child can be waited for");
        }
        self.over
    }

    /// What it has written to standard output so far.
    pub(crate) fn stdout(&self) -> Vec<u8> {
        self.stdout.so_far()
    }

    /// What it has written to standard error so far.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.so_far()).into_owned()
    }

    /// Sends it a signal, such as `TERM`.
    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([&format!("-{signal}"), &self.child.id().to_string()]).status();
        assert!(status.expect("kill can be run").success(), "{} is not there to be signalled", self.command);
    }

    /// Kills it with -9 and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        if self.poll().is_none() {
            self.child.kill().expect("a child can be killed");
            let status = self.child.wait().expect("a child can be waited for");
            assert!(status.signal() == Some(9) || status.code().is_some(), "{} ended with {status}", self.command);
            self.over = Some(status);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.over.is_none() {
            // It may have ended meanwhile, which is as good.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let id = self.child.id();
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).retain(|running| *running != id);
        if std::thread::panicking() {
            eprintln!("{} had said: {}", self.command, self.stderr());
        }
    }
}

/// A broker as a process of its own, on a port and on a socket that nobody else has.
pub(crate) struct BrokerProcess {
    process: Process,
    arguments: String,
    directory: TempDir,
    address: SocketAddr,
}

impl BrokerProcess {
    /// Starts a broker with these arguments besides its addresses, and waits until it is ready.
    pub(crate) fn start(arguments: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let arguments = arguments.to_owned();
        let (process, address) = start_broker("127.0.0.1:0", &directory, &arguments);
        Self { process, arguments, directory, address }
    }

    /// Kills it with -9.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again at the same addresses, after it has ended.
    pub(crate) fn restart(&mut self) {
        assert!(self.process.poll().is_some(), "a broker is started again only after its end");
        let (process, address) = start_broker(&self.address.to_string(), &self.directory, &self.arguments);
        assert_eq!(address, self.address);
        self.process = process;
    }

    /// Its process.
    pub(crate) fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Waits for its end.
    pub(crate) fn wait(self) -> Ended {
        self.process.wait()
    }

    /// Its address over TCP.
    pub(crate) fn tcp(&self) -> String {
        format!("keyway://{}", self.address)
    }

    /// Its address over the Unix socket.
    pub(crate) fn unix(&self) -> String {
        format!("keyway+unix://{}", socket(&self.directory).display())
    }

    /// Its port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A directory that is removed with it, for a test's files.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

fn socket(directory: &TempDir) -> PathBuf {
    directory.path().join("broker.sock")
}

fn start_broker(listen: &str, directory: &TempDir, arguments: &str) -> (Process, SocketAddr) {
    let unix = socket(directory).display().to_string();
    let mut all = vec!["--listen", listen, "--unix", &unix];
    all.extend(words(arguments));
    let mut process = Process::start(Binary::Broker, &all);
    let address = until("the broker's ready line", || {
        if let Some(status) = process.poll() {
            panic!("the broker ended with {status}: {}", process.stderr());
        }
        ready_address(&process.stdout())
    });
    (process, address)
}

/// The TCP address of the line `keyway-broker ready on 127.0.0.1:4480 and unix:/run/keyway.sock`.
fn ready_address(stdout: &[u8]) -> Option<SocketAddr> {
    let line = std::str::from_utf8(stdout).ok()?.strip_suffix('\n')?;
    let places = line.strip_prefix("keyway-broker ready on ").expect("a broker says first that it is ready");
    let (address, _) = places.split_once(" and ").expect("it listens on a port and on a socket");
    Some(address.parse().expect("it names its port"))
}
