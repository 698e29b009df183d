//! Messages over UDP and TCP on the loopback device, each in a buffer of its own.
//!
//! ```text
//!   sender: allocate, fill, send ──► socket ──► allocate, receive, look, free: receiver
//!      ▲ free what was received                                        │
//!      └──────────────── a counter of messages received ◄──────────────┘
//! ```
//!
//! The sender keeps a message's buffer until it was received, as a program does that may have to
//! send it again; so up to a window of buffers live. The window also keeps UDP within the socket's
//! buffer. What the kernel drops all the same is replaced by another message. Two threads, on two
//! CPUs where there are two.
//!
//! Must never: wait for ever; send another message's bytes.

use super::Configuration;
use super::memory::Buffers;
use crate::cpu;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Udp,
    Tcp,
}

/// Bytes on the way at most, and messages: a datagram takes about twice its bytes of the socket's
/// 208 KiB.
const WINDOW_BYTES: usize = 64 << 10;
const WINDOW_MESSAGES: usize = 64;

/// After so long without a message received, what is on the way was dropped.
const DROPPED: Duration = Duration::from_millis(200);
/// After so many times, nothing will come.
const REPLACED_MOST: u32 = 50;

/// One end.
enum End {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl End {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            End::Udp(socket) => socket.send(message).map(drop),
            End::Tcp(stream) => stream.write_all(message),
        }
    }

    fn descriptor(&self) -> i32 {
        match self {
            End::Udp(socket) => socket.as_raw_fd(),
            End::Tcp(stream) => stream.as_raw_fd(),
        }
    }

    /// Whether a whole message of `size` bytes came to `buffer`; none will after the first that did
    /// not: a stream has ended, or a datagram was the empty one.
    ///
    /// # Safety
    /// `buffer` is valid for writing `size` bytes.
    unsafe fn receive(&self, buffer: *mut u8, size: usize) -> bool {
        let mut have = 0;
        while have < size {
            // SAFETY: by the caller's promise there is room for what is missing. It may never have
            // been written, so it is no slice, and the call is the system's.
            let came = unsafe { libc::recv(self.descriptor(), buffer.add(have).cast(), size - have, 0) };
            match came {
                1.. => have += came as usize,
                0 => return false,
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => return false,
            }
        }
        true
    }
}

fn ends(protocol: Protocol) -> io::Result<(End, End)> {
    let any = (Ipv4Addr::LOCALHOST, 0);
    match protocol {
        Protocol::Udp => {
            let (sender, receiver) = (UdpSocket::bind(any)?, UdpSocket::bind(any)?);
            sender.connect(receiver.local_addr()?)?;
            receiver.connect(sender.local_addr()?)?;
            Ok((End::Udp(sender), End::Udp(receiver)))
        }
        Protocol::Tcp => {
            let listener = TcpListener::bind(any)?;
            let sender = TcpStream::connect(listener.local_addr()?)?;
            sender.set_nodelay(true)?;
            let (receiver, _) = listener.accept()?;
            Ok((End::Tcp(sender), End::Tcp(receiver)))
        }
    }
}

/// A sender, its receiver, and the buffers of both.
pub struct Loopback {
    buffers: Arc<Buffers>,
    size: usize,
    sender: End,
    received: Arc<AtomicU64>,
    sent: u64,
    window: usize,
    /// A place a message in the window; null where there is none.
    unconfirmed: Vec<*mut u8>,
    receiver: Option<JoinHandle<()>>,
}

impl Loopback {
    /// Starts the receiver, on `receiver_cpu` if there is one.
    pub fn start(
        protocol: Protocol,
        size: usize,
        configuration: Configuration,
        receiver_cpu: Option<usize>,
    ) -> Result<Self, String> {
        let cannot = |error: io::Error| format!("no {protocol:?} on the loopback device: {error}");
        let buffers = Arc::new(Buffers::new(configuration, size)?);
        let (sender, end) = ends(protocol).map_err(cannot)?;
        let received = Arc::new(AtomicU64::new(0));
        let (theirs, count) = (Arc::clone(&buffers), Arc::clone(&received));
        let receiver = thread::Builder::new().spawn(move || {
            if let Some(cpu) = receiver_cpu {
                cpu::pin(cpu);
            }
            while receive_one(&end, &theirs, size) {
                count.fetch_add(1, Release);
            }
        });
        let receiver = Some(receiver.map_err(cannot)?);
        let window = (WINDOW_BYTES / size).clamp(2, WINDOW_MESSAGES);
        let unconfirmed = vec![std::ptr::null_mut(); window];
        Ok(Self { buffers, size, sender, received, sent: 0, window, unconfirmed, receiver })
    }

    /// Sends so many messages and waits until they are received: the time of all, in ns.
    pub fn round(&mut self, messages: u64) -> Result<f64, String> {
        let started = Instant::now();
        for _ in 0..messages {
            self.wait_for(self.sent.saturating_sub(self.window as u64 - 1))?;
            self.send_one()?;
        }
        self.wait_for(self.sent)?;
        Ok(started.elapsed().as_nanos() as f64)
    }

    fn send_one(&mut self) -> Result<(), String> {
        let buffer = self.buffers.alloc();
        if buffer.is_null() {
            return Err("no memory for a message".into());
        }
        // SAFETY: fresh memory of `size` bytes, which no other thread uses until it is freed.
        let message = unsafe {
            buffer.write_bytes(self.sent as u8, self.size);
            slice::from_raw_parts(buffer, self.size)
        };
        let sent = self.sender.send(message);
        // Its place's message of a window ago is confirmed, or was dropped.
        let place = &mut self.unconfirmed[(self.sent % self.window as u64) as usize];
        let old = std::mem::replace(place, buffer);
        if !old.is_null() {
            // SAFETY: it was allocated here, and leaves its place now, so it is freed once.
            unsafe { self.buffers.free(old) };
        }
        self.sent += 1;
        sent.map_err(|error| format!("a message could not be sent: {error}"))
    }

    /// Until so many messages were received.
    fn wait_for(&mut self, confirmed: u64) -> Result<(), String> {
        let (mut replaced, mut spins, mut since) = (0, 0u32, Instant::now());
        while self.received.load(Acquire) < confirmed {
            std::hint::spin_loop();
            spins += 1;
            if spins % 1024 != 0 {
                continue;
            }
            thread::yield_now();
            if since.elapsed() < DROPPED {
                continue;
            }
            if replaced == REPLACED_MOST || self.receiver.as_ref().is_none_or(JoinHandle::is_finished) {
                return Err("the loopback device delivers nothing".into());
            }
            // Should they have been late only, the receiver is ahead for the rest of the run, and
            // the window wider.
            let (sent, missing) = (self.sent, self.sent.saturating_sub(self.received.load(Acquire)));
            for _ in 0..missing {
                self.send_one()?;
            }
            self.sent = sent;
            (replaced, since) = (replaced + 1, Instant::now());
        }
        Ok(())
    }
}

/// Whether a message came.
fn receive_one(end: &End, buffers: &Buffers, size: usize) -> bool {
    let buffer = buffers.alloc();
    if buffer.is_null() {
        return false;
    }
    // SAFETY: fresh memory of `size` bytes, which no other code knows; it is looked at only if it
    // was received.
    let whole = unsafe { end.receive(buffer, size) && buffer.read() == buffer.add(size - 1).read() };
    // SAFETY: allocated above.
    unsafe { buffers.free(buffer) };
    whole
}

impl Drop for Loopback {
    fn drop(&mut self) {
        match &self.sender {
            // Should it be dropped too, another one is sent below.
            End::Udp(socket) => drop(socket.send(&[])),
            End::Tcp(stream) => drop(stream.shutdown(Shutdown::Both)),
        }
        if let Some(receiver) = self.receiver.take() {
            while let (End::Udp(socket), false) = (&self.sender, receiver.is_finished()) {
                thread::sleep(Duration::from_millis(1));
                let _ = socket.send(&[]);
            }
            // A receiver that panicked has said so already.
            let _ = receiver.join();
        }
        for &buffer in self.unconfirmed.iter().filter(|buffer| !buffer.is_null()) {
            // SAFETY: allocated in `send_one` and still in its place, so not freed.
            unsafe { self.buffers.free(buffer) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::CONFIGURATIONS;
    use super::*;

    #[test]
    fn messages_arrive_in_every_configuration() {
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            for configuration in CONFIGURATIONS {
                for size in [64, 16384] {
                    let Ok(mut loopback) = Loopback::start(protocol, size, configuration, None) else {
                        continue; // A sandbox may have no network at all.
                    };
                    for _ in 0..3 {
                        assert!(loopback.round(100).unwrap() > 0.0);
                    }
                    assert_eq!(loopback.received.load(Acquire), 300);
                }
            }
        }
    }
}
