//! Tests of entries that another thread is using when the process forks. A program cannot see when
//! a thread waits in the registry, so these tests stand inside the crate. The other tests are in
//! `tests/reclaim.rs`.

use super::*;
use crate::os::fork::holds_in_child;
use crate::reclaim::callbacks::Outcome;

extern crate std;
use std::sync::mpsc::channel;
use std::thread;

/// An entry whose context counts how often it was disposed of.
fn entry(disposed: &'static AtomicU32) -> &'static Entry {
    set_up!();
    crate::reclaim::install();
    let callbacks = Callbacks {
        context: (&raw const *disposed).cast_mut().cast(),
        count: |_, _| Outcome::Stop,
        scan: |_, _| Outcome::Stop,
        dispose: |disposed| {
            // SAFETY: the context is the counter given below, which lives for ever.
            unsafe { &*disposed.cast::<AtomicU32>() }.fetch_add(1, Relaxed);
        },
    };
    claim().expect("memory").publish("forked", Weight::of_seeks(2), 128, callbacks)
}

/// Visits the entry, once the passes of other tests have left it.
fn visit(entry: &'static Entry) -> Visit {
    loop {
        if let Some(visit) = entry.visit() {
            return visit;
        }
        thread::yield_now();
    }
}

fn is_consistent() -> bool {
    let registered =
        entries().filter(|entry| matches!(entry.state.load(Relaxed), LIVE | RETIRED | RETIRING | LEAVING));
    live() == registered.count()
}

#[test]
fn what_another_thread_was_leaving_is_free_in_a_child() {
    static DISPOSED: AtomicU32 = AtomicU32::new(0);
    let entry = entry(&DISPOSED);
    let ((left, has_left), (go, may_go)) = (channel(), channel::<()>());
    let other = thread::spawn(move || {
        let visit = visit(entry);
        assert!(visit.goes_on() && entry.runs_here());
        assert!(!entry.unregister(), "from inside it takes effect later");
        assert!(!visit.goes_on());
        left.send(()).unwrap();
        may_go.recv().unwrap();
    });
    has_left.recv().unwrap();
    assert!(holds_in_child(|| {
        let is_free = entry.state.load(Relaxed) == FREE && entry.runner.load(Relaxed) == 0;
        is_free && is_consistent() && DISPOSED.load(Relaxed) == 0
    }));
    go.send(()).unwrap();
    other.join().unwrap();
    assert_eq!(DISPOSED.load(Relaxed), 1);
}

#[test]
fn what_another_thread_waited_to_end_ends_in_the_child_that_is_inside() {
    static DISPOSED: AtomicU32 = AtomicU32::new(0);
    let entry = entry(&DISPOSED);
    let inside = visit(entry);
    let other = thread::spawn(|| assert!(entry.unregister()));
    while entry.state.load(Relaxed) != RETIRING {
        thread::yield_now();
    }
    let mut inside = Some(inside);
    assert!(holds_in_child(|| {
        let waits = DISPOSED.load(Relaxed) == 0 && is_consistent();
        drop(inside.take());
        waits && DISPOSED.load(Relaxed) == 1 && entry.state.load(Relaxed) == FREE && is_consistent()
    }));
    assert_eq!(DISPOSED.load(Relaxed), 0);
    drop(inside);
    other.join().unwrap();
    assert_eq!(DISPOSED.load(Relaxed), 1);
}

#[test]
fn an_entry_is_live_whoever_is_inside_until_it_is_unregistered() {
    static DISPOSED: AtomicU32 = AtomicU32::new(0);
    let entry = entry(&DISPOSED);
    let inside = visit(entry);
    assert!(entry.is_live() && thread::spawn(|| entry.visit().is_none()).join().unwrap());
    drop(inside);
    assert!(entry.unregister() && !entry.is_live());
}
