//! What every backend must do: the contract of [`Fabric`] as a list of cases that run.
//!
//! The suite is generic over a [`Backend`], so the software fabric and a device are held to the same list, and an operator
//! can run it on the device at hand. A backend whose device is known not to satisfy a case says so in
//! [`deviations`](Backend::deviations), with the reason; that case is then reported as skipped, never as passed.
//!
//! Both sides of every case are driven by one thread, by polling them in turn. Nothing waits for a fixed time; a watchdog
//! ends a case whose awaited event does not come.
//!
//! To add a case, write it in the module of its subject and enter it in
//! [`conformance_cases`](crate::conformance_cases): its name is its claim.

mod bounds;
pub(crate) mod harness;
mod keys;
mod life;
mod messages;
mod order;
mod reads;
mod revocation;

use std::fmt;
use std::io;

use crate::{Fabric, FabricError, Stream, one_line};

/// A backend under test.
pub trait Backend {
    /// Its name, for reports.
    fn name(&self) -> String;

    /// A fabric of its own, as another process would have.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from being made.
    fn fabric(&self) -> Result<Box<dyn Fabric>, Failure>;

    /// The two ends of a byte stream. Only asked of backends whose fabrics [need one](Fabric::needs_stream).
    ///
    /// # Errors
    ///
    /// Whatever keeps it from being made.
    fn streams(&self) -> Result<(Stream, Stream), Failure>;

    /// Whether an endpoint learns by itself that its peer was closed, without any work under way. A device that keeps no
    /// connection but its queues' state does not; there, whoever holds the bootstrap stream closes the endpoint, and so does
    /// this suite.
    fn notices_hang_up(&self) -> bool {
        true
    }

    /// The cases that the device is known not to satisfy.
    fn deviations(&self) -> Vec<Deviation> {
        Vec::new()
    }
}

/// A case that a device is known not to satisfy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deviation {
    /// The case's name.
    pub case: &'static str,
    /// What the device does instead, and how that is known.
    pub reason: String,
}

/// Why a case failed: what was expected and what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<FabricError> for Failure {
    fn from(error: FabricError) -> Self {
        Self(one_line(&error))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// How a case went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    Passed,
    /// The device is known not to satisfy it.
    Skipped {
        /// Why.
        reason: String,
    },
    /// It does not hold.
    Failed(Failure),
}

/// One claim about a backend.
#[derive(Clone, Copy)]
pub struct Case {
    /// The claim.
    pub name: &'static str,
    run: fn(&dyn Backend) -> Result<(), Failure>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Case {
    /// The case of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        CASES.iter().find(|case| case.name == name)
    }

    /// Runs the case, unless it is one of the backend's deviations.
    pub fn run(&self, backend: &dyn Backend) -> Verdict {
        if let Some(deviation) = backend.deviations().into_iter().find(|deviation| deviation.case == self.name) {
            return Verdict::Skipped { reason: deviation.reason };
        }
        match (self.run)(backend) {
            Ok(()) => Verdict::Passed,
            Err(failure) => Verdict::Failed(failure),
        }
    }
}

/// The verdicts on all cases.
#[derive(Clone, Debug)]
pub struct Report {
    /// The backend.
    pub backend: String,
    /// Each case and its verdict, in the list's order.
    pub verdicts: Vec<(&'static str, Verdict)>,
}

impl Report {
    /// Whether no case failed.
    pub fn passed(&self) -> bool {
        !self.verdicts.iter().any(|(_, verdict)| matches!(verdict, Verdict::Failed(_)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |wanted: fn(&Verdict) -> bool| self.verdicts.iter().filter(|(_, verdict)| wanted(verdict)).count();
        for (name, verdict) in &self.verdicts {
            let name = name.replace('_', " ");
            match verdict {
                Verdict::Passed => writeln!(f, "passed   {name}")?,
                Verdict::Skipped { reason } => writeln!(f, "skipped  {name}: {reason}")?,
                Verdict::Failed(failure) => writeln!(f, "FAILED   {name}: {failure}")?,
            }
        }
        write!(
            f,
            "{}: {} passed, {} skipped, {} failed",
            self.backend,
            count(|verdict| *verdict == Verdict::Passed),
            count(|verdict| matches!(verdict, Verdict::Skipped { .. })),
            count(|verdict| matches!(verdict, Verdict::Failed(_))),
        )
    }
}

/// Runs every case.
pub fn run_all(backend: &dyn Backend) -> Report {
    let mut verdicts: Vec<_> = CASES.iter().map(|case| (case.name, case.run(backend))).collect();
    // A deviation that excuses nothing is out of date, and would hide that its case was renamed or lost.
    let unknown = backend.deviations().into_iter().filter(|deviation| Case::named(deviation.case).is_none());
    verdicts.extend(unknown.map(|deviation| {
        (deviation.case, Verdict::Failed(Failure(format!("no such case, but it is excused: {}", deviation.reason))))
    }));
    Report { backend: backend.name(), verdicts }
}

/// Hands the list of cases, as `module::name`, to another macro, after whatever it is given: for tests that want a test of
/// its own for each.
#[macro_export]
macro_rules! conformance_cases {
    ($callback:ident $(, $($given:tt)*)?) => {
        $callback! {
            { $($($given)*)? }
            reads::a_window_opens_exactly_what_it_was_bound_to
            reads::a_word_stored_into_lent_memory_is_read_with_what_was_written_before_it
            reads::reads_of_every_length_bring_the_right_bytes
            reads::many_outstanding_reads_all_land_in_their_places
            reads::a_read_may_land_in_shared_memory
            reads::a_view_of_landed_bytes_outlives_slot_and_fabric
            reads::both_sides_may_read_each_other_at_once
            reads::many_endpoints_may_read_at_once
            reads::a_fabric_may_read_its_own_memory
            bounds::a_read_before_a_window_is_refused
            bounds::a_read_beyond_a_window_is_refused
            bounds::a_read_across_a_windows_start_is_refused
            bounds::a_read_across_a_windows_end_is_refused
            bounds::a_read_outside_the_memory_is_refused
            bounds::a_bind_outside_the_memory_fails_and_restores_the_key
            revocation::the_regions_own_key_opens_nothing
            revocation::a_key_that_was_never_given_out_opens_nothing
            revocation::the_key_of_an_unbound_window_is_refused
            revocation::the_key_before_a_rebind_is_refused
            revocation::the_key_of_a_freed_window_is_refused
            revocation::a_read_overtaken_by_an_unbind_brings_nothing_written_after_it
            revocation::a_dead_endpoints_windows_stay_bound_until_another_unbinds_them
            revocation::a_key_of_another_domain_is_refused
            revocation::the_same_memory_in_two_domains_has_keys_of_its_own
            revocation::a_binding_without_access_opens_nothing
            revocation::an_endpoint_without_remote_read_refuses_every_key
            keys::every_bind_and_every_unbind_uses_up_a_key
            keys::a_key_comes_round_after_256_binds_and_not_before
            keys::a_kept_key_is_refused_for_1000_epochs_if_windows_are_replaced_in_time
            keys::a_posted_key_is_known_at_once_and_opens_once_its_bind_is_done
            keys::a_flushed_bind_restores_the_key
            keys::a_window_is_busy_until_its_bind_is_over
            order::a_message_behind_a_bind_finds_the_key_in_force
            order::a_bind_waits_for_the_endpoints_own_reads
            order::completions_come_in_the_order_of_posting
            order::after_an_error_everything_completes_once_and_down_comes_last
            order::what_is_posted_to_a_failed_endpoint_is_flushed
            order::closing_flushes_and_ends_with_down
            messages::messages_of_every_length_up_to_the_slots_arrive
            messages::messages_take_receives_in_order
            messages::a_message_without_a_receive_ends_both_endpoints
            messages::a_message_longer_than_its_slot_ends_both_endpoints
            messages::a_peer_that_vanishes_takes_its_endpoint_down
            messages::a_sleeper_is_woken_by_what_arrives
            life::lent_memory_is_not_freed_and_says_to_whom_it_is_lent
            life::a_domain_in_use_is_not_freed
            life::ids_of_freed_objects_name_nothing
            life::objects_may_be_freed_and_dropped_in_every_order
            life::memory_freed_while_in_use_lives_until_the_work_ends
            life::misuse_is_refused_when_it_is_posted
        }
    };
}

macro_rules! table {
    ({} $($module:ident :: $name:ident)*) => {
        /// Every case.
        pub const CASES: &[Case] = &[$(Case { name: stringify!($name), run: $module::$name }),*];
    };
}

conformance_cases!(table);
