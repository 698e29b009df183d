//! Link options of `libuslab_malloc.so`.

fn main() {
    // Sequences leave the address of their descriptor in each thread's rseq area, which the kernel may read at any later
    // time: the library must never be unmapped.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Every symbol is bound at load: lazy binding would call the resolver, which may allocate, from within malloc.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo::rerun-if-changed=build.rs");
}
