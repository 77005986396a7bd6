//! The guest's kernel, its modules and a busybox to load them with: Debian's own, downloaded, unpacked aside, kept for the
//! next time. Nothing is installed.
//!
//! They lie in `KEYWAY_CACHE`, else `XDG_CACHE_HOME/keyway`, else `~/.cache/keyway`, in the directory `softroce`, and are used
//! until that is removed, with the network or without.

#![allow(clippy::disallowed_methods, reason = "a tool asks the environment where its cache is")]

use std::fs;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::modules::{self, Tree};
use crate::tools::{self, Rights};

/// The package that depends on the newest kernel.
const NEWEST: &str = "linux-image-amd64";

/// Debian's busybox that needs no library.
const BUSYBOX: &str = "busybox-static";

/// What a guest boots from.
pub(super) struct Kernel {
    /// The package that it came in.
    pub(super) package: String,
    pub(super) image: PathBuf,
    /// In the order in which they are to be loaded.
    pub(super) modules: Vec<PathBuf>,
    pub(super) busybox: PathBuf,
}

/// Where what took time to get is kept.
pub(super) fn cache() -> Result<PathBuf, Error> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("KEYWAY_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("keyway")))
        .or_else(|| Some(set("HOME")?.join(".cache/keyway")))
        .ok_or(Error::NoCache)?;
    let cache = cache.join("softroce");
    fs::create_dir_all(&cache).map_err(Error::file("cannot make the cache", &cache))?;
    Ok(cache)
}

/// The kernel in the cache, or one that is brought there.
pub(super) fn get() -> Result<Kernel, Error> {
    let cache = cache()?;
    let place = cache.join("kernel");
    if let Some(kernel) = read(&place) {
        return Ok(kernel);
    }
    let missing: Vec<_> =
        ["apt-get", "apt-cache", "dpkg-deb"].into_iter().filter(|tool| tools::find(tool).is_none()).collect();
    if !missing.is_empty() {
        return Err(Error::Missing { missing: missing.join(", ") });
    }
    let prepared = tempfile::tempdir_in(&cache).map_err(Error::file("cannot write to", &cache))?;
    let package = prepare(prepared.path())?;
    // What was there was of no use, or somebody else prepared the same meanwhile.
    if place.exists() {
        fs::remove_dir_all(&place).map_err(Error::file("cannot remove", &place))?;
    }
    fs::rename(prepared.keep(), &place).map_err(Error::file("cannot rename what was prepared to", &place))?;
    read(&place).ok_or_else(|| Error::Package { package, what: "what was unpacked cannot be read back".into() })
}

/// What an earlier run prepared, unless something else is wanted by now.
fn read(place: &Path) -> Option<Kernel> {
    let wanted = fs::read_to_string(place.join("wanted")).ok()?;
    if wanted != modules::wanted() {
        return None;
    }
    let package = fs::read_to_string(place.join("package")).ok()?;
    let mut modules: Vec<_> = fs::read_dir(place.join("modules"))
        .ok()?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()
        .ok()?;
    modules.sort();
    Some(Kernel { package, image: place.join("vmlinuz"), modules, busybox: place.join("busybox") })
}

/// Downloads and unpacks, and leaves what [`read`] reads in `place`. Returns the kernel's package.
fn prepare(place: &Path) -> Result<String, Error> {
    let package = newest()?;
    let unpacked = tempfile::tempdir_in(place).map_err(Error::file("cannot write to", place))?;
    for package in [&package, BUSYBOX] {
        eprintln!("softroce: downloading {package} from Debian, to be unpacked in the cache");
        download(package, unpacked.path())?;
    }
    let root = unpacked.path();
    let version = package.strip_prefix("linux-image-").unwrap_or(&package);
    let unexpected = |what: String| Error::Package { package: package.clone(), what };

    let image = root.join("boot").join(format!("vmlinuz-{version}"));
    let directory = ["lib/modules", "usr/lib/modules"].map(|place| root.join(place).join(version));
    let directory = directory.iter().find(|directory| directory.is_dir());
    let directory = directory.ok_or_else(|| unexpected(format!("it has no directory lib/modules/{version}")))?;
    let busybox = ["bin/busybox", "usr/bin/busybox"].map(|place| root.join(place));
    let busybox = busybox.iter().find(|file| file.is_file());
    let busybox = busybox.ok_or_else(|| unexpected(format!("{BUSYBOX} has no bin/busybox")))?;

    for (from, to) in [(&image, "vmlinuz"), (busybox, "busybox")] {
        fs::copy(from, place.join(to)).map_err(Error::file("cannot copy", from))?;
    }
    let modules = place.join("modules");
    fs::create_dir(&modules).map_err(Error::file("cannot make", &modules))?;
    for (number, (name, bytes)) in Tree::read(directory)?.in_order()?.into_iter().enumerate() {
        let file = modules.join(format!("{number:02}-{name}.ko"));
        fs::write(&file, bytes).map_err(Error::file("cannot write", &file))?;
    }
    for (file, text) in [("package", package.as_str()), ("wanted", &modules::wanted())] {
        fs::write(place.join(file), text).map_err(Error::file("cannot write", place.join(file)))?;
    }
    Ok(package)
}

/// The package with the newest kernel, as far as this machine's package lists go.
fn newest() -> Result<String, Error> {
    let ask = || {
        let answer = tools::run(tools::command("apt-cache").args(["depends", NEWEST]));
        answer.map(|answer| depended_on(&String::from_utf8_lossy(&answer)))
    };
    let answer = match ask() {
        Ok(Some(package)) => return Ok(package),
        // A machine whose lists were never fetched, as a fresh container's.
        Ok(None) | Err(_) => update().and_then(|()| ask()),
    };
    let (command, said) = match answer {
        Ok(Some(package)) => return Ok(package),
        Ok(None) => (format!("apt-cache depends {NEWEST}"), "no such package".into()),
        Err(failed) => (failed.command, failed.said),
    };
    Err(Error::Archive { package: NEWEST.into(), command, said })
}

/// The kernel that the package of the newest one depends on.
fn depended_on(answer: &str) -> Option<String> {
    let names = answer.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.map(str::trim).find(|name| name.starts_with("linux-image-")).map(ToOwned::to_owned)
}

/// Downloads a package and unpacks it into a directory.
fn download(package: &str, into: &Path) -> Result<(), Error> {
    let get = || {
        // As root apt would download as another user, who may not write here, and complain.
        let arguments = ["-q", "-o", "APT::Sandbox::User=root", "download", package];
        tools::run(tools::command("apt-get").args(arguments).current_dir(into))
    };
    // The lists may be older than the archive, and name a version that is gone.
    get().or_else(|_| update().and_then(|()| get())).map_err(|failed| Error::Archive {
        package: package.into(),
        command: failed.command,
        said: failed.said,
    })?;
    for entry in fs::read_dir(into).map_err(Error::file("cannot list", into))?.flatten() {
        let file = entry.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            let unpack = tools::run(tools::command("dpkg-deb").arg("--extract").arg(&file).arg(into));
            unpack.map_err(|failed| Error::Command { command: failed.command, said: failed.said })?;
            fs::remove_file(&file).map_err(Error::file("cannot remove", &file))?;
        }
    }
    Ok(())
}

/// Fetches the package lists, if this process may.
fn update() -> Result<(), tools::Failed> {
    match Rights::find() {
        Some(rights) => tools::run(rights.command("apt-get").args(["update", "-q"])).map(drop),
        None => Err(tools::Failed {
            command: "apt-get update".into(),
            said: "it takes root, or sudo without a password".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_what_its_package_depends_on() {
        let answer = "linux-image-amd64\n  Depends: linux-image-6.1.0-48-amd64\n  Conflicts: <linux-image-2.6>\n";
        assert_eq!(depended_on(answer).as_deref(), Some("linux-image-6.1.0-48-amd64"));
        assert_eq!(depended_on("linux-image-amd64\n"), None);
    }

    #[test]
    fn what_was_prepared_is_read_back_in_order_until_other_modules_are_wanted() {
        let place = tempfile::tempdir().expect("a directory can be made");
        let write = |file: &str, text: &str| fs::write(place.path().join(file), text).expect("a file can be written");
        assert!(read(place.path()).is_none(), "nothing is there");
        fs::create_dir(place.path().join("modules")).expect("a directory can be made");
        write("modules/01-b.ko", "");
        write("modules/00-c.ko", "");
        write("package", "linux-image-1");
        write("wanted", &modules::wanted());
        let kernel = read(place.path()).expect("everything is there");
        assert_eq!(kernel.package, "linux-image-1");
        let names: Vec<_> = kernel.modules.iter().filter_map(|path| path.file_name()).collect();
        assert_eq!(names, ["00-c.ko", "01-b.ko"]);
        write("wanted", "something else");
        assert!(read(place.path()).is_none(), "other modules are wanted");
    }
}
