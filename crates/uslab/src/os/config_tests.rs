//! Tests of the meaning of the environment variables. They stand beside `config.rs`, which tools
//! compile too.

use super::config::*;
use super::hardening::{BadWord, Hardening};
use super::settings::*;

fn config(name: &str, value: &'static str) -> Config<&'static [u8]> {
    Config::of(READ_AT_START.map(|other| (other == name).then_some(value.as_bytes())))
}

fn is_wrong(name: &str, value: &'static str) -> bool {
    fault(name, value.as_bytes()).is_some()
}

#[test]
fn unset_variables_mean_their_defaults() {
    let unset = Config::of([None::<&[u8]>; READ_AT_START.len()]);
    assert!(!unset.forbids_rseq && !unset.insists_on_rseq && !unset.forbids_reaper && unset.aborts_on_misuse);
    assert_eq!((unset.cpu_bytes, unset.snapshot, unset.snapshot_reader), (None, None, None));
    assert!(READ_AT_START.iter().all(|name| !is_wrong(name, "")) && !is_wrong(GUARD, "all"));
    assert_eq!((unset.limit, unset.reports_at_exit), (None, false));
    assert_eq!((unset.decay_ms, unset.huge_pages, unset.guard), (None, None, None));
    assert_eq!((unset.leaks, unset.leak_suppressions), (None, None));
}

#[test]
fn each_variable_has_its_effect_and_other_values_have_none() {
    assert!(config(RSEQ, "0").forbids_rseq && !config(RSEQ, "1").forbids_rseq);
    assert!(config(RSEQ, "own").insists_on_rseq && !config(RSEQ, "own").forbids_rseq);
    assert!(config(REAPER, "0").forbids_reaper && !config(REAPER, "off").forbids_reaper);
    assert!(config(NUMA, "0").ignores_nodes && !config(NUMA, "1").ignores_nodes);
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
    assert!(is_wrong(LEAKS, "yes") && !is_wrong(LEAKS, "0") && !is_wrong(LEAKS, "1"));
    assert_eq!(config(LEAK_SUPPRESSIONS, "/a").leak_suppressions, Some(&b"/a"[..]));
    let secure = |text: &str| Hardening::parse(text.as_bytes());
    assert_eq!(
        (secure("1"), secure("0"), secure("")),
        (Ok(Hardening::ALL), Ok(Hardening::NONE), Ok(Hardening::NONE))
    );
    let two = secure("zero,order").expect("words");
    assert!(two.has(Hardening::ZERO) && two.has(Hardening::ORDER) && !two.has(Hardening::CANARY));
    assert!(two.needs_records() && !secure("order,ranges").expect("words").needs_records());
    for (text, column) in
        [("yes", 1), ("zero,,order", 6), ("zero,order,apart", 12), ("1,zero", 1), ("zero,", 6)]
    {
        assert_eq!(secure(text), Err(BadWord { column }), "{text}");
    }
    let profile = |value| (config(PROFILE, value).profile, is_wrong(PROFILE, value));
    assert_eq!((profile("1"), profile("4096")), ((Some(512 << 10), false), (Some(4096), false)));
    assert_eq!((profile("0"), profile("off"), profile("1M")), ((None, false), (None, false), (None, true)));
    assert_eq!(config(PROFILE_FILE, "/a").profile_file, Some(&b"/a"[..]));
    let guard = |value| config(GUARD, value).guard;
    let of = |interval_ms, slots, side| Some(Guard { interval_ms, slots, side });
    assert_eq!((guard("1"), guard("on")), (of(100, 0, Side::Random), of(100, 0, Side::Random)));
    assert_eq!((guard("20"), guard("all")), (of(20, 0, Side::Random), of(0, 0, Side::Right)));
    assert_eq!(guard("all,left,slots=7"), of(0, 7, Side::Left));
    assert_eq!(guard("5,slots=9,left"), of(5, 9, Side::Left));
    for none in ["0", "off", "", "-1", "1ms", "all,", "all,middle", "1,slots=0", "1,slots"] {
        assert_eq!(guard(none), None, "{none}");
        assert_eq!(is_wrong(GUARD, none), !["0", "off", ""].contains(&none), "{none}");
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

#[test]
fn a_value_without_a_meaning_is_wrong_and_counts_as_unset() {
    let wrong = [
        (RSEQ, "off"),
        (REAPER, "2"),
        (NUMA, "off"),
        (STATS, "on"),
        (DECAY_MS, "1s"),
        (HUGE_PAGES, "1"),
        (ON_MISUSE, "ignore"),
        (CPU_BYTES, "4k"),
        (GUARD, "all,middle"),
        (LEAKS, "yes"),
        (LIMIT, "80%,70%"),
    ];
    let unset = Config::of([None::<&[u8]>; READ_AT_START.len()]);
    for (name, value) in wrong {
        assert!(is_wrong(name, value), "{name}={value}");
        assert!(!is_wrong(name, ""), "{name}");
        let with = config(name, value);
        assert_eq!((with.limit, with.decay_ms, with.leaks), (unset.limit, unset.decay_ms, unset.leaks));
        let why = fault(name, value.as_bytes()).map(|fault| std::format!("{fault}"));
        assert!(why.is_some_and(|why| why.len() > 4) && !default_text(name).is_empty(), "{name}");
    }
}

#[test]
fn limits_are_bytes_or_parts_of_the_memory() {
    let bytes = |value| config(LIMIT, value).limit.map(|limit| limit.bytes(|| 1000 << 20));
    assert_eq!(bytes("80%"), Some((800 << 20, 0)));
    assert_eq!(bytes("80%,90%"), Some((800 << 20, 900 << 20)));
    assert_eq!(bytes("4096"), Some((4096, 0)));
    assert_eq!(bytes("768M,1G"), Some((768 << 20, 1 << 30)));
    assert_eq!(bytes("0, 64k"), Some((0, 64 << 10)));
    // Only the machine tells that this percentage is above the other limit.
    assert_eq!(bytes("50%,100M"), Some((100 << 20, 100 << 20)));
    for none in ["", "x", "80", "101%", "0%", "-1", "2,1", "1G,", "1,2,3", "99999999999T", "%", "K"] {
        let expected = if none == "80" { Some((80, 0)) } else { None };
        assert_eq!(bytes(none), expected, "{none}");
    }
}

#[test]
fn a_string_of_settings_is_taken_apart() {
    let parts = |text: &'static str| {
        let mut parts = std::vec::Vec::new();
        each_setting(text.as_bytes(), &mut |name, value| {
            let [name, value] = [name, value].map(|text| core::str::from_utf8(text).expect("UTF-8"));
            parts.push((name, value));
        });
        parts
    };
    assert_eq!(parts("decay_ms=0,limit=80%,90%"), [("decay_ms", "0"), ("limit", "80%,90%")]);
    assert_eq!(parts("guard=all,left,slots=7, secure=1"), [("guard", "all,left,slots=7"), ("secure", "1")]);
    assert_eq!(parts("debug=FZ;P,session,stats=1"), [("debug", "FZ;P,session"), ("stats", "1")]);
    assert_eq!(parts("limt=1,decay_ms=5"), [("limt", "1"), ("decay_ms", "5")]);
    assert_eq!(parts("stats,=,,x="), [("stats", ""), ("", ","), ("x", "")]);
    assert_eq!(parts(""), []);
    for (name, found) in [("decay_ms", true), ("DECAY_MS", false), ("snapshot", false), ("limt", false)] {
        assert_eq!(index_of_setting(name.as_bytes()).is_some(), found, "{name}");
    }
}
