//! What always holds of a shard, under its lock. No code of the program is called: keys are not
//! compared.

use super::{Node, Shard};
use crate::os::invariant::{Checked, Subject, assert_valid, is_sampled};
use core::ptr::NonNull;

/// Entries that a sampled walk visits.
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
        let subject = self.subject();
        let is_empty = self.index.is_empty();
        subject.equal(self.newest.is_none(), is_empty, "a shard has a newest entry while it has entries")?;
        subject.equal(self.oldest.is_none(), is_empty, "a shard has an oldest entry while it has entries")?;
        if let (Some(newest), Some(oldest)) = (self.newest, self.oldest) {
            // SAFETY: the shard owns its nodes.
            let (newer, older) = unsafe { (newest.as_ref().newer, oldest.as_ref().older) };
            subject.holds(newer.is_none(), "no entry is newer than the newest")?;
            subject.holds(older.is_none(), "no entry is older than the oldest")?;
        }
        Ok(())
    }

    /// Checks up to `most` entries, from the newest on; returns how many it saw.
    pub(super) fn check(&self, most: usize) -> Checked<usize> {
        self.check_ends()?;
        let (mut seen, mut next) = (0, self.newest);
        while let Some(node) = next.filter(|_| seen < most) {
            seen += 1;
            self.subject().at_most(seen, self.index.len(), "the list has no more entries than the index")?;
            next = self.check_entry(node)?;
        }
        if next.is_none() {
            self.subject().equal(seen, self.index.len(), "the list has all entries of the index")?;
        }
        Ok(seen)
    }

    /// Checks an entry; returns the next older one.
    fn check_entry(&self, node: NonNull<Node<K, V>>) -> Checked<super::Link<K, V>> {
        let subject = Subject::new("LRU entry", node.as_ptr());
        // SAFETY: the shard owns its nodes.
        let (hash, older) = unsafe { (node.as_ref().hash, node.as_ref().older) };
        let is_found = self.index.find(hash, |&there| there == node).is_some();
        subject.holds(is_found, "an entry of the list is in the index under its hash")?;
        // SAFETY: as above.
        let newer = older.map(|older| unsafe { older.as_ref().newer });
        match newer {
            Some(newer) => subject.holds(newer == Some(node), "the next older entry links back")?,
            None => {
                subject.holds(self.oldest == Some(node), "an entry without an older one is the oldest")?
            }
        }
        Ok(older)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Chain;
    use super::*;
    use crate::cache::{Cache, CacheBuilder};
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

    fn empty(mut shard: Shard<u64, u64>, memory: &Memory) {
        shard.take_out_oldest(usize::MAX, &mut Chain::new(memory));
        assert_eq!(shard.check(usize::MAX), Ok(0));
    }

    /// What a check finds after `break_it`; `mend` undoes it.
    fn found(
        break_it: impl FnOnce(&mut Shard<u64, u64>),
        mend: impl FnOnce(&mut Shard<u64, u64>),
    ) -> &'static str {
        let memory = CacheBuilder::new("shard").build().expect("there is memory");
        let mut shard = shard(&memory, 20);
        break_it(&mut shard);
        let invalid = shard.check(usize::MAX).expect_err("the check finds it");
        mend(&mut shard);
        empty(shard, &memory);
        invalid.invariant
    }

    fn newest(shard: &mut Shard<u64, u64>) -> &mut Node<u64, u64> {
        // SAFETY: the shard's node.
        unsafe { shard.newest.expect("there is one").as_mut() }
    }

    #[test]
    fn an_entry_under_another_hash_is_found() {
        let flip = |shard: &mut Shard<u64, u64>| newest(shard).hash ^= 1 << 60;
        assert_eq!(found(flip, flip), "an entry of the list is in the index under its hash");
    }

    #[test]
    fn links_that_disagree_are_found() {
        let kept = core::cell::Cell::new(None);
        let set = |shard: &mut Shard<u64, u64>| {
            let oldest = shard.oldest;
            kept.set(core::mem::replace(&mut newest(shard).older, oldest));
        };
        let invariant = found(set, |shard| newest(shard).older = kept.get());
        assert_eq!(invariant, "the next older entry links back");
        let set = |shard: &mut Shard<u64, u64>| kept.set(core::mem::take(&mut newest(shard).older));
        let invariant = found(set, |shard| newest(shard).older = kept.get());
        assert_eq!(invariant, "an entry without an older one is the oldest");
        let invariant = found(|shard| kept.set(shard.oldest.take()), |shard| shard.oldest = kept.get());
        assert_eq!(invariant, "a shard has an oldest entry while it has entries");
        let invariant = found(|shard| kept.set(shard.newest.take()), |shard| shard.newest = kept.get());
        assert_eq!(invariant, "a shard has a newest entry while it has entries");
    }

    #[test]
    #[should_panic(expected = "the next older entry links back")]
    fn an_entry_taken_out_twice_ends_the_process() {
        let memory: Memory = CacheBuilder::new("shard").build().expect("there is memory");
        let memory = core::mem::ManuallyDrop::new(memory);
        let mut shard = core::mem::ManuallyDrop::new(shard(&memory, 3));
        let node = shard.newest.expect("there is one");
        shard.take_out(node);
        shard.take_out(node);
    }
}
