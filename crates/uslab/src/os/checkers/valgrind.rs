//! valgrind: client requests, which are sequences of instructions that do nothing on a processor.
//!
//! valgrind recognises them when it translates the program, and reads the request's number and
//! arguments from an array (`valgrind/valgrind.h`, `valgrind/memcheck.h`). Numbers and sequences
//! are part of valgrind's interface, and never change.

/// The requests of the core, for allocators.
const MALLOCLIKE_BLOCK: usize = 0x1301;
const FREELIKE_BLOCK: usize = 0x1302;
/// The requests of memcheck. Other tools ignore them.
const MAKE_MEM_NOACCESS: usize = (b'M' as usize) << 24 | (b'C' as usize) << 16;
const MAKE_MEM_DEFINED: usize = MAKE_MEM_NOACCESS + 2;

/// Makes a request.
fn request(number: usize, arguments: [usize; 4]) {
    let [a, b, c, d] = arguments;
    let all = [number, a, b, c, d, 0];
    // SAFETY: without valgrind the instructions leave all registers as they were, but for flags.
    // With it, the result replaces the default, in the register that is declared for both.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            // rotate by 128 bits in all
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            // the request
            "xchg rbx, rbx",
            in("rax") all.as_ptr(),
            inout("rdx") 0usize => _,
            options(nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            // rotate by 128 bits in all
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            // the request
            "orr x10, x10, x10",
            in("x4") all.as_ptr(),
            inout("x3") 0usize => _,
            options(nostack),
        );
    }
}

/// The bytes around the block are hidden already, so it needs no red zones of valgrind's.
pub fn allocated(object: usize, bytes: usize, is_defined: bool) {
    request(MALLOCLIKE_BLOCK, [object, bytes, 0, usize::from(is_defined)]);
}

pub fn freed(object: usize) {
    request(FREELIKE_BLOCK, [object, 0, 0, 0]);
}

pub fn hide(start: usize, bytes: usize) {
    request(MAKE_MEM_NOACCESS, [start, bytes, 0, 0]);
}

pub fn show(start: usize, bytes: usize) {
    request(MAKE_MEM_DEFINED, [start, bytes, 0, 0]);
}
