//! The environment variables of the library: one table, from which everything else follows.
//!
//! ```text
//!   VARIABLES ──▶ Config::read    what the library does about them
//!             ──▶ env             which of them a process with gained privileges heeds
//!             ──▶ docs/guide      the users' table (cargo xtask public --bless writes it)
//! ```
//!
//! `xtask` compiles this file by path. It must therefore use nothing but `core`.

#[path = "limit.rs"]
mod limit;

pub use limit::Limit;

/// Bytes of the longest value that is read.
pub const VALUE_BYTES: usize = 256;

/// One variable.
#[allow(dead_code, reason = "the texts are for the users' table")]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// The part of the project that reads it.
    pub read_by: &'static str,
    /// The values that mean something, as Markdown.
    pub values: &'static str,
    /// The behaviour if it is unset, or has another value.
    pub default: &'static str,
    /// The description, as Markdown.
    pub doc: &'static str,
    /// Whether a program heeds it that gained privileges when it was started. Only variables that
    /// name no file, publish nothing and switch no check off are harmless: a user without these
    /// privileges set them.
    pub is_harmless: bool,
}

pub const RSEQ: &str = "USLAB_RSEQ";
pub const NUMA: &str = "USLAB_NUMA";
pub const SNAPSHOT: &str = "USLAB_SNAPSHOT";
pub const SNAPSHOT_READER: &str = "USLAB_SNAPSHOT_READER";
pub const REAPER: &str = "USLAB_REAPER";
pub const DECAY_MS: &str = "USLAB_DECAY_MS";
pub const HUGE_PAGES: &str = "USLAB_HUGE_PAGES";
pub const ON_MISUSE: &str = "USLAB_ON_MISUSE";
pub const GUARD: &str = "USLAB_GUARD";
pub const DEBUG: &str = "USLAB_DEBUG";
pub const DEBUG_REPORT: &str = "USLAB_DEBUG_REPORT";
pub const LEAKS: &str = "USLAB_LEAKS";
pub const LEAK_SUPPRESSIONS: &str = "USLAB_LEAK_SUPPRESSIONS";
pub const PROFILE: &str = "USLAB_PROFILE";
pub const PROFILE_FILE: &str = "USLAB_PROFILE_FILE";
pub const SECURE: &str = "USLAB_SECURE";
pub const CPU_BYTES: &str = "USLAB_CPU_BYTES";
pub const LIMIT: &str = "USLAB_LIMIT";
pub const STATS: &str = "USLAB_STATS";
pub const CONF: &str = "USLAB_CONF";
pub const PRESSURE: &str = "USLAB_PRESSURE";
pub const PRESSURE_LOG: &str = "USLAB_PRESSURE_LOG";
pub const PRESSURE_WATCH: &str = "MEMORY_PRESSURE_WATCH";
pub const PRESSURE_WRITE: &str = "MEMORY_PRESSURE_WRITE";

/// All variables, in the order of the users' table.
pub const VARIABLES: [Variable; 26] = [
    Variable {
        name: RSEQ,
        read_by: "the library",
        values: "`0`, `own`",
        default: "sequences where the system has them",
        doc: "`0`: never use restartable sequences. Every operation of a CPU's slot takes the slot's \
              lock, with the same results; `uslab run --rseq off` sets it. `own`, in a build \
              that registers threads: use them even if `glibc.pthread.rseq=0` told glibc not to.",
        is_harmless: true,
    },
    Variable {
        name: NUMA,
        read_by: "the library",
        values: "`0`",
        default: "on a machine of several nodes each CPU allocates memory of its own node",
        doc: "Treat the machine as one node: a CPU allocates what it freed, whichever node the \
              memory is on. Frees that name a size or a cache are then as fast as on a machine of \
              one node.",
        is_harmless: true,
    },
    Variable {
        name: SNAPSHOT,
        read_by: "the library, `uslab`",
        values: "a directory, or `auto`",
        default: "the figures stay private",
        doc: "Publish the process's figures as `DIR/PID`. `auto` is `/dev/shm/uslab-UID`, which is \
              made if it does not exist, or else `/run/user/UID/uslab-UID` or `/tmp/uslab-UID`. The \
              directory must belong to the effective user or root, give no other user the right to \
              write, and be no link; otherwise nothing is published, and a line on standard error \
              names the reason. If it is missing, cannot be opened, or has no room for a file of 16 \
              MiB, the library publishes nothing and prints no line, because a child in another root \
              may not see it. `uslab run` sets the variable for the program, and makes the directory \
              (mode 700) if it is missing; `uslab info` looks there instead of in \
              `/dev/shm/uslab-UID`. A process that is killed, or that changed its user or root \
              directory, leaves its file, and `uslab info` removes it. The process's user and root \
              can then also ask the process, by `uslab validate`, `debug`, `shrink` and `limit`.",
        is_harmless: false,
    },
    Variable {
        name: SNAPSHOT_READER,
        read_by: "the library",
        values: "a process id",
        default: "the file is removed at exit",
        doc: "If this process is the parent, leave the figures in place at exit, marked as final. \
              `uslab run --stats` names itself here.",
        is_harmless: false,
    },
    Variable {
        name: REAPER,
        read_by: "the library",
        values: "`0`",
        default: "a background thread in programs of more than 16 MiB, or with a shrinker, a limit or a source",
        doc: "Never start the background thread, for programs that must have no second thread \
              (`unshare(CLONE_NEWUSER)`, seccomp filters that forbid `clone`). Memory then goes back \
              when something is freed or asked for (`trim`, `malloc_trim`), and no pressure source \
              is watched. Requests of other processes (`uslab validate`, `uslab debug`) get no \
              answer.",
        is_harmless: true,
    },
    Variable {
        name: DECAY_MS,
        read_by: "the library",
        values: "milliseconds, `-1` or `never`",
        default: "1000",
        doc: "Free memory returns to the system after this time, or up to half as much again; \
              of more than 512 MiB, half at a time. The free pages of a slab in use return once \
              the program has left the slab alone for that time minus half a second, and never \
              less than half a second. Values from 1 to 19 count as 20. `0`: free memory \
              returns at once, at the price of a system call for each free that empties a page; \
              free pages inside slabs in use return within half a second. `-1` or `never`: it \
              returns under pressure, at limits and when it is asked for. `uslab::set_decay` \
              and `uslab_set_decay_ms` override it.",
        is_harmless: true,
    },
    Variable {
        name: HUGE_PAGES,
        read_by: "the library",
        values: "`auto`, `never`, `always`",
        default: "`auto`: where a heap of more than 20 MiB grows and is dense",
        doc: "When huge pages back memory. `always`: from the first page on, and free memory returns \
              in pieces of 2 MiB only, unless memory is short. With `auto` memory gets none where it \
              must return at once when it is free: with `USLAB_REAPER=0` or `USLAB_DECAY_MS=0`, and \
              under a limit on addresses (`ulimit -v`, `ulimit -d`, strict overcommit). Within an \
              eighth of a limit no memory gets huge pages, and none does where the system's setting \
              is `never`. `uslab::set_huge_pages` and `uslab_set_huge_pages` override it.",
        is_harmless: true,
    },
    Variable {
        name: ON_MISUSE,
        read_by: "the library",
        values: "`report`, `abort`",
        default: "`abort`: report and abort",
        doc: "Report a misused pointer and go on; the call does nothing. \
              [SAFETY.md](../../SAFETY.md#what-is-caught-and-when) lists what is caught when.",
        is_harmless: false,
    },
    Variable {
        name: GUARD,
        read_by: "the C libraries",
        values: "`1`, milliseconds, or `all`; then `,left`, `,right`, `,slots=N`; or `0`",
        default: "no allocation is guarded",
        doc: "Put about one allocation in so many milliseconds (`1`: in 100) between guard pages, \
              and report an overflow or a use after free as it happens: [guard \
              pages](security.md#guard-pages). `all`: every allocation, as long as there are slots, \
              for tests. `left` and `right`: the side of the slot that objects touch; by default a \
              random one, and with `all` the right. `slots=N`: N slots for objects up to 1 KiB, and \
              as many for larger ones, instead of 64, or 1024 with `all`. `uslab run --guard` sets \
              it.",
        is_harmless: false,
    },
    Variable {
        name: DEBUG,
        read_by: "the library",
        values: "letters `F`, `Z`, `P`, `U`, `T`, then names of caches: `FZ;P,session,malloc-*`",
        default: "no debugging",
        doc: "Debug caches: check each free (F), guard bytes around objects (Z), patterns in free \
              objects (P), who allocated and freed (U), a line for each call (T); see \
              [debugging](debugging.md). At most 256 bytes. `uslab run --debug` sets it.",
        is_harmless: false,
    },
    Variable {
        name: DEBUG_REPORT,
        read_by: "the library",
        values: "a path, `json:` and a path, or `json:`",
        default: "text on standard error",
        doc: "Where reports of faults go, and their form. They are appended to the file; with \
              `json:` each is one line.",
        is_harmless: false,
    },
    Variable {
        name: LEAKS,
        read_by: "the C libraries",
        values: "`1`, `report`, `0`",
        default: "leaks are not searched for",
        doc: "At exit, report the objects that no pointer leads to, with the stacks of their \
              allocations; see [debugging](debugging.md#leaks). `1`: a process that leaks ends with \
              status 23. `report`: it keeps its status. Every cache then records who allocated, as \
              with letter U. A Rust program does only this, for `find_leaks`. `uslab run --leaks` \
              sets it.",
        is_harmless: false,
    },
    Variable {
        name: LEAK_SUPPRESSIONS,
        read_by: "the C libraries",
        values: "a path",
        default: "all leaks are reported",
        doc: "A file of lines `leak:PATTERN`, in LeakSanitizer's syntax: leaks are not reported \
              where a function or file of the stack matches. `uslab run --leak-suppressions` sets \
              it.",
        is_harmless: false,
    },
    Variable {
        name: PROFILE,
        read_by: "the C libraries",
        values: "`1`, bytes, `0`",
        default: "the heap is not profiled",
        doc: "Profile the heap from the start: one allocation in so many bytes is a sample (`1`: in \
              524288); see [seeing inside](seeing-inside.md#heap-profile). `uslab run --profile` \
              sets it.",
        is_harmless: false,
    },
    Variable {
        name: PROFILE_FILE,
        read_by: "the C libraries",
        values: "a path",
        default: "no profile is written at exit",
        doc: "Write the heap profile at exit to this path, followed by `.` and the process id. A \
              program that ends by a signal or `_exit` writes none. `uslab run --profile` sets it.",
        is_harmless: false,
    },
    Variable {
        name: SECURE,
        read_by: "the library",
        values: "`1`, or words: `check`, `canary`, `zero`, `quarantine`, `order`, `ranges`",
        default: "the checks of every process",
        doc: "Harden every cache and the malloc family, but not private heaps: check every free, \
              secret canaries around the requested bytes, zeroes in freed objects, a random \
              quarantine, random order, addresses that no other cache reuses. `1`: all of these; see \
              [security](security.md#uslab_secure1). A word without a meaning is reported with its \
              column, and the variable then has no effect.",
        is_harmless: true,
    },
    Variable {
        name: CPU_BYTES,
        read_by: "the library",
        values: "bytes",
        default: "1572864 (1.5 MiB), or 1/64 of the memory of slabs divided by the CPUs if that is more. \
                  Objects above 32 KiB: 64 MiB divided by the CPUs, but 4 to 16 MiB; a quarter of \
                  that in processes beyond 16 MiB without a background thread",
        doc: "Upper bound on what the sheaves of one CPU hold, over all caches. By default sheaves \
              above their first capacity count; with this variable all of more than two objects do. \
              Objects above 32 KiB, up to 1 MiB, have a second bound of the same size.",
        is_harmless: true,
    },
    Variable {
        name: LIMIT,
        read_by: "the library",
        values: "`SOFT` or `SOFT,HARD`: bytes, with `K`, `M`, `G` or `T` behind, or a percentage as in `80%`; \
                 `0` is no limit",
        default: "no limit",
        doc: "Limit the memory that the allocator holds, as `uslab::set_limit` does. A percentage is \
              of the lowest limit of the process's control groups (version 2), or of the machine's \
              memory. `uslab run --limit` sets it.",
        is_harmless: false,
    },
    Variable {
        name: STATS,
        read_by: "the C libraries",
        values: "`1`",
        default: "no report",
        doc: "At exit, write a summary of the process's memory and a table of its caches to standard \
              error.",
        is_harmless: false,
    },
    Variable {
        name: CONF,
        read_by: "the library",
        values: "`NAME=VALUE,…`; names are those of the variables, in lower case and without `USLAB_`",
        default: "each variable's own default",
        doc: "Several settings in one: `decay_ms=0,limit=80%,90%`. A program can carry such a string \
              itself: [settings in the program](README.md#settings-in-the-program). A setting's own \
              variable overrides this one, which overrides the program's string. Some variables \
              [cannot be set here](README.md#settings-in-the-program). `uslab run --conf` sets it.",
        is_harmless: false,
    },
    Variable {
        name: PRESSURE,
        read_by: "the library",
        values: "`auto`, `off`, or a list of `systemd`, `psi`, `cgroup`",
        default: "all, once the program has a shrinker",
        doc: "The [pressure sources](pressure.md) that are watched.",
        is_harmless: true,
    },
    Variable {
        name: PRESSURE_LOG,
        read_by: "the library",
        values: "`1`",
        default: "no log",
        doc: "Write to standard error which pressure sources were found, and which are lost.",
        is_harmless: false,
    },
    Variable {
        name: "USLAB_DEEPBIND",
        read_by: "the preload library",
        values: "`1`",
        default: "`RTLD_DEEPBIND` is taken off",
        doc: "Leave `RTLD_DEEPBIND` to `dlopen`. A module that is opened with it frees the program's \
              memory with the C library's `free`.",
        is_harmless: false,
    },
    // Refused where they are understood, with the reason in the log: `reclaim::sources::systemd`.
    Variable {
        name: PRESSURE_WATCH,
        read_by: "the library",
        values: "a path",
        default: "the kernel's stalls are watched",
        doc: "Set by systemd: [the file that tells of memory pressure](pressure.md#with-systemd).",
        is_harmless: true,
    },
    Variable {
        name: PRESSURE_WRITE,
        read_by: "the library",
        values: "base64",
        default: "nothing is written",
        doc: "Set by systemd: the bytes to write to that file first.",
        is_harmless: true,
    },
    Variable {
        name: "USLAB_LIB",
        read_by: "`uslab run`",
        values: "a path",
        default: "the library that belongs to the command",
        doc: "The library to preload.",
        is_harmless: false,
    },
];

/// When huge pages of 2 MiB back memory; see `uslab::set_huge_pages`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[repr(u8)]
pub enum HugePages {
    /// Where a heap of more than 20 MiB grows and has little free memory; for objects beyond a page
    /// while the program touches nearly all of their memory. The process holds hardly more than
    /// with small pages.
    Auto,
    /// Nowhere.
    Never,
    /// Everywhere. A process of few objects then holds 2 MiB and more, and free memory returns to
    /// the system in pieces of 2 MiB only, unless memory is short.
    Always,
}

/// The effect of leaks that are found at exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AtExit {
    /// A report.
    Report = 1,
    /// A report, and another exit status.
    Fail = 2,
}

impl AtExit {
    /// The choice of a text; the inner `None` is off, the outer is no choice.
    fn of(text: &[u8]) -> Option<Option<AtExit>> {
        match text {
            b"1" => Some(Some(AtExit::Fail)),
            b"report" => Some(Some(AtExit::Report)),
            b"0" | b"off" | b"" => Some(None),
            _ => None,
        }
    }
}

/// The choice of allocations that get guard pages; see `uslab::debug::guard`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guard {
    /// Milliseconds from one sample to the next; 0 samples every allocation.
    pub interval_ms: u64,
    /// Slots of each kind; 0 is the default.
    pub slots: usize,
    /// The side of its slot that an object touches.
    pub side: Side,
}

/// The side of its slot that a guarded object touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
#[repr(u8)]
pub enum Side {
    /// Either, at random.
    #[default]
    Random,
    /// The start: an access before the object faults.
    Left,
    /// The end: an access behind the object faults.
    Right,
}

/// Milliseconds from one guarded allocation to the next, unless the program or user chooses.
pub const GUARD_INTERVAL_MS: u64 = 100;

impl Guard {
    /// The choice that a text of words makes; the inner `None` is off, the outer a word without a
    /// meaning.
    fn of(text: &[u8]) -> Option<Option<Guard>> {
        if [&b"0"[..], b"off", b""].contains(&text) { Some(None) } else { Guard::of_words(text).map(Some) }
    }

    fn of_words(text: &[u8]) -> Option<Guard> {
        let mut words = core::str::from_utf8(text).ok()?.split(',');
        let (interval_ms, side) = match words.next()? {
            "1" | "on" => (GUARD_INTERVAL_MS, Side::Random),
            // Tests look for overflows first, and expect the same each time.
            "all" => (0, Side::Right),
            ms => (ms.parse().ok().filter(|&ms| ms > 0)?, Side::Random),
        };
        let mut guard = Guard { interval_ms, slots: 0, side };
        for word in words {
            match word {
                "left" => guard.side = Side::Left,
                "right" => guard.side = Side::Right,
                _ => guard.slots = word.strip_prefix("slots=")?.parse().ok().filter(|&slots| slots > 0)?,
            }
        }
        Some(guard)
    }
}

/// The values that the library reads when it is set up.
#[derive(Debug, PartialEq, Eq)]
pub struct Config<V> {
    /// Never use restartable sequences.
    pub forbids_rseq: bool,
    /// Use them even where the C library was told to register no threads.
    pub insists_on_rseq: bool,
    /// Never start the background thread.
    pub forbids_reaper: bool,
    /// Treat the machine as one node.
    pub ignores_nodes: bool,
    /// How long free memory stays: the inner `None` is for ever.
    pub decay_ms: Option<Option<u64>>,
    /// When huge pages back memory.
    pub huge_pages: Option<HugePages>,
    /// Abort after a report of misuse.
    pub aborts_on_misuse: bool,
    /// The allocations that get guard pages; `None` for none.
    pub guard: Option<Guard>,
    /// The caches that are debugged, and how; see `os/debugging.rs`.
    pub debug: Option<V>,
    /// The destination and form of reports.
    pub debug_report: Option<V>,
    /// Search for leaks at exit.
    pub leaks: Option<AtExit>,
    /// The file of leaks that are not reported.
    pub leak_suppressions: Option<V>,
    /// Mitigations for all caches; see `os/hardening.rs`.
    pub secure: Option<V>,
    /// Bytes from one sample of the heap profile to the next; `None` for no profile.
    pub profile: Option<u64>,
    /// The file that gets the profile at exit.
    pub profile_file: Option<V>,
    /// Bound of a CPU's sheaves.
    pub cpu_bytes: Option<usize>,
    /// The limits on held memory.
    pub limit: Option<Limit>,
    /// Report at exit.
    pub reports_at_exit: bool,
    /// The environment chooses the pressure sources.
    pub names_pressure: bool,
    /// The directory of the snapshot.
    pub snapshot: Option<V>,
    /// The process that reads the snapshot at exit.
    pub snapshot_reader: Option<u64>,
}

/// The names of the variables in [`Config::of`]'s array.
pub const READ_AT_START: [&str; 20] = [
    RSEQ,
    NUMA,
    REAPER,
    DECAY_MS,
    HUGE_PAGES,
    ON_MISUSE,
    CPU_BYTES,
    PRESSURE,
    SNAPSHOT,
    SNAPSHOT_READER,
    DEBUG,
    DEBUG_REPORT,
    GUARD,
    SECURE,
    LEAKS,
    LEAK_SUPPRESSIONS,
    LIMIT,
    STATS,
    PROFILE,
    PROFILE_FILE,
];

impl<V: AsRef<[u8]>> Config<V> {
    /// The configuration from the values of [`READ_AT_START`].
    pub fn of(values: [Option<V>; READ_AT_START.len()]) -> Config<V> {
        let [rseq, numa, reaper, decay_ms, huge_pages, on_misuse, cpu_bytes, pressure, rest @ ..] = values;
        let [
            snapshot,
            snapshot_reader,
            debug,
            debug_report,
            guard,
            secure,
            leaks,
            leak_suppressions,
            limit,
            stats,
            profile,
            profile_file,
        ] = rest;
        let period = profile.as_ref().map_or(Some(None), |value| profile_period(value.as_ref()));
        let number = |value: &Option<V>| number_of(value.as_ref()?.as_ref());
        let is = |value: &Option<V>, wanted: &[u8]| value.as_ref().is_some_and(|v| v.as_ref() == wanted);
        let choice = guard.as_ref().map_or(Some(None), |value| Guard::of(value.as_ref()));
        let at_exit = leaks.as_ref().map_or(Some(None), |value| AtExit::of(value.as_ref()));
        Config {
            forbids_rseq: is(&rseq, b"0"),
            insists_on_rseq: is(&rseq, b"own"),
            forbids_reaper: is(&reaper, b"0"),
            ignores_nodes: is(&numa, b"0"),
            decay_ms: if is(&decay_ms, b"-1") || is(&decay_ms, b"never") {
                Some(None)
            } else {
                number(&decay_ms).map(Some)
            },
            huge_pages: match huge_pages.as_ref().map(AsRef::as_ref) {
                Some(b"auto") => Some(HugePages::Auto),
                Some(b"never") => Some(HugePages::Never),
                Some(b"always") => Some(HugePages::Always),
                _ => None,
            },
            aborts_on_misuse: !is(&on_misuse, b"report"),
            guard: choice.flatten(),
            leaks: at_exit.flatten(),
            leak_suppressions,
            secure,
            profile: period.flatten(),
            profile_file,
            cpu_bytes: number(&cpu_bytes).map(|bytes| bytes as usize),
            limit: limit.as_ref().and_then(|value| Limit::parse(value.as_ref()).ok()),
            reports_at_exit: is(&stats, b"1"),
            names_pressure: pressure.is_some(),
            debug,
            debug_report,
            snapshot,
            snapshot_reader: number(&snapshot_reader),
        }
    }
}

/// Whether the value of a variable has no meaning, but for [`DEBUG`] and [`SECURE`], which have
/// parsers of their own. An empty one counts as unset.
pub fn is_wrong(name: &str, text: &[u8]) -> bool {
    if text.is_empty() {
        return false;
    }
    match name {
        RSEQ => ![&b"0"[..], b"1", b"own"].contains(&text),
        NUMA | REAPER | STATS => ![&b"0"[..], b"1"].contains(&text),
        DECAY_MS => ![&b"-1"[..], b"never"].contains(&text) && number_of(text).is_none(),
        HUGE_PAGES => ![&b"auto"[..], b"never", b"always"].contains(&text),
        ON_MISUSE => ![&b"report"[..], b"abort"].contains(&text),
        CPU_BYTES | SNAPSHOT_READER => number_of(text).is_none(),
        GUARD => Guard::of(text).is_none(),
        LEAKS => AtExit::of(text).is_none(),
        PROFILE => profile_period(text).is_none(),
        LIMIT => Limit::parse(text).is_err(),
        _ => false,
    }
}

/// Bytes from one sample of the heap profile to the next, unless the program or user chooses.
pub const PROFILE_PERIOD_BYTES: u64 = 512 << 10;

/// The period that a text chooses; the inner `None` is off, the outer no choice.
fn profile_period(text: &[u8]) -> Option<Option<u64>> {
    match text {
        b"" | b"0" | b"off" => Some(None),
        b"1" | b"on" => Some(Some(PROFILE_PERIOD_BYTES)),
        bytes => core::str::from_utf8(bytes).ok()?.parse().ok().map(Some),
    }
}

fn number_of(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}
