//! Objects come and go in any order, and misuse is an error, never a crash.

use super::harness::{Check, DEPTH, POOL, Pair, SLOT, SLOTS, ensure};
use super::{Backend, Failure};
use crate::{Access, FabricError, Holdings, Op, Outcome, SharedSpan, Target, Work};

pub(super) fn lent_memory_is_not_freed_and_says_to_whom_it_is_lent(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let windows = [pair.window()?, pair.window()?, pair.window()?];
    let key = pair.bind(windows[0], 0, 8)?;
    pair.bind(windows[1], 0, POOL)?;
    pair.bind(windows[2], 0, POOL)?;
    pair.unbind(windows[2])?;
    match pair.owner.fabric.free_shared(pair.pool) {
        Err(FabricError::Lent { windows: mut named, .. }) => {
            named.sort();
            ensure!(named == windows[..2], "the memory is lent through {:?}, it says {named:?}", &windows[..2]);
        }
        other => return Err(Failure(format!("freeing lent memory gave {other:?}"))),
    }
    pair.expect_read(key, 0, 8)?;
    pair.unbind(windows[0])?;
    pair.owner.fabric.free_window(windows[1])?;
    pair.owner.fabric.free_shared(pair.pool)?;
    Ok(())
}

pub(super) fn a_domain_in_use_is_not_freed(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let domain = pair.owner.domain;
    let result = pair.owner.fabric.free_domain(domain);
    ensure!(matches!(result, Err(FabricError::InUse { .. })), "freeing a domain in use gave {result:?}");
    let empty = pair.owner.fabric.domain()?;
    pair.owner.fabric.free_domain(empty)?;
    Ok(())
}

pub(super) fn ids_of_freed_objects_name_nothing(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let domain = pair.owner.fabric.domain()?;
    let shared = pair.owner.fabric.shared(domain, 4096)?;
    let local = pair.owner.fabric.local(domain, 1, 64)?;
    let window = pair.owner.fabric.window(domain)?;
    pair.owner.fabric.free_window(window)?;
    pair.owner.fabric.free_local(local)?;
    pair.owner.fabric.free_shared(shared)?;
    pair.owner.fabric.free_domain(domain)?;
    let results = [
        pair.owner.fabric.free_window(window),
        pair.owner.fabric.free_local(local),
        pair.owner.fabric.free_shared(shared),
        pair.owner.fabric.free_domain(domain),
        pair.owner.fabric.window(domain).map(drop),
        pair.owner.fabric.region_key(shared).map(drop),
    ];
    for result in results {
        ensure!(matches!(result, Err(FabricError::Unknown { .. })), "a freed object was used with {result:?}");
    }
    // Nor do they name what came into being after them.
    let window_again = pair.window()?;
    ensure!(window_again != window, "an id was given out twice");
    Ok(())
}

/// What a case frees, or drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Window,
    Shared,
    Local,
    Endpoint,
    Domain,
}

const STEPS: [Step; 5] = [Step::Window, Step::Shared, Step::Local, Step::Endpoint, Step::Domain];

/// All orders of the steps.
fn orders(steps: &[Step]) -> Vec<Vec<Step>> {
    if steps.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (place, first) in steps.iter().enumerate() {
        let mut rest = steps.to_vec();
        rest.remove(place);
        all.extend(orders(&rest).into_iter().map(|mut order| {
            order.insert(0, *first);
            order
        }));
    }
    all
}

/// Does one step; `false` if the fabric says that something else must go first.
fn free(pair: &mut Pair<'_>, window: crate::WindowId, step: Step) -> Result<bool, Failure> {
    let owner = &mut pair.owner;
    let result = match step {
        Step::Window => owner.fabric.free_window(window),
        Step::Shared => owner.fabric.free_shared(pair.pool),
        Step::Local => owner.fabric.free_local(owner.local),
        Step::Endpoint => {
            let link = owner.link;
            owner.fabric.close(link);
            pair.until("the endpoint to go down", |pair| pair.owner.down(link).is_some())?;
            Ok(())
        }
        Step::Domain => owner.fabric.free_domain(owner.domain),
    };
    match result {
        Ok(()) => Ok(true),
        Err(FabricError::Lent { .. } | FabricError::InUse { .. }) => Ok(false),
        Err(other) => Err(Failure(format!("freeing {step:?} gave {other}"))),
    }
}

pub(super) fn objects_may_be_freed_and_dropped_in_every_order(backend: &dyn Backend) -> Check {
    for (number, order) in orders(&STEPS).into_iter().enumerate() {
        let mut pair = Pair::new(backend)?;
        let window = pair.window()?;
        pair.bind(window, 0, POOL)?;
        let into = pair.owner.slot(0, 64);
        pair.owner.post(Work::Recv { into })?;
        // Every sixth order is cut short at another place by dropping the fabric with all that is left in it.
        let cut = if number % 6 == 0 { number / 6 % (STEPS.len() + 1) } else { STEPS.len() };
        let mut refused = Vec::new();
        for step in &order[..cut] {
            if !free(&mut pair, window, *step)? {
                refused.push(*step);
            }
        }
        if cut < STEPS.len() {
            continue;
        }
        // What had to wait for something else goes now; the domain is the last of them, if it is one.
        refused.sort_by_key(|step| *step == Step::Domain);
        for step in refused {
            ensure!(free(&mut pair, window, step)?, "{step:?} cannot be freed at the end of {order:?}");
        }
        let held = pair.owner.fabric.holdings();
        ensure!(held == Holdings::default(), "after {order:?} the fabric still holds {held:?}");
    }
    Ok(())
}

pub(super) fn memory_freed_while_in_use_lives_until_the_work_ends(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    let landing = pair.reader.fabric.local(pair.reader.domain, 1, SLOT)?;
    let into = crate::LocalSpan { local: landing, slot: 0, offset: 0, len: SLOT };
    let from = pair.remote(key, 0, SLOT);
    let op = pair.reader.post(Work::Read { from, into: Target::Local(into) })?;
    pair.reader.fabric.submit();
    pair.reader.fabric.free_local(landing)?;
    let result = pair.reader_result(op)?;
    ensure!(result == Ok(Outcome::Finished), "the READ ended with {result:?}");
    Ok(())
}

pub(super) fn misuse_is_refused_when_it_is_posted(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let link = pair.owner.link;
    let other = pair.owner.fabric.domain()?;
    let foreign_local = pair.owner.fabric.local(other, 1, 64)?;
    let foreign_window = pair.owner.fabric.window(other)?;
    let foreign_shared = pair.owner.fabric.shared(other, 4096)?;
    let window = pair.window()?;
    let pool = pair.span(0, POOL);
    let slot = pair.owner.slot(0, 64);
    let remote = crate::RemoteSpan { address: 0, len: 64, key: crate::Key(0) };
    let mut post = |work| pair.owner.fabric.post(link, Op(u64::MAX), work);

    let outside = crate::LocalSpan { offset: SLOT - 1, len: 2, ..slot };
    let no_slot = crate::LocalSpan { slot: SLOTS, ..slot };
    for from in [outside, no_slot, crate::LocalSpan { offset: u32::MAX, len: u32::MAX, ..slot }] {
        let result = post(Work::Send { from });
        ensure!(matches!(result, Err(FabricError::OutOfBounds { .. })), "sending {from:?} gave {result:?}");
    }
    let shared = SharedSpan { offset: POOL - 8, len: 64, ..pool };
    for into in [Target::Local(crate::LocalSpan { len: 63, ..slot }), Target::Shared(shared)] {
        let result = post(Work::Read { from: remote, into });
        ensure!(matches!(result, Err(FabricError::OutOfBounds { .. })), "reading into {into:?} gave {result:?}");
    }
    let foreign = SharedSpan { shared: foreign_shared, offset: 0, len: 64 };
    for work in [
        Work::Send { from: crate::LocalSpan { local: foreign_local, ..slot } },
        Work::Read { from: remote, into: Target::Shared(foreign) },
        Work::Bind { window: foreign_window, span: pool, access: Access::Read },
        Work::Bind { window, span: foreign, access: Access::Read },
        Work::Unbind { window: foreign_window },
    ] {
        let result = post(work);
        ensure!(matches!(result, Err(FabricError::DomainMismatch { .. })), "posting {work:?} gave {result:?}");
    }
    ensure!(post(Work::Recv { into: slot }).is_ok(), "a receive was refused");
    let result = post(Work::Recv { into: slot });
    ensure!(matches!(result, Err(FabricError::SlotBusy { .. })), "a slot was taken twice: {result:?}");
    for place in 1..DEPTH {
        let into = crate::LocalSpan { slot: 1 + place / 32, offset: place * 64, ..slot };
        ensure!(post(Work::Recv { into }).is_ok(), "receive {place} of {DEPTH} was refused");
    }
    let result = post(Work::Recv { into: crate::LocalSpan { slot: 20, ..slot } });
    ensure!(matches!(result, Err(FabricError::QueueFull { .. })), "one receive too many gave {result:?}");
    Ok(())
}
