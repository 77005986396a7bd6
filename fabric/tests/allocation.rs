//! In steady state the software fabric allocates nothing: no READ, SEND, bind or poll takes memory from the system.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use keyway_fabric::soft::{Pipe, SoftConfig, SoftFabric};
use keyway_fabric::{
    Access, EndpointConfig, Event, Fabric, FabricError, LocalSpan, Memory, Op, RemoteSpan, SharedSpan, Stream, Target,
    Work,
};

/// The system's allocator, counting for each thread what it hands out.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing, since the counter is a plain
// thread-local cell with a constant initial value and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block is of the system's allocator, since every allocation is.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const POOL: u64 = 1024 * 1024;

#[test]
fn a_thousand_rounds_of_work_allocate_nothing() -> Result<(), FabricError> {
    let (mut owner, mut reader) = (SoftFabric::new(SoftConfig::default())?, SoftFabric::new(SoftConfig::default())?);
    let (owner_domain, reader_domain) = (owner.domain()?, reader.domain()?);
    let pool = owner.shared(owner_domain, POOL)?;
    let (sent, landed) = (owner.local(owner_domain, 4, 4096)?, reader.local(reader_domain, 4, 256 * 1024)?);
    let config = EndpointConfig { domain: owner_domain, send_depth: 8, receive_depth: 8, remote_read: true };
    let (owner_link, owner_address) = owner.endpoint(config)?;
    let (reader_link, reader_address) = reader.endpoint(EndpointConfig { domain: reader_domain, ..config })?;
    owner.connect(owner_link, &reader_address)?;
    reader.connect(reader_link, &owner_address)?;
    let (left, right) = Pipe::pair().map_err(|source| FabricError::Memory { what: "pipe", len: 0, source })?;
    owner.attach(owner_link, Stream::Memory(left))?;
    reader.attach(reader_link, Stream::Memory(right))?;
    let window = owner.window(owner_domain)?;
    let span = SharedSpan { shared: pool, offset: 0, len: POOL };
    let (address, mut events) = (owner.address(span), Vec::new());

    let mut allocated = 0;
    for round in 0..1_100 {
        if round == 100 {
            // Queues and buffers have grown to what this load needs.
            allocated = COUNT.get();
        }
        reader.post(
            reader_link,
            Op(0),
            Work::Recv { into: LocalSpan { local: landed, slot: 3, offset: 0, len: 64 } },
        )?;
        owner.post(owner_link, Op(1), Work::Bind { window, span, access: Access::Read })?;
        owner.post(owner_link, Op(2), Work::Send { from: LocalSpan { local: sent, slot: 0, offset: 0, len: 64 } })?;
        let key = owner.key(window);
        let mut over = 0;
        while over < 3 {
            owner.submit();
            owner.poll(&mut events, 64);
            reader.submit();
            reader.poll(&mut events, 64);
            over += events.drain(..).filter(|event| !matches!(event, Event::Up { .. })).count();
        }
        for (slot, len) in [(0, 8), (1, 256 * 1024), (2, 3_000)] {
            let into = Target::Local(LocalSpan { local: landed, slot, offset: 0, len });
            let from = RemoteSpan { address, len, key };
            reader.post(reader_link, Op(3), Work::Read { from, into })?;
        }
        let mut read = 0;
        while read < 3 {
            reader.submit();
            owner.poll(&mut events, 64);
            reader.poll(&mut events, 64);
            for event in events.drain(..) {
                assert!(matches!(event, Event::Done { result: Ok(_), .. }), "{event:?}");
                read += 1;
            }
        }
    }
    assert_eq!(COUNT.get() - allocated, 0, "allocations in a thousand rounds");
    Ok(())
}
