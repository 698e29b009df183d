//! Makes `libuslab.so` and `libuslab.a` from the archive that Cargo builds, and the files by which
//! build systems find them.
//!
//! ```text
//!   libuslab_capi.a  (Cargo: a Rust archive)
//!        │ ld -r, all names but the map's made local
//!        ▼
//!    uslab.o ──▶ libuslab.a            links with plain cc, also beside other Rust archives
//!        └─────▶ libuslab.so.0.1.0     soname libuslab.so.1, symbols versioned by crates/uslab-capi/uslab.map
//! ```
//!
//! Cargo's own shared libraries cannot have symbol versions: rustc passes a version script without
//! names, and linkers accept one script only.
//!
//! The tests compile this file by path, so that they test the shipped libraries. It may use only
//! the standard library, `glibc.rs` and `rare.rs`.

#[allow(dead_code)]
#[path = "glibc.rs"]
pub mod glibc;
#[path = "rare.rs"]
mod rare;

use glibc::{output, write};
use std::path::Path;
use std::process::Command;

/// A program runs with any library of the number that it was linked with.
pub const SONAME: &str = "libuslab.so.1";

type Result<T> = std::result::Result<T, String>;

/// The linker of the shared library.
pub struct Linker<'a> {
    /// The compiler.
    pub cc: &'a str,
    /// A folder of libraries before the compiler's own.
    pub search: Option<&'a Path>,
    /// Its C library is glibc: the library asks for the symbols of an old one.
    pub is_glibc: bool,
}

/// The linker for this machine.
pub const HOST: Linker = Linker { cc: "cc", search: None, is_glibc: cfg!(target_env = "gnu") };

/// The functions that the map exports.
pub fn exports(map: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(map).map_err(|error| format!("{}: {error}", map.display()))?;
    let names = text.lines().map(str::trim).filter_map(|line| line.strip_suffix(';'));
    Ok(names.filter(|name| name.starts_with("uslab_")).map(str::to_owned).collect())
}

/// Lays the C interface out under `prefix`: `lib/`, `include/`, `lib/pkgconfig`, `lib/cmake/uslab`.
///
/// `root` is the workspace's, `archive` is Cargo's build of `uslab-capi`, `linker` links for the
/// archive's target.
pub fn stage(root: &Path, archive: &Path, prefix: &Path, version: &str, linker: &Linker) -> Result<()> {
    let source = root.join("crates/uslab-capi");
    let lib = prefix.join("lib");
    for directory in [&lib.join("pkgconfig"), &lib.join("cmake/uslab"), &prefix.join("include/uslab")] {
        std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    link(&source.join("uslab.map"), archive, &lib, version, linker)?;
    for header in ["uslab.h", "uslab.hpp", "uslab/kmem.h"] {
        copy(&source.join("include").join(header), &prefix.join("include").join(header))?;
    }
    write(&lib.join("pkgconfig/uslab.pc"), &PKGCONFIG.replace("@VERSION@", version))?;
    write(&lib.join("cmake/uslab/uslab-config.cmake"), CMAKE)?;
    write(&lib.join("cmake/uslab/uslab-config-version.cmake"), &cmake_version(version))
}

fn link(map: &Path, archive: &Path, lib: &Path, version: &str, linker: &Linker) -> Result<()> {
    let object = lib.join("uslab.o");
    let names = lib.join("uslab.names");
    write(&names, &format!("{}\n", exports(map)?.join("\n")))?;
    output(Command::new("ld").args(["-r", "--whole-archive", "-o"]).arg(&object).arg(archive))?;
    // The standard library's objects contain bitcode, on which linker plugins of another LLVM fail.
    let bitcode = ["--remove-section=.llvmbc", "--remove-section=.llvmcmd"];
    output(Command::new("objcopy").args(bitcode).arg("--keep-global-symbols").arg(&names).arg(&object))?;

    let shared = lib.join(format!("libuslab.so.{version}"));
    let stubs = lib.join("stubs");
    let rare = rare::link_arg(linker.cc, &[], lib);
    let mut search: Vec<&Path> = linker.search.into_iter().collect();
    if linker.is_glibc && glibc::make_stubs(linker.cc, std::env::consts::ARCH, &stubs)? {
        search.push(&stubs);
    }
    output(
        Command::new(linker.cc)
            .args(["-shared", "-o"])
            .arg(&shared)
            .arg(&object)
            .arg(format!("-Wl,-soname,{SONAME}"))
            .arg(format!("-Wl,--version-script={}", map.display()))
            // Sequences leave the address of their descriptor in each thread's rseq area, which the
            // kernel may read at any later time: the library must never be unmapped. Bound at load:
            // lazy binding may allocate. Unused parts of the standard library go.
            .args(["-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,--gc-sections"])
            .args(rare)
            .args(search.iter().map(|directory| format!("-L{}", directory.display())))
            .args(glibc::LINK_ARGS)
            .args(["-Wl,--as-needed", "-lgcc_s", "-lm"]),
    )?;
    for (link, target) in [(SONAME, format!("libuslab.so.{version}")), ("libuslab.so", SONAME.into())] {
        let place = lib.join(link);
        let _ = std::fs::remove_file(&place);
        std::os::unix::fs::symlink(&target, &place)
            .map_err(|error| format!("{}: {error}", place.display()))?;
    }
    let archive = lib.join("libuslab.a");
    let _ = std::fs::remove_file(&archive);
    output(Command::new("ar").arg("rcsD").arg(&archive).arg(&object))?;
    for left in [object, names, lib.join("rare.ld")] {
        std::fs::remove_file(&left).map_err(|error| format!("{}: {error}", left.display()))?;
    }
    let _ = std::fs::remove_dir_all(&stubs);
    Ok(())
}

/// The file for pkg-config. It derives the prefix from its own place, so that the tree can be
/// moved.
const PKGCONFIG: &str = "\
prefix=${pcfiledir}/../..
libdir=${prefix}/lib
includedir=${prefix}/include

Name: uslab
Description: The Linux slab allocator for user space
Version: @VERSION@
Cflags: -I${includedir}
Libs: -L${libdir} -luslab
Libs.private: -lpthread -ldl -lm
";

/// The file for CMake, which derives the prefix likewise. It resolves links first: where /lib is a
/// link to /usr/lib, the headers are below /usr.
const CMAKE: &str = "\
# Imported targets of uslab: uslab::uslab, the shared library, and uslab::uslab_static, the archive.
get_filename_component(_uslab_prefix \"${CMAKE_CURRENT_LIST_DIR}\" REALPATH)
get_filename_component(_uslab_prefix \"${_uslab_prefix}/../../..\" ABSOLUTE)

if(NOT TARGET uslab::uslab)
  add_library(uslab::uslab SHARED IMPORTED)
  set_target_properties(uslab::uslab PROPERTIES
    IMPORTED_LOCATION \"${_uslab_prefix}/lib/libuslab.so\"
    IMPORTED_SONAME \"libuslab.so.1\"
    INTERFACE_INCLUDE_DIRECTORIES \"${_uslab_prefix}/include\")
endif()

if(NOT TARGET uslab::uslab_static)
  add_library(uslab::uslab_static STATIC IMPORTED)
  set_target_properties(uslab::uslab_static PROPERTIES
    IMPORTED_LOCATION \"${_uslab_prefix}/lib/libuslab.a\"
    INTERFACE_LINK_LIBRARIES \"pthread;dl;m\"
    INTERFACE_INCLUDE_DIRECTORIES \"${_uslab_prefix}/include\")
endif()

unset(_uslab_prefix)
";

/// A library serves programs that ask for the same major version, or before 1.0 the same minor one,
/// and no newer library.
fn cmake_version(version: &str) -> String {
    let mut parts = version.split('.');
    let major = parts.next().unwrap_or("0");
    let series = if major == "0" { format!("0.{}", parts.next().unwrap_or("0")) } else { major.to_owned() };
    format!(
        "set(PACKAGE_VERSION \"{version}\")\n\
         if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION\n    \
         OR NOT \"${{PACKAGE_FIND_VERSION}}.\" MATCHES \"^{}\\\\.\")\n  \
         set(PACKAGE_VERSION_COMPATIBLE FALSE)\nelse()\n  set(PACKAGE_VERSION_COMPATIBLE TRUE)\n  \
         if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)\n    set(PACKAGE_VERSION_EXACT TRUE)\n  \
         endif()\nendif()\n",
        series.replace('.', "\\\\.")
    )
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_the_names_of_the_map_and_nothing_else() {
        let map = std::env::temp_dir().join(format!("uslab-xtask-{}.map", std::process::id()));
        let text = "# uslab_no;\nUSLAB_1 {\nglobal:\n    uslab_a;\n    uslab_b_c;\nlocal:\n    *;\n};\n";
        std::fs::write(&map, text).unwrap();
        assert_eq!(exports(&map).unwrap(), ["uslab_a", "uslab_b_c"]);
        std::fs::remove_file(map).unwrap();
    }

    #[test]
    fn before_1_0_a_minor_version_is_another_interface() {
        assert!(cmake_version("0.1.0").contains(r"^0\\.1\\."));
        assert!(cmake_version("2.3.4").contains(r"^2\\."));
    }
}
