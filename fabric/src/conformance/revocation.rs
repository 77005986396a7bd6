//! Every way to take a key's power away is followed by a READ that must fail.

use super::Backend;
use super::harness::{Check, POOL, Pair, SLOT, ensure};
use crate::{Access, DownCause, EndpointConfig, Key, LocalSpan, Outcome, SharedSpan, Target, Work};

pub(super) fn the_regions_own_key_opens_nothing(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let key = pair.owner.fabric.region_key(pair.pool)?;
    let from = pair.remote(key, 0, 8);
    pair.expect_refusal(from)?;
    // Nor does it once a window is bound to the region.
    let window = pair.window()?;
    pair.bind(window, 0, POOL)?;
    let from = pair.remote(key, 0, 8);
    pair.expect_refusal(from)
}

pub(super) fn a_key_that_was_never_given_out_opens_nothing(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let initial = pair.owner.fabric.key(window);
    let from = pair.remote(initial, 0, 8);
    pair.expect_refusal(from)?;
    let key = pair.bind(window, 0, POOL)?;
    for guess in [Key(0), Key(u32::MAX), key.next(), Key(key.0 ^ 0x0100)] {
        let from = pair.remote(guess, 0, 8);
        pair.expect_refusal(from)?;
    }
    pair.expect_read(key, 0, 8)
}

pub(super) fn the_key_of_an_unbound_window_is_refused(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    pair.expect_read(key, 0, SLOT)?;
    pair.unbind(window)?;
    let from = pair.remote(key, 0, 8);
    pair.expect_refusal(from)?;
    // Nor does the key that the unbind has left behind open anything.
    let key = pair.owner.fabric.key(window);
    let from = pair.remote(key, 0, 8);
    pair.expect_refusal(from)
}

pub(super) fn the_key_before_a_rebind_is_refused(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let old = pair.bind(window, 0, POOL)?;
    let new = pair.bind(window, 0, POOL)?;
    pair.expect_read(new, 0, SLOT)?;
    let from = pair.remote(old, 0, 8);
    pair.expect_refusal(from)?;
    pair.expect_read(new, 0, SLOT)
}

pub(super) fn the_key_of_a_freed_window_is_refused(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    pair.expect_read(key, 0, 8)?;
    pair.owner.fabric.free_window(window)?;
    let from = pair.remote(key, 0, 8);
    pair.expect_refusal(from)
}

pub(super) fn a_read_overtaken_by_an_unbind_brings_nothing_written_after_it(backend: &dyn Backend) -> Check {
    const LENT: u8 = 0x11;
    const RECYCLED: u8 = 0xff;
    const READS: u32 = 2;
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let pool = pair.span(0, POOL);
    // Longer than what any stream holds, so that some are caught half-way.
    let landing = pair.reader.fabric.local(pair.reader.domain, READS, POOL as u32)?;
    for head_start in 0..20 {
        pair.owner.fabric.write(pool, &vec![LENT; POOL as usize]);
        let key = pair.bind(window, 0, POOL)?;
        let mut reads = Vec::new();
        for slot in 0..READS {
            let into = LocalSpan { local: landing, slot, offset: 0, len: POOL as u32 };
            pair.reader.fabric.bytes_mut(into).fill(0);
            let from = pair.remote(key, 0, into.len);
            reads.push((pair.reader.post(Work::Read { from, into: Target::Local(into) })?, into));
        }
        // The READs are caught at another point each time.
        for _ in 0..head_start % 5 {
            pair.reader.turn();
        }
        for _ in 0..head_start / 5 {
            pair.owner.turn();
        }
        let unbind = pair.owner.post(Work::Unbind { window })?;
        pair.until("the unbind to end", |pair| pair.owner.result(unbind).is_some())?;
        let unbound = pair.owner.result(unbind);
        pair.owner.fabric.write(pool, &vec![RECYCLED; POOL as usize]);
        let mut refused = false;
        for (op, into) in reads {
            let result = pair.reader_result(op)?;
            let bytes = pair.reader.fabric.bytes(into);
            ensure!(
                unbound != Some(Ok(Outcome::Unbound)) || !bytes.contains(&RECYCLED),
                "a READ that ended with {result:?} brought bytes written after the unbind"
            );
            let whole = bytes.iter().all(|byte| *byte == LENT);
            ensure!(result != Ok(Outcome::Finished) || whole, "a READ that ended well did not bring what was lent");
            refused |= result.is_err();
        }
        if refused {
            let links = (pair.owner.link, pair.reader.link);
            pair.until("both endpoints to go down", |pair| {
                pair.owner.down(links.0).is_some() && pair.reader.down(links.1).is_some()
            })?;
            pair.connect()?;
        }
    }
    Ok(())
}

pub(super) fn a_dead_endpoints_windows_stay_bound_until_another_unbinds_them(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    let dead = pair.owner.link;
    pair.owner.fabric.close(dead);
    pair.expect_down(DownCause::PeerLost, DownCause::Closed)?;
    pair.connect()?;
    pair.expect_read(key, 0, 8)?;
    ensure!(pair.owner.fabric.holdings().bound == 1, "the window is not bound any more");
    pair.unbind(window)?;
    let from = pair.remote(key, 0, 8);
    pair.expect_refusal(from)
}

pub(super) fn a_key_of_another_domain_is_refused(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    let other = pair.owner.fabric.domain()?;
    let owner = EndpointConfig { domain: other, ..pair.owner.config() };
    let home = (pair.owner.link, pair.reader.link);
    (pair.owner.link, pair.reader.link) = pair.connect_with(owner, pair.reader.config())?;
    let from = pair.remote(key, 0, 8);
    pair.expect_refusal(from)?;
    (pair.owner.link, pair.reader.link) = home;
    pair.expect_read(key, 0, 8)
}

pub(super) fn the_same_memory_in_two_domains_has_keys_of_its_own(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    let other = pair.owner.fabric.domain()?;
    let again = pair.owner.fabric.share(other, pair.pool)?;
    let owner = EndpointConfig { domain: other, ..pair.owner.config() };
    let (owner_link, reader_link) = pair.connect_with(owner, pair.reader.config())?;
    let other_window = pair.owner.fabric.window(other)?;
    let span = SharedSpan { shared: again, offset: 0, len: POOL };
    let op = pair.owner.post_to(owner_link, Work::Bind { window: other_window, span, access: Access::Read })?;
    let result = pair.owner_result(op)?;
    let Ok(Outcome::Bound(other_key)) = result else {
        return Err(super::Failure(format!("the bind in the other domain ended with {result:?}")));
    };
    // What is written through one is read through the other.
    let word = pair.span(0, 8);
    pair.owner.fabric.write(word, b"the same");
    let from = crate::RemoteSpan { address: pair.owner.fabric.address(span), len: 8, key: other_key };
    let into = Target::Local(pair.reader.slot(1, 8));
    let op = pair.reader.post_to(reader_link, Work::Read { from, into })?;
    let result = pair.reader_result(op)?;
    ensure!(result == Ok(Outcome::Finished), "the READ in the other domain ended with {result:?}");
    let bytes = pair.reader.fabric.bytes(pair.reader.slot(1, 8));
    ensure!(bytes == b"the same", "it brought {bytes:?}");
    // And the key of the one domain opens nothing in the other.
    pair.expect_refusal(from)?;
    let from = pair.remote(key, 0, 8);
    (pair.owner.link, pair.reader.link) = (owner_link, reader_link);
    pair.expect_refusal(from)
}

pub(super) fn a_binding_without_access_opens_nothing(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let span = pair.span(0, POOL);
    let key = pair.bind_as(window, span, Access::None)?;
    let from = pair.remote(key, 0, 8);
    pair.expect_refusal(from)
}

pub(super) fn an_endpoint_without_remote_read_refuses_every_key(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    let owner = EndpointConfig { remote_read: false, ..pair.owner.config() };
    let home = (pair.owner.link, pair.reader.link);
    (pair.owner.link, pair.reader.link) = pair.connect_with(owner, pair.reader.config())?;
    let from = pair.remote(key, 0, 8);
    pair.expect_refusal(from)?;
    (pair.owner.link, pair.reader.link) = home;
    pair.expect_read(key, 0, 8)
}
