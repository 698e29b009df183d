//! The headers compile alone, first and twice under every standard; and the shared library has the
//! right dynamic flags.

use crate::library::{compile, prefix};
use uslab_tests::harness::{Mode, Program, Scratch, tool};

/// Strict flags of users' builds, under which a header must compile.
const STRICT: [&str; 6] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wundef", "-Wshadow"];

/// Checks that the text compiles under every standard with every compiler.
fn compiles(name: &str, text: &str, compilers: &[(&str, &str)], language: &str, standards: &[&str]) {
    let scratch = Scratch::new("header");
    let include = format!("-I{}", prefix().join("include").display());
    let source = scratch.write(format!("{}.{language}", name.replace('/', "-")), text);
    for (compiler, package) in compilers {
        for standard in standards {
            let mut args: Vec<String> = STRICT.map(String::from).into();
            args.extend(["-fsyntax-only".into(), format!("-std={standard}"), include.clone()]);
            args.push(source.display().to_string());
            compile(compiler, package, &args);
        }
    }
}

/// Each header first, twice, and alone; then all of them, each after the others.
fn all_compile(headers: &[&str], compilers: &[(&str, &str)], language: &str, standards: &[&str]) {
    let includes = |headers: &[&str]| -> String {
        headers.iter().map(|header| format!("#include <{header}>\n")).collect()
    };
    let main = "int main(void) { return 0; }\n";
    for header in headers {
        let text = includes(&[header, header]) + main;
        compiles(header, &text, compilers, language, standards);
    }
    let mut order = headers.to_vec();
    for at in 0..order.len() {
        order.rotate_left(1);
        compiles(&format!("all-{at}"), &(includes(&order) + main), compilers, language, standards);
    }
}

const C: [(&str, &str); 2] = [("gcc", "gcc"), ("clang", "clang")];
const CXX: [(&str, &str); 2] = [("g++", "g++"), ("clang++", "clang")];

#[test]
fn headers_compile_as_c() {
    all_compile(&["uslab.h", "uslab/kmem.h"], &C, "c", &["c99", "c11", "c17", "c2x", "gnu11"]);
}

#[test]
fn headers_compile_as_cxx() {
    all_compile(&["uslab.h", "uslab/kmem.h"], &CXX, "cpp", &["c++11", "c++14"]);
    all_compile(&["uslab.h", "uslab.hpp", "uslab/kmem.h"], &CXX, "cpp", &["c++17", "c++20", "c++2b"]);
}

/// The bound of `kstrndup` may lie beyond the array that holds the string. gcc would warn of that
/// only where it inlines the call.
#[test]
fn a_bound_beyond_the_string_is_no_fault() {
    let scratch = Scratch::new("bound");
    let text = r#"#include <uslab/kmem.h>
        int main(void)
        {
            char text[16];
            strcpy(text, "xx");
            kfree(kstrndup(text, 64, GFP_KERNEL));
            return 0;
        }
        "#;
    let source = scratch.write("bound.c", text).display().to_string();
    let include = format!("-I{}", prefix().join("include").display());
    let object = scratch.join("bound.o").display().to_string();
    let args = ["-O2", "-Wall", "-Wextra", "-Werror", &include, "-c", &source, "-o", &object];
    for (compiler, package) in C {
        compile(compiler, package, &args.map(String::from));
    }
}

/// `uslab.hpp` works without run-time type information too.
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
