//! Strict overcommit (`vm.overcommit_memory=2`): the kernel counts mapped memory, touched or not.
//! This program measures how much memory an allocator gets, and how much of the charge it releases.
//!
//! It allocates blocks until one is refused, and then frees them: in one process with the C
//! library's malloc, and in one with this library's in each mode. Each process prints its figures
//! as one line of JSON. The charge of this library must fall again; that of the C library was seen
//! to stay. It must never be run outside a guest.

#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

use std::alloc::{Layout, alloc, dealloc};
use std::io::Error;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The user of the allocating processes: the kernel keeps a reserve for root, which is the guest's
/// first process.
const NOBODY: u32 = 65534;
/// Percent of memory that may be committed: of a guest without swap some 440 MiB.
const RATIO: &str = "30";
const SIZES: [usize; 4] = [200, 3000, 40_000, 100_000];
/// More than the limit has room for.
const MAX_BLOCKS: usize = 1 << 16;
/// How long the charge may take to fall: the background thread looks twice a second.
const PATIENCE: Duration = Duration::from_secs(20);
/// Upper bound on the charge that may stay: tables, sheaves, the stack of the background thread,
/// and chunks that had a sheaf.
const KEPT_KIB: u64 = 24 << 10;

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        None => run_all(),
        Some("libc") => run(
            "libc",
            // SAFETY: no preconditions.
            |layout| unsafe { libc::malloc(layout.size()).cast() },
            // SAFETY: `run` gives each block back once.
            |block, _| unsafe { libc::free(block.cast()) },
        ),
        Some(_) => run(
            &uslab::mode().to_string(),
            // SAFETY: no size is 0.
            |layout| unsafe { alloc(layout) },
            // SAFETY: `run` gives each block back once, with its layout.
            |block, layout| unsafe { dealloc(block, layout) },
        ),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run_all() -> Result<(), Error> {
    std::fs::write("/proc/sys/vm/overcommit_ratio", RATIO)?;
    std::fs::write("/proc/sys/vm/overcommit_memory", "2")?;
    for (allocator, rseq) in [("libc", "1"), ("uslab", "1"), ("uslab", "0")] {
        let mut command = Command::new(std::env::current_exe()?);
        let status = command.arg(allocator).env("USLAB_RSEQ", rseq).uid(NOBODY).gid(NOBODY).status()?;
        if !status.success() {
            return Err(Error::other(format!("{allocator} USLAB_RSEQ={rseq}: {status}")));
        }
    }
    Ok(())
}

/// A figure of /proc/meminfo.
fn meminfo_kib(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("a guest has /proc");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("a figure");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

type Block = (*mut u8, Layout);

fn run(
    name: &str,
    take: impl Fn(Layout) -> *mut u8,
    give_back: impl Fn(*mut u8, Layout),
) -> Result<(), Error> {
    let layouts = SIZES.map(|size| Layout::from_size_align(size, 16).expect("a size"));
    // The list comes first: when all is taken there is no room for it.
    let mut blocks: Vec<Block> = Vec::with_capacity(MAX_BLOCKS);
    // Warm, so that what is charged once is in the first figure.
    give_back(take(layouts[0]), layouts[0]);
    let before_kib = meminfo_kib("Committed_AS");
    let mut bytes = 0;
    for layout in layouts.into_iter().cycle().take(MAX_BLOCKS) {
        let block = take(layout);
        if block.is_null() {
            break;
        }
        bytes += layout.size();
        blocks.push((block, layout));
    }
    let count = blocks.len();
    let give_back = |(block, layout): Block| give_back(block, layout);
    // Some at once: reading the figures takes memory, too.
    blocks.drain(count - count / 16..).for_each(give_back);
    let full_kib = meminfo_kib("Committed_AS");
    blocks.drain(..).for_each(give_back);
    let begin = Instant::now();
    let mut after_kib = meminfo_kib("Committed_AS");
    let must_fall = name != "libc";
    while must_fall && after_kib > before_kib + KEPT_KIB && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(100));
        after_kib = meminfo_kib("Committed_AS");
    }
    println!(
        r#"{{"allocator":"{name}","blocks":{count},"kib":{},"before_kib":{before_kib},"full_kib":{full_kib},"after_kib":{after_kib},"limit_kib":{}}}"#,
        bytes / 1024,
        meminfo_kib("CommitLimit")
    );
    if count == MAX_BLOCKS {
        return Err(Error::other("no block was refused"));
    }
    if must_fall && after_kib > before_kib + KEPT_KIB {
        return Err(Error::other("the charge stays"));
    }
    Ok(())
}
