//! Tests of the meaning of the environment variables. They stand beside `config.rs`, which tools
//! compile too.

use super::config::*;

fn config(name: &str, value: &'static str) -> Config<&'static [u8]> {
    Config::of(READ_AT_START.map(|other| (other == name).then_some(value.as_bytes())))
}

#[test]
fn unset_variables_mean_their_defaults() {
    let unset = Config::of([None::<&[u8]>; 15]);
    assert!(!unset.forbids_rseq && !unset.forbids_reaper && unset.aborts_on_misuse);
    assert_eq!((unset.cpu_bytes, unset.snapshot, unset.snapshot_reader), (None, None, None));
    assert!(!unset.is_guard_wrong && !config(GUARD, "all").is_guard_wrong);
    assert_eq!((unset.decay_ms, unset.huge_pages, unset.guard), (None, None, None));
    assert_eq!((unset.leaks, unset.leak_suppressions), (None, None));
}

#[test]
fn each_variable_has_its_effect_and_other_values_have_none() {
    assert!(config(RSEQ, "0").forbids_rseq && !config(RSEQ, "1").forbids_rseq);
    assert!(config(REAPER, "0").forbids_reaper && !config(REAPER, "off").forbids_reaper);
    assert!(!config(ON_MISUSE, "report").aborts_on_misuse && config(ON_MISUSE, "").aborts_on_misuse);
    let decay_ms = |value| config(DECAY_MS, value).decay_ms;
    assert_eq!((decay_ms("0"), decay_ms("250")), (Some(Some(0)), Some(Some(250))));
    assert_eq!((decay_ms("-1"), decay_ms("never")), (Some(None), Some(None)));
    assert_eq!((decay_ms("1s"), decay_ms("-2"), decay_ms("")), (None, None, None));
    let huge_pages = |value| config(HUGE_PAGES, value).huge_pages;
    assert_eq!((huge_pages("auto"), huge_pages("never")), (Some(HugePages::Auto), Some(HugePages::Never)));
    assert_eq!((huge_pages("always"), huge_pages("1")), (Some(HugePages::Always), None));
    let leaks = |value| config(LEAKS, value).leaks;
    assert_eq!((leaks("1"), leaks("report")), (Some(AtExit::Fail), Some(AtExit::Report)));
    assert_eq!((leaks("0"), leaks("yes")), (None, None));
    let is_leaks_wrong = |value| config(LEAKS, value).is_leaks_wrong;
    assert!(is_leaks_wrong("yes") && !is_leaks_wrong("0") && !is_leaks_wrong("1"));
    assert_eq!(config(LEAK_SUPPRESSIONS, "/a").leak_suppressions, Some(&b"/a"[..]));
    assert!(config(SECURE, "1").is_secure && !config(SECURE, "0").is_secure);
    let guard = |value| config(GUARD, value).guard;
    let of = |interval_ms, slots, side| Some(Guard { interval_ms, slots, side });
    assert_eq!((guard("1"), guard("on")), (of(100, 0, Side::Random), of(100, 0, Side::Random)));
    assert_eq!((guard("20"), guard("all")), (of(20, 0, Side::Random), of(0, 0, Side::Right)));
    assert_eq!(guard("all,left,slots=7"), of(0, 7, Side::Left));
    assert_eq!(guard("5,slots=9,left"), of(5, 9, Side::Left));
    for none in ["0", "off", "", "-1", "1ms", "all,", "all,middle", "1,slots=0", "1,slots"] {
        assert_eq!(guard(none), None, "{none}");
        assert_eq!(config(GUARD, none).is_guard_wrong, !["0", "off", ""].contains(&none), "{none}");
    }
    assert_eq!(config(CPU_BYTES, "4096").cpu_bytes, Some(4096));
    assert_eq!(config(CPU_BYTES, "4k").cpu_bytes, None);
    assert!(config(PRESSURE, "").names_pressure);
    assert_eq!(config(SNAPSHOT, "/run").snapshot, Some(&b"/run"[..]));
    assert_eq!(config(SNAPSHOT_READER, "17").snapshot_reader, Some(17));
}

#[test]
fn the_table_has_each_variable_once() {
    for name in READ_AT_START.iter().chain(&[PRESSURE_LOG, PRESSURE_WATCH, PRESSURE_WRITE]) {
        assert_eq!(VARIABLES.iter().filter(|variable| variable.name == *name).count(), 1, "{name}");
    }
}
