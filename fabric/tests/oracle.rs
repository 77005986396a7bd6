//! Whatever is bound, unbound, freed and read in whatever order, a READ succeeds exactly when a naive model says so.

use keyway_fabric::soft::{Pipe, SoftConfig, SoftFabric};
use keyway_fabric::{
    Access, DomainId, EndpointConfig, Event, Fabric, Key, LinkId, LocalId, LocalSpan, Memory, Op, Outcome, RemoteSpan,
    SharedId, SharedSpan, Stream, Target, WindowId, Work, WorkError,
};
use proptest::prelude::*;

const POOL: u64 = 4096;

/// More turns than any piece of work takes: a watchdog that counts instead of looking at a clock.
const TURNS_MAX: usize = 1_000;

/// One step of a random history. Numbers choose among what there is at the time.
#[derive(Clone, Debug)]
enum Step {
    Allocate,
    Bind { window: usize, offset: u64, len: u64, access: Access, times: u32 },
    Unbind { window: usize },
    Free { window: usize },
    Read { key: usize, offset: u64, len: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let access = prop_oneof![5 => Just(Access::Read), 1 => Just(Access::None)];
    // Mostly once; at times often enough to come round, or just short of it.
    let times = prop_oneof![8 => Just(1_u32), 1 => 250..260_u32];
    prop_oneof![
        1 => Just(Step::Allocate),
        4 => (any::<usize>(), 0..POOL, 0..POOL, access, times)
            .prop_map(|(window, offset, len, access, times)| Step::Bind { window, offset, len, access, times }),
        1 => any::<usize>().prop_map(|window| Step::Unbind { window }),
        1 => any::<usize>().prop_map(|window| Step::Free { window }),
        8 => (any::<usize>(), 0..POOL, 1..64_u32).prop_map(|(key, offset, len)| Step::Read { key, offset, len }),
    ]
}

/// What the model remembers of a window.
struct Known {
    window: WindowId,
    key: Key,
    bound: Option<(u64, u64, Access)>,
}

struct Side {
    fabric: SoftFabric,
    domain: DomainId,
    link: Option<LinkId>,
    events: Vec<Event>,
}

impl Side {
    fn new() -> Self {
        let mut fabric = SoftFabric::new(SoftConfig::default()).expect("there are descriptors left");
        let domain = fabric.domain().expect("domains have no limit");
        Self { fabric, domain, link: None, events: Vec::new() }
    }

    fn endpoint(&mut self) -> (LinkId, keyway_fabric::EndpointAddress) {
        let config = EndpointConfig { domain: self.domain, send_depth: 4, receive_depth: 4, remote_read: true };
        let (link, address) = self.fabric.endpoint(config).expect("few endpoints are alive");
        self.link = Some(link);
        (link, address)
    }

    fn post(&mut self, work: Work) {
        let link = self.link.expect("an endpoint is connected before work is posted");
        self.fabric.post(link, Op(0), work).expect("the work is valid and the queue is empty");
    }

    fn take_result(&mut self) -> Option<Result<Outcome, WorkError>> {
        let place = self.events.iter().position(|event| matches!(event, Event::Done { .. }))?;
        match self.events.remove(place) {
            Event::Done { result, .. } => Some(result),
            _ => None,
        }
    }
}

struct World {
    owner: Side,
    reader: Side,
    pool: SharedId,
    landing: LocalId,
}

impl World {
    fn new() -> Self {
        let (mut owner, mut reader) = (Side::new(), Side::new());
        let pool = owner.fabric.shared(owner.domain, POOL).expect("a page can be had");
        let landing = reader.fabric.local(reader.domain, 1, 64).expect("a page can be had");
        let bytes: Vec<u8> = (0..POOL).map(|at| at as u8).collect();
        owner.fabric.write(SharedSpan { shared: pool, offset: 0, len: POOL }, &bytes);
        let mut world = Self { owner, reader, pool, landing };
        world.connect();
        world
    }

    fn connect(&mut self) {
        let (owner, owner_address) = self.owner.endpoint();
        let (reader, reader_address) = self.reader.endpoint();
        self.owner.fabric.connect(owner, &reader_address).expect("the address is of this fabric");
        self.reader.fabric.connect(reader, &owner_address).expect("the address is of this fabric");
        let (left, right) = Pipe::pair().expect("memory can be had");
        self.owner.fabric.attach(owner, Stream::Memory(left)).expect("the endpoint has no stream yet");
        self.reader.fabric.attach(reader, Stream::Memory(right)).expect("the endpoint has no stream yet");
    }

    fn until<T>(&mut self, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        for _ in 0..TURNS_MAX {
            if let Some(found) = found(self) {
                return found;
            }
            for side in [&mut self.owner, &mut self.reader] {
                side.fabric.submit();
                side.fabric.poll(&mut side.events, 64);
            }
        }
        panic!("nothing came of it: {:?} {:?}", self.owner.events, self.reader.events);
    }

    fn owner_does(&mut self, work: Work) -> Result<Outcome, WorkError> {
        self.owner.post(work);
        self.until(|world| world.owner.take_result())
    }

    /// Reads; a refusal is followed by a new connection.
    fn read(&mut self, key: Key, offset: u64, len: u32) -> Result<Vec<u8>, WorkError> {
        let start = self.owner.fabric.address(SharedSpan { shared: self.pool, offset: 0, len: 0 });
        let span = LocalSpan { local: self.landing, slot: 0, offset: 0, len };
        let from = RemoteSpan { address: start + offset, len, key };
        self.reader.post(Work::Read { from, into: Target::Local(span) });
        let result = self.until(|world| world.reader.take_result());
        if let Err(error) = result {
            let down = |side: &Side| side.events.iter().any(|event| matches!(event, Event::Down { .. }));
            self.until(|world| (down(&world.owner) && down(&world.reader)).then_some(()));
            self.owner.events.clear();
            self.reader.events.clear();
            self.connect();
            return Err(error);
        }
        Ok(self.reader.fabric.bytes(span).to_vec())
    }
}

fn check(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new();
    let mut known: Vec<Known> = Vec::new();
    let mut keys = vec![Key(0), world.owner.fabric.region_key(world.pool).expect("the pool is there")];
    for step in steps {
        match *step {
            Step::Allocate => {
                let window = world.owner.fabric.window(world.owner.domain).expect("few windows are alive");
                let key = world.owner.fabric.key(window);
                keys.push(key);
                known.push(Known { window, key, bound: None });
            }
            Step::Bind { window, offset, len, access, times } if !known.is_empty() => {
                let place = window % known.len();
                let len = len.min(POOL - offset);
                let span = SharedSpan { shared: world.pool, offset, len };
                for _ in 0..times {
                    let result = world.owner_does(Work::Bind { window: known[place].window, span, access });
                    let key = known[place].key.next();
                    prop_assert_eq!(result, Ok(Outcome::Bound(key)));
                    known[place].key = key;
                }
                known[place].bound = Some((offset, offset + len, access));
                keys.push(known[place].key);
            }
            Step::Unbind { window } if !known.is_empty() => {
                let place = window % known.len();
                let result = world.owner_does(Work::Unbind { window: known[place].window });
                prop_assert_eq!(result, Ok(Outcome::Unbound));
                known[place].key = known[place].key.next();
                known[place].bound = None;
                keys.push(known[place].key);
            }
            Step::Free { window } if !known.is_empty() => {
                let freed = known.swap_remove(window % known.len());
                prop_assert!(world.owner.fabric.free_window(freed.window).is_ok());
            }
            Step::Read { key, offset, len } => {
                // Half of the time the newest key, so that enough READs succeed.
                let key = if key % 2 == 0 { keys[keys.len() - 1] } else { keys[key % keys.len()] };
                let end = offset + u64::from(len);
                let opens = known.iter().any(|known| {
                    let range = known
                        .bound
                        .is_some_and(|(start, stop, access)| access == Access::Read && start <= offset && end <= stop);
                    known.key == key && range
                });
                let expected: Vec<u8> = (offset..end).map(|at| at as u8).collect();
                let expected = if opens { Ok(expected) } else { Err(WorkError::RemoteAccess) };
                prop_assert_eq!(world.read(key, offset, len), expected);
            }
            Step::Bind { .. } | Step::Unbind { .. } | Step::Free { .. } => {}
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_read_succeeds_exactly_when_the_model_says_so(steps in prop::collection::vec(step(), 1..60)) {
        check(&steps)?;
    }
}
