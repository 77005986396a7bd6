//! READs that are allowed bring the right bytes to the right place.

use super::harness::{Check, POOL, Pair, SLOT, SLOTS, ensure, pattern};
use super::{Backend, Failure};
use crate::{Access, Outcome, RemoteSpan, SharedSpan, Target, Work, WorkError};

pub(super) fn a_window_opens_exactly_what_it_was_bound_to(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 5_001, 3_000)?;
    pair.expect_read(key, 5_001, 3_000)?;
    pair.expect_read(key, 5_001, 1)?;
    pair.expect_read(key, 8_000, 1)?;
    pair.expect_read(key, 6_000, 500)
}

pub(super) fn a_word_stored_into_lent_memory_is_read_with_what_was_written_before_it(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, 4096)?;
    for round in 1..=50_u64 {
        let data = pair.span(64, 8);
        pair.owner.fabric.write(data, &(!round).to_le_bytes());
        pair.owner.fabric.store(pair.pool, 0, round);
        let from = pair.remote(key, 0, 72);
        let op = pair.reader.post_read(from, 3)?;
        let result = pair.reader_result(op)?;
        ensure!(result == Ok(Outcome::Finished), "round {round} ended with {result:?}");
        let bytes = pair.reader.fabric.bytes(pair.reader.slot(3, 72));
        ensure!(bytes[..8] == round.to_ne_bytes(), "round {round} read the word as {:?}", &bytes[..8]);
        ensure!(bytes[64..] == (!round).to_le_bytes(), "round {round} read the data as {:?}", &bytes[64..]);
    }
    Ok(())
}

pub(super) fn reads_of_every_length_bring_the_right_bytes(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    let lengths = [1, 2, 7, 8, 63, 64, 65, 1_000, 4_095, 4_096, 4_097, 8_192, 65_535, 65_536, 65_537, 100_001, SLOT];
    for (place, len) in lengths.into_iter().enumerate() {
        pair.expect_read(key, place as u64 * 4_099, len)?;
        pair.expect_read(key, POOL - u64::from(len), len)?;
    }
    Ok(())
}

pub(super) fn many_outstanding_reads_all_land_in_their_places(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    for round in 0..8_u32 {
        let mut posted = Vec::new();
        for slot in 0..SLOTS {
            let len = (slot * 5_003 + round * 777) % SLOT + 1;
            let offset = u64::from(slot * 30_011 + round * 101) % (POOL - u64::from(len));
            let from = pair.remote(key, offset, len);
            posted.push((pair.reader.post_read(from, slot)?, slot, offset, len));
        }
        for (op, slot, offset, len) in posted {
            let result = pair.reader_result(op)?;
            ensure!(result == Ok(Outcome::Finished), "reading {offset}+{len} ended with {result:?}");
            let bytes = pair.reader.fabric.bytes(pair.reader.slot(slot, len));
            let right = bytes.iter().zip(offset..).all(|(byte, at)| *byte == pattern(at));
            ensure!(right, "slot {slot} of round {round} holds other bytes than {offset}+{len}");
        }
        pair.reader.events.clear();
    }
    Ok(())
}

pub(super) fn a_read_may_land_in_shared_memory(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    let ring = pair.reader.fabric.shared(pair.reader.domain, 300_000)?;
    let into = SharedSpan { shared: ring, offset: 1_001, len: 200_000 };
    let from = pair.remote(key, 77, 200_000);
    let op = pair.reader.post(Work::Read { from, into: Target::Shared(into) })?;
    let result = pair.reader_result(op)?;
    ensure!(result == Ok(Outcome::Finished), "the READ ended with {result:?}");
    let mut all = vec![0; 300_000];
    pair.reader.fabric.load(SharedSpan { shared: ring, offset: 0, len: 300_000 }, &mut all);
    let (before, rest) = all.split_at(1_001);
    let (landed, behind) = rest.split_at(200_000);
    ensure!(landed.iter().zip(77..).all(|(byte, at)| *byte == pattern(at)), "wrong bytes landed");
    ensure!(before.iter().chain(behind).all(|byte| *byte == 0), "bytes landed outside the target");
    Ok(())
}

pub(super) fn a_view_of_landed_bytes_outlives_slot_and_fabric(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    pair.expect_read(key, 100, 5_000)?;
    let view = pair.reader.fabric.view(pair.reader.slot(0, 5_000));
    ensure!(!pair.reader.fabric.reset(pair.reader.local, 0), "a slot with a view alive was made writable");
    let from = pair.remote(key, 0, 5_000);
    ensure!(pair.reader.post_read(from, 0).is_err(), "a READ may land on bytes that are viewed");
    drop(pair);
    let right = view.iter().zip(100..).all(|(byte, at)| *byte == pattern(at));
    ensure!(right, "the view changed after its fabric was dropped");
    Ok(())
}

pub(super) fn both_sides_may_read_each_other_at_once(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    let theirs = pair.reader.fabric.shared(pair.reader.domain, POOL)?;
    let span = SharedSpan { shared: theirs, offset: 0, len: POOL };
    pair.reader.fabric.write(span, &vec![0x5a; POOL as usize]);
    let their_window = pair.reader.fabric.window(pair.reader.domain)?;
    let op = pair.reader.post(Work::Bind { window: their_window, span, access: Access::Read })?;
    let Ok(Outcome::Bound(their_key)) = pair.reader_result(op)? else {
        return Err(Failure("the reader could not bind a window of its own".into()));
    };
    let address = pair.reader.fabric.address(span);
    let mut posted = Vec::new();
    for slot in 0..SLOTS {
        let from = pair.remote(key, u64::from(slot), SLOT);
        let op = pair.reader.post_read(from, slot)?;
        let back = pair.owner.post_read(RemoteSpan { address, len: SLOT, key: their_key }, slot)?;
        posted.push((op, back));
    }
    for (slot, (op, back)) in (0..).zip(posted) {
        let results = (pair.reader_result(op)?, pair.owner_result(back)?);
        ensure!(results == (Ok(Outcome::Finished), Ok(Outcome::Finished)), "the READs ended with {results:?}");
        let bytes = pair.reader.fabric.bytes(pair.reader.slot(slot, SLOT));
        let right = bytes.iter().zip(u64::from(slot)..).all(|(byte, at)| *byte == pattern(at));
        ensure!(right, "the reader's slot {slot} holds wrong bytes");
        let right = pair.owner.fabric.bytes(pair.owner.slot(slot, SLOT)).iter().all(|byte| *byte == 0x5a);
        ensure!(right, "the owner's slot {slot} holds wrong bytes");
    }
    Ok(())
}

pub(super) fn many_endpoints_may_read_at_once(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    let mut links = vec![pair.reader.link];
    while links.len() < SLOTS as usize / 2 {
        let (_, link) = pair.connect_with(pair.owner.config(), pair.reader.config())?;
        links.push(link);
    }
    for round in 0..10_u32 {
        let mut posted = Vec::new();
        for (slot, link) in (0..SLOTS).zip(links.iter().cycle()) {
            let len = if slot % 3 == 0 { SLOT } else { 64 + slot + round };
            let offset = u64::from(slot * 7_919 + round);
            let from = pair.remote(key, offset, len);
            let into = Target::Local(pair.reader.slot(slot, len));
            posted.push((pair.reader.post_to(*link, Work::Read { from, into })?, slot, offset, len));
        }
        for (op, slot, offset, len) in posted {
            let result = pair.reader_result(op)?;
            ensure!(result == Ok(Outcome::Finished), "reading {offset}+{len} ended with {result:?}");
            let bytes = pair.reader.fabric.bytes(pair.reader.slot(slot, len));
            let right = bytes.iter().zip(offset..).all(|(byte, at)| *byte == pattern(at));
            ensure!(right, "slot {slot} of round {round} holds other bytes than {offset}+{len}");
        }
    }
    // One that is refused takes no other down.
    let from = pair.remote(key.next(), 0, 8);
    pair.expect_refusal(from)?;
    let into = Target::Local(pair.reader.slot(1, 8));
    for link in &links[1..] {
        let from = pair.remote(key, 0, 8);
        let op = pair.reader.post_to(*link, Work::Read { from, into })?;
        let result = pair.reader_result(op)?;
        ensure!(result == Ok(Outcome::Finished), "after another endpoint's refusal, a READ ended with {result:?}");
    }
    Ok(())
}

pub(super) fn a_fabric_may_read_its_own_memory(backend: &dyn Backend) -> Check {
    let mut pair = Pair::apart(backend)?;
    let ends = pair.connect_to_itself()?;
    pair.owner.link = ends.0;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    let from = pair.remote(key, 9, SLOT);
    let into = Target::Local(pair.owner.slot(0, SLOT));
    let op = pair.owner.post_to(ends.1, Work::Read { from, into })?;
    let result = pair.owner_result(op)?;
    ensure!(result == Ok(Outcome::Finished), "the READ ended with {result:?}");
    let bytes = pair.owner.fabric.bytes(pair.owner.slot(0, SLOT));
    ensure!(bytes.iter().zip(9..).all(|(byte, at)| *byte == pattern(at)), "wrong bytes landed");
    let from = pair.remote(key.next(), 0, 8);
    let op = pair.owner.post_to(ends.1, Work::Read { from, into: Target::Local(pair.owner.slot(0, 8)) })?;
    let result = pair.owner_result(op)?;
    ensure!(result == Err(WorkError::RemoteAccess), "a READ under a key to come ended with {result:?}");
    pair.until("both ends to go down", |pair| pair.owner.down(ends.0).is_some() && pair.owner.down(ends.1).is_some())
}
