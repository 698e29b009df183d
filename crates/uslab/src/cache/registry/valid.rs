//! Invariants of the registry, and the functions that check them under its lock.

use super::{CACHES, Core, FIRST_CACHE_ID, IDS, OWN_IDS, Registry, USED_IDS, WORDS, cache, ids};
use crate::os::invariant::{Checked, Subject, assert_valid, is_sampled};
use core::sync::atomic::Ordering::{Acquire, Relaxed};

impl Registry {
    fn subject(&self) -> Subject {
        Subject::new("registry", self)
    }

    /// Asserts, in debug builds, what holds after a cache entered or left `id`.
    #[inline(always)]
    pub(super) fn assert_entry(&self, id: u16) {
        assert_valid(|| {
            self.check_word(usize::from(id) / 64)?;
            self.check_entry(id)
        });
        if is_sampled() {
            assert_valid(|| self.check().map(drop));
        }
    }

    fn check_word(&self, word: usize) -> Checked {
        let subject = self.subject();
        let own = self.used[word] & OWN_IDS[word];
        subject.equal(own, OWN_IDS[word], "the library's own ids are never given to caches")?;
        let is_full = self.full[word / 64] >> (word % 64) & 1 != 0;
        subject.equal(is_full, self.used[word] == u64::MAX, "the summary says which words of ids are full")
    }

    fn check_entry(&self, id: u16) -> Checked {
        if id < FIRST_CACHE_ID {
            return Ok(());
        }
        let is_used = self.used[usize::from(id) / 64] >> (id % 64) & 1 != 0;
        let core = cache(id);
        self.subject().equal(core.is_some(), is_used, "an id is used while it has a cache")?;
        let Some(core) = core else { return Ok(()) };
        let subject = Subject::new("cache", core);
        subject.equal(core.id(), id, "a cache is entered under its own id")?;
        subject.at_most(u32::from(id) + 1, USED_IDS.load(Acquire), "walks reach each id that is used")
    }

    /// Checks all ids that were ever in use; returns how many caches there are.
    pub(in crate::cache) fn check(&self) -> Checked<usize> {
        ids().try_for_each(|id| self.check_entry(id))?;
        (0..WORDS).try_for_each(|word| self.check_word(word))?;
        let ones = |words: &[u64]| words.iter().map(|word| word.count_ones()).sum::<u32>();
        let caches = ones(&self.used) - ones(&OWN_IDS);
        let subject = self.subject();
        subject.equal(CACHES.load(Relaxed), caches, "caches are counted")?;
        subject.at_most(caches as usize, IDS - usize::from(FIRST_CACHE_ID), "each cache has an id")?;
        Ok(caches as usize)
    }
}

/// Checks the registry, then each cache with `visit`, all under the registry's lock: no cache is
/// created or destroyed meanwhile, and no fork begins. Returns how many caches there are.
pub fn check(visit: &mut dyn FnMut(&'static Core) -> Checked) -> Checked<usize> {
    let registry = super::lock();
    let caches = registry.check()?;
    ids().filter_map(cache).try_for_each(visit)?;
    Ok(caches)
}

/// The table's entry of `id`, for a test that breaks it.
#[cfg(test)]
pub(super) fn place_of(id: u16) -> &'static core::sync::atomic::AtomicPtr<Core> {
    &super::CORES[usize::from(id)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CacheBuilder;
    use crate::os::invariant::Invalid;

    /// Returns the violation that a check reports between `break_it` and `mend`, under the lock.
    fn found(break_it: impl FnOnce(&mut Registry, u16), mend: impl FnOnce(&mut Registry, u16)) -> Invalid {
        let cache = CacheBuilder::new("broken").build_raw(40).expect("there is memory");
        let mut registry = crate::cache::registry::lock();
        assert!(registry.check().is_ok());
        let id = cache.core().id();
        break_it(&mut registry, id);
        let invalid = registry.check();
        mend(&mut registry, id);
        assert!(registry.check().is_ok());
        drop(registry);
        drop(cache);
        invalid.expect_err("the check finds it")
    }

    #[test]
    fn an_id_without_its_cache_is_found() {
        let flip = |registry: &mut Registry, id: u16| registry.used[usize::from(id) / 64] ^= 1 << (id % 64);
        let invariant = found(flip, flip).invariant;
        assert_eq!(invariant, "an id is used while it has a cache");
        let core = core::cell::Cell::new(core::ptr::null_mut());
        let invalid = found(
            |_, id| core.set(place_of(id).swap(core::ptr::null_mut(), Relaxed)),
            |_, id| place_of(id).store(core.get(), Relaxed),
        );
        assert_eq!(invalid.invariant, "an id is used while it has a cache");
    }

    #[test]
    fn a_cache_under_another_id_is_found() {
        let kept = core::cell::Cell::new(core::ptr::null_mut());
        let other = CacheBuilder::new("other").build_raw(40).expect("there is memory");
        let core = core::ptr::from_ref(other.core()).cast_mut();
        let invalid = found(
            |_, id| kept.set(place_of(id).swap(core, Relaxed)),
            |_, id| place_of(id).store(kept.get(), Relaxed),
        );
        assert_eq!(invalid.invariant, "a cache is entered under its own id");
    }

    #[test]
    fn counts_and_summaries_that_disagree_are_found() {
        let count = |change: u32| {
            move |_: &mut Registry, _: u16| {
                CACHES.fetch_add(change, Relaxed);
            }
        };
        assert_eq!(found(count(1), count(u32::MAX)).invariant, "caches are counted");
        let flip = |registry: &mut Registry, _: u16| registry.full[15] ^= 1 << 63;
        assert_eq!(found(flip, flip).invariant, "the summary says which words of ids are full");
        let flip = |registry: &mut Registry, _: u16| registry.used[0] ^= 1 << 3;
        assert_eq!(found(flip, flip).invariant, "the library's own ids are never given to caches");
    }
}
