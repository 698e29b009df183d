//! Lets a linker put code that most programs never run at the end of a shared library (`rare.ld`).
//!
//! Used by the build script of `uslab-preload` and by `capi.rs`. Only the standard library may be
//! used here.

use std::path::Path;
use std::process::Command;

const SCRIPT: &str = include_str!("rare.ld");

/// Writes the script to `directory`, and returns the argument that passes it to the linker. Returns
/// `None` if a link with it fails: LLD and GNU ld take a script that adds to their own layout, gold
/// and mold do not. The library then keeps the usual layout.
///
/// `cc` is the compiler that links, and `chosen` the arguments that choose its linker.
pub fn link_arg(cc: &str, chosen: &[&str], directory: &Path) -> Option<String> {
    let [script, source, library] = ["rare.ld", "probe.c", "probe.so"].map(|name| directory.join(name));
    std::fs::write(&script, SCRIPT).ok()?;
    std::fs::write(&source, "int other(void);\nint probe(void) { return other(); }\n").ok()?;
    let arg = format!("-Wl,-T,{}", script.display());
    let mut probe = Command::new(cc);
    probe.args(["-shared", "-nostdlib", "-fPIC"]).args(chosen).arg(&arg).arg("-o").arg(&library).arg(&source);
    let linked = probe.output().ok()?.status.success();
    for left in [source, library] {
        let _ = std::fs::remove_file(left);
    }
    linked.then_some(arg)
}
