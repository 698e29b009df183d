//! A B-tree of `u64` keys whose nodes are boxes of one cache: no `unsafe`, and no `malloc`.
//!
//! Each node is a `CacheBox`, so a subtree is dropped with its root. The nodes of a tree lie side
//! by side in slabs of their own, and the cache's figures count them.
//!
//! ```sh
//! cargo run --release --example btree
//! ```

use uslab::{Cache, CacheBox};

/// Most keys of a node.
const KEYS: usize = 15;

/// A node; a leaf has no children.
struct Node {
    keys: [u64; KEYS],
    used: usize,
    children: [Option<Link>; KEYS + 1],
}

type Link = CacheBox<'static, Node>;

static NODES: Cache<Node> = Cache::new("btree-node");

impl Node {
    fn boxed() -> Link {
        let node = Node { keys: [0; KEYS], used: 0, children: [const { None }; KEYS + 1] };
        NODES.insert(node).unwrap_or_else(|_| panic!("out of memory"))
    }

    fn is_leaf(&self) -> bool {
        self.children[0].is_none()
    }

    /// Inserts a key and the child behind it, at `at`; there must be room.
    fn place(&mut self, at: usize, key: u64, child: Option<Link>) {
        self.keys[at..=self.used].rotate_right(1);
        self.keys[at] = key;
        self.children[at + 1..=self.used + 1].rotate_right(1);
        self.children[at + 1] = child;
        self.used += 1;
    }

    /// Moves the upper half to a new node; returns it with the key between the two.
    fn split(&mut self) -> (u64, Link) {
        const MIDDLE: usize = KEYS / 2;
        let mut upper = Node::boxed();
        upper.used = KEYS - MIDDLE - 1;
        upper.keys[..KEYS - MIDDLE - 1].copy_from_slice(&self.keys[MIDDLE + 1..]);
        for (to, from) in upper.children.iter_mut().zip(&mut self.children[MIDDLE + 1..]) {
            *to = from.take();
        }
        self.used = MIDDLE;
        (self.keys[MIDDLE], upper)
    }

    /// Inserts a key below this node, which has room; returns whether it is new.
    fn insert(&mut self, key: u64) -> bool {
        let mut at = match self.keys[..self.used].binary_search(&key) {
            Ok(_) => return false,
            Err(at) => at,
        };
        if self.is_leaf() {
            self.place(at, key, None);
            return true;
        }
        if let Some(child) = &mut self.children[at]
            && child.used == KEYS
        {
            let (middle, upper) = child.split();
            self.place(at, middle, Some(upper));
            if key == middle {
                return false;
            }
            at += usize::from(key > middle);
        }
        self.children[at].as_mut().is_some_and(|child| child.insert(key))
    }
}

/// A set of keys.
pub struct Tree {
    root: Link,
    len: usize,
}

impl Tree {
    pub fn new() -> Tree {
        Tree { root: Node::boxed(), len: 0 }
    }

    /// Inserts a key; returns whether it is new.
    pub fn insert(&mut self, key: u64) -> bool {
        if self.root.used == KEYS {
            let mut root = Node::boxed();
            let (middle, upper) = self.root.split();
            root.place(0, middle, Some(upper));
            root.children[0] = Some(std::mem::replace(&mut self.root, Node::boxed()));
            self.root = root;
        }
        let is_new = self.root.insert(key);
        self.len += usize::from(is_new);
        is_new
    }

    /// Whether the key is in the set.
    pub fn contains(&self, key: u64) -> bool {
        let mut node = &self.root;
        loop {
            match node.keys[..node.used].binary_search(&key) {
                Ok(_) => return true,
                Err(at) => match &node.children[at] {
                    Some(child) => node = child,
                    None => return false,
                },
            }
        }
    }
}

impl Default for Tree {
    fn default() -> Tree {
        Tree::new()
    }
}

pub fn main() {
    let mut tree = Tree::new();
    let keys = || (0..100_000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40);
    let model: std::collections::BTreeSet<u64> = keys().collect();
    assert_eq!(keys().filter(|&key| tree.insert(key)).count(), model.len());
    assert_eq!(tree.len, model.len());
    assert!((0..1 << 12).all(|n| tree.contains(n << 12) == model.contains(&(n << 12))));
    assert!(model.iter().all(|&key| tree.contains(key)));
    let stats = NODES.stats().expect("the cache is in use");
    println!("{} keys in {} nodes, {} KiB of slabs", tree.len, stats.active_objects, stats.slab_bytes >> 10);
    drop(tree);
    assert_eq!(NODES.stats().map(|stats| stats.active_objects), Some(0));
}
