//! A flame graph of a heap profile: boxes in boxes, the outermost caller on top.
//!
//! The boxes are HTML with widths in percent, so they suit every width of the page. A small script
//! widens the box that is clicked; without it, titles and the table below tell the same.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::profile::heap::Heap;
use crate::text::bytes;

/// Boxes below this part of the whole are left out.
const MIN_SHARE: f64 = 0.001;
/// Frames below this depth are left out.
const MAX_DEPTH: usize = 96;

/// A function with all stacks through it.
#[derive(Default)]
struct Node {
    bytes: u64,
    callees: BTreeMap<String, Node>,
}

/// The graph of the bytes in use, or of all allocated ones if none is.
pub fn graph(heap: &Heap) -> Markup {
    let is_in_use = heap.sites.iter().any(|site| site.in_use_bytes() > 0);
    let mut root = Node::default();
    for site in &heap.sites {
        let size = if is_in_use { site.in_use_bytes() } else { site.allocated_bytes() };
        root.bytes = root.bytes.saturating_add(size);
        let mut node = &mut root;
        let names = heap.stack(site).into_iter().rev();
        for name in names.take(MAX_DEPTH).chain([format!("[{}]", site.cache)]) {
            node = node.callees.entry(name).or_default();
            node.bytes = node.bytes.saturating_add(size);
        }
    }
    let what = if is_in_use { "in use" } else { "allocated" };
    html! {
        @if root.bytes > 0 {
            p.about { (bytes(root.bytes)) " " (what) ", by call stack: callers above, allocations below. "
                "Names in brackets are caches. Frames below " (MIN_SHARE * 100.0) " % are left out." }
            div.flame { (boxes(&root, root.bytes)) }
        } @else {
            p { "The profile holds no samples." }
        }
    }
}

fn boxes(node: &Node, whole: u64) -> Markup {
    let mut callees: Vec<(&String, &Node)> = node.callees.iter().collect();
    callees.sort_by_key(|(_, callee)| std::cmp::Reverse(callee.bytes));
    let share = |callee: &Node| callee.bytes as f64 / whole.max(1) as f64;
    html! {
        @for (name, callee) in callees.into_iter().filter(|(_, callee)| share(callee) >= MIN_SHARE) {
            @let title = format!("{name}: {}, {:.1} %", bytes(callee.bytes), 100.0 * share(callee));
            div style=(format!("width:{:.3}%", 100.0 * callee.bytes as f64 / node.bytes.max(1) as f64)) {
                span class=(if name.starts_with('[') { "box cache" } else { "box" }) title=(title) { (name) }
                @if !callee.callees.is_empty() { div.row { (boxes(callee, whole)) } }
            }
        }
    }
}
