//! What the costs of a key mean, in words.

use super::report::{Distribution, Report, Strategy};

/// Binds whose medians are this close for every size count as flat: what a machine does meanwhile makes as much difference.
const FLAT_WITHIN: f64 = 1.5;

impl Report {
    /// What a key costs here, and what Keyway does about it.
    pub fn cost_verdict(&self) -> String {
        let measured = self.costs.sizes.iter().filter_map(|size| Some((size.bytes, size.paired.as_ref().ok()?)));
        let measured: Vec<_> = measured.collect();
        let Some((_, largest)) = measured.iter().max_by_key(|(bytes, _)| bytes) else {
            return "Nothing can be said of the costs of a key.".into();
        };
        let medians = measured.iter().map(|(_, paired)| paired.bind.p50.as_secs_f64());
        let (least, most) = medians.fold((f64::INFINITY, 0.0), |(least, most), p50| (p50.min(least), p50.max(most)));
        let bind = if measured.len() < 2 {
            "One size alone does not show whether a bind costs more for a larger range."
        } else if most <= least * FLAT_WITHIN {
            "A bind costs the same whatever the size of what it opens."
        } else {
            "A bind does not cost the same for every size here."
        };
        let ratio = largest.ratio.p50;
        let ratio = format!("A registration of the largest costs as much as {ratio:.1} binds (median).");
        let consequence = match self.strategy.strategy {
            Strategy::Windows => "Keyway registers its pool once, and binds a window for every key.",
            Strategy::Registrations => {
                "Every key costs a registration on this device: choose small segments, or long epochs."
            }
        };
        format!("{bind} {ratio} {consequence}{}", self.window_verdict(&largest.bind))
    }

    fn window_verdict(&self, bind: &Distribution) -> String {
        let Ok(window) = &self.costs.window else { return String::new() };
        let ratio = window.p50.as_secs_f64() / bind.p50.as_secs_f64();
        format!(" A window costs as much as {ratio:.1} binds to allocate and free: Keyway allocates windows ahead.")
    }
}
