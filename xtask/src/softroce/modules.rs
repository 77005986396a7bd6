//! Which kernel modules the guest needs, and in which order they have to be loaded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::Error;
use crate::tools;

/// A module that the guest loads, with all that it depends on.
pub(super) struct Wanted {
    name: &'static str,
    /// Kernels differ in what is built in, and later ones have what is `IfThere` in other places.
    need: Need,
}

#[derive(PartialEq, Eq)]
enum Need {
    Always,
    IfThere,
}

/// In the order in which they are loaded.
pub(super) const WANTED: &[Wanted] = &[
    // The way out: the channel to the runner and the host's files.
    Wanted { name: "virtio_pci", need: Need::Always },
    Wanted { name: "virtio_console", need: Need::Always },
    Wanted { name: "9pnet_virtio", need: Need::Always },
    Wanted { name: "9p", need: Need::Always },
    Wanted { name: "overlay", need: Need::Always },
    // What Soft-RoCE computes its checksums with. It asks for them by name, which no dependency shows.
    Wanted { name: "crc32c_intel", need: Need::IfThere },
    Wanted { name: "crc32c_generic", need: Need::IfThere },
    Wanted { name: "crc32_pclmul", need: Need::IfThere },
    Wanted { name: "crc32_generic", need: Need::IfThere },
    Wanted { name: "dummy", need: Need::Always },
    // Two interfaces on one wire, for tests of two devices.
    Wanted { name: "veth", need: Need::IfThere },
    Wanted { name: "rdma_rxe", need: Need::Always },
    // For programs that use the connection manager.
    Wanted { name: "rdma_ucm", need: Need::Always },
];

/// The names in one line, to see whether what was prepared earlier is what is wanted now.
pub(super) fn wanted() -> String {
    WANTED.iter().map(|module| module.name).collect::<Vec<_>>().join(" ")
}

/// The modules of an unpacked kernel package.
pub(super) struct Tree {
    /// By name, as the kernel spells it.
    files: BTreeMap<String, PathBuf>,
    /// What the kernel has without loading anything.
    builtin: Vec<String>,
}

impl Tree {
    /// What lies below `directory`, `lib/modules/VERSION`.
    pub(super) fn read(directory: &Path) -> Result<Self, Error> {
        let mut files = BTreeMap::new();
        collect(directory, &mut files)?;
        let builtin = directory.join("modules.builtin");
        let text = std::fs::read_to_string(&builtin).map_err(Error::file("cannot read", builtin))?;
        let builtin = text.lines().filter_map(|line| name(Path::new(line))).collect();
        Ok(Self { files, builtin })
    }

    /// The contents of every wanted module and what they depend on, each after all that it needs itself.
    pub(super) fn in_order(&self) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let mut contents = BTreeMap::new();
        let mut depends = |name: &str| -> Result<Option<Vec<String>>, Error> {
            let Some(file) = self.files.get(name) else { return Ok(None) };
            let bytes = unpacked(file)?;
            let depends = depends(&bytes);
            contents.insert(name.to_owned(), bytes);
            Ok(Some(depends))
        };
        let order = order(WANTED, &self.builtin, &mut depends)?;
        Ok(order.into_iter().filter_map(|name| contents.remove(&name).map(|bytes| (name, bytes))).collect())
    }
}

/// Orders the wanted modules and what they need; `depends` gives a module's direct dependencies, none if there is none such.
fn order(
    wanted: &[Wanted],
    builtin: &[String],
    depends: &mut impl FnMut(&str) -> Result<Option<Vec<String>>, Error>,
) -> Result<Vec<String>, Error> {
    let mut order = Vec::new();
    for Wanted { name, need } in wanted {
        // What to visit, and what to put into the order once all it depends on is there.
        let mut stack = vec![(name.to_string(), false, "the guest".to_owned())];
        while let Some((module, visited, by)) = stack.pop() {
            if order.contains(&module) || builtin.contains(&module) {
                continue;
            }
            if visited {
                order.push(module);
                continue;
            }
            let Some(needed) = depends(&module)? else {
                if *need == Need::IfThere && module == *name {
                    continue;
                }
                return Err(Error::Module { module: by, needed: module });
            };
            stack.push((module.clone(), true, by));
            stack.extend(needed.into_iter().rev().map(|needed| (needed, false, module.clone())));
        }
    }
    Ok(order)
}

/// What a module says it depends on: the field `depends` of its section `.modinfo`, as `depmod` shows it too.
fn depends(module: &[u8]) -> Vec<String> {
    let field = module.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"depends="));
    let names = String::from_utf8_lossy(field.unwrap_or_default()).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(spelled).collect()
}

/// Finds modules in a directory and those below.
fn collect(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), Error> {
    for entry in std::fs::read_dir(directory).map_err(Error::file("cannot list", directory))? {
        let entry = entry.map_err(Error::file("cannot list", directory))?;
        let path = entry.path();
        if entry.file_type().map_err(Error::file("cannot look at", &path))?.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// The module's name, if the file is one: `rdma_rxe` for `rdma-rxe.ko.xz`.
fn name(file: &Path) -> Option<String> {
    let (name, compression) = file.file_name()?.to_str()?.split_once(".ko")?;
    matches!(compression, "" | ".xz" | ".zst" | ".gz").then(|| spelled(name))
}

/// Files may have dashes where the kernel has underscores.
fn spelled(name: &str) -> String {
    name.replace('-', "_")
}

/// A module's bytes as the kernel takes them.
fn unpacked(file: &Path) -> Result<Vec<u8>, Error> {
    let program = match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return std::fs::read(file).map_err(Error::file("cannot read", file)),
    };
    let mut command: Command = tools::command(program);
    command.args(["--decompress", "--stdout"]).arg(file);
    tools::run(&mut command).map_err(|failed| Error::Command { command: failed.command, said: failed.said })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NET: &[Wanted] = &[Wanted { name: "net", need: Need::Always }];

    fn ordered(wanted: &[Wanted], builtin: &[&str], modules: &[(&str, &[&str])]) -> Result<Vec<String>, Error> {
        let builtin: Vec<_> = builtin.iter().map(ToString::to_string).collect();
        let mut depends = |name: &str| {
            let found = modules.iter().find(|(module, _)| *module == name);
            Ok(found.map(|(_, depends)| depends.iter().map(ToString::to_string).collect()))
        };
        order(wanted, &builtin, &mut depends)
    }

    #[test]
    fn a_module_comes_after_everything_it_depends_on_and_once() {
        let modules: &[(&str, &[&str])] = &[
            ("net", &["verbs", "tunnel"]),
            ("verbs", &["core"]),
            ("tunnel", &["core", "tunnel6"]),
            ("core", &[]),
            ("tunnel6", &[]),
        ];
        let order = ordered(NET, &[], modules).expect("everything is there");
        assert_eq!(order, ["core", "verbs", "tunnel6", "tunnel", "net"]);
    }

    #[test]
    fn what_is_built_in_is_not_loaded() {
        let order = ordered(NET, &["core"], &[("net", &["core"])]).expect("everything is there");
        assert_eq!(order, ["net"]);
        let order = ordered(NET, &["net"], &[]).expect("it is built in");
        assert!(order.is_empty(), "{order:?}");
    }

    #[test]
    fn a_missing_dependency_is_an_error_that_names_both() {
        let error = ordered(NET, &[], &[("net", &["core"])]).expect_err("core is missing");
        assert!(matches!(&error, Error::Module { module, needed } if module == "net" && needed == "core"), "{error}");
    }

    #[test]
    fn what_is_wanted_only_if_there_may_be_missing_but_not_what_it_needs() {
        let wanted = &[Wanted { name: "crc", need: Need::IfThere }];
        assert!(ordered(wanted, &[], &[]).expect("crc may be missing").is_empty());
        let error = ordered(wanted, &[], &[("crc", &["core"])]).expect_err("core may not");
        assert!(matches!(error, Error::Module { .. }), "{error}");
    }

    #[test]
    fn dependencies_are_read_from_the_module_itself() {
        let module = b"\x7fELF..\0license=GPL\0depends=ib_core,ip6-udp-tunnel\0retpoline=Y\0";
        assert_eq!(depends(module), ["ib_core", "ip6_udp_tunnel"]);
        assert!(depends(b"\0depends=\0name=dummy\0").is_empty());
    }

    #[test]
    fn modules_are_known_by_their_file_name_compressed_or_not() {
        for file in ["a/crc32c-intel.ko", "crc32c-intel.ko.xz", "crc32c-intel.ko.zst"] {
            assert_eq!(name(Path::new(file)).as_deref(), Some("crc32c_intel"), "{file}");
        }
        assert_eq!(name(Path::new("modules.builtin")), None);
        assert_eq!(name(Path::new("x.ko.bak")), None);
    }
}
