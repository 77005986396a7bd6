//! The verbs fabric keeps the whole contract on the device at hand, in both ways of making keys.
//!
//! Which device that is, `KEYWAY_VERBS_DEVICE` says, and then it must work; without it, the first one that does. The tests are
//! listed at run time, by `libtest-mimic`, so that those that cannot run (there is no device, or it is known not to do what a
//! case asks) are reported as ignored, with the reason, and never as passed. After each test the kernel is asked what it still
//! holds for this process.

mod device;
mod leftovers;
mod probed;
mod stand;

use std::process::ExitCode;

use keyway_fabric::conformance::{Backend, Case, Verdict};
use keyway_fabric::conformance_cases;
use keyway_fabric::probe::{ProbeTarget, Strategy};
use keyway_fabric::verbs::{VerbsConfig, VerbsTarget};
use libtest_mimic::{Arguments, Trial};

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
    // One at a time: a device's queues are few, and the tests are to find what the one before has left behind.
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    let mut usable = false;
    for (title, strategy) in [("windows", Strategy::Windows), ("registrations", Strategy::Registrations)] {
        let config = VerbsConfig { device: device(), strategy: Some(strategy), ..VerbsConfig::default() };
        let target = VerbsTarget::open(config).map_err(|error| error.to_string());
        match &target {
            Ok(target) => println!("{title}, on {}: {:?}", target.name(), target.strategy()),
            Err(missing) => println!("no test with {title} can run: {missing}"),
        }
        usable |= target.is_ok();
        trials.extend(NAMES.iter().map(|(module, name)| case(&target, &format!("{title}::{module}::{name}"), name)));
        trials.extend(device::TESTS.iter().map(|(name, run)| trial(&target, &format!("{title}::device::{name}"), run)));
        let name = format!("{title}::the_probe_finds_a_device_that_protects_memory");
        trials.push(trial(&target, &name, probed::the_probe_finds_a_device_that_protects_memory));
        let (name, run) = device::LEFTOVERS_SEEN;
        let name = format!("{title}::device::{name}");
        trials.push(if leftovers::are_visible() {
            trial(&target, &name, run)
        } else {
            ignored(&name, "what tests leave behind is not looked at: `rdma resource show` does not work here")
        });
    }
    if !usable && let Some(device) = device() {
        // Whoever names a device wants it tested, and not to be told that nothing could be.
        println!("{device} was asked for and cannot be used");
        return ExitCode::FAILURE;
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A case of the suite as a test.
fn case(target: &Result<VerbsTarget, String>, title: &str, name: &'static str) -> Trial {
    let deviations = target.as_ref().map(VerbsTarget::deviations).unwrap_or_default();
    if let Some(deviation) = deviations.iter().find(|deviation| deviation.case == name) {
        return ignored(title, &deviation.reason);
    }
    trial(target, title, move |target| {
        let case = Case::named(name).ok_or("the list of tests is the list of cases")?;
        match case.run(target) {
            Verdict::Passed => Ok(()),
            Verdict::Skipped { reason } => Err(format!("skipped while it ran: {reason}")),
            Verdict::Failed(failure) => Err(failure.to_string()),
        }
    })
}

/// A test on the device, after which nothing may be left.
fn trial(
    target: &Result<VerbsTarget, String>,
    title: &str,
    run: impl FnOnce(&VerbsTarget) -> Result<(), String> + Send + 'static,
) -> Trial {
    match target {
        Ok(target) => {
            let target = target.clone();
            Trial::test(title, move || {
                run(&target)?;
                Ok(leftovers::none()?)
            })
        }
        Err(missing) => ignored(title, missing),
    }
}

fn ignored(title: &str, reason: &str) -> Trial {
    Trial::test(title, || Ok(())).with_ignored_flag(true).with_kind(reason)
}
