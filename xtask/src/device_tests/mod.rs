//! The tests that run on an RDMA device: which they are, building them, and running all of them in one go.

mod inside;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use self::inside::run_all;
use crate::softroce::{self, Job, Options};
use crate::step::{Failure, cargo, output_shown, program, target, workspace};

/// A test program that makes sense on a device.
struct DeviceTest {
    package: &'static str,
    /// Its file in `tests/`, without `.rs`, or its directory there.
    name: &'static str,
    /// What it is called with.
    arguments: &'static [&'static str],
}

/// All of them, in the order in which they run.
const DEVICE_TESTS: &[DeviceTest] = &[
    // The fabric contract, case by case.
    DeviceTest { package: "keyway-fabric", name: "verbs", arguments: &[] },
    // What a key opens, and for how long.
    bus("stale_keys"),
    bus("out_of_bounds"),
    bus("read_across_rotation"),
    bus("away_for_rotations"),
    // Who dies, vanishes or stops.
    bus("killed_clients"),
    bus("killed_broker"),
    bus("killed_in_turn"),
    bus("lost_peers"),
    bus("stuck_consumer"),
    bus("unreachable_broker"),
    bus("shutdown"),
    // What comes out of what goes in.
    bus("file_transfer"),
    bus("lapped_consumer"),
    bus("four_producers"),
    bus("late_joiner"),
    bus("record_sizes"),
    bus("publish_then_exit"),
    bus("turmoil"),
    // Who asks for too much, or for what is wrong.
    bus("fabrics"),
    bus("exhaustion"),
    bus("hostile_producer"),
    bus("hostile_messages"),
];

/// A test of the whole bus. One at a time, since an emulated machine has no time to give away.
const fn bus(name: &'static str) -> DeviceTest {
    DeviceTest { package: "keyway", name, arguments: &["--test-threads=1"] }
}

/// What every one of them finds in its environment. Tests of the whole bus run on the software fabric without it.
const ENVIRONMENT: &[(&str, &str)] = &[("KEYWAY_FABRIC", "verbs")];

/// Where tests that start the broker and the command as processes find them built, instead of building them.
pub(crate) const BINARIES: &str = "KEYWAY_BINARIES";

/// How they are built: as `cargo xtask test` builds everything, so that nothing is built twice.
const BUILD: &[&str] = &["build", "--workspace", "--features", "verbs", "--bins"];

/// Emulated they take some minutes. Whatever hangs longer is ended with the machine that it runs on.
const TIME_LIMIT: Duration = Duration::from_secs(20 * 60);

/// One program to run, as it is handed to wherever the device is.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
struct Planned {
    /// For the report.
    title: String,
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    directory: PathBuf,
}

/// Why the tests could not be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Build(#[from] Failure),
    #[error("cargo built no test {name} of {package}, though the list of device tests in xtask names it")]
    NotBuilt { package: &'static str, name: &'static str },
    #[error("cannot keep the plan of the device tests in {}: {source}", path.display())]
    Plan { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Run(#[from] softroce::Error),
}

/// Builds the tests and runs them, as a step of `cargo xtask test`.
pub(crate) fn check() -> Result<(), Failure> {
    match run(Options::default()) {
        Ok(0) => Ok(()),
        Ok(status) => Err(Failure::Found(format!("the device tests ended with status {status}"))),
        Err(error) => Err(Failure::Found(error.to_string())),
    }
}

/// Builds the tests and runs them where there is a device. Returns 0 if all passed.
pub(crate) fn run(mut options: Options) -> Result<u8, Error> {
    options.time_limit.get_or_insert(TIME_LIMIT);
    let plan = plan(&build()?)?;
    let path = target().join("device-tests.json");
    let text = serde_json::to_vec_pretty(&plan).map_err(Failure::from)?;
    fs::write(&path, text).map_err(|source| Error::Plan { path: path.clone(), source })?;
    let job = Job::here(program().into(), vec![OsString::from("device-tests"), path.into()])?;
    Ok(softroce::run(&job, options)?)
}

/// A line of cargo's messages, as far as it matters here.
#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

/// The test programs that were built: by manifest and name.
type Built = BTreeMap<(PathBuf, String), PathBuf>;

/// Builds the listed tests and the binaries that some of them start.
fn build() -> Result<Built, Failure> {
    let mut command = cargo();
    command.args(BUILD).args(["--message-format", "json-render-diagnostics"]);
    for test in DEVICE_TESTS {
        command.args(["--test", test.name]);
    }
    built(&output_shown(&mut command)?)
}

/// Finds the test programs in cargo's messages.
fn built(messages: &[u8]) -> Result<Built, Failure> {
    let mut built = Built::new();
    for line in messages.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let message: Message = serde_json::from_slice(line)?;
        let test = |target: &Target| target.kind.iter().any(|kind| kind == "test");
        if let Message { reason, manifest_path: Some(manifest), target: Some(target), executable: Some(executable) } =
            message
            && reason == "compiler-artifact"
            && test(&target)
        {
            built.insert((manifest, target.name), executable);
        }
    }
    Ok(built)
}

/// What is to be run.
fn plan(built: &Built) -> Result<Vec<Planned>, Error> {
    let binaries = binaries().display().to_string();
    let mut environment: Vec<_> =
        ENVIRONMENT.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    environment.push((BINARIES.to_owned(), binaries));
    let planned = |test: &DeviceTest| {
        let DeviceTest { package, name, arguments } = test;
        let directory = directory(package);
        let program = built.get(&(directory.join("Cargo.toml"), (*name).to_owned()));
        Ok(Planned {
            title: format!("{package}, {name}"),
            program: program.ok_or(Error::NotBuilt { package, name })?.clone(),
            arguments: arguments.iter().map(ToString::to_string).collect(),
            environment: environment.clone(),
            directory,
        })
    };
    DEVICE_TESTS.iter().map(planned).collect()
}

/// A package's directory: that of the root package is the workspace's, the others' are named after them.
fn directory(package: &str) -> PathBuf {
    match package.strip_prefix("keyway-") {
        Some(name) => workspace().join(name),
        None => workspace().to_path_buf(),
    }
}

/// Where the binaries lie once [`BUILD`] has built them.
pub(crate) fn binaries() -> PathBuf {
    target().join("debug")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_what_cargo_says() {
        let messages = br#"
{"reason":"compiler-artifact","manifest_path":"/k/fabric/Cargo.toml","target":{"kind":["lib"],"name":"verbs"},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/k/fabric/Cargo.toml","target":{"kind":["test"],"name":"verbs"},"executable":"/t/verbs-1"}
{"reason":"compiler-artifact","manifest_path":"/k/cli/Cargo.toml","target":{"kind":["bin"],"name":"keyway"},"executable":"/t/keyway"}
{"reason":"build-finished","success":true}
"#;
        let built = built(messages).expect("these are cargo's messages");
        let expected = (("/k/fabric/Cargo.toml".into(), "verbs".to_owned()), "/t/verbs-1".into());
        assert_eq!(built.into_iter().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn a_listed_test_that_was_not_built_is_an_error() {
        let error = plan(&Built::new()).expect_err("nothing was built");
        assert!(matches!(error, Error::NotBuilt { .. }), "{error}");
    }

    #[test]
    fn every_listed_test_is_there_and_listed_once() {
        let mut seen = Vec::new();
        for DeviceTest { package, name, .. } in DEVICE_TESTS {
            let tests = directory(package).join("tests");
            let there = [format!("{name}.rs"), format!("{name}/main.rs")].iter().any(|file| tests.join(file).is_file());
            assert!(there, "there is no test {name} in {}", tests.display());
            assert!(!seen.contains(&(package, name)), "{name} of {package} is listed twice");
            seen.push((package, name));
        }
    }
}
