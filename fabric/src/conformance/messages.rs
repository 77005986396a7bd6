//! Messages arrive whole, in order, in a slot that was posted, or not at all.

use std::time::Duration;

use super::Backend;
use super::harness::{Check, DEPTH, Pair, SLOT, ensure};
use crate::{DownCause, Event, Outcome, Work, WorkError, wait};

pub(super) fn messages_of_every_length_up_to_the_slots_arrive(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    for len in [0, 1, 2, 7, 8, 63, 64, 65, 1_000, 4_095, 4_096, 4_097, 65_535, 65_536, 65_537, SLOT - 1, SLOT] {
        let into = pair.reader.slot(0, SLOT);
        let receive = pair.reader.post(Work::Recv { into })?;
        let from = pair.owner.slot(0, len);
        for (place, byte) in pair.owner.fabric.bytes_mut(from).iter_mut().enumerate() {
            *byte = (place as u32 ^ len) as u8;
        }
        let send = pair.owner.post(Work::Send { from })?;
        let result = pair.owner_result(send)?;
        ensure!(result == Ok(Outcome::Finished), "sending {len} bytes ended with {result:?}");
        pair.until("the message", |pair| pair.reader.message(receive).is_some())?;
        let span = pair.reader.message(receive);
        ensure!(span == Some(pair.reader.slot(0, len)), "{len} bytes were reported as {span:?}");
        let bytes = pair.reader.fabric.bytes(pair.reader.slot(0, len));
        let right = bytes.iter().enumerate().all(|(place, byte)| *byte == (place as u32 ^ len) as u8);
        ensure!(right, "a message of {len} bytes arrived with others");
    }
    Ok(())
}

pub(super) fn messages_take_receives_in_order(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    for round in 0..10_u32 {
        let mut receives = Vec::new();
        for slot in 0..16 {
            let into = pair.reader.slot(slot, 64);
            receives.push(pair.reader.post(Work::Recv { into })?);
        }
        for slot in 0..16 {
            let from = pair.owner.slot(slot, 8);
            let number = u64::from(round * 16 + slot);
            pair.owner.fabric.bytes_mut(from).copy_from_slice(&number.to_le_bytes());
            pair.owner.post(Work::Send { from })?;
        }
        pair.until("the messages", |pair| receives.iter().all(|op| pair.reader.message(*op).is_some()))?;
        for (slot, op) in (0..).zip(receives) {
            let span = pair.reader.message(op);
            ensure!(span == Some(pair.reader.slot(slot, 8)), "receive {slot} was taken by {span:?}");
            let number = u64::from(round * 16 + slot);
            let bytes = pair.reader.fabric.bytes(pair.reader.slot(slot, 8));
            ensure!(bytes == number.to_le_bytes(), "slot {slot} holds {bytes:?} instead of message {number}");
        }
        let link = pair.owner.link;
        pair.until("the SENDs to end", |pair| pair.owner.ended(link).len() == 16)?;
        pair.owner.events.clear();
    }
    Ok(())
}

/// One SEND that the peer cannot take.
fn refused(pair: &mut Pair<'_>, len: u32, expected: WorkError) -> Check {
    let from = pair.owner.slot(0, len);
    let send = pair.owner.post(Work::Send { from })?;
    let behind = pair.owner.post(Work::Send { from: pair.owner.slot(1, 1) })?;
    let results = (pair.owner_result(send)?, pair.owner_result(behind)?);
    ensure!(results == (Err(expected), Err(WorkError::Flushed)), "the SENDs ended with {results:?}");
    let links = (pair.owner.link, pair.reader.link);
    pair.hang_up_on_reader()?;
    pair.until("both endpoints to go down", |pair| {
        pair.owner.down(links.0).is_some() && pair.reader.down(links.1).is_some()
    })?;
    let cause = pair.owner.down(links.0);
    ensure!(cause == Some(DownCause::Work(expected)), "the sender went down for {cause:?}");
    let arrived = pair.reader.events.iter().any(|event| matches!(event, Event::Message { .. }));
    ensure!(!arrived, "a message that was refused was reported");
    Ok(())
}

pub(super) fn a_message_without_a_receive_ends_both_endpoints(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    refused(&mut pair, 8, WorkError::ReceiverNotReady)
}

pub(super) fn a_message_longer_than_its_slot_ends_both_endpoints(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let into = pair.reader.slot(0, 64);
    let receive = pair.reader.post(Work::Recv { into })?;
    refused(&mut pair, 65, WorkError::TooLong)?;
    let result = pair.reader.result(receive);
    ensure!(matches!(result, Some(Err(_))), "the receive that was too short ended with {result:?}");
    Ok(())
}

pub(super) fn a_peer_that_vanishes_takes_its_endpoint_down(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let link = pair.owner.link;
    let into = pair.owner.slot(0, 64);
    let receive = pair.owner.post(Work::Recv { into })?;
    pair.turn();
    // The reader's process dies: nothing of it is closed in order.
    pair.reader = Pair::apart(backend)?.reader;
    let mut sends = Vec::new();
    for slot in 1..5 {
        sends.push(pair.owner.post(Work::Send { from: pair.owner.slot(slot, 64) })?);
    }
    pair.until("the endpoint to go down", |pair| pair.owner.down(link).is_some())?;
    let cause = pair.owner.down(link);
    ensure!(cause == Some(DownCause::PeerLost), "the endpoint went down for {cause:?}");
    let result = pair.owner.result(receive);
    ensure!(result == Some(Err(WorkError::Flushed)), "the receive ended with {result:?}");
    for send in sends {
        let result = pair.owner.result(send);
        let lost = matches!(result, Some(Err(WorkError::Disconnected | WorkError::Flushed)));
        ensure!(lost, "a SEND to a peer that is gone ended with {result:?}");
    }
    Ok(())
}

pub(super) fn a_sleeper_is_woken_by_what_arrives(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    for round in 0..DEPTH {
        let into = pair.reader.slot(0, 64);
        let receive = pair.reader.post(Work::Recv { into })?;
        pair.reader.fabric.submit();
        pair.reader.fabric.arm();
        pair.reader.fabric.poll(&mut pair.reader.events, 64);
        let from = pair.owner.slot(0, 1);
        let send = pair.owner.post(Work::Send { from })?;
        pair.owner.fabric.submit();
        // Without a wake-up this would last until the watchdog; it may well end early, without cause.
        while pair.reader.message(receive).is_none() {
            let before = crate::SystemClock::start();
            wait(pair.reader.fabric.fd(), Some(Duration::from_secs(20)))?;
            let slept = before.now().time.0;
            ensure!(slept < 20_000_000_000, "in round {round} the sleeper was not woken");
            pair.reader.fabric.arm();
            pair.reader.fabric.poll(&mut pair.reader.events, 64);
            pair.owner.fabric.poll(&mut pair.owner.events, 64);
        }
        let result = pair.owner_result(send)?;
        ensure!(result == Ok(Outcome::Finished), "the SEND of round {round} ended with {result:?}");
    }
    Ok(())
}
