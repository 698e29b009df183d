//! Facts for debuggers: names with numbers, in a form that does not depend on debug information.
//!
//! A debugger of a stripped program knows no type of it. So each structure that a debugger's script
//! walks states the offsets of the fields that the script reads, by [`facts!`]. `cache/gdb.rs`
//! collects them in one table.

/// A name, padded with zero bytes, and its number: an offset in bytes, a size or a constant.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(dead_code, reason = "debuggers read them")]
pub struct Fact {
    name: [u8; NAME_BYTES],
    number: u64,
}

/// Bytes of a name, the last of which is zero.
const NAME_BYTES: usize = 40;

const _: () = assert!(size_of::<Fact>() == 48);

impl Fact {
    /// A fact.
    pub const fn new(text: &str, number: usize) -> Fact {
        let mut name = [0; NAME_BYTES];
        let mut at = 0;
        while at < text.len() {
            name[at] = text.as_bytes()[at];
            at += 1;
        }
        assert!(at < NAME_BYTES, "a name ends with a zero byte");
        Fact { name, number: number as u64 }
    }

    /// Puts lists of facts, `N` in all, behind each other.
    pub const fn join<const N: usize>(lists: &[&[Fact]]) -> [Fact; N] {
        let mut all = [Fact::new("", 0); N];
        let (mut list, mut used) = (0, 0);
        while list < lists.len() {
            let mut at = 0;
            while at < lists[list].len() {
                all[used] = lists[list][at];
                used += 1;
                at += 1;
            }
            list += 1;
        }
        assert!(used == N, "the lists have as many facts as was said");
        all
    }

    /// The number of facts in lists.
    pub const fn count(lists: &[&[Fact]]) -> usize {
        let (mut list, mut count) = (0, 0);
        while list < lists.len() {
            count += lists[list].len();
            list += 1;
        }
        count
    }
}

/// The facts of a structure: its size, and the offsets of some of its fields, as `Name.field`.
macro_rules! facts {
    ($structure:ident { $($field:ident $(. $inner:tt)*),* $(,)? }) => {
        &[
            $crate::os::facts::Fact::new(concat!(stringify!($structure), ".bytes"), size_of::<$structure>()),
            $($crate::os::facts::Fact::new(
                concat!(stringify!($structure), ".", stringify!($field)),
                core::mem::offset_of!($structure, $field $(. $inner)*),
            )),*
        ]
    };
}
pub(crate) use facts;
