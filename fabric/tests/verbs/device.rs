//! What no conformance case asks, since only devices could fail it.

use keyway_fabric::conformance::Failure;
use keyway_fabric::probe::{ProbeTarget, RawDeregistration, Strategy};
use keyway_fabric::verbs::{VerbsConfig, VerbsFabric, VerbsTarget};
use keyway_fabric::{
    Access, EndpointAddress, EndpointConfig, Event, Fabric, FabricError, Holdings, LocalSpan, Memory, Op, Outcome,
    RemoteSpan, SharedId, SharedSpan, Target, WindowId, Work, WorkError, wait,
};

use crate::leftovers;
use crate::stand::{Check, DEPTH, POOL, SLOTS, Side, Stand, told};

/// A test, by its claim.
type Test = (&'static str, fn(&VerbsTarget) -> Check);

pub(crate) const TESTS: &[Test] = &[
    ("two_thousand_binds_on_one_endpoint_all_give_keys_that_open", two_thousand_binds),
    ("as_many_endpoints_as_need_several_completion_queues_all_carry_messages", many_endpoints),
    ("a_window_whose_bind_was_flushed_behind_a_lost_peer_goes_on_by_another_endpoint", a_bind_in_doubt),
    ("memory_that_a_flushed_bind_may_have_lent_is_not_freed_before_the_window", memory_in_doubt),
    ("fabrics_dropped_in_the_midst_of_everything_leave_nothing", dropped_in_the_midst),
    ("what_nobody_has_freed_is_named", leftovers_are_named),
    ("freed_windows_that_rest_open_nothing_and_hold_no_domain", resting),
    ("a_waker_wakes_a_sleeper", a_waker_wakes),
    ("an_address_chooses_the_port_and_a_foreign_one_is_refused_by_name", addresses),
    ("addresses_of_another_fabric_or_of_garbage_are_refused", foreign_peers),
    ("deregistration_under_a_live_window_is_asked_of_the_device_and_leaves_nothing", deregistration),
];

/// That the tests would notice what they leave behind.
pub(crate) const LEFTOVERS_SEEN: Test = ("what_is_in_use_is_seen_as_left_over", leftovers_are_seen);

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn two_thousand_binds(target: &VerbsTarget) -> Check {
    const BINDS: usize = 2_000;
    let mut stand = Stand::new(target)?;
    let (left, right) = stand.connect()?;
    let pool = stand.left.span(0, POOL);
    // As many at once as the queue takes, each behind the one before it.
    let windows = (0..DEPTH).map(|_| stand.left.window()).collect::<Result<Vec<_>, _>>()?;
    for round in 0..BINDS.div_ceil(windows.len()) {
        let mut posted = Vec::new();
        for &window in &windows {
            let op = stand.left.post(left, Work::Bind { window, span: pool, access: Access::Read })?;
            posted.push((op, stand.left.fabric.key(window)));
        }
        for (op, key) in posted {
            let result = stand.left.until("a bind to end", |side| side.result(op))?;
            ensure(result == Ok(Outcome::Bound(key)), || {
                format!("{key} was told in round {round}, and it is {result:?}")
            })?;
        }
        stand.left.events.clear();
    }
    for window in windows {
        let key = stand.left.fabric.key(window);
        let address = stand.left.address(pool);
        let result = stand.right.read(right, address, key)?;
        ensure(result == Ok(Outcome::Finished), || format!("a READ under {key} ended with {result:?}"))?;
        stand.left.fabric.free_window(window).map_err(told)?;
    }
    Ok(())
}

fn many_endpoints(target: &VerbsTarget) -> Check {
    // Each reserves two depths: these are four queues' worth.
    const ENDPOINTS: u32 = 128;
    let mut stand = Stand::new(target)?;
    let mut links = Vec::new();
    for slot in 0..ENDPOINTS {
        let (left, right) = stand.connect()?;
        let into = stand.right.slot(slot);
        links.push((left, right, stand.right.post(right, Work::Recv { into })?, slot));
    }
    stand.right.fabric.submit();
    for &(left, _, _, slot) in &links {
        let from = LocalSpan { len: 4, ..stand.left.slot(slot) };
        stand.left.fabric.bytes_mut(from).copy_from_slice(&slot.to_le_bytes());
        stand.left.post(left, Work::Send { from })?;
    }
    stand.left.turn();
    let count = |side: &Side| side.events.iter().filter(|event| matches!(event, Event::Message { .. })).count();
    stand.right.until("every message", |side| (count(side) == ENDPOINTS as usize).then_some(()))?;
    for &(_, _, _, slot) in &links {
        let bytes = stand.right.fabric.bytes(LocalSpan { len: 4, ..stand.right.slot(slot) });
        ensure(bytes == slot.to_le_bytes(), || format!("slot {slot} holds {bytes:?}"))?;
    }
    for (left, right, ..) in links {
        stand.left.fabric.close(left);
        stand.right.fabric.close(right);
        stand.left.until("an end", |side| side.down(left))?;
        stand.right.until("an end", |side| side.down(right))?;
    }
    let held = (stand.left.fabric.holdings().endpoints, stand.right.fabric.holdings().endpoints);
    ensure(held == (0, 0), || format!("{held:?} endpoints are left"))
}

/// A stand whose right side has vanished while a bind stood behind a SEND to it. The bind ends as flushed, whether or not the
/// device has executed it.
fn lost_peer(target: &VerbsTarget) -> Result<(Stand, WindowId, SharedId), String> {
    let mut stand = Stand::new(target)?;
    let (left, _) = stand.connect()?;
    let window = stand.left.window()?;
    let before = stand.left.span(0, 4096);
    stand.left.bind(left, window, before)?;
    stand.right = Side::new(target)?;
    let from = stand.left.slot(1);
    stand.left.post(left, Work::Send { from })?;
    let other = stand.left.fabric.shared(stand.left.domain, POOL).map_err(told)?;
    let after = SharedSpan { shared: other, offset: 8192, len: 4096 };
    let op = stand.left.post(left, Work::Bind { window, span: after, access: Access::Read })?;
    // Closed by hand, as the bus does when the bootstrap stream ends: Soft-RoCE of Linux 6.1 never gives up on a SEND that has a
    // bind behind it.
    stand.left.fabric.submit();
    stand.left.fabric.poll(&mut stand.left.events, 64);
    stand.left.fabric.close(left);
    let result = stand.left.until("the bind to end", |side| side.result(op))?;
    // By registrations it is executed here, where nothing is in doubt.
    let expected = match target.strategy().map_err(|failure: Failure| failure.0)?.strategy {
        Strategy::Windows => Err(WorkError::Flushed),
        Strategy::Registrations => Ok(Outcome::Bound(stand.left.fabric.key(window))),
    };
    ensure(result == expected, || format!("the bind behind a lost peer ended with {result:?}"))?;
    stand.left.until("the end of the endpoint", |side| side.down(left))?;
    Ok((stand, window, other))
}

fn a_bind_in_doubt(target: &VerbsTarget) -> Check {
    let (mut stand, window, _) = lost_peer(target)?;
    let (left, right) = stand.connect()?;
    for (offset, value) in [(16_384, 1), (32_768, 2), (49_152, 3)] {
        let span = stand.left.span(offset, 4096);
        stand.left.fabric.write(span, &[value; 64]);
        let key = stand.left.bind(left, window, span)?;
        let address = stand.left.address(span);
        let result = stand.right.read(right, address, key)?;
        ensure(result == Ok(Outcome::Finished), || format!("a READ under {key} ended with {result:?}"))?;
        let bytes = stand.right.fabric.bytes(LocalSpan { len: 64, ..stand.right.slot(0) });
        ensure(bytes == [value; 64], || format!("the READ brought {bytes:?}"))?;
    }
    let result = stand.left.finish(left, Work::Unbind { window })?;
    ensure(result == Ok(Outcome::Unbound), || format!("the unbind ended with {result:?}"))?;
    let held = stand.left.fabric.holdings().bound;
    ensure(held == 0, || format!("{held} windows are bound"))
}

fn memory_in_doubt(target: &VerbsTarget) -> Check {
    let (mut stand, window, other) = lost_peer(target)?;
    let result = stand.left.fabric.free_shared(other);
    let named = matches!(&result, Err(FabricError::Lent { windows, .. }) if *windows == [window]);
    ensure(named, || format!("freeing the memory gave {result:?}"))?;
    stand.left.fabric.free_window(window).map_err(told)?;
    stand.left.fabric.free_shared(other).map_err(told)?;
    stand.left.fabric.free_shared(stand.left.pool).map_err(told)
}

fn dropped_in_the_midst(target: &VerbsTarget) -> Check {
    for left_first in [true, false] {
        let mut stand = Stand::new(target)?;
        let (left, right) = stand.connect()?;
        let window = stand.left.window()?;
        let pool = stand.left.span(0, POOL);
        let key = stand.left.bind(left, window, pool)?;
        let address = stand.left.address(pool);
        for slot in 0..DEPTH / 2 {
            let from = RemoteSpan { address, len: 4096, key };
            let into = Target::Local(stand.right.slot(slot));
            stand.right.post(right, Work::Read { from, into })?;
            let into = stand.left.slot(slot);
            stand.left.post(left, Work::Recv { into })?;
        }
        let another = stand.left.window()?;
        stand.left.post(left, Work::Bind { window: another, span: pool, access: Access::Read })?;
        stand.left.fabric.submit();
        stand.right.fabric.submit();
        let view = stand.right.fabric.view(LocalSpan { len: 8, ..stand.right.slot(SLOTS - 1) });
        let Stand { left, right } = stand;
        if left_first {
            drop(left);
            drop(right);
        } else {
            drop(right);
            drop(left);
        }
        leftovers::none()?;
        ensure(*view == [0; 8], || "a view changed".to_owned())?;
    }
    Ok(())
}

fn leftovers_are_seen(target: &VerbsTarget) -> Check {
    let side = Side::new(target)?;
    let seen = leftovers::none();
    ensure(seen.is_err(), || "nothing is seen of a fabric that is there".to_owned())?;
    drop(side);
    leftovers::none()
}

fn leftovers_are_named(target: &VerbsTarget) -> Check {
    let mut fabric = VerbsFabric::open(target.config()).map_err(told)?;
    let none = fabric.leftovers();
    ensure(none.is_empty(), || format!("of a new fabric {none:?} are left"))?;
    let domain = fabric.domain().map_err(told)?;
    let local = fabric.local(domain, 2, 64).map_err(told)?;
    let shared = fabric.shared(domain, 8192).map_err(told)?;
    let window = fabric.window(domain).map_err(told)?;
    let config = EndpointConfig { domain, send_depth: 1, receive_depth: 1, remote_read: false };
    let (link, own) = fabric.endpoint(config).map_err(told)?;
    fabric.connect(link, &own).map_err(told)?;
    let span = SharedSpan { shared, offset: 4096, len: 100 };
    fabric.post(link, Op(1), Work::Bind { window, span, access: Access::Read }).map_err(told)?;
    fabric.submit();
    let mut events = Vec::new();
    while !events.iter().any(|event| matches!(event, Event::Done { .. })) {
        fabric.poll(&mut events, 16);
    }
    let expected = vec![
        format!("{link} (0 pieces of work and 0 receives outstanding)"),
        format!("{window} (bound to {span:?} under {})", fabric.key(window)),
        format!("{shared} (8192 bytes)"),
        format!("{local} (2 slots of 64 bytes)"),
        domain.to_string(),
    ];
    let named = fabric.leftovers();
    ensure(named == expected, || format!("{expected:?} are left, and {named:?} are named"))
}

fn resting(target: &VerbsTarget) -> Check {
    const RESTING: u32 = 3;
    let config = VerbsConfig { windows_resting: Some(RESTING), ..target.config().clone() };
    let target = VerbsTarget::open(config).map_err(told)?;
    let mut stand = Stand::new(&target)?;
    let (left, _) = stand.connect()?;
    let pool = stand.left.span(0, POOL);
    let address = stand.left.address(pool);
    for round in 0..2 * RESTING {
        let window = stand.left.window()?;
        let key = stand.left.bind(left, window, pool)?;
        if round % 2 == 0 {
            // Bound ones do not rest.
            let result = stand.left.finish(left, Work::Unbind { window })?;
            ensure(result == Ok(Outcome::Unbound), || format!("the unbind ended with {result:?}"))?;
        }
        stand.left.fabric.free_window(window).map_err(told)?;
        let (_, reader) = stand.connect()?;
        let result = stand.right.read(reader, address, key)?;
        ensure(result == Err(WorkError::RemoteAccess), || {
            format!("a READ under a freed window's key ended with {result:?}")
        })?;
    }
    let held = stand.left.fabric.holdings().windows;
    ensure(held == 0, || format!("{held} windows are there, and none was to be"))?;
    // The domain can go, and those that rest in it with it.
    let other = stand.left.fabric.domain().map_err(told)?;
    let window = stand.left.fabric.window(other).map_err(told)?;
    stand.left.fabric.free_window(window).map_err(told)?;
    stand.left.fabric.free_domain(other).map_err(told)
}

fn a_waker_wakes(target: &VerbsTarget) -> Check {
    let mut side = Side::new(target)?;
    let waker = side.fabric.waker();
    for _ in 0..3 {
        side.fabric.arm();
        side.fabric.poll(&mut side.events, 16);
        let thread = std::thread::Builder::new().name("waker".into());
        let woken = waker.clone();
        let thread = thread.spawn(move || woken.wake()).map_err(|error| error.to_string())?;
        // Without the wake this would last for ever: nothing else happens here.
        wait(side.fabric.fd(), None).map_err(|error| error.to_string())?;
        thread.join().map_err(|_| "the waking thread panicked")?;
    }
    Ok(())
}

fn addresses(target: &VerbsTarget) -> Check {
    let report = ProbeTarget::device(target).map_err(|failure| failure.0)?;
    let device = report.name.ok_or("the device has no name")?;
    let port = report.port.ok_or("the device has no port")?;
    let address = port.split(' ').next().and_then(|address| address.parse().ok());
    let config = VerbsConfig { device: Some(device.clone()), address, ..VerbsConfig::default() };
    let again = VerbsTarget::open(config.clone()).map_err(told)?;
    let seen = ProbeTarget::device(&again).map_err(|failure| failure.0)?.port;
    ensure(seen.as_ref() == Some(&port), || format!("{port} was asked for, and {seen:?} is in use"))?;
    // Of a range that is set aside for documentation.
    let foreign = "192.0.2.77".parse().ok();
    let refused = VerbsTarget::open(VerbsConfig { address: foreign, ..config }).err();
    let named = refused.as_ref().is_some_and(|error| {
        let text = error.to_string();
        matches!(error, FabricError::NoDevice { .. }) && text.contains("192.0.2.77") && text.contains(&device)
    });
    ensure(named, || format!("an address that is not this machine's gave {refused:?}"))
}

fn foreign_peers(target: &VerbsTarget) -> Check {
    let mut side = Side::new(target)?;
    let (link, own) = side.fabric.endpoint(side.config()).map_err(told)?;
    for bytes in [Vec::new(), vec![0; own.0.len()], own.0[1..].to_vec(), [&own.0[..], &[0]].concat()] {
        let result = side.fabric.connect(link, &EndpointAddress(bytes));
        ensure(matches!(result, Err(FabricError::Address { .. })), || format!("a foreign address gave {result:?}"))?;
    }
    // It is none the worse for it.
    side.fabric.connect(link, &own).map_err(told)?;
    side.fabric.close(link);
    side.until("the end", |side| side.down(link))?;
    let held = side.fabric.holdings();
    let expected = Holdings { domains: 1, locals: 1, shareds: 1, ..Holdings::default() };
    ensure(held == expected, || format!("{held:?} are left"))
}

fn deregistration(target: &VerbsTarget) -> Check {
    match target.deregister_under_window() {
        // Both are known of devices; that the region was in use when it was tried is all that can be said.
        Ok(RawDeregistration::Done | RawDeregistration::Refused { errno: libc::EINVAL | libc::EBUSY }) => Ok(()),
        other => Err(format!("the device's answer was {other:?}")),
    }
}
