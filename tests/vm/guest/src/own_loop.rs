//! The program's own reaper: a thread that keeps the use of its control group below `memory.high`
//! by `uslab::reclaim`.
//!
//! It shows what a program can do without the library's thread, as a control. It must never
//! allocate while it runs: the kernel delays allocations above `memory.high`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::JoinHandle;
use std::time::Duration;

const LOOK: Duration = Duration::from_millis(20);
const BITE_BYTES: usize = 64 << 10;

/// Starts the thread; it ends with the process.
///
/// # Panics
/// Without a control group that has a limit.
pub fn start() -> JoinHandle<()> {
    let group = std::fs::read_to_string("/proc/self/cgroup").expect("/proc");
    let group = group.trim().strip_prefix("0::").expect("a group of version 2");
    let dir = format!("/sys/fs/cgroup{group}");
    let high = std::fs::read_to_string(format!("{dir}/memory.high")).expect("the memory controller");
    let high: usize = high.trim().parse().expect("memory.high is a limit");
    let current = File::open(format!("{dir}/memory.current")).expect("the memory controller");
    std::thread::spawn(move || {
        loop {
            let mut text = [0; 32];
            let bytes = current.read_at(&mut text, 0).unwrap_or(0);
            let text = std::str::from_utf8(&text[..bytes]).unwrap_or_default();
            let used = text.trim().parse::<usize>();
            // Begins at 30/32 of the limit, in small steps. Evicted entries leave holes, which new
            // entries fill long before whole pages are free. A request for many bytes at once would
            // evict entries that are worth keeping.
            if let Ok(used) = used
                && used > high / 32 * 30
            {
                uslab::reclaim(BITE_BYTES);
                continue;
            }
            std::thread::sleep(LOOK);
        }
    })
}
