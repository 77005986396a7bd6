//! Runs a command where there is an RDMA device: on this machine if it has one, else with Soft-RoCE, in this machine's kernel
//! or in a guest's.
//!
//! The command finds the same files, directory and environment everywhere, and its status becomes the runner's. In a guest it
//! runs as root, its standard input is empty, and what it writes stays only in the shared directories: its own, the
//! workspace and the target directory.

mod agent;
mod device;
mod error;
mod frames;
mod guest;
mod initramfs;
mod job;
mod kernel;
mod links;
mod module;
mod modules;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

pub(crate) use self::agent::serve;
pub(crate) use self::error::Error;
pub(crate) use self::job::Job;
use crate::interrupt;
use crate::step::{Failure, target, workspace};
use crate::tools::Rights;

/// A guest's memory if not said: a few brokers with their pools, and the programs that are run.
pub(crate) const MEMORY_MIB: u32 = 2048;

/// Where a command finds its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Place {
    /// A device that this machine has already
    Device,
    /// Soft-RoCE in the running kernel, loaded for the command
    Module,
    /// A guest machine with Soft-RoCE in its kernel
    Guest,
}

/// How a command is to be run.
#[derive(Debug)]
pub(crate) struct Options {
    /// The best that there is if not said.
    pub(crate) on: Option<Place>,
    pub(crate) time_limit: Option<Duration>,
    /// A guest's memory.
    pub(crate) memory_mib: u32,
    /// Where a guest's writes stay, besides the command's own directory.
    pub(crate) writable: Vec<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let writable = vec![workspace().into(), target()];
        Self { on: None, time_limit: None, memory_mib: MEMORY_MIB, writable }
    }
}

/// Whether there is no device on this machine and none can be made, so that there has to be a guest.
pub(crate) fn needs_guest() -> bool {
    device::find().is_err() && loaded().is_err()
}

/// Brings here what a guest boots from, if there has to be one.
pub(crate) fn prepare() -> Result<(), Failure> {
    if !needs_guest() {
        eprintln!("guest    not needed: this machine has a device or can make one");
        return Ok(());
    }
    let kernel = kernel::get().map_err(|error| Failure::Found(error.to_string()))?;
    eprintln!("guest    {}, in {}", kernel.package, kernel.image.display());
    Ok(())
}

/// The name of the device at hand; or what is in the way.
pub(crate) fn device() -> Result<String, String> {
    device::find()
}

/// Runs the command and returns its status.
pub(crate) fn run(job: &Job, options: Options) -> Result<u8, Error> {
    interrupt::catch();
    let mut against = Vec::new();
    if matches!(options.on, None | Some(Place::Device)) {
        match device::find() {
            Ok(device) => {
                eprintln!("softroce: on this machine, which has the RDMA device {device}");
                return job.run(options.time_limit);
            }
            Err(why) if options.on.is_some() => return Err(Error::NoDevice(why)),
            Err(why) => against.push(why),
        }
    }
    if matches!(options.on, None | Some(Place::Module)) {
        match loaded() {
            Ok((_loaded, rights)) => {
                let how = if rights == Rights::Sudo { "made with sudo" } else { "made" };
                eprintln!("softroce: on this machine, devices {how} with the kernel's rdma_rxe{}", since(&against));
                return job.run(options.time_limit);
            }
            Err(why) if options.on.is_some() => return Err(Error::NoModule(why)),
            Err(why) => against.push(why),
        }
    }
    eprintln!("softroce: in a guest machine{}", since(&against));
    let mut writable = options.writable;
    writable.push(PathBuf::from(&job.directory));
    guest::run(job, guest::Machine { memory_mib: options.memory_mib, writable, time_limit: options.time_limit })
}

/// Soft-RoCE in the running kernel, as long as the first lives; or what is in the way.
fn loaded() -> Result<(module::Loaded, Rights), String> {
    let rights = module::available()?;
    let loaded = module::load(rights).map_err(|error| error.to_string())?;
    Ok((loaded, rights))
}

/// Why nothing better was chosen.
fn since(against: &[String]) -> String {
    if against.is_empty() { ", as was asked".into() } else { format!(": {}", against.join("; ")) }
}
