//! The headers: compiled alone by every standard, and compared with the library that they describe.

use crate::library::{Link, VERSION, capi, compile, prefix, program, root};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::mem::{offset_of, size_of};
use uslab_tests::harness::{Mode, Program, Scratch, tool};

/// What the library thinks of its own types.
#[allow(dead_code)]
#[path = "../../crates/uslab-capi/src/abi.rs"]
mod abi;

/// Both compilers where both are installed; the second is named in the output when it is not.
fn compilers(gcc: &'static str, clang: &'static str) -> Vec<&'static str> {
    let there = std::process::Command::new(clang).arg("--version").output().is_ok();
    if !there {
        eprintln!("{clang} is not installed: {gcc} alone");
    }
    if there { vec![gcc, clang] } else { vec![gcc] }
}

/// Each header first, twice, and alone.
fn compiles(headers: &[&str], compilers: &[&str], language: &str, standards: &[&str]) {
    let scratch = Scratch::new("header");
    let include = format!("-I{}", prefix().join("include").display());
    for header in headers {
        let text = format!("#include <{header}>\n#include <{header}>\nint main(void) {{ return 0; }}\n");
        let source = scratch.write(format!("{}.{language}", header.replace('/', "-")), text);
        for compiler in compilers {
            for standard in standards {
                let std = format!("-std={standard}");
                let args = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", &std, &include];
                let mut args: Vec<String> = args.map(String::from).into();
                args.push(source.display().to_string());
                compile(compiler, compiler, &args);
            }
        }
    }
}

#[test]
fn headers_compile_as_c() {
    let standards = ["c99", "c11", "c17", "c2x"];
    compiles(&["uslab.h", "uslab/kmem.h"], &compilers("gcc", "clang"), "c", &standards);
}

#[test]
fn headers_compile_as_cxx() {
    let compilers = compilers("g++", "clang++");
    compiles(&["uslab.h", "uslab/kmem.h"], &compilers, "cpp", &["c++11", "c++17", "c++20"]);
    compiles(&["uslab.hpp"], &compilers, "cpp", &["c++17", "c++20"]);
}

/// `uslab.hpp` serves programs without run-time type information, too.
#[test]
fn the_cxx_header_needs_no_rtti() {
    let scratch = Scratch::new("rtti");
    let source = scratch.write("a.cpp", "#include <uslab.hpp>\nuslab::memory_resource r;\n");
    let include = format!("-I{}", prefix().join("include").display());
    let args =
        ["-std=c++17", "-fno-rtti", "-fsyntax-only", "-Werror", &include, &source.display().to_string()];
    compile("c++", "g++", &args.map(String::from));
}

/// The functions that a header declares.
fn declared(header: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    // What follows a name of ours and an opening bracket outside of comments is a declaration: the header has no other calls.
    let mut rest = header;
    let mut code = String::new();
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    code.push_str(rest);
    for (at, _) in code.match_indices("uslab_") {
        let starts = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let name: String =
            code[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        if starts && code[at + name.len()..].starts_with('(') {
            names.insert(name);
        }
    }
    names
}

fn header() -> String {
    std::fs::read_to_string(prefix().join("include/uslab.h")).expect("the header")
}

/// The names that `nm` lists of a library.
fn symbols(args: &[&str], library: &str) -> Vec<String> {
    let scratch = Scratch::new("nm");
    let program = Program::new(tool("nm", "binutils")).args(args).arg(prefix().join("lib").join(library));
    let listed = program.run_clean(&scratch, Mode::Plain).stdout();
    listed.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
}

#[test]
fn the_header_the_map_and_the_libraries_have_the_same_functions() {
    let declared = declared(&header());
    assert!(declared.len() > 40, "{declared:?}");
    let map: BTreeSet<String> =
        capi::exports(&root().join("crates/uslab-capi/uslab.map")).expect("the map").into_iter().collect();
    assert_eq!(declared, map);

    let exported: BTreeSet<String> = symbols(&["-D", "--defined-only"], "libuslab.so")
        .iter()
        .filter_map(|name| name.strip_suffix("@@USLAB_1").map(str::to_owned))
        .collect();
    assert_eq!(declared, exported);
    // Nothing else, but the version's own name.
    assert_eq!(symbols(&["-D", "--defined-only"], "libuslab.so").len(), exported.len() + 1);
    let archived: BTreeSet<String> = symbols(&["-g", "--defined-only"], "libuslab.a").into_iter().collect();
    assert_eq!(declared, archived);
}

#[test]
fn the_shared_library_stays_where_it_is_loaded() {
    let scratch = Scratch::new("dynamic");
    let library = prefix().join("lib/libuslab.so");
    let readelf = Program::new(tool("readelf", "binutils")).arg("-dW").arg(library);
    let text = readelf.run_clean(&scratch, Mode::Plain).stdout();
    for part in ["[libuslab.so.1]", "NODELETE", "BIND_NOW"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

/// Sizes, offsets and constants of the header against those of the library, judged by a C compiler.
#[test]
fn types_and_constants_are_those_of_the_library() {
    let mut text = String::from("#include <stddef.h>\n#include <uslab.h>\n");
    let mut equal = |what: String, value: usize| {
        writeln!(text, "_Static_assert({what} == {value}, \"{what} is {value} in the library\");").unwrap();
    };
    macro_rules! constants {
        ($($name:ident),+ $(,)?) => { $(equal(stringify!($name).into(), abi::$name as usize);)+ };
    }
    macro_rules! structure {
        ($c:literal, $rust:ident; $($field:ident),+ $(,)?) => {
            equal(format!("sizeof({})", $c), size_of::<abi::$rust>());
            $(equal(format!("offsetof({}, {})", $c, stringify!($field)), offset_of!(abi::$rust, $field));)+
        };
    }
    constants!(
        USLAB_HWCACHE_ALIGN,
        USLAB_NO_CACHING,
        USLAB_COLD,
        USLAB_RED_ZONE,
        USLAB_POISON,
        USLAB_STORE_USER,
        USLAB_ZERO,
        USLAB_NORECLAIM,
        USLAB_SEEKS_NONE,
    );
    equal("USLAB_SHRINK_STOP".into(), abi::USLAB_SHRINK_STOP);
    structure!("uslab_cache_options", CacheOptions;
        type_size, align, flags, ctor, min_objects, min_order, max_order, sheaf_capacity);
    structure!("uslab_shrink_control", ShrinkControl; nr_to_scan, priority, flags);
    structure!("uslab_shrinker_options", ShrinkerOptions; type_size, count, scan, context, seeks, batch);
    structure!("uslab_cache_stats", CacheStats;
        type_size, user_bytes, object_bytes, objects_per_slab, slab_bytes, sheaf_capacity, slabs,
        partial_slabs, empty_slabs, total_objects, active_objects, slab_free, sheaf_free, alloc_slow,
        free_slow, refills, flushes, drains, grows, releases, failures);
    structure!("uslab_usage", Usage;
        type_size, used_bytes, dirty_bytes, allocated_bytes, free_objects, large_objects, large_bytes);
    for (part, value) in ["MAJOR", "MINOR", "PATCH"].iter().zip(VERSION.split('.')) {
        equal(format!("USLAB_VERSION_{part}"), value.parse().expect("a number"));
    }
    text.push_str("int main(void) { return 0; }\n");
    let scratch = Scratch::new("types");
    let source = scratch.write("types.c", text.replace("18446744073709551615", "(size_t)-1"));
    program("types", &source.display().to_string(), "c11", Link::None);
}
