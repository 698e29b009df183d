//! The intrusive list: nodes that lie elsewhere, linked in a ring through fields of their own.
//!
//! ```text
//!   first ─▶ node ⇄ node ⇄ … ⇄ last        the last one's next is the first
//! ```
//!
//! Insertion and removal take constant time and allocate nothing. A node is named by a pointer or
//! by an index. A node outside of any list has no neighbours; so linking one twice, and unlinking
//! one that is in no list or whose neighbours disagree, is found in debug builds.
//!
//! A list orders nothing between threads: its owner keeps it, and the links of its nodes, under a
//! lock.

/// The name of a node.
pub trait Name: Copy + PartialEq {
    /// The name of no node.
    const NONE: Self;
}

impl Name for u32 {
    const NONE: u32 = u32::MAX;
}

impl<T> Name for *const T {
    const NONE: *const T = core::ptr::null();
}

#[cfg(feature = "std")]
impl<T> Name for Option<core::ptr::NonNull<T>> {
    const NONE: Self = None;
}

/// The neighbours of a node.
#[derive(Clone, Copy)]
pub struct Links<N> {
    next: N,
    prev: N,
}

impl<N: Name> Links<N> {
    /// The offset of the name of the next node, for a debugger.
    pub const NEXT_OFFSET: usize = core::mem::offset_of!(Self, next);

    /// Those of a node in no list.
    pub const OUTSIDE: Self = Links { next: N::NONE, prev: N::NONE };
}

/// The type of a list's nodes.
pub trait Linked {
    /// The type of a node's name: a pointer or an index.
    type Name: Name;

    /// The place of a node's links.
    ///
    /// # Safety
    /// `node` must name a node that lives.
    unsafe fn links(node: Self::Name) -> *mut Links<Self::Name>;
}

/// A list of `T`s.
pub struct List<T: Linked> {
    first: T::Name,
}

impl<T: Linked> List<T> {
    /// An empty list.
    pub const fn new() -> Self {
        List { first: T::Name::NONE }
    }

    /// The first node; none if the list is empty.
    pub fn first(&self) -> T::Name {
        self.first
    }

    /// The last node; none if the list is empty.
    pub fn last(&self) -> T::Name {
        // SAFETY: a node of the list.
        if self.first == T::Name::NONE { self.first } else { unsafe { (*T::links(self.first)).prev } }
    }

    /// The node before `node`; before the first one stands the last.
    ///
    /// # Safety
    /// `node` must be in this list.
    pub unsafe fn before(&self, node: T::Name) -> T::Name {
        // SAFETY: a node of the list.
        unsafe { (*T::links(node)).prev }
    }

    /// The node after `node`; after the last one stands the first.
    ///
    /// # Safety
    /// `node` must be in this list.
    pub unsafe fn after(&self, node: T::Name) -> T::Name {
        // SAFETY: a node of the list.
        unsafe { (*T::links(node)).next }
    }

    /// Whether `node` is in a list.
    ///
    /// # Safety
    /// `node` must name a live node. If it is in a list, the caller must own that list.
    pub unsafe fn is_linked(node: T::Name) -> bool {
        // SAFETY: the caller's promise.
        unsafe { (*T::links(node)).next != T::Name::NONE }
    }

    /// Whether `node` has no neighbours, or two that link back to it.
    ///
    /// # Safety
    /// As [`List::is_linked`].
    pub unsafe fn is_whole(node: T::Name) -> bool {
        // SAFETY: the caller's promise; neighbours are nodes of the same list.
        unsafe {
            let Links { next, prev } = *T::links(node);
            if next == T::Name::NONE || prev == T::Name::NONE {
                return next == prev;
            }
            (*T::links(next)).prev == node && (*T::links(prev)).next == node
        }
    }

    /// Links `node` as the first one.
    ///
    /// # Safety
    /// The node must live until it is unlinked, and be in no list.
    pub unsafe fn link_first(&mut self, node: T::Name) {
        // SAFETY: the caller's promise.
        unsafe { self.link_last(node) };
        self.first = node;
    }

    /// Links `node` as the last one.
    ///
    /// # Safety
    /// As [`List::link_first`].
    pub unsafe fn link_last(&mut self, node: T::Name) {
        // SAFETY: the caller's promise; the neighbours are nodes of the list, and may be one.
        unsafe {
            debug_assert!(!Self::is_linked(node), "a node is in one list only");
            let links = T::links(node);
            if self.first == T::Name::NONE {
                *links = Links { next: node, prev: node };
                self.first = node;
                return;
            }
            let (next, prev) = (self.first, self.last());
            *links = Links { next, prev };
            (*T::links(next)).prev = node;
            (*T::links(prev)).next = node;
        }
    }

    /// Unlinks `node`.
    ///
    /// # Safety
    /// `node` must be in this list.
    pub unsafe fn unlink(&mut self, node: T::Name) {
        // SAFETY: the caller's promise; the neighbours are nodes of the list, and may be one.
        unsafe {
            debug_assert!(Self::is_linked(node), "a node that is unlinked is in a list");
            debug_assert!(Self::is_whole(node), "the neighbours of a node link back to it");
            let Links { next, prev } = core::mem::replace(&mut *T::links(node), Links::OUTSIDE);
            if next == node {
                debug_assert!(self.first == node, "the only node of a list is its first");
                self.first = T::Name::NONE;
                return;
            }
            (*T::links(next)).prev = prev;
            (*T::links(prev)).next = next;
            if self.first == node {
                self.first = next;
            }
        }
    }

    /// The first node, which becomes the last.
    pub fn turn(&mut self) -> T::Name {
        let node = self.first;
        if node != T::Name::NONE {
            // SAFETY: a node of the list.
            self.first = unsafe { (*T::links(node)).next };
        }
        node
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::vec::Vec;

    const NODES: usize = 6;

    std::thread_local! {
        static LINKS: RefCell<Box<[Links<u32>; NODES]>> = RefCell::new(Box::new([Links::OUTSIDE; NODES]));
    }

    /// A node named by its index.
    struct Indexed;

    impl Linked for Indexed {
        type Name = u32;
        unsafe fn links(node: u32) -> *mut Links<u32> {
            LINKS.with_borrow_mut(|links| &raw mut links[node as usize])
        }
    }

    fn new_list() -> List<Indexed> {
        LINKS.with_borrow_mut(|links| links.fill(Links::OUTSIDE));
        List::new()
    }

    /// All nodes, last to first.
    fn backwards(list: &List<Indexed>) -> Vec<u32> {
        let last = Some(list.last()).filter(|&last| last != u32::NONE);
        core::iter::successors(last, |&node| {
            // SAFETY: a node of the list.
            (node != list.first()).then(|| unsafe { list.before(node) })
        })
        .collect()
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        First(u32),
        Last(u32),
        Unlink(u32),
        Turn,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let node = 0..NODES as u32;
        prop::collection::vec(
            prop_oneof![
                node.clone().prop_map(Step::First),
                node.clone().prop_map(Step::Last),
                node.prop_map(Step::Unlink),
                Just(Step::Turn),
            ],
            0..60,
        )
    }

    proptest! {
        #[test]
        fn it_is_a_deque_from_which_any_node_can_go(steps in steps()) {
            let mut list = new_list();
            let mut model = VecDeque::new();
            for step in steps {
                // SAFETY: the model says which nodes are linked.
                unsafe {
                    match step {
                        Step::First(node) if !model.contains(&node) => {
                            list.link_first(node);
                            model.push_front(node);
                        }
                        Step::Last(node) if !model.contains(&node) => {
                            list.link_last(node);
                            model.push_back(node);
                        }
                        Step::Unlink(node) if model.contains(&node) => {
                            list.unlink(node);
                            model.retain(|&other| other != node);
                        }
                        Step::Turn => {
                            prop_assert_eq!(list.turn(), model.front().copied().unwrap_or(u32::NONE));
                            model.rotate_left(model.len().min(1));
                        }
                        _ => {}
                    }
                }
                prop_assert_eq!(backwards(&list), model.iter().rev().copied().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_node_is_in_one_list_only() {
        let fails = |run: fn()| std::panic::catch_unwind(run).is_err();
        assert!(fails(|| {
            let (mut one, mut other) = (new_list(), List::<Indexed>::new());
            // SAFETY: the second call must be refused before it changes anything.
            unsafe {
                one.link_first(1);
                other.link_first(1);
            }
        }));
        assert!(fails(|| {
            let mut list = new_list();
            // SAFETY: must be refused before it changes another node.
            unsafe { list.unlink(1) };
        }));
        assert!(fails(|| {
            let (mut one, mut other) = (new_list(), List::<Indexed>::new());
            // SAFETY: as above.
            unsafe {
                one.link_first(1);
                other.unlink(1);
            }
        }));
        assert!(fails(|| {
            let mut list = new_list();
            // SAFETY: the broken link must be found before it is followed.
            unsafe {
                [1, 2, 3].into_iter().for_each(|node| list.link_last(node));
                (*Indexed::links(2)).next = 1;
                list.unlink(3);
            }
        }));
    }
}
