//! The headers, compiled alone, first and twice by every standard; and what the shared library says of itself.

use crate::library::{compile, prefix};
use uslab_tests::harness::{Mode, Program, Scratch, tool};

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
