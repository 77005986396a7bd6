//! Runs seeds, and says how to run the one again that failed.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use keyway_broker::core::Faults;

use crate::oracle::{Failure, Invariant};
use crate::scenario::{Cast, Mix, Scenario};
use crate::trace::KEPT;
use crate::world::{Figures, World};

/// Which seeds to run: the first, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// The first.
    pub first: u64,
    /// How many.
    pub runs: u64,
}

impl Seeds {
    /// `KEYWAY_SIM_SEED` and `KEYWAY_SIM_RUNS` from the environment. A seed alone is one run.
    #[allow(clippy::disallowed_methods, reason = "a failed run says how to repeat it without changing a test")]
    pub fn from_environment(runs: u64) -> Self {
        let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
        let first = number("KEYWAY_SIM_SEED");
        let runs = number("KEYWAY_SIM_RUNS").unwrap_or(if first.is_some() { 1 } else { runs });
        Self { first: first.unwrap_or(0), runs }
    }

    /// The seeds.
    pub fn iter(self) -> impl Iterator<Item = u64> {
        self.first..self.first + self.runs
    }
}

/// A run that failed: everything that is needed to look into it.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// What kind of world.
    pub mix: Mix,
    /// Who was in it.
    pub cast: Cast,
    /// What was broken.
    pub failure: Failure,
    /// In which step.
    pub step: u64,
    /// The last things that happened.
    pub trace: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, mix, cast, failure, step, trace } = self;
        writeln!(f, "{trace}")?;
        writeln!(f, "seed {seed} of {mix:?} with {cast:?} failed in step {step}")?;
        writeln!(f, "{failure}")?;
        write!(f, "again: KEYWAY_SIM_SEED={seed} cargo test -p keyway-sim --test {}", test_name(*mix, *cast))
    }
}

fn test_name(mix: Mix, cast: Cast) -> String {
    let cast = if cast == Cast::Puppets { "puppets" } else { "machines" };
    format!("{cast} -- {}", format!("{mix:?}").to_lowercase())
}

/// `KEYWAY_SIM_TRACE`: how much of a failed run is printed.
#[allow(clippy::disallowed_methods, reason = "a failed run can be looked into without changing a test")]
fn trace_kept() -> usize {
    std::env::var("KEYWAY_SIM_TRACE").ok().and_then(|value| value.parse().ok()).unwrap_or(KEPT)
}

/// Simulates the world of one seed.
///
/// # Errors
///
/// What was broken in it.
pub fn run_seed(seed: u64, mix: Mix, cast: Cast, faults: Faults) -> Result<Figures, Box<Report>> {
    let mut scenario = Scenario::new(seed, mix, cast);
    scenario.faults = faults;
    let mut world = World::new(scenario, trace_kept());
    let failure = match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(Ok(figures)) => return Ok(figures),
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Failure { invariant: Invariant::Machine, text: format!("panicked: {}", text.unwrap_or_default()) }
        }
    };
    let (step, trace) = (world.trace().steps(), world.trace().to_string());
    Err(Box::new(Report { seed, mix, cast, failure, step, trace }))
}
