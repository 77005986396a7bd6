//! The archive that the guest's kernel unpacks into memory and starts from.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cpio::newc::Builder;

use super::error::Error;
use super::kernel::Kernel;

/// What runs first.
const INIT: &str = include_str!("init.sh");

/// Mount points and places that `init.sh` expects.
const DIRECTORIES: &[&str] = &["bin", "modules", "proc", "sys", "dev", "machine", "layer", "root"];

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// A directory of this machine in which what the command writes stays.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) tag: String,
    pub(super) path: PathBuf,
}

/// The directories to share: these, without those that lie in others of them and without the root.
pub(super) fn shares(mut directories: Vec<PathBuf>) -> Vec<Share> {
    directories.retain(|directory| directory.parent().is_some());
    directories.sort();
    directories.dedup_by(|next, kept| next.starts_with(kept));
    directories.into_iter().enumerate().map(|(number, path)| Share { tag: format!("share{number}"), path }).collect()
}

/// Writes the archive.
pub(super) fn write(to: &Path, kernel: &Kernel, shares: &[Share], agent: &Path) -> Result<(), Error> {
    let mut list = String::new();
    for Share { tag, path } in shares {
        list.push_str(&format!("{tag}\t{}\n", one_line(path)?));
    }
    let agent = format!("{}\n", one_line(agent)?);
    let mut files = vec![
        ("init".to_owned(), INIT.as_bytes().to_vec()),
        ("shares".to_owned(), list.into_bytes()),
        ("agent".to_owned(), agent.into_bytes()),
        ("bin/busybox".to_owned(), read(&kernel.busybox)?),
    ];
    for module in &kernel.modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        files.push((format!("modules/{name}"), read(module)?));
    }
    let archive = archive(&files).map_err(Error::file("cannot put together", to))?;
    std::fs::write(to, archive).map_err(Error::file("cannot write", to))
}

/// The directories and these files.
fn archive(files: &[(String, Vec<u8>)]) -> io::Result<Vec<u8>> {
    let mut archive = Vec::new();
    let directories = DIRECTORIES.iter().map(|name| (*name, DIRECTORY, &[][..]));
    let files = files.iter().map(|(name, bytes)| (name.as_str(), PROGRAM, bytes.as_slice()));
    for (number, (name, mode, bytes)) in (1..).zip(directories.chain(files)) {
        let len = u32::try_from(bytes.len()).map_err(|_| io::Error::other(format!("{name} is too large")))?;
        let mut entry = Builder::new(name).ino(number).mode(mode).write(&mut archive, len);
        entry.write_all(bytes)?;
        entry.finish()?;
    }
    cpio::newc::trailer(&mut archive)?;
    Ok(archive)
}

fn read(file: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(file).map_err(Error::file("cannot read", file))
}

/// A path that can stand alone on a line of text.
fn one_line(path: &Path) -> Result<&str, Error> {
    path.to_str().filter(|text| !text.contains('\n')).ok_or_else(|| Error::Path(path.into()))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use cpio::NewcReader;

    use super::*;

    #[test]
    fn the_archive_has_every_file_after_the_directory_that_it_lies_in() {
        let files = [("init".to_owned(), b"#!/bin/sh".to_vec()), ("modules/00-a.ko".to_owned(), vec![0, 1, 2, 3, 4])];
        let archive = archive(&files).expect("memory takes everything");
        let mut from = archive.as_slice();
        let mut seen = Vec::new();
        loop {
            let mut entry = NewcReader::new(from).expect("the archive is well-formed");
            if entry.entry().is_trailer() {
                break;
            }
            let (name, mode) = (entry.entry().name().to_owned(), entry.entry().mode());
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("the archive is well-formed");
            seen.push((name, mode, bytes));
            from = entry.finish().expect("the archive is well-formed");
        }
        let (directories, rest) = seen.split_at(DIRECTORIES.len());
        assert!(directories.iter().all(|(_, mode, bytes)| *mode == DIRECTORY && bytes.is_empty()), "{directories:?}");
        for (name, bytes) in files {
            assert!(rest.contains(&(name.clone(), PROGRAM, bytes)), "{name} is missing or not as it was given");
        }
    }

    #[test]
    fn a_directory_inside_another_is_shared_with_it() {
        let directories = ["/home/me/keyway/target", "/home/me/keyway", "/data", "/home/me/keyway-2", "/data"];
        let shares = shares(directories.iter().map(PathBuf::from).collect());
        let paths: Vec<_> = shares.iter().map(|share| share.path.to_str().expect("text")).collect();
        assert_eq!(paths, ["/data", "/home/me/keyway", "/home/me/keyway-2"]);
        let tags: Vec<_> = shares.iter().map(|share| share.tag.as_str()).collect();
        assert_eq!(tags, ["share0", "share1", "share2"]);
    }

    #[test]
    fn the_root_is_never_shared_for_writing() {
        assert_eq!(shares(vec!["/".into()]), []);
    }

    #[test]
    fn a_path_with_a_line_break_is_refused() {
        let error = one_line(Path::new("/a\nb")).expect_err("it would be two lines");
        assert!(matches!(error, Error::Path(_)), "{error}");
    }
}
