//! Plug-ins that contain the allocator, loaded and unloaded by a host that does not know of it.

use super::library::{self, Link, prefix, program};
use super::run_in_both;
use uslab_tests::harness::Program;

/// Runs the host on a plug-in in both modes.
fn host(name: &str, plugin: &std::path::Path) {
    let host = program(name, "tests/capi/host.c", "c11", Link::None);
    run_in_both(name, &Program::new(host).arg(plugin));
}

#[test]
fn a_plugin_with_the_archive_is_unloaded() {
    let flags = ["-shared", "-fPIC"];
    let plugin = library::program_with("plug.so", "tests/capi/plug.c", "c11", Link::Static, &flags);
    host("unload-archive", &plugin);
}

/// A `cdylib` whose global allocator is uslab.
#[test]
fn a_rust_plugin_is_unloaded() {
    host("unload-rust", &library::rust_plugin());
}

/// The shared library, loaded late, pins itself.
#[test]
fn the_shared_library_is_unloaded() {
    let lib = prefix().join("lib");
    let rpath = format!("-Wl,-rpath,{}", lib.display());
    let flags = ["-shared", "-fPIC", &rpath];
    let plugin = library::program_with("plug-shared.so", "tests/capi/plug.c", "c11", Link::Shared, &flags);
    // The plug-in itself contains no sequences, and may be unloaded.
    let host = program("unload-shared", "tests/capi/host.c", "c11", Link::None);
    let library = lib.join("libuslab.so.1").canonicalize().expect("the shared library");
    run_in_both("unload-shared", &Program::new(host).arg(plugin).arg(library));
}
