//! No allocator: hands out addresses of one static object and takes them back. What a round costs with it is
//! what the round itself costs, which for a producer and a consumer is not little: it is measured beside them
//! and reported.

use super::{About, Contestant};

static mut OBJECT: [u8; 4096] = [0; 4096];

pub struct NoAllocator;

impl Contestant for NoAllocator {
    const NAME: &'static str = "nothing (the round itself)";

    fn about() -> About {
        About {
            name: Self::NAME,
            version: String::from("-"),
            build: "hands out one static object".into(),
            warning: String::new(),
        }
    }

    #[inline(always)]
    fn alloc(_size: usize) -> *mut u8 {
        (&raw mut OBJECT).cast()
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        crate::asm::opaque(pointer);
    }
}
