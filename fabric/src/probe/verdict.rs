//! What was found, in words, and what Keyway does about it.

use super::report::{
    Answer, Bounds, DeadEndpoint, Deregistration, FabricDeregistration, InFlight, KeyRound, Measured,
    RawDeregistration, Report, StaleKey, Strategy,
};
use crate::Holdings;

/// After how many binds and unbinds of a window Keyway expects its first key to come round, and before which it replaces it.
const KEYS_A_WINDOW: u32 = 256;

/// What a finding means for Keyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// As it should be.
    Good,
    /// Something to know of: Keyway copes with it, or the operator has to.
    Notable,
    /// Keyway cannot protect memory on this device, or cannot run on it at all.
    Unusable,
}

/// A finding in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The finding's stable name, that of its field in [`Findings`](super::Findings).
    pub name: &'static str,
    /// What was tried.
    pub tried: &'static str,
    /// What was seen.
    pub seen: String,
    /// What that means.
    pub grade: Grade,
    /// What Keyway does about it, in a sentence or two.
    pub verdict: String,
}

/// Why Keyway should not be run on a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fabric} is not fit for Keyway: {}", findings.join("; "))]
pub struct Unusable {
    /// The device.
    pub fabric: String,
    /// What was tried and what was seen, of each finding that says so.
    pub findings: Vec<String>,
}

impl Report {
    /// The findings in words, in the order of [`Findings`](super::Findings).
    pub fn lines(&self) -> Vec<Line> {
        let windows = self.strategy.strategy == Strategy::Windows;
        let found = &self.findings;
        vec![
            Line::of("inside", "a READ inside a window", &found.inside, inside),
            Line::of("bounds", "READs around a window, inside its region", &found.bounds, bounds),
            Line::of("outside_region", "READs outside the region", &found.outside_region, outside_region),
            Line::of("region_key", "the region's own key", &found.region_key, region_key),
            Line::of("unknown_key", "keys that were never given", &found.unknown_key, |answer| {
                unknown_key(answer, windows)
            }),
            Line::of("stale_key", "keys that were taken away", &found.stale_key, stale_key),
            Line::of("key_round", "the first key after many binds", &found.key_round, |round| {
                key_round(round, windows)
            }),
            Line::of("rebind_under_read", "READs in flight, only window rebound", &found.rebind_under_read, rebound),
            Line::of("make_before_break", "READs in flight, make before break", &found.make_before_break, unbroken),
            Line::of("deregistration", "deregistration under a live window", &found.deregistration, deregistration),
            Line::of("dead_endpoint", "a window whose endpoint is gone", &found.dead_endpoint, dead_endpoint),
            left_behind(self.left_behind),
        ]
    }

    /// Whether Keyway can run here and protect what it lends.
    ///
    /// # Errors
    ///
    /// A key opens what it must not, or what decides that could not be measured.
    pub fn usable(&self) -> Result<(), Unusable> {
        let lines = self.lines();
        let bad = lines.iter().filter(|line| line.grade == Grade::Unusable);
        let findings: Vec<_> = bad.map(|line| format!("{}: {}", line.tried, line.seen)).collect();
        if findings.is_empty() { Ok(()) } else { Err(Unusable { fabric: self.fabric.clone(), findings }) }
    }
}

/// What was seen, what that means, and what Keyway does about it.
type Judged = (String, Grade, String);

impl Line {
    fn of<T>(
        name: &'static str,
        tried: &'static str,
        measured: &Measured<T>,
        judge: impl FnOnce(&T) -> Judged,
    ) -> Self {
        let (seen, grade, verdict) = match measured {
            Ok(finding) => judge(finding),
            Err(not) => (format!("not measured: {not}"), unmeasured(name), UNMEASURED.to_owned()),
        };
        Self { name, tried, seen, grade, verdict }
    }
}

const UNMEASURED: &str = "Without an answer Keyway cannot be said to do anything about it.";

/// A device is not trusted for want of an answer: what protects memory must have been seen to do so.
fn unmeasured(name: &str) -> Grade {
    match name {
        "inside" | "outside_region" | "region_key" | "unknown_key" | "stale_key" => Grade::Unusable,
        _ => Grade::Notable,
    }
}

fn judged(seen: impl Into<String>, grade: Grade, verdict: impl Into<String>) -> Judged {
    (seen.into(), grade, verdict.into())
}

/// The judgement of a READ that has to be refused.
fn to_be_refused(answer: &Answer, refused: &str, opened: &str) -> Judged {
    match answer {
        Answer::Refused => judged("refused", Grade::Good, refused),
        Answer::Opened => judged("OPENED", Grade::Unusable, opened),
        Answer::Failed(_) => judged(
            answer.to_string(),
            Grade::Notable,
            "No bytes came, but not by a remote access error: a consumer that is refused cannot tell why, and reconnects.",
        ),
    }
}

fn inside(answer: &Answer) -> Judged {
    match answer {
        Answer::Opened => judged("opened", Grade::Good, "A live key opens its range."),
        refused => judged(
            refused.to_string(),
            Grade::Unusable,
            "A live key does not open its range: nothing can be consumed through this device.",
        ),
    }
}

fn bounds(bounds: &Bounds) -> Judged {
    if bounds.enforced() {
        return judged("enforced", Grade::Good, "A key opens its own range and nothing around it.");
    }
    let open = bounds.answers().into_iter().filter(|(_, answer)| *answer == Answer::Opened);
    let open: Vec<_> = open.map(|(what, _)| what).collect();
    judged(
        format!("NOT ENFORCED ({} opened)", open.join(", ")),
        Grade::Notable,
        "While it holds any live key, a consumer can READ the whole pool, other topics included. Keyway's keys still die in \
         time on this device, but what a key opens is up to the consumer. Let a broker here hold only what each of its consumers \
         may see, one broker for each circle of trust, or use a device that enforces bounds.",
    )
}

fn outside_region(answer: &Answer) -> Judged {
    to_be_refused(
        answer,
        "No key opens memory of the broker beyond its pool.",
        "A key opens memory that was never registered: the whole process can be read. Keyway must not be run here.",
    )
}

fn region_key(answer: &Answer) -> Judged {
    to_be_refused(
        answer,
        "The pool is registered with no remote right: only what is bound to a window can be read at all.",
        "Whoever learns or guesses this one key reads the whole pool for as long as the broker runs, and no rotation takes \
         it away. Keyway must not be run here.",
    )
}

fn unknown_key(answer: &Answer, windows: bool) -> Judged {
    let refused = if windows {
        "A key opens nothing before its bind. It can be foretold all the same (a window's next key is its last one + 1), so \
         Keyway hands no window of one session to another."
    } else {
        "A key opens nothing before it is given."
    };
    to_be_refused(answer, refused, "A guess opens the pool. Keyway must not be run here.")
}

fn stale_key(stale: &StaleKey) -> Judged {
    let open = stale.answers().into_iter().filter(|(_, answer)| *answer == Answer::Opened);
    let open: Vec<_> = open.map(|(what, _)| what).collect();
    if !open.is_empty() {
        return judged(
            format!("OPENED {}", open.join(", ")),
            Grade::Unusable,
            "A key cannot be taken back here, so what a consumer was granted once it can read for ever. Keyway must not be run \
             here.",
        );
    }
    let failed = stale.answers().into_iter().find(|(_, answer)| *answer != Answer::Refused);
    match failed {
        Some((what, answer)) => judged(format!("{answer} ({what})"), Grade::Notable, to_be_refused(&answer, "", "").2),
        None => judged(
            "refused after a rebind, an unbind and a free",
            Grade::Good,
            "Once a window was bound anew, unbound or freed, its key is dead. Keyway does that when the consumer has released \
             the key, or when its epoch and grace are over.",
        ),
    }
}

fn key_round(round: &KeyRound, windows: bool) -> Judged {
    let opens = round.answer == Answer::Opened;
    match round.round_after {
        Some(binds) if opens => {
            let defence = "Whoever kept a key that long could READ again. Keyway counts the binds and unbinds of a window, \
                           frees it before its first key comes round, and grants no key that is in quarantine.";
            let early = if binds < KEYS_A_WINDOW {
                format!(" Keyway counts on {KEYS_A_WINDOW} here: on this device the quarantine alone is left.")
            } else {
                String::new()
            };
            judged(
                format!("the same key after {binds} binds, and it opens"),
                Grade::Notable,
                defence.to_owned() + &early,
            )
        }
        Some(binds) => judged(
            format!("the same key after {binds} binds: {}", round.answer),
            Grade::Notable,
            "A key that was just bound opens nothing: grants of that key will fail, and its consumer will reconnect.",
        ),
        None if opens => judged(
            format!("another key, and it OPENS after {} binds", round.tried),
            Grade::Unusable,
            "A key that is not current opens the memory: it cannot be taken back. Keyway must not be run here.",
        ),
        None if windows => judged(
            format!("no key twice within {} binds", round.tried),
            Grade::Good,
            "Keyway counts binds, replaces windows before the 256th, and keeps dead keys in quarantine all the same.",
        ),
        None => judged(
            format!("no key twice within {} registrations", round.tried),
            Grade::Good,
            "Every grant registers its range and gets the key that the device chooses. A key that is in quarantine is not granted.",
        ),
    }
}

fn rebound(seen: &InFlight) -> Judged {
    let InFlight { trials, died } = seen;
    let verdict = if *died > 0 {
        "A dying key takes the READs in flight and their endpoints with it. So Keyway never binds a window anew under a reader: \
         a spare window takes over first. Only a consumer that holds on to a key beyond its grace is cut off like this."
    } else {
        "The device lets READs in flight end. Keyway does not count on it: a spare window takes over first."
    };
    judged(format!("died {died} times out of {trials}"), Grade::Good, verdict)
}

fn unbroken(seen: &InFlight) -> Judged {
    let InFlight { trials, died } = seen;
    if *died == 0 {
        return judged(
            format!("none died in {trials} changes"),
            Grade::Good,
            "This is how Keyway changes keys: bind a spare, READ on under its key, let the old READs end, unbind. A consumer that \
             keeps the protocol never sees an error.",
        );
    }
    judged(
        format!("DIED {died} times out of {trials}"),
        Grade::Notable,
        "Keyway changes keys like this, so consumers will lose their sessions now and then and reconnect, without losing \
         records. Choose long epochs, and look for what is wrong with the device or the network.",
    )
}

fn deregistration(seen: &Deregistration) -> Judged {
    let device = match &seen.device {
        Ok(RawDeregistration::Refused { errno }) => {
            format!("the device refuses: {}", std::io::Error::from_raw_os_error(*errno))
        }
        Ok(RawDeregistration::Done) => "the device DOES IT".to_owned(),
        Err(not) => format!("the device was not asked: {not}"),
    };
    match &seen.fabric {
        FabricDeregistration::Lent { windows } => judged(
            format!("the fabric refuses and names {windows} window; {device}"),
            if seen.device == Ok(RawDeregistration::Done) { Grade::Notable } else { Grade::Good },
            "Keyway never leaves it to the device: the fabric counts the windows over every region, and deregisters it when the \
             last one is gone.",
        ),
        FabricDeregistration::Failed { error } => judged(
            format!("the fabric fails: {error}; {device}"),
            Grade::Notable,
            "The memory is kept, but the fabric should have named the windows over it.",
        ),
        FabricDeregistration::Done => judged(
            format!("the fabric FREES the memory; {device}"),
            Grade::Unusable,
            "Memory that a live key covers would be freed. Keyway must not be run here.",
        ),
    }
}

fn dead_endpoint(seen: &DeadEndpoint) -> Judged {
    let DeadEndpoint { through_another, after_unbind } = seen;
    match (through_another, after_unbind) {
        (_, Answer::Opened) => judged(
            "its key OPENS after an unbind through another endpoint",
            Grade::Unusable,
            "The windows of a session that is gone could not be taken back. Keyway must not be run here.",
        ),
        (Answer::Opened, _) => judged(
            "stays bound until another endpoint unbinds it",
            Grade::Good,
            "The end of a session kills no key by itself. Keyway frees every window of a session with it.",
        ),
        (_, _) => judged(
            "its key died with the endpoint",
            Grade::Good,
            "Keyway does not count on it: it frees every window of a session with it.",
        ),
    }
}

fn left_behind(held: Holdings) -> Line {
    let clean = held == Holdings::default();
    let (seen, grade, verdict) = if clean {
        judged("nothing", Grade::Good, "Everything that the probe made was freed, each thing by itself.")
    } else {
        judged(
            format!("{held:?}"),
            Grade::Notable,
            "The fabric still held this after everything had been freed: a bug of it.",
        )
    };
    Line { name: "left_behind", tried: "what is left behind", seen, grade, verdict }
}
