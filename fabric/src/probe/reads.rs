//! What a READ costs: a short trial, from one thread that drives both sides.

use super::report::{Bandwidth, Distribution};
use super::stand::{Patience, Stand};
use super::{LATENCY_BYTES, ProbeOptions, recorder::Recorder};
use crate::conformance::Failure;
use crate::conformance::harness::{DEPTH, POOL};
use crate::{Event, LocalId, LocalSpan, Op, RemoteSpan, Target, Work};

/// The most bytes that are outstanding at once: enough that a READ is always on its way, and little enough to stay cached.
const OUTSTANDING_BYTES: u32 = 4 << 20;

/// The most READs that are outstanding at once: as many as real devices serve to one peer.
const OUTSTANDING_MAX: u32 = 16;

/// The most READs of the latency trial: enough for a 99th percentile.
const LATENCIES_MAX: u32 = 5_000;

/// The most events taken in at once.
const EVENTS: usize = 64;

/// READs a few bytes, one READ after the other.
pub(super) fn latency(stand: &mut Stand<'_>, options: &ProbeOptions) -> Result<Distribution, Failure> {
    let window = stand.window()?;
    let key = stand.pair.bind(window, 0, POOL)?;
    let mut recorder = Recorder::new();
    let start = stand.clock.time();
    for number in 0..LATENCIES_MAX {
        let from = stand.pair.remote(key, u64::from(number % 64) * u64::from(LATENCY_BYTES), LATENCY_BYTES);
        recorder.record(stand.time_read(from)?);
        if stand.clock.time().since(start) >= options.budget {
            break;
        }
    }
    Ok(recorder.finish())
}

/// Keeps READs of `bytes` bytes outstanding for as long as the trial lasts.
pub(super) fn bandwidth(stand: &mut Stand<'_>, options: &ProbeOptions, bytes: u32) -> Result<Bandwidth, Failure> {
    let window = stand.window()?;
    let key = stand.pair.bind(window, 0, POOL)?;
    let from = stand.pair.remote(key, 0, bytes);
    let outstanding = (OUTSTANDING_BYTES / bytes).clamp(1, OUTSTANDING_MAX.min(DEPTH));
    let reader = &mut stand.pair.reader;
    let landing = reader.fabric.local(reader.domain, outstanding, bytes)?;
    let trial = keep_reading(stand, options, Stream { from, landing, outstanding });
    stand.pair.reader.fabric.free_local(landing)?;
    trial
}

/// READs of the same bytes, each into a slot of its own.
#[derive(Clone, Copy)]
struct Stream {
    from: RemoteSpan,
    landing: LocalId,
    outstanding: u32,
}

impl Stream {
    fn post(self, stand: &mut Stand<'_>, slot: u32) -> Result<(), Failure> {
        let into = LocalSpan { local: self.landing, slot, offset: 0, len: self.from.len };
        let reader = &mut stand.pair.reader;
        let work = Work::Read { from: self.from, into: Target::Local(into) };
        Ok(reader.fabric.post(reader.link, Op(slot.into()), work)?)
    }
}

fn keep_reading(stand: &mut Stand<'_>, options: &ProbeOptions, stream: Stream) -> Result<Bandwidth, Failure> {
    stand.forget_events();
    let mut patience = Patience::start(stand.clock);
    let start = stand.clock.time();
    for slot in 0..stream.outstanding {
        stream.post(stand, slot)?;
    }
    let (mut open, mut reads, mut took) = (stream.outstanding, 0, std::time::Duration::ZERO);
    while open > 0 {
        stand.pair.reader.fabric.submit();
        stand.pair.owner.fabric.poll(&mut stand.pair.owner.events, EVENTS);
        stand.pair.reader.fabric.poll(&mut stand.pair.reader.events, EVENTS);
        // What else there is, such as the end of an endpoint, is left for whoever waits for it.
        let events = std::mem::take(&mut stand.pair.reader.events);
        let (done, others): (Vec<_>, _) = events.into_iter().partition(|event| matches!(event, Event::Done { .. }));
        stand.pair.reader.events = others;
        if done.is_empty() {
            patience.wait("a READ of the bandwidth trial")?;
            continue;
        }
        patience.renew();
        took = stand.clock.time().since(start);
        for event in done {
            let Event::Done { op, result, .. } = event else { continue };
            result.map_err(|error| Failure(format!("a READ of the bandwidth trial failed: {error}")))?;
            reads += 1;
            if took < options.trial {
                stream.post(stand, op.0 as u32)?;
            } else {
                open -= 1;
            }
        }
    }
    Ok(Bandwidth { outstanding: stream.outstanding, reads, took })
}
