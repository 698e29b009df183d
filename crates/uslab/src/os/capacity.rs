//! The memory that this process may use: the machine's, or less where a control group limits it.

use super::calls;
use super::file::Reader;
use core::ffi::CStr;

/// The mount point of control groups (version 2) on every distribution.
const ROOT: &[u8] = b"/sys/fs/cgroup";
/// Bytes of the longest path that is read.
const PATH_BYTES: usize = 512;

/// The lowest limit of the process's control group and of those above it, or the machine's memory
/// if that is less, in bytes. Reads some files; neither blocks nor allocates.
///
/// A group whose files cannot be read, or that is mounted elsewhere, limits nothing.
pub fn memory_bytes() -> u64 {
    let mut own = [0u8; PATH_BYTES];
    let used = Reader::open(c"/proc/self/cgroup").map_or(0, |mut reader| reader.read(&mut own));
    group_of(&own[..used]).map_or(u64::MAX, lowest_limit).min(machine_bytes())
}

/// The group's path in the hierarchy of version 2, from the text of `/proc/PID/cgroup`.
fn group_of(text: &[u8]) -> Option<&[u8]> {
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"0::"))?;
    Some(line.strip_suffix(b"/").unwrap_or(line))
}

/// The lowest limit of `group` and of those above it.
fn lowest_limit(mut group: &[u8]) -> u64 {
    let mut lowest = u64::MAX;
    loop {
        for file in [&b"/memory.high"[..], b"/memory.max"] {
            lowest = lowest.min(number_in(group, file).unwrap_or(u64::MAX));
        }
        match group.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => group = &group[..slash],
            None => return lowest,
        }
    }
}

/// The number in a file of a group; `None` if there is none, as in `max`.
fn number_in(group: &[u8], file: &[u8]) -> Option<u64> {
    let mut path = [0u8; PATH_BYTES];
    let mut places = path.iter_mut();
    let text = ROOT.iter().chain(group).chain(file).chain(b"\0");
    for &byte in text {
        *places.next()? = byte;
    }
    let mut content = [0u8; 32];
    let used = Reader::open(CStr::from_bytes_until_nul(&path).ok()?)?.read(&mut content);
    core::str::from_utf8(content[..used].trim_ascii()).ok()?.parse().ok()
}

fn machine_bytes() -> u64 {
    // SAFETY: zero is a valid value of these integers, and the kernel fills them in.
    unsafe {
        let mut facts: libc::sysinfo = core::mem::zeroed();
        if calls::sysinfo(&mut facts) != 0 {
            return u64::MAX;
        }
        (facts.totalram as u64).saturating_mul(u64::from(facts.mem_unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_that_of_version_2() {
        let text = b"12:memory:/old\n0::/system.slice/web.service\n";
        assert_eq!(group_of(text), Some(&b"/system.slice/web.service"[..]));
        assert_eq!(group_of(b"0::/\n"), Some(&b""[..]));
        assert_eq!(group_of(b"1:name=systemd:/\n"), None);
    }

    #[test]
    fn the_memory_is_the_machines_or_less() {
        let bytes = memory_bytes();
        assert!(bytes <= machine_bytes() && bytes >= 1 << 20, "{bytes}");
        assert_eq!(lowest_limit(b"/nowhere/at/all/x").max(1), lowest_limit(b"").max(1));
    }
}
