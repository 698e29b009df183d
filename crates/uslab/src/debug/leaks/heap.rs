//! The heap as a search sees it: tracked objects, and memory of objects that are not tracked.
//!
//! The walk reads the page map, which is always mapped, and no list of slabs: a thread that was
//! stopped may hold the lists' lock.

use super::super::guard::{self, Stack};
use crate::cache::debugged::Seen;
use crate::cache::registry::{self, FIRST_CACHE_ID, LARGE_ID, SAMPLED_ID};
use crate::malloc;
use crate::pages::{self, PAGE_BYTES, PAGE_SHIFT, PageIndex};
use crate::report::leak::Allocation;
use crate::rseq::Owner;
use core::ops::Range;

/// A part of the heap.
pub enum Part {
    /// Pages of tracked objects; the objects follow.
    Pages(PageIndex, usize),
    /// A tracked object.
    Object(Range<usize>),
    /// Memory that may hold pointers, and is no tracked object.
    Memory(Range<usize>),
}

/// Walks all pages up to the arena's bound, and the guarded objects.
pub fn walk(visit: &mut dyn FnMut(Part)) {
    let data = pages::arena::data();
    let pages = data.len() / PAGE_BYTES;
    let address = |page: usize| data.start + page * PAGE_BYTES;
    let mut page = 0;
    while page < pages {
        let index = PageIndex(page as u32);
        let owner = pages::owner(index);
        let step = match owner.id() {
            _ if owner == Owner::NONE => 1,
            SAMPLED_ID => 1,
            LARGE_ID => {
                let (count, seen) = malloc::debugged::seen_at(index);
                let count = count.clamp(1, pages - page);
                match seen {
                    Some(seen) => {
                        visit(Part::Pages(index, count));
                        show(seen, visit);
                    }
                    None => visit(Part::Memory(address(page)..address(page + count))),
                }
                count
            }
            id if id >= FIRST_CACHE_ID => walk_slab(index, pages, visit),
            // Slabs of private heaps, and sheaves: the program may hold some of these.
            _ => {
                visit(Part::Memory(address(page)..address(page + 1)));
                1
            }
        };
        page += step;
    }
    guard::for_each_live(&mut |object| {
        if let Some(first) = pages::page_of(object.start as *const u8) {
            let count = object.len().max(1).div_ceil(PAGE_BYTES) + 1;
            (0..count).for_each(|n| visit(Part::Pages(first.plus(n), 1)));
            visit(Part::Object(object));
        }
    });
}

/// Walks the slab that `index`, a page with a cache for its owner, begins; returns its pages.
fn walk_slab(index: PageIndex, pages: usize, visit: &mut dyn FnMut(Part)) -> usize {
    let Some(core) = registry::cache(pages::owner(index).id()) else { return 1 };
    let (first, count) = core.slab_around(index);
    if first != index {
        return 1;
    }
    let count = count.min(pages - index.0 as usize);
    if core.is_debugged() {
        visit(Part::Pages(first, count));
        core.for_each_seen(first, &mut |seen| show(seen, visit));
    } else {
        let start = pages::address_of(first) as usize;
        visit(Part::Memory(start..start + count * PAGE_BYTES));
    }
    count
}

fn show(seen: Seen, visit: &mut dyn FnMut(Part)) {
    match seen {
        Seen::Free => {}
        Seen::Live(object) => visit(Part::Object(object)),
        Seen::Changing(bytes) => visit(Part::Memory(bytes)),
    }
}

/// The tracked objects, by address.
#[derive(Clone, Copy)]
pub struct Heap<'a> {
    start: usize,
    bytes: usize,
    /// For each page of tracked objects 1 and the first page of their slab or run; 0 for others.
    firsts: &'a [u32],
}

impl<'a> Heap<'a> {
    /// Indexes the heap in `firsts`, which has a word for each page up to the bound; also returns
    /// the number of tracked objects.
    pub fn index(firsts: &'a mut [u32]) -> (Heap<'a>, usize) {
        let data = pages::arena::data();
        firsts.fill(0);
        let mut objects = 0;
        walk(&mut |part| match part {
            Part::Pages(first, count) => {
                let places = firsts.iter_mut().skip(first.0 as usize).take(count);
                places.for_each(|place| *place = first.0 + 1);
            }
            Part::Object(_) => objects += 1,
            Part::Memory(_) => {}
        });
        (Heap { start: data.start, bytes: data.len(), firsts }, objects)
    }

    /// The tracked object in use that `word` leads to: a pointer to any of its bytes, or to its
    /// end. Bits that addresses do not use may have any value.
    #[inline]
    pub fn object_of(&self, word: usize) -> Option<Range<usize>> {
        let address = word & (usize::MAX >> 16);
        let offset = address.wrapping_sub(self.start);
        if offset > self.bytes {
            return None;
        }
        self.around(address).or_else(|| self.around(address - 1))
    }

    fn around(&self, address: usize) -> Option<Range<usize>> {
        let page = address.wrapping_sub(self.start) >> PAGE_SHIFT;
        let first = PageIndex(self.firsts.get(page)?.checked_sub(1)?);
        let seen = match pages::owner(first).id() {
            LARGE_ID => malloc::debugged::seen_at(first).1?,
            SAMPLED_ID => Seen::Live(guard::live_around(address)?),
            id => registry::cache(id)?.seen_around(first, address),
        };
        match seen {
            Seen::Live(object) if object.contains(&address) || object.start == address => Some(object),
            _ => None,
        }
    }

    /// The addresses of the data.
    pub fn data(&self) -> Range<usize> {
        self.start..self.start + self.bytes
    }

    /// Whether the process itself mapped something at `chunk`: the library has no page there.
    pub fn is_foreign(&self, chunk: usize) -> bool {
        let first = chunk * pages::CHUNK_PAGES;
        let is_owned = |page: usize| pages::owner(PageIndex(page as u32)) != Owner::NONE;
        !pages::arena::has_free_pages(chunk)
            && !(first..first + pages::CHUNK_PAGES).any(|page| self.firsts[page] != 0 || is_owned(page))
    }
}

/// The allocation of the tracked object in use at `pointer`; without the stack of a guarded one.
pub fn allocation_of(pointer: usize) -> Option<Allocation> {
    let page = pages::page_of(pointer as *const u8)?;
    match pages::owner(page).id() {
        LARGE_ID => malloc::debugged::allocation_at(page).filter(|found| found.pointer == pointer),
        SAMPLED_ID => guard::allocation_of(pointer, Stack::None),
        id => {
            let core = registry::cache(id)?;
            core.allocation_of(core.slab_around(page).0, pointer)
        }
    }
}
