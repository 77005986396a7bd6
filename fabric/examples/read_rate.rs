//! How fast a fabric serves READs, both sides on one thread: the software fabric, over a pipe and over a Unix socket, or the
//! one that is named.
//!
//! `cargo run --release -p keyway-fabric --example read_rate [-- verbs:DEVICE]` (with `--features verbs`)

use std::error::Error;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use keyway_fabric::soft::Pipe;
use keyway_fabric::{
    Access, EndpointConfig, Event, Fabric, FabricChoice, FabricOptions, LinkId, LocalSpan, Op, Outcome, RemoteSpan,
    SharedSpan, Stream, SystemClock, Target, Work,
};

const POOL: u64 = 4 * 1024 * 1024;
const MEASURED: Duration = Duration::from_secs(1);

struct Side {
    fabric: Box<dyn Fabric + Send>,
    link: LinkId,
    events: Vec<Event>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let choice: FabricChoice = std::env::args().nth(1).as_deref().unwrap_or("soft").parse()?;
    let options = FabricOptions::new(choice);
    for (len, depth) in [(64, 32), (1024, 32), (64 * 1024, 8), (1024 * 1024, 2)] {
        if options.open()?.fabric.needs_stream() {
            let (left, right) = Pipe::pair()?;
            let streams = (Stream::Memory(left), Stream::Memory(right));
            report("pipe", len, depth, measure(&options, Some(streams), len, depth)?);
            let (left, right) = UnixStream::pair()?;
            let streams = (Stream::Unix(left), Stream::Unix(right));
            report("unix", len, depth, measure(&options, Some(streams), len, depth)?);
        } else {
            report("device", len, depth, measure(&options, None, len, depth)?);
        }
    }
    Ok(())
}

fn report(way: &str, len: u32, depth: u32, reads_a_second: f64) {
    let bytes = reads_a_second * f64::from(len) / 1e6;
    println!("{way}: {len:>8} bytes, {depth:>2} outstanding: {reads_a_second:>10.0} READs/s, {bytes:>8.1} MB/s");
}

/// READs a second.
fn measure(
    options: &FabricOptions,
    streams: Option<(Stream, Stream)>,
    len: u32,
    depth: u32,
) -> Result<f64, Box<dyn Error>> {
    let mut owner = options.open()?.fabric;
    let mut reader = options.open()?.fabric;
    let (owner_domain, reader_domain) = (owner.domain()?, reader.domain()?);
    let pool = owner.shared(owner_domain, POOL)?;
    let local = reader.local(reader_domain, depth, len)?;
    let config = EndpointConfig { domain: owner_domain, send_depth: 64, receive_depth: 1, remote_read: true };
    let (owner_link, owner_address) = owner.endpoint(config)?;
    let (reader_link, reader_address) = reader.endpoint(EndpointConfig { domain: reader_domain, ..config })?;
    owner.connect(owner_link, &reader_address)?;
    reader.connect(reader_link, &owner_address)?;
    if let Some((left, right)) = streams {
        owner.attach(owner_link, left)?;
        reader.attach(reader_link, right)?;
    }

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
