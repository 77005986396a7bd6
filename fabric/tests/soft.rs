//! The software fabric keeps the whole contract over each of its streams.

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use keyway_fabric::conformance::{Backend, CASES, Case, Deviation, Failure, Verdict, run_all};
use keyway_fabric::soft::{Pipe, SoftConfig, SoftFabric};
use keyway_fabric::{Fabric, Stream, conformance_cases};

/// The software fabric over one kind of stream.
struct Soft(fn() -> Result<(Stream, Stream), Failure>);

impl Backend for Soft {
    fn name(&self) -> String {
        "soft".into()
    }

    fn fabric(&self) -> Result<Box<dyn Fabric>, Failure> {
        Ok(Box::new(SoftFabric::new(SoftConfig::default())?))
    }

    fn streams(&self) -> Result<(Stream, Stream), Failure> {
        (self.0)()
    }
}

fn pipes() -> Result<(Stream, Stream), Failure> {
    let (left, right) = Pipe::pair()?;
    Ok((Stream::Memory(left), Stream::Memory(right)))
}

fn unix_sockets() -> Result<(Stream, Stream), Failure> {
    let (left, right) = UnixStream::pair()?;
    Ok((Stream::Unix(left), Stream::Unix(right)))
}

fn tcp_connections() -> Result<(Stream, Stream), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let left = TcpStream::connect(listener.local_addr()?)?;
    let (right, _) = listener.accept()?;
    Ok((Stream::Tcp(left), Stream::Tcp(right)))
}

fn check(backend: Soft, name: &str) {
    let case = Case::named(name).expect("the list of tests is the list of cases");
    // The software fabric has no deviation: whatever it did not satisfy would be a bug of ours.
    assert_eq!(case.run(&backend), Verdict::Passed);
}

macro_rules! tests {
    ({ $streams:ident } $($module:ident :: $name:ident)*) => {
        $(
            #[test]
            fn $name() {
                super::check(super::Soft(super::$streams), stringify!($name));
            }
        )*
    };
}

mod over_a_pipe {
    use super::conformance_cases;
    conformance_cases!(tests, pipes);
}

mod over_a_unix_socket {
    use super::conformance_cases;
    conformance_cases!(tests, unix_sockets);
}

mod over_tcp {
    use super::conformance_cases;
    conformance_cases!(tests, tcp_connections);
}

/// A backend that cannot even be made, and knows of two deviations.
struct Broken;

impl Backend for Broken {
    fn name(&self) -> String {
        "broken".into()
    }

    fn fabric(&self) -> Result<Box<dyn Fabric>, Failure> {
        Err(Failure("there is no such device".into()))
    }

    fn streams(&self) -> Result<(Stream, Stream), Failure> {
        pipes()
    }

    fn deviations(&self) -> Vec<Deviation> {
        let known = Deviation { case: "a_read_beyond_a_window_is_refused", reason: "checks the region only".into() };
        vec![known, Deviation { case: "no_such_case", reason: "out of date".into() }]
    }
}

#[test]
fn a_report_tells_failed_from_skipped_and_finds_excuses_for_nothing() {
    let report = run_all(&Broken);
    assert!(!report.passed());
    let text = report.to_string();
    assert!(text.contains("skipped  a read beyond a window is refused: checks the region only"), "{text}");
    assert!(text.contains("FAILED   no such case: no such case, but it is excused: out of date"), "{text}");
    assert!(text.contains("FAILED   a window opens exactly what it was bound to: there is no such device"), "{text}");
    let last = format!("broken: 0 passed, 1 skipped, {} failed", CASES.len());
    assert!(text.ends_with(&last), "{text}");
}
