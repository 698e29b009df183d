//! Callbacks of reports that do what a callback should not: cause reports, panic, search for leaks,
//! and let other threads destroy what the report names. No code here is unsafe, so all of it must
//! be sound.

#![deny(unsafe_code)]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread::{scope, sleep};
use std::time::Duration;
use uslab::debug::{SearchError, Sink, find_leaks, set_sink};
use uslab::{Cache, CacheBox, CacheBuilder, Flags};

/// What callbacks saw.
static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn seen() -> Vec<String> {
    std::mem::take(&mut SEEN.lock().expect("no callback panicked while it held the lock"))
}

fn note(text: &str) {
    SEEN.lock().expect("no callback panicked while it held the lock").push(text.to_owned());
}

fn cache<T>(name: &str, flags: Flags) -> Cache<T> {
    CacheBuilder::new(name).flags(flags).build().expect("there is memory")
}

/// A cache with objects that no pointer leads to: a thread made them whose stack is gone. It is
/// never destroyed, which would report them.
fn leaky(name: &str) {
    let cache = cache(name, Flags::STORE_USER);
    let leak = || (0..20).for_each(|_| std::mem::forget(cache.insert([1u64; 100])));
    scope(|scope| scope.spawn(leak).join().expect("it does not panic"));
    std::mem::forget(cache);
}

static INNER: Mutex<Option<Cache<u64>>> = Mutex::new(None);

/// Causes one more report, by an allocation from a traced cache, and looks whether the text stays.
fn allocates(text: &str) {
    let Ok(inner) = INNER.try_lock() else { return note(text) };
    let Some(cache) = &*inner else { return };
    let before = text.to_owned();
    drop(cache.insert(7));
    assert_eq!(text, before, "a text that a callback holds does not change");
    note(text);
}

#[test]
fn a_report_keeps_its_text_while_its_callback_causes_another() {
    in_both_modes("a_report_keeps_its_text_while_its_callback_causes_another", &[], || {
        let outer = cache::<u64>("an outer cache with a long name", Flags::TRACE);
        *INNER.lock().expect("unused") = Some(cache(&"é".repeat(20), Flags::TRACE));
        set_sink(Sink::Callback(allocates));
        drop(outer.insert(1));
        set_sink(Sink::Stderr);
        let seen = seen();
        assert_eq!(seen.len(), 6, "an allocation and a free, each with two within: {seen:#?}");
        assert!(seen[0].contains("ééé") && seen[2].contains("an outer cache"), "{seen:#?}");
    });
}

fn panics(text: &str) {
    note(text);
    panic!("in a callback");
}

#[test]
fn after_a_panic_in_a_callback_reports_go_on_whole() {
    in_both_modes("after_a_panic_in_a_callback_reports_go_on_whole", &[], || {
        leaky("the leak");
        set_sink(Sink::Callback(panics));
        assert!(catch_unwind(AssertUnwindSafe(find_leaks)).is_err());
        set_sink(Sink::Callback(note));
        let found = find_leaks().expect("no search is under way any more");
        set_sink(Sink::Stderr);
        assert!(found.objects >= 19, "{found:?}");
        let seen = seen();
        assert_eq!(seen.len(), 1 + found.places);
        assert_eq!(seen[0].lines().count(), seen[1].lines().count(), "{seen:#?}");
    });
}

fn searches(_: &str) {
    note(&format!("{:?}", find_leaks().map_err(|error| (error, error.to_string()))));
}

#[test]
fn a_search_in_a_callback_of_a_search_is_refused() {
    in_both_modes("a_search_in_a_callback_of_a_search_is_refused", &[], || {
        leaky("the leak");
        set_sink(Sink::Callback(searches));
        let places = find_leaks().expect("the outer search").places;
        set_sink(Sink::Stderr);
        let refusal = (SearchError::Searching, "the thread searches already");
        assert_eq!(seen(), vec![format!("{:?}", Err::<(), _>(refusal)); places]);
    });
}

static STEP: AtomicU32 = AtomicU32::new(0);

fn wait_for(step: u32) {
    while STEP.load(SeqCst) < step {
        sleep(Duration::from_millis(1));
    }
}

/// At the first report, lets the other thread destroy its cache and make another one.
fn waits(text: &str) {
    note(text);
    if STEP.load(SeqCst) == 1 {
        STEP.store(2, SeqCst);
        wait_for(3);
    }
}

/// A pointer at an odd address is none for the search.
#[repr(C, packed)]
struct Hidden<'a>(u8, CacheBox<'a, [u64; 9]>);

#[inline(never)]
fn hide(cache: &Cache<[u64; 9]>) -> Vec<Hidden<'_>> {
    vec![Hidden(1, cache.insert([1; 9]).expect("there is memory"))]
}

/// Overwrites what earlier calls left on the stack.
#[inline(never)]
fn scrub(depth: u32) -> u64 {
    let frame = black_box([u64::from(depth); 200]);
    if depth == 0 { 0 } else { scrub(depth - 1) + frame[3] }
}

#[test]
fn a_report_names_a_cache_that_is_destroyed_meanwhile() {
    in_both_modes("a_report_names_a_cache_that_is_destroyed_meanwhile", &[], || {
        leaky("the larger leak");
        set_sink(Sink::Callback(waits));
        scope(|scope| {
            scope.spawn(|| {
                let smaller = cache("the smaller leak", Flags::STORE_USER);
                let hidden = hide(&smaller);
                scrub(20);
                STEP.store(1, SeqCst);
                wait_for(2);
                drop(hidden);
                assert!(smaller.destroy().is_ok());
                let other = cache::<u64>("another cache", Flags::default());
                STEP.store(3, SeqCst);
                wait_for(4);
                drop(other);
            });
            wait_for(1);
            assert!(find_leaks().is_ok());
            STEP.store(4, SeqCst);
        });
        set_sink(Sink::Stderr);
        let seen = seen();
        assert!(seen[0].contains("the larger leak"), "{seen:#?}");
        assert!(seen[1..].iter().any(|text| text.contains("the smaller leak")), "{seen:#?}");
    });
}
