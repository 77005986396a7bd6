//! How fast the software fabric serves READs: both sides on one thread, over a pipe and over a Unix socket.
//!
//! `cargo run --release -p keyway-fabric --example read_rate`

use std::error::Error;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use keyway_fabric::soft::{Pipe, SoftConfig, SoftFabric};
use keyway_fabric::{
    Access, EndpointConfig, Event, Fabric, LinkId, LocalSpan, Memory, Op, Outcome, RemoteSpan, SharedSpan, Stream,
    SystemClock, Target, Work,
};

const POOL: u64 = 4 * 1024 * 1024;
const MEASURED: Duration = Duration::from_secs(1);

struct Side {
    fabric: SoftFabric,
    link: LinkId,
    events: Vec<Event>,
}

fn main() -> Result<(), Box<dyn Error>> {
    for (len, depth) in [(64, 32), (1024, 32), (64 * 1024, 8), (1024 * 1024, 2)] {
        let (left, right) = Pipe::pair()?;
        report("pipe", len, depth, measure(Stream::Memory(left), Stream::Memory(right), len, depth)?);
        let (left, right) = UnixStream::pair()?;
        report("unix", len, depth, measure(Stream::Unix(left), Stream::Unix(right), len, depth)?);
    }
    Ok(())
}

fn report(stream: &str, len: u32, depth: u32, reads_a_second: f64) {
    let bytes = reads_a_second * f64::from(len) / 1e9;
    println!("{stream}: {len:>8} bytes, {depth:>2} outstanding: {reads_a_second:>10.0} READs/s, {bytes:.2} GB/s");
}

/// READs a second.
fn measure(left: Stream, right: Stream, len: u32, depth: u32) -> Result<f64, Box<dyn Error>> {
    let mut owner = SoftFabric::new(SoftConfig::default())?;
    let mut reader = SoftFabric::new(SoftConfig::default())?;
    let (owner_domain, reader_domain) = (owner.domain()?, reader.domain()?);
    let pool = owner.shared(owner_domain, POOL)?;
    let local = reader.local(reader_domain, depth, len)?;
    let config = EndpointConfig { domain: owner_domain, send_depth: 64, receive_depth: 1, remote_read: true };
    let (owner_link, owner_address) = owner.endpoint(config)?;
    let (reader_link, reader_address) = reader.endpoint(EndpointConfig { domain: reader_domain, ..config })?;
    owner.connect(owner_link, &reader_address)?;
    reader.connect(reader_link, &owner_address)?;
    owner.attach(owner_link, left)?;
    reader.attach(reader_link, right)?;

    let window = owner.window(owner_domain)?;
    let span = SharedSpan { shared: pool, offset: 0, len: POOL };
    owner.write(span, &vec![1; POOL as usize]);
    owner.post(owner_link, Op(0), Work::Bind { window, span, access: Access::Read })?;
    owner.submit();
    let mut owner = Side { fabric: owner, link: owner_link, events: Vec::new() };
    let mut reader = Side { fabric: reader, link: reader_link, events: Vec::new() };
    while !owner.events.iter().any(|event| matches!(event, Event::Done { .. })) {
        owner.fabric.poll(&mut owner.events, 64);
        reader.fabric.poll(&mut reader.events, 64);
    }
    let (key, address) = (owner.fabric.key(window), owner.fabric.address(span));

    let read = |reader: &mut Side, number: u64| {
        let slot = (number % u64::from(depth)) as u32;
        let offset = number * u64::from(len) % POOL;
        let from = RemoteSpan { address: address + offset, len, key };
        let into = Target::Local(LocalSpan { local, slot, offset: 0, len });
        reader.fabric.post(reader.link, Op(number), Work::Read { from, into })
    };
    let clock = SystemClock::start();
    let mut posted = 0;
    let mut done = 0_u64;
    while posted < u64::from(depth) {
        read(&mut reader, posted)?;
        posted += 1;
    }
    while clock.now().time.0 < MEASURED.as_nanos() as u64 {
        reader.fabric.submit();
        owner.fabric.poll(&mut owner.events, 64);
        reader.events.clear();
        reader.fabric.poll(&mut reader.events, 64);
        for event in std::mem::take(&mut reader.events) {
            match event {
                Event::Done { result: Ok(Outcome::Finished), .. } => done += 1,
                Event::Up { .. } => continue,
                other => return Err(format!("{other:?} on {}", owner.link).into()),
            }
            read(&mut reader, posted)?;
            posted += 1;
        }
    }
    Ok(done as f64 / MEASURED.as_secs_f64())
}
