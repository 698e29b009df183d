//! Link options of `libuslab_malloc.so`.

#[allow(dead_code)]
#[path = "glibc.rs"]
mod glibc;

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../xtask/src/glibc.rs");
    println!("cargo::rerun-if-changed=../../xtask/src/rare.ld");
    // The library must never be unmapped: sequences leave the address of their descriptor in each
    // thread's rseq area, and the kernel may read it at any later time.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Bind every symbol at load: lazy binding would call the resolver, which may allocate, from
    // within malloc.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    // Code that most programs never run stands at the end, and takes no memory there.
    let script = Path::new(&variable("CARGO_MANIFEST_DIR")).join("rare.ld");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-T,{}", script.display());
    if variable("CARGO_CFG_TARGET_ENV") != "gnu" {
        return;
    }
    let stubs = Path::new(&variable("OUT_DIR")).join("glibc");
    let cc = std::env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".into());
    match glibc::make_stubs(&cc, &variable("CARGO_CFG_TARGET_ARCH"), &stubs) {
        Ok(true) => {
            println!("cargo::rustc-cdylib-link-arg=-L{}", stubs.display());
            for arg in glibc::LINK_ARGS {
                println!("cargo::rustc-cdylib-link-arg={arg}");
            }
        }
        Ok(false) => {}
        Err(error) => panic!("no stubs of glibc 2.{}: {error}", glibc::OLDEST_MINOR),
    }
}
