//! The verbs fabric keeps the whole contract on the device at hand.
//!
//! Which device that is, `KEYWAY_VERBS_DEVICE` says; without it, the first one that works. The tests are listed at run time, by
//! `libtest-mimic`, so that those that cannot run (there is no device, or it is known not to do what a case asks) are
//! reported as ignored, with the reason, and never as passed.

use std::process::ExitCode;

use keyway_fabric::conformance::{Backend, Case, Deviation, Failure, Verdict};
use keyway_fabric::verbs::{VerbsConfig, VerbsFabric};
use keyway_fabric::{Fabric, Stream, conformance_cases};
use libtest_mimic::{Arguments, Trial};

/// The verbs fabric on one device.
#[derive(Clone)]
struct Verbs {
    config: VerbsConfig,
    deviations: Vec<Deviation>,
}

impl Backend for Verbs {
    fn name(&self) -> String {
        "verbs".into()
    }

    fn fabric(&self) -> Result<Box<dyn Fabric>, Failure> {
        Ok(Box::new(VerbsFabric::open(&self.config)?))
    }

    fn streams(&self) -> Result<(Stream, Stream), Failure> {
        Err(Failure("a device needs no stream".into()))
    }

    fn notices_hang_up(&self) -> bool {
        false
    }

    fn deviations(&self) -> Vec<Deviation> {
        self.deviations.clone()
    }
}

/// The cases that a device without bounds on windows does not satisfy.
const BOUNDS: [&str; 4] = [
    "a_read_before_a_window_is_refused",
    "a_read_beyond_a_window_is_refused",
    "a_read_across_a_windows_start_is_refused",
    "a_read_across_a_windows_end_is_refused",
];

macro_rules! names {
    ({} $($module:ident :: $name:ident)*) => {
        /// Every case, by module and name.
        const NAMES: &[(&str, &str)] = &[$((stringify!($module), stringify!($name))),*];
    };
}

conformance_cases!(names);

#[allow(clippy::disallowed_methods, reason = "a test may ask the environment which device to use")]
fn device() -> Option<String> {
    std::env::var("KEYWAY_VERBS_DEVICE").ok()
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One at a time: a device's queues are few, and what the kernel holds is looked at after each.
    arguments.test_threads = Some(1);
    let config = VerbsConfig { device: device(), ..VerbsConfig::default() };
    let fabric = VerbsFabric::open(&config);
    let missing = fabric.as_ref().err().map(|error| Failure::to_string(&Failure(error.to_string())));
    let mut backend = Verbs { config, deviations: Vec::new() };
    match fabric {
        Ok(fabric) => {
            println!("on {}: {:?}", fabric.name(), fabric.capabilities());
            if !fabric.capabilities().bounds_enforced {
                let reason = "the device checks a READ against the region's bounds, not the window's";
                backend.deviations.extend(BOUNDS.map(|case| Deviation { case, reason: reason.into() }));
            }
        }
        Err(_) => println!("no test can run: {}", missing.as_deref().unwrap_or_default()),
    }
    let trials = NAMES.iter().map(|&(module, name)| case(&backend, missing.as_deref(), module, name)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A case of the suite as a test.
fn case(backend: &Verbs, missing: Option<&str>, module: &str, name: &'static str) -> Trial {
    let title = format!("{module}::{name}");
    let deviation = backend.deviations.iter().find(|deviation| deviation.case == name);
    if let Some(reason) = missing.or(deviation.map(|deviation| deviation.reason.as_str())) {
        return Trial::test(title, || Ok(())).with_ignored_flag(true).with_kind(reason);
    }
    let backend = backend.clone();
    Trial::test(title, move || {
        let case = Case::named(name).ok_or("the list of tests is the list of cases")?;
        match case.run(&backend) {
            Verdict::Passed => Ok(()),
            Verdict::Skipped { reason } => Err(format!("skipped while it ran: {reason}").into()),
            Verdict::Failed(failure) => Err(failure.to_string().into()),
        }
    })
}
