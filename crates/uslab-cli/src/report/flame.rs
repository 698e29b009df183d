//! A flame graph of a heap profile: boxes in boxes, the outermost caller on top.
//!
//! The boxes are HTML with widths in percent, so they suit every width of the page. A small script
//! widens the box that is clicked; without it, titles and the table below tell the same.

use maud::{Markup, html};

use crate::profile::heap::{Heap, Site};
use crate::text::bytes;

/// Boxes below this part of the whole are left out.
const MIN_SHARE: f64 = 0.001;
/// Frames below this depth are left out.
const MAX_DEPTH: usize = 96;

/// A call stack, the outermost caller first, and its bytes.
type Stack = (Vec<String>, u64);

/// The graph of the bytes in use, or of all allocated ones if none is.
pub fn graph(heap: &Heap) -> Markup {
    let is_in_use = heap.sites.iter().any(|site| site.in_use_bytes() > 0);
    let stack = |site: &Site| {
        let size = if is_in_use { site.in_use_bytes() } else { site.allocated_bytes() };
        let names = heap.stack(site).into_iter().rev().take(MAX_DEPTH);
        (names.chain([format!("[{}]", site.cache)]).collect(), size)
    };
    // In order, the stacks through a function stand side by side.
    let mut stacks: Vec<Stack> = heap.sites.iter().map(stack).collect();
    stacks.sort_unstable();
    let whole = size(&stacks);
    let what = if is_in_use { "in use" } else { "allocated" };
    html! {
        @if whole > 0 {
            p.about { (bytes(whole)) " " (what) ", by call stack: callers above, allocations below. "
                "Names in brackets are caches. Frames below " (MIN_SHARE * 100.0) " % are left out." }
            div.flame { (boxes(&stacks, 0, whole)) }
        } @else {
            p { "The profile holds no samples." }
        }
    }
}

fn size(stacks: &[Stack]) -> u64 {
    stacks.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
}

/// The boxes of stacks that have the callers above `depth` in common.
fn boxes(stacks: &[Stack], depth: usize, whole: u64) -> Markup {
    let caller_bytes = size(stacks).max(1) as f64;
    let rows = stacks.chunk_by(|(one, _), (other, _)| one.get(depth) == other.get(depth));
    let mut callees: Vec<(&String, u64, &[Stack])> =
        rows.filter_map(|row| Some((row[0].0.get(depth)?, size(row), row))).collect();
    callees.sort_by_key(|&(_, bytes, _)| std::cmp::Reverse(bytes));
    let share = |bytes: u64| bytes as f64 / whole.max(1) as f64;
    html! {
        @for (name, size, row) in callees.into_iter().filter(|&(_, bytes, _)| share(bytes) >= MIN_SHARE) {
            @let title = format!("{name}: {}, {:.1} %", bytes(size), 100.0 * share(size));
            div style=(format!("width:{:.3}%", 100.0 * size as f64 / caller_bytes)) {
                span class=(if name.starts_with('[') { "box cache" } else { "box" }) title=(title) { (name) }
                @if row.iter().any(|(names, _)| names.len() > depth + 1) {
                    div.row { (boxes(row, depth + 1, whole)) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::dump::tests::sample;

    #[test]
    fn stacks_share_the_boxes_of_their_callers() {
        let page = graph(&sample()).into_string();
        let titles: Vec<&str> =
            page.split("title=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let expected = [
            "main: 11.9 KiB, 100.0 %",
            "fill: 8.7 KiB, 73.8 %",
            "[session table]: 8.7 KiB, 73.8 %",
            "leak_here: 3.1 KiB, 26.2 %",
            "[malloc-64]: 3.1 KiB, 26.2 %",
        ];
        assert_eq!(titles, expected);
        assert_eq!(page.matches("class=\"row\"").count(), 3, "{page}");
    }
}
