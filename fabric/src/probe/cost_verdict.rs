//! What the costs of a key mean, in words.

use std::time::Duration;

use super::report::{PairedCosts, Report, Strategy};

impl Report {
    /// What a key costs here, and what Keyway does about it.
    pub fn cost_verdict(&self) -> String {
        let measured = self.costs.sizes.iter().filter_map(|size| Some((size.bytes, *size.paired.as_ref().ok()?)));
        let measured: Vec<_> = measured.collect();
        let Some((_, largest)) = measured.iter().max_by_key(|(bytes, _)| bytes) else {
            return "Nothing can be said of the costs of a key.".into();
        };
        let binds = spread(&measured, |paired| paired.bind.p50);
        let registrations = spread(&measured, |paired| paired.registration.p50);
        let consequence = match (self.strategy.strategy, &self.costs.window) {
            (Strategy::Windows, Ok(window)) => format!(
                "Keyway registers its pool once, and binds a window for every key. A window takes {:.1?} to allocate and free, so \
                 Keyway allocates windows ahead.",
                window.p50
            ),
            (Strategy::Windows, Err(_)) => "Keyway registers its pool once, and binds a window for every key.".into(),
            (Strategy::Registrations, _) => {
                "A bind is a registration here, so a key is as dear as its range is large: choose small segments, or long \
                 epochs."
                    .into()
            }
        };
        format!(
            "Over all sizes, the median bind took {binds}, and the median registration {registrations}. A \
             registration of the largest was worth {:.1} binds (median of the pairs). {consequence}",
            largest.ratio.p50
        )
    }
}

/// The least and the most of all sizes.
fn spread(measured: &[(u64, PairedCosts)], of: impl Fn(&PairedCosts) -> Duration) -> String {
    let medians = || measured.iter().map(|(_, paired)| of(paired));
    let (least, most) = (medians().min().unwrap_or_default(), medians().max().unwrap_or_default());
    format!("{least:.1?} to {most:.1?}")
}
