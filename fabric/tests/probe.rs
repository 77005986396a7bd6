//! The probe tells a device that protects memory from one that does not.

#![allow(clippy::unwrap_used, reason = "a test whose set-up fails has failed")]

mod faulty;

use std::ops::ControlFlow;
use std::time::Duration;

use keyway_fabric::conformance::{Backend, Failure};
use keyway_fabric::probe::{
    self, Answer, DeviceReport, FabricDeregistration, Grade, Measured, NotMeasured, ProbeError, ProbeOptions,
    ProbeTarget, RawDeregistration, Report, SoftTarget, StrategyReport,
};
use keyway_fabric::{Fabric, FabricChoice, FabricOptions, Holdings, Stream};

use faulty::{Fault, Faulty, Shared};

/// As thorough as a test needs it.
fn options() -> ProbeOptions {
    ProbeOptions {
        sizes: vec![64 << 10, 1 << 20, 1 << 30],
        memory_max: 1 << 20,
        pairs_max: 20,
        budget: Duration::from_secs(10),
        trials: 10,
        binds_max: 300,
        trial: Duration::from_millis(1),
    }
}

fn probe(target: &dyn ProbeTarget) -> Report {
    probe::run(target, &options(), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// The software fabric with a fault.
struct FaultyTarget(Fault, Shared);

impl FaultyTarget {
    fn with(fault: Fault) -> Self {
        Self(fault, Shared::default())
    }
}

impl Backend for FaultyTarget {
    fn name(&self) -> String {
        "faulty".into()
    }

    fn fabric(&self) -> Result<Box<dyn Fabric>, Failure> {
        Ok(Box::new(Faulty::new(SoftTarget::default().fabric()?, self.0, self.1.clone())))
    }

    fn streams(&self) -> Result<(Stream, Stream), Failure> {
        SoftTarget::default().streams()
    }
}

impl ProbeTarget for FaultyTarget {
    fn device(&self) -> Result<DeviceReport, Failure> {
        SoftTarget::default().device()
    }

    fn strategy(&self) -> Result<StrategyReport, Failure> {
        SoftTarget::default().strategy()
    }

    fn deregister_under_window(&self) -> Measured<RawDeregistration> {
        Ok(RawDeregistration::Refused { errno: 22 })
    }
}

#[test]
fn the_software_fabric_keeps_every_promise() {
    let report = probe(&SoftTarget::default());
    assert_eq!(report.usable(), Ok(()));
    let found = &report.findings;
    assert_eq!(found.inside, Ok(Answer::Opened));
    assert!(found.bounds.as_ref().is_ok_and(|bounds| bounds.enforced()), "{:?}", found.bounds);
    for refused in [&found.outside_region, &found.region_key, &found.unknown_key] {
        assert_eq!(*refused, Ok(Answer::Refused));
    }
    let stale = found.stale_key.as_ref().unwrap();
    assert!(stale.answers().iter().all(|(_, answer)| *answer == Answer::Refused), "{stale:?}");
    let round = found.key_round.as_ref().unwrap();
    assert_eq!((round.round_after, round.answer), (Some(256), Answer::Opened));
    let rebound = found.rebind_under_read.as_ref().unwrap();
    assert!(rebound.trials == 10 && rebound.died > 0, "{rebound:?}");
    let unbroken = found.make_before_break.as_ref().unwrap();
    assert_eq!((unbroken.trials, unbroken.died), (10, 0));
    assert_eq!(found.deregistration.as_ref().unwrap().fabric, FabricDeregistration::Lent { windows: 1 });
    let dead = found.dead_endpoint.as_ref().unwrap();
    assert_eq!((dead.through_another, dead.after_unbind), (Answer::Opened, Answer::Refused));
    assert_eq!(report.left_behind, Holdings::default());
}

#[test]
fn costs_and_reads_are_measured_as_far_as_memory_allows() {
    let report = probe(&SoftTarget::default());
    let [small, fits, large] = &report.costs.sizes[..] else { panic!("{:?}", report.costs.sizes) };
    for size in [small, fits] {
        let paired = size.paired.as_ref().unwrap();
        assert_eq!((paired.bind.count, paired.registration.count), (20, 20));
        assert!(paired.bind.p50 <= paired.bind.p99 && paired.bind.p99 <= paired.bind.max, "{paired:?}");
        assert!(paired.ratio.p50 > 0.0 && paired.ratio.p50 <= paired.ratio.max, "{paired:?}");
    }
    let NotMeasured { reason } = large.paired.as_ref().unwrap_err();
    assert!(reason.contains("1073741824") && reason.contains("1048576"), "{reason}");
    assert_eq!(report.costs.window.as_ref().unwrap().count, 20);
    assert!(report.reads.latency.as_ref().unwrap().count > 0);
    for bandwidth in &report.reads.bandwidth {
        let trial = bandwidth.trial.as_ref().unwrap();
        assert!(trial.reads >= u64::from(trial.outstanding), "{trial:?}");
        assert!(trial.megabytes_per_second(bandwidth.bytes) > 0.0, "{trial:?}");
    }
}

#[test]
fn a_device_whose_region_key_opens_memory_is_unusable() {
    let report = probe(&FaultyTarget::with(Fault::RegionKeyOpens));
    assert_eq!(report.findings.region_key, Ok(Answer::Opened));
    let said = report.usable().unwrap_err().to_string();
    assert!(said.contains("the region's own key: OPENED") && !said.contains('\n'), "{said}");
}

#[test]
fn a_device_on_which_revoked_keys_live_on_is_unusable() {
    let report = probe(&FaultyTarget::with(Fault::StaleKeysOpen));
    let stale = report.findings.stale_key.as_ref().unwrap();
    assert_eq!(
        (stale.after_rebind, stale.after_unbind, stale.after_free),
        (Answer::Opened, Answer::Refused, Answer::Refused)
    );
    let said = report.usable().unwrap_err().to_string();
    assert!(said.contains("keys that were taken away: OPENED after a rebind"), "{said}");
}

#[test]
fn a_device_that_does_not_enforce_bounds_is_usable_and_the_operator_is_told() {
    let report = probe(&FaultyTarget::with(Fault::BoundsIgnored));
    assert_eq!(report.usable(), Ok(()));
    let bounds = report.findings.bounds.as_ref().unwrap();
    assert!(bounds.answers().iter().all(|(_, answer)| *answer == Answer::Opened), "{bounds:?}");
    assert_eq!(report.findings.outside_region, Ok(Answer::Refused));
    let lines = report.lines();
    let line = lines.iter().find(|line| line.name == "bounds").unwrap();
    assert_eq!(line.grade, Grade::Notable);
    assert!(line.seen.contains("NOT ENFORCED") && line.verdict.contains("whole pool"), "{line:?}");
}

#[test]
fn a_device_without_working_reads_is_unusable_since_nothing_can_be_said_of_it() {
    let report = probe(&FaultyTarget::with(Fault::KeysNeverOpen));
    assert_eq!(report.findings.inside, Ok(Answer::Refused));
    assert!(report.findings.rebind_under_read.is_err(), "{:?}", report.findings.rebind_under_read);
    assert!(report.reads.latency.is_err());
    let said = report.usable().unwrap_err().to_string();
    assert!(said.contains("a READ inside a window: refused"), "{said}");
    assert_eq!(report.left_behind, Holdings::default());
}

#[test]
fn a_device_that_leaves_something_behind_is_told_of() {
    let report = probe(&FaultyTarget::with(Fault::WindowsLeak));
    assert!(report.left_behind.windows > 0, "{:?}", report.left_behind);
    assert!(report.lines().iter().any(|line| line.name == "left_behind" && line.grade == Grade::Notable));
}

#[test]
fn a_device_that_cannot_be_opened_is_named() {
    let error = probe::run(&FaultyTarget::with(Fault::Unconnected), &options(), &mut |_| ControlFlow::Continue(()));
    let said = error.unwrap_err().to_string();
    assert!(said.contains("cannot open faulty") && said.contains("no endpoints left"), "{said}");
}

#[test]
fn whoever_watches_is_told_of_every_step_and_may_end_the_probe() {
    let mut steps = Vec::new();
    probe::run(&SoftTarget::default(), &options(), &mut |step| {
        steps.push(step);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(
        steps.iter().enumerate().all(|(number, step)| step.number == number && step.of == steps.len()),
        "{steps:?}"
    );
    let stopped = probe::run(&SoftTarget::default(), &options(), &mut |step| match step.number {
        3 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(stopped, Err(ProbeError::Stopped { .. })));
}

#[test]
fn a_target_is_opened_by_the_fabrics_name() {
    let opened = probe::open(&FabricOptions::new(FabricChoice::Soft)).unwrap();
    assert_eq!((opened.target.name().as_str(), opened.fallback), ("soft", None));
    let missing = FabricChoice::Verbs { device: Some("no_such_device".into()) };
    assert!(probe::open(&FabricOptions::new(missing)).is_err());
}
