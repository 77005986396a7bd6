//! An RDMA device that this machine has already.

use std::path::{Path, PathBuf};

/// Where the kernel lists devices.
const SYSFS: &str = "/sys/class";

/// What the file `state` of a port says when it can be used.
const ACTIVE: &str = "ACTIVE";

/// A device with an active port that this process may open; or what is in the way, as the end of a sentence.
pub(super) fn find() -> Result<String, String> {
    let device = active(Path::new(SYSFS))?;
    let Some(node) = node(Path::new(SYSFS), &device) else {
        return Err(format!("{device} cannot be used from user space (is the module ib_uverbs loaded?)"));
    };
    match std::fs::File::options().read(true).write(true).open(&node) {
        Ok(_) => Ok(device),
        Err(error) => Err(format!("{device} cannot be opened: {}: {error}", node.display())),
    }
}

/// The first device with an active port.
fn active(sysfs: &Path) -> Result<String, String> {
    let mut seen = Vec::new();
    for device in entries(&sysfs.join("infiniband")) {
        for port in entries(&device.join("ports")) {
            // "4: ACTIVE"
            let state = read(&port.join("state"));
            if state.ends_with(ACTIVE) {
                return Ok(name(&device));
            }
            seen.push(format!("port {} of {} is \"{state}\"", name(&port), name(&device)));
        }
    }
    if seen.is_empty() { Err("there is no RDMA device".into()) } else { Err(seen.join(", ")) }
}

/// The character device through which user space reaches it.
fn node(sysfs: &Path, device: &str) -> Option<PathBuf> {
    let nodes = entries(&sysfs.join("infiniband_verbs"));
    let node = nodes.iter().find(|node| read(&node.join("ibdev")) == device)?;
    Some(Path::new("/dev/infiniband").join(name(node)))
}

/// A directory's entries by name, none if it is not there.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> =
        std::fs::read_dir(directory).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    entries
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like the kernel's with these ports: device, port, state.
    fn sysfs(ports: &[(&str, &str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory can be made");
        for (device, port, state) in ports {
            let port = root.path().join("infiniband").join(device).join("ports").join(port);
            std::fs::create_dir_all(&port).expect("a directory can be made");
            std::fs::write(port.join("state"), format!("{state}\n")).expect("a file can be written");
        }
        root
    }

    #[test]
    fn the_first_device_with_an_active_port_is_taken() {
        let root = sysfs(&[("mlx5_0", "1", "1: DOWN"), ("mlx5_1", "1", "1: DOWN"), ("mlx5_1", "2", "4: ACTIVE")]);
        assert_eq!(active(root.path()), Ok("mlx5_1".into()));
    }

    #[test]
    fn devices_without_an_active_port_are_named_with_their_state() {
        let root = sysfs(&[("mlx5_0", "1", "1: DOWN"), ("mlx5_0", "2", "2: INIT")]);
        let why = active(root.path()).expect_err("no port is active");
        assert_eq!(why, "port 1 of mlx5_0 is \"1: DOWN\", port 2 of mlx5_0 is \"2: INIT\"");
    }

    #[test]
    fn a_machine_without_devices_has_none() {
        let root = sysfs(&[]);
        assert_eq!(active(root.path()), Err("there is no RDMA device".into()));
    }

    #[test]
    fn a_device_is_opened_through_the_node_that_names_it() {
        let root = sysfs(&[]);
        for (node, device) in [("uverbs0", "rxe0"), ("uverbs1", "rxe1")] {
            let node = root.path().join("infiniband_verbs").join(node);
            std::fs::create_dir_all(&node).expect("a directory can be made");
            std::fs::write(node.join("ibdev"), format!("{device}\n")).expect("a file can be written");
        }
        assert_eq!(node(root.path(), "rxe1"), Some("/dev/infiniband/uverbs1".into()));
        assert_eq!(node(root.path(), "rxe2"), None);
    }
}
