//! A process that begins to publish while its threads allocate.

use std::alloc::{GlobalAlloc, Layout};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use uslab::internal::layout::{HEADER_BYTES, Header, MAGIC, Record, STATE_LIVE};
use uslab::{Uslab, stats};

/// Allocates and frees until `stop`, and keeps `kept` objects.
fn churn(stop: &AtomicBool, kept: usize) -> Vec<(*mut u8, Layout)> {
    let layout = |n: usize| Layout::from_size_align(16 + n % 5000, 8).expect("a layout");
    let mut held = Vec::new();
    let mut n = 0;
    while !stop.load(Relaxed) || held.len() < kept {
        // SAFETY: the layout is not empty; what is freed was allocated with that layout.
        unsafe {
            held.push((Uslab.alloc(layout(n)), layout(n)));
            if held.len() > kept {
                let (object, layout) = held.swap_remove(n * 7919 % held.len());
                Uslab.dealloc(object, layout);
            }
        }
        n += 1;
    }
    held
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Objects in use of each live cache, as the file has them.
fn in_use(file: &[u8]) -> i64 {
    let used = u32_at(file, std::mem::offset_of!(Header, records_used)) as usize;
    let records = (0..used).map(|id| &file[HEADER_BYTES + id * size_of::<Record>()..]);
    let live = records.filter(|record| u32_at(record, std::mem::offset_of!(Record, state)) == STATE_LIVE);
    let mut sum = 0;
    for record in live {
        let count = |at| i64_at(record, at);
        let all = count(std::mem::offset_of!(Record, slabs))
            * i64::from(u32_at(record, std::mem::offset_of!(Record, objects_per_slab)));
        let free =
            count(std::mem::offset_of!(Record, slab_free)) + count(std::mem::offset_of!(Record, sheaf_free));
        assert!((0..=all).contains(&free), "{free} of {all} objects are free");
        sum += all - free;
    }
    sum
}

#[test]
fn figures_go_on_in_the_file() {
    const THREADS: usize = 4;
    const KEPT: usize = 3000;
    let stop = AtomicBool::new(false);
    let held: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    churn(&stop, KEPT).into_iter().map(|(p, l)| (p as usize, l)).collect::<Vec<_>>()
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(100));
        stats::publish().expect("the directory can be used");
        stats::publish().expect("it publishes already");
        thread::sleep(Duration::from_millis(100));
        stop.store(true, Relaxed);
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(held.len(), THREADS * KEPT);

    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    let places = [
        format!("/dev/shm/uslab-{user}"),
        format!("/run/user/{user}/uslab-{user}"),
        format!("/tmp/uslab-{user}"),
    ];
    let paths = places.map(|place| format!("{place}/{}", std::process::id()));
    let path = paths.iter().find(|path| std::fs::exists(path).unwrap_or(false)).expect("a file");
    assert_eq!(std::fs::metadata(path).expect("there").mode() & 0o777, 0o600);

    // An addition of a thread that was interrupted comes at the background thread's next looks.
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let allocated = stats::usage().allocated_bytes;
        let file = std::fs::read(path).expect("the file");
        let magic = u64::from_ne_bytes(file[..8].try_into().expect("eight bytes"));
        assert_eq!(magic, MAGIC);
        let pid = u32_at(&file, std::mem::offset_of!(Header, pid));
        assert_eq!(pid, std::process::id());
        if in_use(&file) == held.len() as i64 {
            assert!(allocated >= held.iter().map(|(_, layout)| layout.size()).sum::<usize>());
            break;
        }
        assert!(Instant::now() < end, "{} objects in use, {} in the file", held.len(), in_use(&file));
        thread::sleep(Duration::from_millis(100));
    }

    for (object, layout) in held {
        // SAFETY: allocated with that layout, and freed once.
        unsafe { Uslab.dealloc(object as *mut u8, layout) };
    }
    let _: usize = stats::usage().used_bytes;
    assert_eq!(in_use(&std::fs::read(path).expect("the file")), 0);
    let _ = std::fs::remove_file(path);
}
