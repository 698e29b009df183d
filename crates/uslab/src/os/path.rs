//! Paths of fixed size. A path that is too long is refused, never cut.

use core::ffi::CStr;
use core::fmt;

/// Longest path, with the NUL at its end. Paths of cgroups in Kubernetes have some 230 bytes.
pub const PATH_BYTES: usize = 512;

/// A path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Path {
    bytes: [u8; PATH_BYTES],
    used: usize,
}

impl Path {
    pub const EMPTY: Path = Path { bytes: [0; PATH_BYTES], used: 0 };

    /// `None` if it is too long or has a NUL in it.
    pub fn of(bytes: &[u8]) -> Option<Path> {
        Path::EMPTY.with(bytes)
    }

    /// `None` if it is too long or has a NUL in it.
    pub fn formatted(text: fmt::Arguments<'_>) -> Option<Path> {
        struct Writer(Path);
        impl fmt::Write for Writer {
            fn write_str(&mut self, more: &str) -> fmt::Result {
                self.0 = self.0.with(more.as_bytes()).ok_or(fmt::Error)?;
                Ok(())
            }
        }
        let mut writer = Writer(Path::EMPTY);
        fmt::Write::write_fmt(&mut writer, text).ok()?;
        Some(writer.0)
    }

    /// This path with `more` right behind it.
    pub fn with(mut self, more: &[u8]) -> Option<Path> {
        if more.contains(&0) || self.used + more.len() >= PATH_BYTES {
            return None;
        }
        self.bytes[self.used..self.used + more.len()].copy_from_slice(more);
        self.used += more.len();
        Some(self)
    }

    /// The path `levels` directories up. The root is the empty path, so that callers can append a
    /// name with its slash to any path.
    pub fn up(mut self, levels: usize) -> Path {
        for _ in 0..levels {
            self.used = self.as_bytes().iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        }
        self.bytes[self.used..].fill(0);
        self
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    pub fn as_c(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().escape_ascii().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_whole_or_none() {
        let path = Path::of(b"/a/b").unwrap().with(b"/c").unwrap();
        assert_eq!(path.as_c(), c"/a/b/c");
        assert_eq!(path.up(2).as_c(), c"/a");
        assert_eq!(path.up(9).as_c(), c"");
        assert!(Path::of(&[b'x'; PATH_BYTES]).is_none() && Path::of(&[b'x'; PATH_BYTES - 1]).is_some());
        assert!(Path::of(b"/a\0b").is_none());
        assert_eq!(Path::formatted(format_args!("/a{}/b", 12)).unwrap().as_c(), c"/a12/b");
        assert!(Path::formatted(format_args!("{:600}", 1)).is_none());
    }
}
