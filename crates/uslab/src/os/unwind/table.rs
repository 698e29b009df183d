//! The table of rules: each call frame program runs once, until the loader adds or removes code.

use super::rule::Rule;
use super::{cfi, loader, object};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

const ENTRIES: usize = 4096;

/// An address and its rule. `key` is the exclusive or of both, so that a reader recognises an entry
/// that two threads wrote at once.
struct Entry {
    key: AtomicU64,
    rule: AtomicU64,
}

#[unsafe(link_section = ".bss.uslab_tables")]
static TABLE: [Entry; ENTRIES] =
    [const { Entry { key: AtomicU64::new(0), rule: AtomicU64::new(0) } }; ENTRIES];

/// The loader's generation that the rules are of.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Forgets all rules if the loader has added or removed an object since. A walk that may take the
/// loader's lock begins so: code that lies now where an unloaded plug-in lay has other frames.
pub fn renew() {
    let Some(generation) = object::generation() else { return };
    if GENERATION.load(Relaxed) == generation {
        return;
    }
    for entry in &TABLE {
        entry.rule.store(Rule::NONE.0, Relaxed);
        entry.key.store(0, Relaxed);
    }
    GENERATION.store(generation, Relaxed);
}

/// The rule of the code at `pc`; `None` if the walk ends there.
#[inline]
pub fn of(pc: usize) -> Option<Rule> {
    let entry = &TABLE[(pc as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 52];
    match entry.rule_of(pc) {
        Some(rule) if !loader::is_lost() => Rule::of_word(rule),
        _ => compute(pc, entry),
    }
}

impl Entry {
    /// The rule, as a word, if it is that of `pc`.
    #[inline]
    fn rule_of(&self, pc: usize) -> Option<u64> {
        let rule = self.rule.load(Relaxed);
        (self.key.load(Relaxed) ^ rule == pc as u64).then_some(rule)
    }
}

/// Runs the program for `pc`. An older rule serves only where the object cannot be known now:
/// [`renew`] may not have noticed what was unloaded since.
#[cold]
fn compute(pc: usize, entry: &Entry) -> Option<Rule> {
    let Some(object) = object::search(pc) else {
        return entry.rule_of(pc).and_then(Rule::of_word);
    };
    let rule = object.and_then(|object| cfi::rule_at(&object, pc)).unwrap_or(Rule::NONE);
    entry.rule.store(rule.0, Relaxed);
    entry.key.store(pc as u64 ^ rule.0, Relaxed);
    Rule::of_word(rule.0)
}
