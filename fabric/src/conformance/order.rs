//! Work is executed in order, and ends in order, whatever happens.

use super::harness::{Check, DEPTH, POOL, Pair, SLOT, ensure};
use super::{Backend, Failure};
use crate::{Access, DownCause, Event, Key, Op, Outcome, RemoteSpan, SharedSpan, Target, Work, WorkError};

pub(super) fn a_message_behind_a_bind_finds_the_key_in_force(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    for round in 0..50_u64 {
        let into = pair.reader.slot(1, 64);
        let receive = pair.reader.post(Work::Recv { into })?;
        let span = pair.span(round * 100, 100);
        let bind = pair.owner.post(Work::Bind { window, span, access: Access::Read })?;
        let key = pair.owner.fabric.key(window);
        let from = pair.owner.slot(0, 4);
        pair.owner.fabric.bytes_mut(from).copy_from_slice(&key.0.to_le_bytes());
        let send = pair.owner.post(Work::Send { from })?;
        pair.until("the key to arrive", |pair| pair.reader.message(receive).is_some())?;
        let mut bytes = [0; 4];
        bytes.copy_from_slice(pair.reader.fabric.bytes(pair.reader.slot(1, 4)));
        pair.expect_read(Key(u32::from_le_bytes(bytes)), round * 100, 100)?;
        let results = (pair.owner_result(bind)?, pair.owner_result(send)?);
        ensure!(results == (Ok(Outcome::Bound(key)), Ok(Outcome::Finished)), "round {round} ended with {results:?}");
    }
    Ok(())
}

/// Lends memory of the reader's to the owner, and tells how to read it.
fn lend_back(pair: &mut Pair<'_>, len: u32) -> Result<RemoteSpan, Failure> {
    let shared = pair.reader.fabric.shared(pair.reader.domain, u64::from(len))?;
    let span = SharedSpan { shared, offset: 0, len: u64::from(len) };
    let window = pair.reader.fabric.window(pair.reader.domain)?;
    let op = pair.reader.post(Work::Bind { window, span, access: Access::Read })?;
    match pair.reader_result(op)? {
        Ok(Outcome::Bound(key)) => Ok(RemoteSpan { address: pair.reader.fabric.address(span), len, key }),
        other => Err(Failure(format!("the reader's bind ended with {other:?}"))),
    }
}

pub(super) fn a_bind_waits_for_the_endpoints_own_reads(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let from = lend_back(&mut pair, SLOT)?;
    let window = pair.window()?;
    for round in 0..10 {
        let read = pair.owner.post_read(from, 2)?;
        let span = pair.span(round, 100);
        let bind = pair.owner.post(Work::Bind { window, span, access: Access::Read })?;
        let another = pair.window()?;
        let unbind = pair.owner.post(Work::Unbind { window: another })?;
        // The owner alone has its turns: where the peer must have some to answer, the READ stays outstanding.
        for _ in 0..10 {
            pair.owner.turn();
            let bound = pair.owner.fabric.holdings().bound;
            ensure!(bound == 0 || pair.owner.result(read).is_some(), "a window was bound before the READ had ended");
        }
        let link = pair.owner.link;
        pair.until("the bind to end", |pair| pair.owner.result(unbind).is_some())?;
        let ended = pair.owner.ended(link);
        ensure!(ended.ends_with(&[read, bind, unbind]), "the work ended in the order {ended:?}");
        let results = (pair.owner.result(read), pair.owner.result(bind));
        ensure!(
            matches!(results, (Some(Ok(Outcome::Finished)), Some(Ok(Outcome::Bound(_))))),
            "the READ and the bind ended with {results:?}"
        );
        pair.unbind(window)?;
    }
    Ok(())
}

pub(super) fn completions_come_in_the_order_of_posting(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let from = lend_back(&mut pair, SLOT)?;
    let windows = [pair.window()?, pair.window()?];
    let link = pair.owner.link;
    for round in 0..20_u32 {
        pair.owner.events.clear();
        let mut posted = Vec::new();
        for step in 0..8_u32 {
            let work = match (round + step) % 4 {
                0 => {
                    let into = pair.reader.slot(16 + step, 64);
                    pair.reader.post(Work::Recv { into })?;
                    Work::Send { from: pair.owner.slot(step, 64) }
                }
                1 => {
                    let len = if step % 2 == 0 { 8 } else { SLOT };
                    Work::Read { from: RemoteSpan { len, ..from }, into: Target::Local(pair.owner.slot(8 + step, len)) }
                }
                2 => Work::Bind { window: windows[step as usize / 4], span: pair.span(0, POOL), access: Access::Read },
                _ => {
                    let into = pair.owner.slot(8 + step, 1);
                    Work::Read { from: RemoteSpan { len: 1, ..from }, into: Target::Local(into) }
                }
            };
            posted.push(pair.owner.post(work)?);
        }
        pair.until("all to end", |pair| pair.owner.ended(link).len() == posted.len())?;
        let ended = pair.owner.ended(link);
        ensure!(ended == posted, "posted in the order {posted:?}, ended in the order {ended:?}");
        for op in posted {
            let result = pair.owner.result(op);
            ensure!(matches!(result, Some(Ok(_))), "{op:?} ended with {result:?}");
        }
    }
    Ok(())
}

/// Each op ended exactly once, and `Down` is the last event of the endpoint.
fn ended_once(events: &[Event], link: crate::LinkId, posted: &[Op]) -> Check {
    let of_link: Vec<_> = events
        .iter()
        .filter(|event| match event {
            Event::Up { link: at } | Event::Message { link: at, .. } | Event::Done { link: at, .. } => *at == link,
            Event::Down { link: at, .. } => *at == link,
            Event::Allocated { .. } => false,
        })
        .collect();
    let downs = of_link.iter().filter(|event| matches!(event, Event::Down { .. })).count();
    ensure!(downs == 1, "the endpoint went down {downs} times");
    ensure!(matches!(of_link.last(), Some(Event::Down { .. })), "the endpoint's last event was {:?}", of_link.last());
    for op in posted {
        let ends = of_link
            .iter()
            .filter(|event| match event {
                Event::Done { op: ended, .. } | Event::Message { op: ended, .. } => ended == op,
                _ => false,
            })
            .count();
        ensure!(ends == 1, "{op:?} ended {ends} times");
    }
    Ok(())
}

pub(super) fn after_an_error_everything_completes_once_and_down_comes_last(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    let links = (pair.owner.link, pair.reader.link);
    let (mut reader_ops, mut owner_ops) = (Vec::new(), Vec::new());
    for slot in 0..4 {
        let into = pair.reader.slot(slot, 64);
        reader_ops.push(pair.reader.post(Work::Recv { into })?);
        let into = pair.owner.slot(slot, 64);
        owner_ops.push(pair.owner.post(Work::Recv { into })?);
    }
    let good = pair.remote(key, 0, 8);
    let bad = pair.remote(key.next(), 0, 8);
    let first = pair.reader.post_read(good, 8)?;
    let refused = pair.reader.post_read(bad, 9)?;
    reader_ops.extend([first, refused]);
    let mut flushed = Vec::new();
    for slot in 10..20 {
        flushed.push(pair.reader.post_read(good, slot)?);
    }
    reader_ops.extend(&flushed);
    pair.expect_down(DownCause::Work(WorkError::RemoteAccess), DownCause::PeerViolation)?;
    let (first, refused) = (pair.reader.result(first), pair.reader.result(refused));
    ensure!(first == Some(Ok(Outcome::Finished)), "the READ before the refused one ended with {first:?}");
    ensure!(refused == Some(Err(WorkError::RemoteAccess)), "the refused READ ended with {refused:?}");
    for op in flushed {
        let result = pair.reader.result(op);
        ensure!(result == Some(Err(WorkError::Flushed)), "a READ behind the refused one ended with {result:?}");
    }
    ended_once(&pair.owner.events, links.0, &owner_ops)?;
    ended_once(&pair.reader.events, links.1, &reader_ops)
}

pub(super) fn what_is_posted_to_a_failed_endpoint_is_flushed(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let link = pair.owner.link;
    let window = pair.window()?;
    let key = pair.owner.fabric.key(window);
    pair.owner.fabric.close(link);
    let mut posted = Vec::new();
    for work in [
        Work::Recv { into: pair.owner.slot(0, 64) },
        Work::Send { from: pair.owner.slot(1, 64) },
        Work::Bind { window, span: pair.span(0, 8), access: Access::Read },
    ] {
        posted.push(pair.owner.post(work)?);
    }
    pair.until("the endpoint to go down", |pair| pair.owner.down(link).is_some())?;
    for op in &posted {
        let result = pair.owner.result(*op);
        ensure!(result == Some(Err(WorkError::Flushed)), "{op:?} ended with {result:?}");
    }
    ended_once(&pair.owner.events, link, &posted)?;
    ensure!(pair.owner.fabric.key(window) == key, "a flushed bind changed the key");
    let late = pair.owner.fabric.post(link, Op(u64::MAX), Work::Unbind { window });
    ensure!(late.is_err(), "work was accepted by an endpoint that was reported down");
    Ok(())
}

pub(super) fn closing_flushes_and_ends_with_down(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let links = (pair.owner.link, pair.reader.link);
    let mut posted = Vec::new();
    for slot in 0..SLOT.min(8) {
        let into = pair.owner.slot(slot, 64);
        posted.push(pair.owner.post(Work::Recv { into })?);
    }
    let full = pair.owner.config().receive_depth;
    ensure!(full == DEPTH && posted.len() < full as usize, "the case posts less than the queue takes");
    pair.owner.fabric.close(links.0);
    pair.owner.fabric.close(links.0);
    pair.expect_down(DownCause::PeerLost, DownCause::Closed)?;
    for op in &posted {
        let result = pair.owner.result(*op);
        ensure!(result == Some(Err(WorkError::Flushed)), "{op:?} ended with {result:?}");
    }
    ended_once(&pair.owner.events, links.0, &posted)?;
    // Closing what is gone does nothing.
    pair.owner.fabric.close(links.0);
    pair.turn();
    ensure!(pair.owner.fabric.holdings().endpoints == 0, "the endpoint is still there");
    Ok(())
}
