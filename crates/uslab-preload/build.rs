//! Link options of `libuslab_malloc.so`.

#[allow(dead_code)]
#[path = "glibc.rs"]
mod glibc;

#[path = "rare.rs"]
mod rare;

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../xtask/src/glibc.rs");
    println!("cargo::rerun-if-changed=../../xtask/src/rare.rs");
    println!("cargo::rerun-if-changed=../../xtask/src/rare.ld");
    // The library must never be unmapped: sequences leave the address of their descriptor in each
    // thread's rseq area, and the kernel may read it at any later time.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Bind every symbol at load: lazy binding would call the resolver, which may allocate, from
    // within malloc.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let cc = std::env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".into());
    let out = PathBuf::from(variable("OUT_DIR"));
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    if let Some(arg) = rare::link_arg(&cc, &linker_of(&flags), &out) {
        println!("cargo::rustc-cdylib-link-arg={arg}");
    }
    if variable("CARGO_CFG_TARGET_ENV") != "gnu" {
        return;
    }
    let stubs = out.join("glibc");
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

/// The arguments among rustc's flags that choose the linker.
fn linker_of(flags: &str) -> Vec<&str> {
    let words = flags.split(['\u{1f}', ' ']);
    words
        .filter_map(|word| Some(&word[word.find("-fuse-ld=").or_else(|| word.find("--ld-path="))?..]))
        .collect()
}
