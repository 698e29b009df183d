//! The text of a profile.
//!
//! ```text
//!   uslab-profile 1
//!   pid 4711 …
//!   site malloc-64 64 <allocated objects, bytes> <in use: objects, bytes> <samples> <live> <ages> <frames>
//!   maps
//!   /proc/self/maps
//! ```

use super::{state, table};
use crate::os;
use core::fmt::{self, Write};

/// Bytes of a piece.
const PIECE_BYTES: usize = 4096;

/// Collects text into pieces.
struct Out<'a> {
    sink: &'a mut dyn FnMut(&[u8]),
    piece: [u8; PIECE_BYTES],
    used: usize,
}

impl Out<'_> {
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = bytes.len().min(PIECE_BYTES - self.used);
            self.piece[self.used..self.used + n].copy_from_slice(&bytes[..n]);
            self.used += n;
            bytes = &bytes[n..];
            if self.used == PIECE_BYTES {
                self.flush();
            }
        }
    }

    /// Puts text without spaces, control characters and backslashes: these become `\xNN`.
    fn put_escaped(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte <= b' ' || byte == b'\\' || byte >= 0x7f {
                let _ = write!(self, "\\x{byte:02x}");
            } else {
                self.put(&[byte]);
            }
        }
    }

    fn flush(&mut self) {
        (self.sink)(&self.piece[..self.used]);
        self.used = 0;
    }
}

impl fmt::Write for Out<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}

/// Writes the profile, piece by piece, by calls of `sink`, which runs with no lock held.
///
/// Several threads may write at once. Each finds the ages of all sites, under the table's lock, and
/// so may move those that another one is about to write: they stay true, of a later moment. No
/// thread waits for another one's `sink`, which may panic, or block in a pipe that is full.
pub fn write(sink: &mut dyn FnMut(&[u8]), cache: impl Fn(u16) -> (&'static str, usize)) {
    let mut out = Out { sink, piece: [0; PIECE_BYTES], used: 0 };
    // Writing to `Out` cannot fail.
    let _ = write!(out, "uslab-profile 1\npid {}\ncommand ", os::file::process_id());
    put_command(&mut out);
    let sites = table::find_ages(state::now());
    let _ = write!(
        out,
        "\nperiod_bytes {}\nstarted_ms {}\nwritten_ms {}\nsampled_ms {}\nsamples_dropped {}\n",
        state::last_period_bytes(),
        state::first_unix_ms(),
        os::clock::unix_ms(),
        state::sampled_ms(),
        table::dropped(),
    );
    (0..sites).for_each(|site| put_site(&mut out, site, &cache));
    out.put(b"maps\n");
    put_file(&mut out, c"/proc/self/maps", |_| true);
    if out.used > 0 {
        out.flush();
    }
}

/// Puts the name that the program was called by.
fn put_command(out: &mut Out<'_>) {
    let mut is_name = true;
    put_file(out, c"/proc/self/cmdline", |byte| {
        is_name &= byte != 0;
        is_name
    });
}

/// Puts the bytes of a file that `takes` takes; those of a name are escaped.
fn put_file(out: &mut Out<'_>, path: &core::ffi::CStr, mut takes: impl FnMut(u8) -> bool) {
    let is_command = path == c"/proc/self/cmdline";
    let Some(mut reader) = os::file::Reader::open(path) else { return };
    let mut block = [0; 1024];
    loop {
        let n = reader.read(&mut block);
        if n == 0 {
            return;
        }
        for &byte in block[..n].iter().filter(|&&byte| takes(byte)) {
            if is_command { out.put_escaped(&[byte]) } else { out.put(&[byte]) }
        }
    }
}

fn put_site(out: &mut Out<'_>, at: usize, cache: impl Fn(u16) -> (&'static str, usize)) {
    let mut frames = [0; table::MAX_FRAMES];
    let Some((site, ages, n)) = table::site(at, &mut frames) else { return };
    let objects = |units: u64| (units + (1 << 15)) >> 16;
    let mean = || site.allocated_bytes / objects(site.allocated).max(1);
    let (name, bytes) = match cache(site.cache) {
        (name, 0) => (name, mean()),
        (name, bytes) => (name, bytes as u64),
    };
    out.put(b"site ");
    out.put_escaped(name.as_bytes());
    let _ = write!(
        out,
        " {bytes} {} {} {} {} {} {} {} {} {}",
        objects(site.allocated),
        site.allocated_bytes,
        objects(site.live),
        site.live_bytes,
        site.samples,
        site.live_samples,
        ages.youngest_ms,
        ages.median_ms,
        ages.oldest_ms,
    );
    for frame in &frames[..n] {
        let _ = write!(out, " {frame:x}");
    }
    out.put(b"\n");
}
