//! Invariants of a shard, and the functions that check them under its lock. They compare no keys,
//! and so call no code of the program.

use super::{List, Node, Shard};
use crate::os::invariant::{Checked, Subject, assert_valid, is_sampled};
use core::ptr::NonNull;

/// Upper bound on the entries that a sampled walk visits.
const MAX_WALKED: usize = 64;

impl<K, V> Shard<K, V> {
    fn subject(&self) -> Subject {
        Subject::new("LRU shard", self)
    }

    /// Asserts, in debug builds, what holds after a change of the list or the index.
    #[inline(always)]
    pub(super) fn assert_valid(&self) {
        assert_valid(|| self.check_ends());
        if is_sampled() {
            assert_valid(|| self.check(MAX_WALKED).map(drop));
        }
    }

    fn check_ends(&self) -> Checked {
        let is_empty = self.by_age.first().is_none();
        self.subject().equal(is_empty, self.index.is_empty(), "a shard has a list while it has entries")
    }

    /// Checks up to `most` entries, from the oldest on; returns how many it checked.
    pub(super) fn check(&self, most: usize) -> Checked<usize> {
        self.check_ends()?;
        let all = self.index.len();
        let oldest = self.by_age.last();
        let mut next = oldest;
        let mut seen = 0;
        while let Some(node) = next.filter(|_| seen < most.min(all)) {
            seen += 1;
            self.check_entry(node)?;
            // SAFETY: the shard owns its nodes.
            next = unsafe { self.by_age.before(next) };
            let is_last = seen == all;
            self.subject().equal(next == oldest, is_last, "the list has the entries of the index, once")?;
        }
        self.subject().equal(seen, most.min(all), "the list leads to all entries of the index")?;
        Ok(seen)
    }

    fn check_entry(&self, node: NonNull<Node<K, V>>) -> Checked {
        let subject = Subject::new("LRU entry", node.as_ptr());
        // SAFETY: the shard owns its nodes.
        let hash = unsafe { node.as_ref().hash };
        let is_found = self.index.find(hash, |&there| there == node).is_some();
        subject.holds(is_found, "an entry of the list is in the index under its hash")?;
        // SAFETY: as above.
        let (is_linked, is_whole) =
            unsafe { (List::<Node<K, V>>::is_linked(Some(node)), List::<Node<K, V>>::is_whole(Some(node))) };
        subject.holds(is_linked && is_whole, "the neighbours of an entry link back to it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Cache, CacheBuilder};
    use crate::reclaim::lru::evict::EvictColdest;
    use crate::sync::list::Links;
    use core::mem::MaybeUninit;

    type Memory = Cache<MaybeUninit<Node<u64, u64>>>;

    /// A shard with `entries` entries.
    fn shard(memory: &Memory, entries: u64) -> Shard<u64, u64> {
        let mut shard = Shard::new();
        for key in 0..entries {
            let Ok(node) = memory.insert(MaybeUninit::uninit()) else { panic!("there is memory") };
            let node = node.into_raw().cast::<Node<u64, u64>>();
            shard.make_room().expect("there is memory");
            // SAFETY: fresh memory of the type's size.
            unsafe { node.write(Node::new(key << 32 | key, key, key)) };
            shard.link(node);
        }
        assert_eq!(shard.check(usize::MAX), Ok(entries as usize));
        shard
    }

    fn empty(mut shard: Shard<u64, u64>) {
        while let Some(taken) = shard.evict_coldest() {
            drop(taken);
        }
        assert_eq!(shard.check(usize::MAX), Ok(0));
    }

    /// Returns the violation that a check reports after `break_it`, which `mend` undoes.
    fn found(
        break_it: impl FnOnce(&mut Shard<u64, u64>),
        mend: impl FnOnce(&mut Shard<u64, u64>),
    ) -> &'static str {
        let memory = CacheBuilder::new("shard").build().expect("there is memory");
        let mut shard = shard(&memory, 20);
        break_it(&mut shard);
        let invalid = shard.check(usize::MAX).expect_err("the check finds it");
        mend(&mut shard);
        empty(shard);
        invalid.invariant
    }

    fn newest(shard: &mut Shard<u64, u64>) -> &mut Node<u64, u64> {
        // SAFETY: the shard's node.
        unsafe { shard.by_age.first().expect("there is one").as_mut() }
    }

    #[test]
    fn an_entry_under_another_hash_is_found() {
        let flip = |shard: &mut Shard<u64, u64>| newest(shard).hash ^= 1 << 60;
        assert_eq!(found(flip, flip), "an entry of the list is in the index under its hash");
    }

    #[test]
    fn links_that_disagree_are_found() {
        let kept = core::cell::Cell::new(Links::OUTSIDE);
        let mend = |shard: &mut Shard<u64, u64>| newest(shard).links = kept.get();
        let set = |shard: &mut Shard<u64, u64>| {
            // SAFETY: the shard's node.
            let oldest = unsafe { shard.by_age.last().expect("there is one").as_ref() };
            let other = oldest.links;
            kept.set(core::mem::replace(&mut newest(shard).links, other));
        };
        assert_eq!(found(set, mend), "the neighbours of an entry link back to it");
        let set = |shard: &mut Shard<u64, u64>| {
            kept.set(core::mem::replace(&mut newest(shard).links, Links::OUTSIDE));
        };
        assert_eq!(found(set, mend), "the list leads to all entries of the index");
    }

    #[test]
    #[should_panic(expected = "a node that is unlinked is in a list")]
    fn an_entry_taken_out_twice_ends_the_process() {
        let memory: Memory = CacheBuilder::new("shard").build().expect("there is memory");
        let memory = core::mem::ManuallyDrop::new(memory);
        let mut shard = core::mem::ManuallyDrop::new(shard(&memory, 3));
        let node = shard.by_age.first().expect("there is one");
        shard.take_out(node);
        shard.take_out(node);
    }
}
