//! A Unix socket's path: taking it over from a dead broker, and nothing else.
//!
//! A socket file outlives the process that bound it. What is found at the path is removed only if it is a socket, belongs to
//! this process's user, and nobody answers on it. The new socket has mode 0600, set before anyone can connect, and is
//! removed at the end unless somebody has put another one in its place.
//!
//! Two brokers that start on one path in the same moment are kept apart by `bind`, but for the instant between looking at
//! a stale file and removing it.

use std::fs::{self, FileType, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::BrokerError;

/// Only the broker's own user may connect.
const MODE: u32 = 0o600;

/// How many connections the system holds until they are accepted.
const BACKLOG: i32 = 1024;

/// A bound socket's file; removed on drop.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

/// Tells a file from another one that took its path.
type Identity = (u64, u64);

/// Listens on a path, nonblocking, cleaning up after a dead broker.
///
/// # Errors
///
/// Who or what has the path, or the system's reason.
pub(crate) fn listen(path: &Path) -> Result<(UnixListener, SocketFile), BrokerError> {
    let failed = |what| move |source| BrokerError::Unix { what, path: path.to_owned(), source };
    let address = SockAddr::unix(path).map_err(failed("name"))?;
    clear(path, &address)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed("make"))?;
    socket.bind(&address).map_err(|source| match source.kind() {
        // The path was free a moment ago: another broker has just taken it.
        io::ErrorKind::AddrInUse => BrokerError::UnixBusy { path: path.to_owned() },
        _ => failed("bind")(source),
    })?;
    let metadata = fs::symlink_metadata(path).map_err(failed("find"))?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&metadata) };
    fs::set_permissions(path, Permissions::from_mode(MODE)).map_err(failed("protect"))?;
    // Nobody could connect before this, so nobody came in under other permissions.
    socket.listen(BACKLOG).and_then(|()| socket.set_nonblocking(true)).map_err(failed("listen on"))?;
    Ok((socket.into(), file))
}

/// Removes a dead broker's socket; refuses whatever else is there.
fn clear(path: &Path, address: &SockAddr) -> Result<(), BrokerError> {
    let failed = |what| move |source| BrokerError::Unix { what, path: path.to_owned(), source };
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at")(error)),
    };
    if !found.file_type().is_socket() {
        return Err(BrokerError::UnixOccupied { path: path.to_owned(), kind: kind(found.file_type()) });
    }
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own {
        return Err(BrokerError::UnixForeign { path: path.to_owned(), owner: found.uid(), own });
    }
    if is_live(address).map_err(failed("try"))? {
        return Err(BrokerError::UnixBusy { path: path.to_owned() });
    }
    if fs::symlink_metadata(path).is_ok_and(|now| identity(&now) != identity(&found)) {
        return Err(BrokerError::UnixBusy { path: path.to_owned() });
    }
    tracing::info!(path = %path.display(), "removed the socket of a broker that is gone");
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove")(error)),
        _ => Ok(()),
    }
}

/// Whether somebody listens. Never waits: a listener that is too busy to accept is alive.
fn is_live(address: &SockAddr) -> io::Result<bool> {
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    match probe.connect(address) {
        Ok(()) => Ok(true),
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Ok(false),
            io::ErrorKind::WouldBlock => Ok(true),
            _ => Err(error),
        },
    }
}

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

fn kind(file_type: FileType) -> &'static str {
    if file_type.is_dir() {
        "a directory"
    } else if file_type.is_symlink() {
        "a symbolic link"
    } else if file_type.is_file() {
        "a regular file"
    } else {
        "a device or pipe"
    }
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the broker's socket");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn path() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("broker.sock");
        (directory, path)
    }

    #[test]
    fn the_socket_is_its_users_alone_and_goes_with_its_listener() {
        let (_directory, path) = path();
        let (_listener, file) = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_brokers_socket_is_replaced_and_a_live_ones_is_not() {
        let (_directory, path) = path();
        let (listener, file) = listen(&path).unwrap();
        assert!(matches!(listen(&path), Err(BrokerError::UnixBusy { .. })));
        std::mem::forget(file);
        drop(listener);
        assert!(path.exists(), "as after kill -9");
        let (_listener, _file) = listen(&path).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn what_is_no_socket_is_refused_and_left_alone() {
        let (directory, path) = path();
        fs::write(&path, "precious").unwrap();
        let error = listen(&path).unwrap_err();
        assert!(error.to_string().contains("is a regular file, not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        assert!(listen(directory.path()).unwrap_err().to_string().contains("is a directory"));
    }

    #[test]
    fn another_brokers_socket_that_took_the_path_is_not_removed() {
        let (_directory, path) = path();
        let (_first, first_file) = listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let (_second, _second_file) = listen(&path).unwrap();
        drop(first_file);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_path_that_is_too_long_is_named() {
        let path = PathBuf::from(format!("/tmp/{}", "p".repeat(200)));
        let error = listen(&path).unwrap_err();
        assert!(matches!(error, BrokerError::Unix { what: "name", .. }), "{error}");
    }
}
