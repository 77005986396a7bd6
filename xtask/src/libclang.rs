//! The libclang with which the bindings to libibverbs are generated. `rdma-sys` does so with a bindgen that reads what libclang
//! 14 and 15 say, and trips over the names that 16 and later have for what has none.

#![allow(clippy::disallowed_methods, reason = "a tool asks the environment for what the build will find there")]

use std::path::{Path, PathBuf};

/// Debian's package of a libclang that is old enough, with the headers that it needs.
pub(crate) const PACKAGE: &str = "libclang-14-dev";

/// Where the build looks first.
pub(crate) const VARIABLE: &str = "LIBCLANG_PATH";

/// The versions that can be used, the better first.
const USABLE: [u32; 2] = [15, 14];

/// Below which each version of LLVM has a directory of its own on Debian.
const PLACE: &str = "/usr/lib";

/// The directory with a libclang that can be used, or what the user chose.
pub(crate) fn usable() -> Option<PathBuf> {
    chosen().or_else(|| {
        let installed = installed(Path::new(PLACE));
        USABLE.iter().find_map(|usable| Some(installed.iter().find(|(version, _)| version == usable)?.1.clone()))
    })
}

/// What the build has to be told: nothing where it finds the right one by itself.
pub(crate) fn hint() -> Option<PathBuf> {
    let newest = installed(Path::new(PLACE)).into_iter().map(|(version, _)| version).max()?;
    // It takes the newest. To tell it what it would find anyway would build the bindings anew for whoever does not.
    if chosen().is_some() || USABLE.contains(&newest) { None } else { usable() }
}

fn chosen() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Every libclang below `place`: version and directory.
fn installed(place: &Path) -> Vec<(u32, PathBuf)> {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let versions = entries.filter_map(|entry| {
        let version = entry.file_name().to_str()?.strip_prefix("llvm-")?.parse().ok()?;
        let directory = entry.path().join("lib");
        let mut files = std::fs::read_dir(&directory).ok()?.flatten();
        let there = files.any(|file| file.file_name().to_string_lossy().starts_with("libclang.so"));
        there.then_some((version, directory))
    });
    versions.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_the_library_is_installed() {
        let place = tempfile::tempdir().expect("a directory can be made");
        for (version, file) in [("llvm-14", "libclang.so.1"), ("llvm-19", "libclang-cpp.so.19"), ("gcc", "libclang.so")]
        {
            let directory = place.path().join(version).join("lib");
            std::fs::create_dir_all(&directory).expect("a directory can be made");
            std::fs::write(directory.join(file), "").expect("a file can be written");
        }
        assert_eq!(installed(place.path()), [(14, place.path().join("llvm-14/lib"))]);
    }
}
