//! What the machine needs besides a Rust toolchain, and installing what of that is missing. What is there is found by its
//! programs and files, so that it does not matter how it came there; what is missing is installed with `apt-get`.

use std::path::Path;

use crate::step::{Failure, succeed};
use crate::tools::{self, Rights};
use crate::{libclang, softroce};

/// Something to look for, and the Debian package that brings it.
struct Need {
    package: &'static str,
    sign: Sign,
}

/// How one sees that something is there.
enum Sign {
    Program(&'static str),
    /// Any of these.
    File(&'static [&'static str]),
    Libclang,
}

/// For building with the feature `verbs`.
const BUILDING: &[Need] = &[
    Need { package: "libibverbs-dev", sign: Sign::File(&["/usr/include/infiniband/verbs.h"]) },
    Need { package: "librdmacm-dev", sign: Sign::File(&["/usr/include/rdma/rdma_cma.h"]) },
    Need { package: "pkg-config", sign: Sign::Program("pkg-config") },
    Need { package: libclang::PACKAGE, sign: Sign::Libclang },
];

/// For the tests, which end processes with it. A small container may lack even that.
const TESTING: &[Need] = &[Need { package: "procps", sign: Sign::Program("kill") }];

/// For running on a device, Soft-RoCE included, and for looking at it and measuring it.
const RUNNING: &[Need] = &[
    Need {
        package: "ibverbs-providers",
        sign: Sign::File(&["/etc/libibverbs.d/rxe.driver", "/usr/share/libibverbs.d/rxe.driver"]),
    },
    Need { package: "ibverbs-utils", sign: Sign::Program("ibv_devinfo") },
    Need { package: "perftest", sign: Sign::Program("ib_read_bw") },
    Need { package: "iproute2", sign: Sign::Program("rdma") },
];

/// For a guest machine with Soft-RoCE, where there is no other device. Its kernel is not installed.
const GUEST: &[Need] = &[
    Need { package: "qemu-system-x86", sign: Sign::Program("qemu-system-x86_64") },
    // Kernel modules are compressed with it.
    Need { package: "xz-utils", sign: Sign::Program("xz") },
];

/// Looks for everything, and installs what is missing.
pub(crate) fn require() -> Result<(), Failure> {
    let mut missing = missing(BUILDING.iter().chain(TESTING).chain(RUNNING));
    // A device that needs a guest is known for sure only once the tools to look for one are there.
    if softroce::needs_guest() {
        missing.extend(self::missing(GUEST.iter()));
    }
    if missing.is_empty() {
        eprintln!("packages all there");
        return Ok(());
    }
    install(&missing)
}

fn missing<'a>(needs: impl Iterator<Item = &'a Need>) -> Vec<&'static str> {
    needs.filter(|need| !need.sign.is_there()).map(|need| need.package).collect()
}

impl Sign {
    fn is_there(&self) -> bool {
        match self {
            Self::Program(name) => tools::find(name).is_some(),
            Self::File(paths) => paths.iter().any(|path| Path::new(path).exists()),
            Self::Libclang => libclang::usable().is_some(),
        }
    }
}

fn install(packages: &[&str]) -> Result<(), Failure> {
    let list = packages.join(" ");
    let by_hand = format!("as root: apt-get install --no-install-recommends {list}");
    if tools::find("apt-get").is_none() {
        return Err(Failure::Found(format!("this machine lacks what these Debian packages bring: {list}")));
    }
    let Some(rights) = Rights::find() else {
        let why = "and installing them takes root, or sudo without a password";
        return Err(Failure::Found(format!("these packages are missing, {why}; {by_hand}")));
    };
    eprintln!("packages missing, installing with apt-get: {list}");
    let apt_get = |arguments: &[&str]| {
        let mut command = rights.command("env");
        succeed(command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-q"]).args(arguments))
    };
    // An archive of somebody else's that cannot be reached must not be in the way of Debian's.
    if let Err(failure) = apt_get(&["update"]) {
        eprintln!("going on with the package lists that there are: {failure}");
    }
    apt_get(&[&["install", "-y", "--no-install-recommends"], packages].concat())
        .map_err(|failure| Failure::Found(format!("{failure}; {by_hand}")))
}
