//! A way to a broker that a test can cut: forwards TCP connections, and drops them all when told to.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A forwarder.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: SocketAddr,
    /// Both ends of every connection that is forwarded.
    connections: Mutex<Vec<TcpStream>>,
    /// Whether new connections are dropped at once.
    closed: AtomicBool,
    over: AtomicBool,
}

impl Proxy {
    /// Forwards to `target` from a port of its own.
    pub(crate) fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port can be had");
        let address = listener.local_addr().expect("it has an address");
        let shared = Shared {
            target,
            connections: Mutex::new(Vec::new()),
            closed: AtomicBool::new(false),
            over: AtomicBool::new(false),
        };
        let shared = Arc::new(shared);
        let accepting = Arc::clone(&shared);
        spawn(move || accepting.accept(&listener));
        Self { address, shared }
    }

    /// Where it listens.
    pub(crate) fn server(&self) -> String {
        format!("keyway://{}", self.address)
    }

    /// Drops every connection. New ones are forwarded.
    pub(crate) fn cut(&self) {
        for stream in self.shared.connections().drain(..) {
            // Gone already is as good.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Drops every connection and takes no new ones, until [`open`](Self::open).
    pub(crate) fn close(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Forwards again.
    pub(crate) fn open(&self) {
        self.shared.closed.store(false, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the accepting thread so that it sees that it is over.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(&self, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            let Ok(client) = client else { return };
            // The lock is held from the look at `closed` to the entry, so that `close` misses no connection.
            let mut connections = self.connections();
            if self.closed.load(Ordering::SeqCst) {
                continue;
            }
            if let Ok(broker) = TcpStream::connect(self.target)
                && forward(&client, &broker).is_ok()
            {
                connections.extend([client, broker]);
            }
        }
    }
}

fn forward(client: &TcpStream, broker: &TcpStream) -> std::io::Result<()> {
    for (from, to) in [(client, broker), (broker, client)] {
        from.set_nodelay(true)?;
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        spawn(move || copy(from, to));
    }
    Ok(())
}

/// Copies until either end is gone, and tells the other.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

fn spawn(work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().name("proxy".into()).spawn(work).expect("a thread can be started");
}
