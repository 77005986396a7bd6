//! A TCP relay whose connections a test can cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The relay. It listens until it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    stop: Arc<AtomicBool>,
}

impl Proxy {
    /// Relays every connection to `target`.
    pub(crate) fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let streams = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (known, stopped) = (Arc::clone(&streams), Arc::clone(&stop));
        spawn(move || {
            for near in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(target)) else { continue };
                let mut known = known.lock().unwrap();
                for stream in [&near, &far] {
                    stream.set_nodelay(true).unwrap();
                    known.push(stream.try_clone().unwrap());
                }
                let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
                spawn(move || relay(near, far));
                spawn(move || relay(back.0, back.1));
            }
        });
        Self { address, streams, stop }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts every connection, wherever it is.
    pub(crate) fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
        self.cut();
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    // One side's end is the other's.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn spawn(work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().name("proxy".into()).spawn(work).unwrap();
}
