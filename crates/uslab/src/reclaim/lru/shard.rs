//! A shard of the cache: its entries by key and by age, and the memory of the index.
//!
//! All functions here run under the shard's lock, except three that must run without it: the
//! destructors of [`TakenOut`] and [`Chain`], and [`can_be_had`].
//!
//! Under the lock no function reclaims, which would run callbacks of the program, and none calls
//! the program's code except to compare keys.

use super::dropping::{Caught, drop_each};
use super::evict::EvictColdest;
use crate::malloc;
use crate::os::invariant::invariant;
use crate::sync::list::{Linked, Links, List};
use core::alloc::Layout;
use core::ptr::NonNull;
use hashbrown::{HashTable, TryReserveError};
use hashbrown_memory::alloc::{AllocError, Allocator};
use std::borrow::Borrow;

mod valid;

pub(super) struct Node<K, V> {
    hash: u64,
    links: Links<Link<K, V>>,
    key: K,
    pub(super) value: V,
}

impl<K, V> Node<K, V> {
    pub(super) fn new(hash: u64, key: K, value: V) -> Self {
        Node { hash, links: Links::OUTSIDE, key, value }
    }
}

impl<K, V> Linked for Node<K, V> {
    type Name = Link<K, V>;

    unsafe fn links(node: Link<K, V>) -> *mut Links<Link<K, V>> {
        // SAFETY: the caller's promise: `node` is there, and lives.
        unsafe { &raw mut (*node.unwrap_unchecked().as_ptr()).links }
    }
}

pub(super) type Link<K, V> = Option<NonNull<Node<K, V>>>;

pub(super) struct Shard<K, V> {
    index: HashTable<NonNull<Node<K, V>>, IndexMemory>,
    /// Newest first.
    by_age: List<Node<K, V>>,
}

// SAFETY: a shard owns the nodes that it points to, and with them keys and values.
unsafe impl<K: Send, V: Send> Send for Shard<K, V> {}

impl<K, V> Shard<K, V> {
    pub(super) fn new() -> Self {
        Shard { index: HashTable::new_in(IndexMemory), by_age: List::new() }
    }

    pub(super) fn find<Q>(&self, hash: u64, key: &Q) -> Link<K, V>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        // SAFETY: the shard owns the nodes of its index.
        self.index.find(hash, |node| unsafe { node.as_ref().key.borrow() } == key).copied()
    }

    /// Makes room in the index for one more entry. Calls no code of the program.
    ///
    /// # Errors
    /// If memory is not free for the index, returns the bytes that it needs.
    pub(super) fn make_room(&mut self) -> Result<(), usize> {
        // SAFETY: the shard owns the nodes of its index.
        let hash = |node: &NonNull<Node<K, V>>| unsafe { node.as_ref().hash };
        self.index.try_reserve(1, hash).map_err(|error| match error {
            TryReserveError::AllocError { layout } => layout.size(),
            TryReserveError::CapacityOverflow => usize::MAX,
        })
    }

    /// Puts a node into the index, which must have room, and into the list. The shard owns it now.
    pub(super) fn link(&mut self, node: NonNull<Node<K, V>>) {
        // SAFETY: the shard owns the nodes of its index, and now this one.
        let hash = |node: &NonNull<Node<K, V>>| unsafe { node.as_ref().hash };
        self.index.insert_unique(hash(&node), node, hash);
        // SAFETY: a new node, in no list.
        unsafe { self.by_age.link_first(Some(node)) };
        self.assert_valid();
    }

    pub(super) fn make_newest(&mut self, node: NonNull<Node<K, V>>) {
        if self.by_age.first() != Some(node) {
            // SAFETY: the node is this shard's, which `&mut self` locks.
            unsafe {
                self.by_age.unlink(Some(node));
                self.by_age.link_first(Some(node));
            }
            self.assert_valid();
        }
    }

    /// Takes a node out of the list and the index. The caller owns it now.
    pub(super) fn take_out(&mut self, node: NonNull<Node<K, V>>) {
        // SAFETY: the node is this shard's, which `&mut self` locks.
        let is_linked = || unsafe { List::<Node<K, V>>::is_linked(Some(node)) };
        invariant!(is_linked(), "a node that is unlinked is in a list", node.as_ptr());
        // SAFETY: as above.
        let is_whole = || unsafe { List::<Node<K, V>>::is_whole(Some(node)) };
        invariant!(is_whole(), "the neighbours of an entry link back to it", node.as_ptr());
        // SAFETY: as above.
        let hash = unsafe {
            self.by_age.unlink(Some(node));
            node.as_ref().hash
        };
        let entry = self.index.find_entry(hash, |&there| there == node);
        invariant!(entry.is_ok(), "an entry that is taken out is in the index", node.as_ptr());
        if let Ok(entry) = entry {
            entry.remove();
        }
        self.assert_valid();
    }

    /// Moves the entries whose group is in `groups` (see [`group_of`]) to `chain`.
    pub(super) fn take_out_groups(&mut self, groups: u64, chain: &mut Chain<K, V>) {
        let mut next = self.by_age.last();
        // The list is a ring: its length ends the walk.
        for _ in 0..self.index.len() {
            let Some(node) = next else { break };
            // SAFETY: the shard owns its nodes.
            let hash = unsafe {
                next = self.by_age.before(next);
                node.as_ref().hash
            };
            if groups & group_of(hash) != 0 {
                self.take_out(node);
                chain.push(node);
            }
        }
    }
}

impl<K: 'static, V: 'static> EvictColdest for Shard<K, V> {
    type Evicted = TakenOut<K, V>;

    fn entries(&self) -> usize {
        self.index.len()
    }

    fn evict_coldest(&mut self) -> Option<TakenOut<K, V>> {
        let oldest = self.by_age.last()?;
        self.take_out(oldest);
        Some(TakenOut(oldest))
    }
}

/// The bits of all groups.
pub(super) const ALL_GROUPS: u64 = u64::MAX;

/// One of 64 groups of a shard's entries, as a bit.
pub(super) fn group_of(hash: u64) -> u64 {
    // The index uses the upper and the lowest bits, the choice of the shard those from 32 on.
    1 << (hash >> 40 & 63)
}

/// An entry outside its shard, owned by the thread that took it out. Dropping it drops key and
/// value, so the thread must hold no lock.
pub(super) struct TakenOut<K, V>(pub(super) NonNull<Node<K, V>>);

impl<K, V> TakenOut<K, V> {
    pub(super) fn open(self) -> (K, V) {
        core::mem::ManuallyDrop::new(self).read()
    }

    /// Moves key and value out of the node, and frees its memory. Called once.
    fn read(&self) -> (K, V) {
        // SAFETY: the node is this entry's alone; `open` or `drop` reads it once. Its memory is a
        // cache's object.
        unsafe {
            let Node { key, value, .. } = self.0.read();
            malloc::free(self.0.as_ptr().cast());
            (key, value)
        }
    }
}

impl<K, V> Drop for TakenOut<K, V> {
    fn drop(&mut self) {
        // Free the memory first: the destructors of key and value may both panic.
        let (key, value) = self.read();
        let mut caught = Caught::default();
        caught.drop(key);
        caught.drop(value);
        caught.go_on();
    }
}

/// Entries outside their shard. Dropping it drops them all, so the thread must hold no lock.
pub(super) struct Chain<K, V> {
    list: List<Node<K, V>>,
    pub(super) entries: usize,
}

impl<K, V> Chain<K, V> {
    pub(super) fn new() -> Self {
        Chain { list: List::new(), entries: 0 }
    }

    fn push(&mut self, node: NonNull<Node<K, V>>) {
        // SAFETY: the node was taken out of its shard and is this chain's alone.
        unsafe { self.list.link_first(Some(node)) };
        self.entries += 1;
    }

    fn pop(&mut self) -> Option<TakenOut<K, V>> {
        let node = self.list.first()?;
        // SAFETY: a node of the chain.
        unsafe { self.list.unlink(Some(node)) };
        Some(TakenOut(node))
    }
}

impl<K, V> Drop for Chain<K, V> {
    fn drop(&mut self) {
        drop_each(core::iter::from_fn(|| self.pop()));
    }
}

/// The allocator of the indices, which grow under the lock: it never reclaims.
struct IndexMemory;

// SAFETY: malloc's memory is distinct and stays valid until any `IndexMemory` frees it: they are
// all alike.
unsafe impl Allocator for IndexMemory {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.align() > malloc::ALIGN {
            return Err(AllocError);
        }
        let block = NonNull::new(malloc::entry::malloc_noreclaim(layout.size())).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise: it is a block of `allocate`, of that very size.
        unsafe { malloc::free_sized(block.as_ptr(), layout.size()) };
    }
}

/// Reclaims until a block of `bytes` is free; returns whether one is. The caller must hold no lock.
pub(super) fn can_be_had(bytes: usize) -> bool {
    let block = malloc::malloc(bytes);
    if block.is_null() {
        return false;
    }
    // SAFETY: just allocated, of that size, and unused.
    unsafe { malloc::free_sized(block, bytes) };
    true
}
