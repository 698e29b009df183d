//! The caches that are debugged: by their flags, or because `USLAB_DEBUG` names them.

use super::plain;
use crate::cache::builder::Flags;
use crate::os;
use crate::os::debugging::{CHECKER, CHECKS, POISON, RED_ZONE, SECURE, Selection, TRACE, USERS, ZERO};
use crate::os::hardening::Hardening;
use crate::report;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The value of `USLAB_DEBUG`, parsed.
struct Chosen {
    text: [u8; os::env::VALUE_BYTES],
    used: usize,
    selection: Selection,
}

struct Cell(UnsafeCell<Chosen>);

// SAFETY: start-up writes it once, before it sets `IS_SET`; threads read it only afterwards.
unsafe impl Sync for Cell {}

#[unsafe(link_section = ".bss.uslab_tables")]
static CHOSEN: Cell =
    Cell(UnsafeCell::new(Chosen { text: [0; os::env::VALUE_BYTES], used: 0, selection: Selection::NONE }));
static IS_SET: AtomicBool = AtomicBool::new(false);

/// Sets the selection of the process from `text`. Start-up calls it once, under its lock. Text that
/// is wrong, which start-up reports, selects nothing.
pub fn set(text: &[u8]) {
    let selection = Selection::parse(text).unwrap_or(Selection::NONE);
    if selection == Selection::NONE || text.len() > os::env::VALUE_BYTES {
        return;
    }
    // SAFETY: only this call writes, and no thread reads yet.
    let chosen = unsafe { &mut *CHOSEN.0.get() };
    chosen.text[..text.len()].copy_from_slice(text);
    (chosen.used, chosen.selection) = (text.len(), selection);
    IS_SET.store(true, Release);
    report::set_detailed();
}

/// The letters that every cache has besides those that `USLAB_DEBUG` selects.
static FOR_ALL: AtomicU8 = AtomicU8::new(0);

/// Hardens every cache. Start-up calls it, before there is any.
pub fn secure(hardening: Hardening) {
    let of = |mitigation, letter| if hardening.has(mitigation) { letter } else { 0 };
    let letters = of(Hardening::CANARY, RED_ZONE) | of(Hardening::ZERO, ZERO);
    FOR_ALL.fetch_or(CHECKS | SECURE | letters, Relaxed);
    HAS_QUARANTINE.store(hardening.has(Hardening::QUARANTINE), Relaxed);
}

static HAS_QUARANTINE: AtomicBool = AtomicBool::new(false);

/// Whether objects of hardened caches go through a quarantine.
pub fn has_quarantine() -> bool {
    HAS_QUARANTINE.load(Relaxed)
}

/// Makes every cache record who allocated. As [`secure`].
pub fn record_users() {
    FOR_ALL.fetch_or(USERS, Relaxed);
    report::set_detailed();
}

/// Debugs every cache for a memory checker. As [`secure`], of which it takes the place.
pub fn for_checker() {
    FOR_ALL.store(CHECKS | CHECKER, Relaxed);
}

/// The letters for a cache called `name`.
pub fn letters_for(name: &str) -> u8 {
    compatible(FOR_ALL.load(Relaxed) | selected_for(name))
}

/// Whether the cache of a class called `name` packs its objects: a short record right before each.
pub(crate) fn packs(name: &str) -> bool {
    let letters = letters_for(name);
    letters != 0 && plain::is_enough(letters)
}

/// Letters without those whose checks would read memory that a memory checker guards.
pub fn compatible(letters: u8) -> u8 {
    if letters & CHECKER != 0 { letters & !(RED_ZONE | POISON | SECURE | ZERO) } else { letters }
}

fn selected_for(name: &str) -> u8 {
    if !IS_SET.load(Acquire) {
        return 0;
    }
    // SAFETY: it is set, and does not change any more.
    let chosen = unsafe { &*CHOSEN.0.get() };
    letters_in(&chosen.selection, &chosen.text[..chosen.used], name)
}

/// The end of a cache's name that serves the widely aligned objects of a size class. Whether a
/// class has one follows from its letters, so a user who names the class means both.
pub(crate) const ALIGNED: &str = "-aligned";

fn letters_in(selection: &Selection, text: &[u8], name: &str) -> u8 {
    let class = name.strip_suffix(ALIGNED).filter(|class| class.starts_with("malloc-"));
    match (selection.named(text, name.as_bytes()), class) {
        (None, Some(class)) => selection.letters(text, class.as_bytes()),
        _ => selection.letters(text, name.as_bytes()),
    }
}

/// Whether a class of `malloc` may be debugged: objects must not be resized without the cache's
/// knowledge.
pub fn selects_malloc() -> bool {
    IS_SET.load(Acquire) || FOR_ALL.load(Relaxed) != 0
}

/// The letters of a cache's flags.
pub fn letters_of(flags: Flags) -> u8 {
    [
        (Flags::CONSISTENCY_CHECKS, CHECKS),
        (Flags::RED_ZONE, RED_ZONE),
        (Flags::POISON, POISON),
        (Flags::STORE_USER, USERS),
        (Flags::TRACE, TRACE),
    ]
    .iter()
    .fold(0, |letters, &(flag, letter)| if flags.contains(flag) { letters | letter } else { letters })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_class_is_for_its_aligned_objects_too() {
        let letters = |text: &str, name| {
            letters_in(&Selection::parse(text.as_bytes()).expect(text), text.as_bytes(), name)
        };
        assert_eq!(letters("F,malloc-64", "malloc-64-aligned"), CHECKS);
        assert_eq!(letters("F,malloc-64", "malloc-80-aligned"), 0);
        assert_eq!(letters("F;-,malloc-64", "malloc-64-aligned"), 0);
        assert_eq!(letters("F,malloc-64;FZ,malloc-64-aligned", "malloc-64-aligned"), CHECKS | RED_ZONE);
        assert_eq!(letters("F", "malloc-64-aligned"), CHECKS);
        assert_eq!(letters("F,nodes", "nodes-aligned"), 0, "a cache of the program");
    }
}
