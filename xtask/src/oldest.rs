//! A staged release loads on glibc 2.28: no library in it asks for a symbol that is newer.
//!
//! `glibc.rs` links the libraries so; this check reads the shipped files.
//!
//! ```text
//!   reference            on 2.28                                   allowed
//!   name@GLIBC_2.x       the loader refuses the library, x > 28    x ≤ 28
//!   name, not weak       the loader finds no such symbol           never
//!   name, weak           null, or the newer function               yes
//! ```
//!
//! A weak reference with a newer version is not allowed either: the loader prints a warning.

use crate::capi::glibc::{self, OLDEST_MINOR, Symbol, number};
use crate::staged::output;
use anyhow::{Context, Result, anyhow, ensure};
use std::path::Path;
use std::process::Command;

/// Checks the libraries in the folder `lib`.
pub fn check(lib: &Path) -> Result<()> {
    for name in ["libuslab_malloc.so", "libuslab.so"] {
        let newer = too_new(&lib.join(name))?;
        ensure!(
            newer.is_empty(),
            "{name} must load on glibc 2.{OLDEST_MINOR}, which has no {}",
            newer.join(", no ")
        );
    }
    archive(&lib.join("libuslab.a"))?;
    println!("glibc: the libraries ask for nothing newer than 2.{OLDEST_MINOR}");
    Ok(())
}

/// References of a shared library that glibc 2.28 cannot satisfy, as `name of VERSION`.
fn too_new(library: &Path) -> Result<Vec<String>> {
    let symbols = glibc::dynamic_symbols("cc", library).map_err(|error| anyhow!(error))?;
    let fault = |Symbol { name, version, kind }: &Symbol| match (kind, version.as_str()) {
        ('U', "") => Some(format!("{name} in any version")),
        // Libraries of the compiler have versions of their own.
        ('U' | 'w' | 'v', version) if version.starts_with("GLIBC_") => {
            let is_old = number(version).is_some_and(|(_, minor, _)| minor <= OLDEST_MINOR);
            (!is_old).then(|| format!("{name} of {version}"))
        }
        _ => None,
    };
    Ok(symbols.iter().filter_map(fault).collect())
}

/// The whole archive links against glibc 2.28.
fn archive(archive: &Path) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let made = glibc::make_stubs("cc", std::env::consts::ARCH, scratch.path());
    if !made.map_err(|error| anyhow!(error))? {
        println!("skipped: no stubs of glibc to link {} with", archive.display());
        return Ok(());
    }
    let whole = scratch.path().join("whole.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-Wl,--whole-archive"]).arg(archive).arg("-Wl,--no-whole-archive");
    cc.arg("-L").arg(scratch.path()).args(glibc::LINK_ARGS).args(["-lgcc_s", "-lm", "-o"]).arg(&whole);
    output(&mut cc).with_context(|| {
        format!("{} refers to symbols that glibc 2.{OLDEST_MINOR} does not have", archive.display())
    })?;
    let newer = too_new(&whole)?;
    ensure!(newer.is_empty(), "{} refers to {}", archive.display(), newer.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_that_glibc_2_28_cannot_satisfy_is_named() {
        // Of a library of one function that makes the reference.
        let newer = |text| {
            let scratch = tempfile::tempdir().unwrap();
            let (source, library) = (scratch.path().join("caller.c"), scratch.path().join("caller.so"));
            std::fs::write(&source, text).unwrap();
            let mut cc = Command::new("cc");
            output(cc.args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(&source)).unwrap();
            too_new(&library).unwrap()
        };
        // 2.35 and 2.36: whatever this machine has.
        let text = "int arc4random_uniform(int); int caller(void) { return arc4random_uniform(3); }";
        let found = newer(text);
        assert!(found.len() == 1 && found[0].starts_with("arc4random_uniform "), "{found:?}");
        let found = newer("int no_such_function(void); int caller(void) { return no_such_function(); }");
        assert_eq!(found, ["no_such_function in any version"]);
        let weak = "__attribute__((weak)) int none(void); int caller(void) { return none ? none() : 0; }";
        assert_eq!(newer(weak), Vec::<String>::new());
        let old = "int puts(const char *); int caller(void) { return puts(\"\"); }";
        assert_eq!(newer(old), Vec::<String>::new());
    }
}
