//! The environment of the figures: the machine, the kernel, and the build of this program.
//!
//! Everything is read from /proc and /sys, and optional: a value that cannot be read is "unknown".
//! Must never: fail, or guess.

use crate::clock::Clock;
use crate::cpu::Cpus;
use crate::settings::is_setting;
use nix::unistd::{SysconfVar, sysconf};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    pub cpu_model: String,
    pub architecture: String,
    pub kernel: String,
    pub cpus_allowed: usize,
    pub cpus_online: usize,
    /// The CPU that single-threaded rounds ran on, and the one of the consumer.
    pub cpu: usize,
    pub second_cpu: Option<usize>,
    /// Under a hypervisor, whose other guests may disturb rounds.
    pub virtual_machine: bool,
    pub page_size_bytes: usize,
    pub transparent_hugepages: String,
    /// Variables that set up an allocator, ours or another, and their values. A run's mode holds
    /// `USLAB_RSEQ`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// Runnable tasks over the last minute, at start: above one, the benchmark was not alone.
    pub load_average: String,
    pub tick_hz: f64,
    /// The core's speed at the end, by a chain of dependent additions.
    pub core_hz: f64,
}

impl Machine {
    pub fn read(cpus: &Cpus, clock: &Clock) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            cpu_model: cpu_model(&cpuinfo),
            architecture: std::env::consts::ARCH.into(),
            kernel: format!("Linux {}", read_line("/proc/sys/kernel/osrelease")),
            cpus_allowed: cpus.allowed,
            cpus_online: cpuinfo.matches("processor\t:").count(),
            cpu: cpus.first,
            second_cpu: cpus.second,
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|f| f.split(' ').any(|f| f == "hypervisor")),
            page_size_bytes: page_size_bytes(),
            transparent_hugepages: chosen(&read_line("/sys/kernel/mm/transparent_hugepage/enabled")),
            variables: settings(std::env::vars_os()),
            load_average: read_line("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
            tick_hz: clock.tick_hz(),
            core_hz: clock.core_hz(),
        }
    }
}

/// The variables among `set` that set up an allocator. Cargo sets those of this program's build.
fn settings(set: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<String, String> {
    let text = |word: OsString| word.to_string_lossy().into_owned();
    let is_noted = |(name, _): &(String, String)| {
        is_setting(name.as_bytes()) && name != "USLAB_RSEQ" && !name.starts_with("USLAB_BENCH_")
    };
    set.map(|(name, value)| (text(name), text(value))).filter(is_noted).collect()
}

/// How this program was compiled; baked in by build.rs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Build {
    pub version: String,
    /// The commit, as `git describe` names it. Only `cargo xtask results` sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    pub target: String,
    pub profile: String,
    pub opt_level: String,
    pub debug_assertions: bool,
    pub rustc: String,
    pub rustflags: String,
    pub cc: String,
}

impl Build {
    pub fn this() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: None,
            target: env!("USLAB_BENCH_TARGET").into(),
            profile: env!("USLAB_BENCH_PROFILE").into(),
            opt_level: env!("USLAB_BENCH_OPT_LEVEL").into(),
            debug_assertions: cfg!(debug_assertions),
            rustc: env!("USLAB_BENCH_RUSTC").into(),
            rustflags: env!("USLAB_BENCH_RUSTFLAGS").into(),
            cc: env!("USLAB_BENCH_CC").into(),
        }
    }

    /// The reason why figures of this build are meaningless, if they are.
    pub fn unfit(&self) -> Option<String> {
        let optimised = matches!(self.opt_level.as_str(), "2" | "3");
        if optimised && !self.debug_assertions {
            return None;
        }
        let assertions = if self.debug_assertions { ", with debug assertions" } else { "" };
        Some(format!("built at opt-level {}{assertions}", self.opt_level))
    }
}

/// The first value of `name : value`.
fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// x86 reports a name, arm64 only the numbers of implementer and part.
fn cpu_model(cpuinfo: &str) -> String {
    if let Some(model) = field(cpuinfo, "model name") {
        let number = |name| field(cpuinfo, name).unwrap_or("?");
        return format!("{model} (family {} model {})", number("cpu family"), number("model"));
    }
    match (field(cpuinfo, "CPU implementer"), field(cpuinfo, "CPU part")) {
        (Some(implementer), Some(part)) => format!("implementer {implementer} part {part}"),
        _ => "unknown".into(),
    }
}

/// The word in brackets of a line such as `always [madvise] never`.
fn chosen(line: &str) -> String {
    line.split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("unknown", |(word, _)| word)
        .to_owned()
}

/// The size of a page, which Linux always knows.
pub fn page_size_bytes() -> usize {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|bytes| usize::try_from(bytes).ok()).expect("the size of a page")
}

fn read_line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_architectures() {
        let x86 = "processor : 0\nvendor_id : A\ncpu family : 25\nmodel : 17\nmodel name : EPYC\n";
        assert_eq!(cpu_model(x86), "EPYC (family 25 model 17)");
        assert_eq!(cpu_model("CPU implementer : 0x41\nCPU part : 0xd40\n"), "implementer 0x41 part 0xd40");
        assert_eq!(cpu_model(""), "unknown");
    }

    #[test]
    fn variables_that_set_up_an_allocator_are_noted_and_no_others() {
        let names = ["PATH", "USLAB_SECURE", "USLAB_RSEQ", "USLAB_BENCH_CC", "MALLOC_ARENA_MAX"];
        let noted = settings(names.into_iter().map(|name| (name.into(), "1".into())));
        assert_eq!(noted, ["USLAB_SECURE", "MALLOC_ARENA_MAX"].map(|name| (name.into(), "1".into())).into());
    }

    #[test]
    fn the_chosen_word() {
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(chosen(""), "unknown");
    }

    #[test]
    fn an_unoptimised_build_is_unfit() {
        let mut build = Build { opt_level: "3".into(), debug_assertions: false, ..Build::this() };
        assert_eq!(build.unfit(), None);
        build.opt_level = "1".into();
        assert!(build.unfit().unwrap().contains("opt-level 1"));
        build = Build { opt_level: "3".into(), debug_assertions: true, ..build };
        assert!(build.unfit().unwrap().contains("assertions"));
    }

    #[test]
    fn this_machine_has_a_kernel_and_cpus() {
        let machine = Machine::read(&Cpus::choose(None).unwrap(), &Clock::calibrate());
        assert!(machine.kernel.len() > "Linux ".len() && machine.cpus_online >= machine.cpus_allowed);
    }
}
