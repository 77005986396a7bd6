//! Broker, producer and consumer are three processes, and each in turn is killed with -9 in the midst of traffic. The other two end
//! when they are asked to, and once all have ended nothing of theirs is left on the device.

mod bus;

use std::process::ExitCode;
use std::time::Duration;

use keyway::FabricChoice;
use libtest_mimic::Arguments;

use crate::bus::process::{Binary, BrokerProcess, Process, words};
use crate::bus::{Watchdog, device, trial, until};

const LIMIT: Duration = Duration::from_secs(180);

const NAMES: [&str; 3] = ["broker", "producer", "consumer"];

/// Output of the subscriber that shows that everything is under way.
const UNDER_WAY: usize = 100_000;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let obstacle = match bus::fabric() {
        // Processes and their streams are all there is, and the system takes care of those.
        FabricChoice::Soft => None,
        _ => device::is_visible().err(),
    };
    let trials = NAMES.into_iter().zip(["segment", "batch", "message"]).enumerate().map(|(place, (victim, scope))| {
        trial(format!("the_{victim}_in_{scope}_scope"), obstacle.clone(), move || killed(scope, place))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn killed(scope: &str, victim: usize) {
    let _watchdog = Watchdog::start(LIMIT);
    let mut broker = BrokerProcess::start("--pool-size 32MiB --segment-size 1MiB --record-max 64KiB --drain 100ms");
    let server = broker.unix();
    let subscribe =
        format!("sub killed --server {server} --from earliest --scope {scope} --epoch 5ms --raw --allow-lag");
    let mut consumer = Process::start(Binary::Cli, &words(&subscribe));
    let publish = format!("pub killed --server {server} --count 100000000 --size 1000 --timeout 3s");
    let mut producer = Process::start(Binary::Cli, &words(&publish));
    until("records to arrive", || (consumer.stdout().len() >= UNDER_WAY).then_some(()));
    let threads = [broker.process().id(), producer.id(), consumer.id()].map(device::threads);
    let is_on_device = bus::fabric() != FabricChoice::Soft;
    if is_on_device {
        for (who, threads) in NAMES.iter().zip(&threads) {
            let held = device::held_by(threads).expect("it could be told before");
            assert!(!held.is_empty(), "the {who} works on the device, and nothing of it can be seen there");
        }
    }

    let mut all = [broker.process(), &mut producer, &mut consumer];
    all[victim].kill();
    // The clients first: a broker that goes says so, and they would look for its successor.
    for process in all.iter_mut().rev() {
        if process.poll().is_none() {
            process.signal("TERM");
        }
        let what = format!("the end of process {}", process.id());
        until(&what, || process.poll());
    }
    if is_on_device {
        let what = "nothing of theirs to be left on the device";
        until(what, || device::held_by(&threads.concat()).expect("it could be told before").is_empty().then_some(()));
    }
}
