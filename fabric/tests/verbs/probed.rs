//! The probe finds what the fabric says of the device, and what the contract asks for.

use std::error::Error;
use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use keyway_fabric::Holdings;
use keyway_fabric::conformance::{Backend, Failure};
use keyway_fabric::probe::{self, Answer, FabricDeregistration, ProbeOptions, Strategy};
use keyway_fabric::verbs::VerbsTarget;

pub(crate) fn the_probe_finds_a_device_that_protects_memory(target: &VerbsTarget) -> Result<(), String> {
    expect_protection(target).map_err(|error| error.to_string())
}

fn expect_protection(target: &VerbsTarget) -> Result<(), Box<dyn Error>> {
    let options = ProbeOptions {
        sizes: vec![64 << 10],
        pairs_max: 20,
        trials: 10,
        binds_max: 300,
        trial: Duration::from_millis(20),
        ..ProbeOptions::within(64 << 20)
    };
    let report = probe::run(target, &options, &mut |_| ControlFlow::Continue(()))?;
    report.usable()?;
    let bounds = report.findings.bounds?;
    let enforced = target.fabric()?.capabilities().bounds_enforced;
    ensure(bounds.enforced() == enforced, &bounds, "the fabric says otherwise of the device")?;
    let round = report.findings.key_round?;
    let expected = match report.strategy.strategy {
        Strategy::Windows => (Some(256), Answer::Opened),
        Strategy::Registrations => (None, Answer::Refused),
    };
    ensure((round.round_after, round.answer) == expected, &round, "a key comes round otherwise")?;
    let unbroken = report.findings.make_before_break?;
    ensure(unbroken.trials > 0 && unbroken.died == 0, &unbroken, "make before break breaks READs")?;
    let deregistration = report.findings.deregistration?;
    let lent = FabricDeregistration::Lent { windows: 1 };
    ensure(deregistration.fabric == lent, &deregistration, "lent memory is not kept")?;
    ensure(deregistration.device.is_ok(), &deregistration, "the device was not asked")?;
    let dead = report.findings.dead_endpoint?;
    ensure(dead.after_unbind == Answer::Refused, &dead, "a dead endpoint's window cannot be taken back")?;
    ensure(report.costs.sizes.iter().all(|size| size.paired.is_ok()), &report.costs, "a size was not measured")?;
    ensure(report.left_behind == Holdings::default(), &report.left_behind, "something is left behind")
}

fn ensure(condition: bool, found: &dyn fmt::Debug, otherwise: &str) -> Result<(), Box<dyn Error>> {
    if condition { Ok(()) } else { Err(Failure(format!("{otherwise}: {found:?}")).into()) }
}
