//! The variables that set up an allocator, ours or another. `cargo xtask` has this file, too: it
//! takes them from the programs that it measures.

/// The first letters of their names.
const BEGINNINGS: [&str; 8] = [
    "USLAB_",
    "LD_PRELOAD",
    "GLIBC_TUNABLES",
    "MALLOC_",
    "MIMALLOC_",
    "TCMALLOC_",
    "TBB_MALLOC_",
    "_RJEM_MALLOC_",
];

/// Whether the variable `name` sets up an allocator.
pub fn is_setting(name: &[u8]) -> bool {
    BEGINNINGS.iter().any(|begin| name.starts_with(begin.as_bytes()))
}
