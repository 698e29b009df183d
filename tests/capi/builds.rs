//! Programs built like users' programs, with pkg-config and with CMake, from a stage that was moved
//! to another place.

use crate::MODES;
use crate::library::{Link, VERSION, capi, compile, prefix, program, root};
use std::path::{Path, PathBuf};
use uslab_tests::harness::{Mode, Program, Scratch, tool};

/// A copy of the stage in another place: no file in it may contain the original path.
fn moved(scratch: &Scratch) -> PathBuf {
    let to = scratch.join("moved/prefix");
    let copied = Program::new(tool("cp", "coreutils"))
        .args(["-a", "--parents", "."])
        .arg(scratch.dir("moved/prefix"))
        .dir(prefix());
    copied.run_clean(scratch, Mode::Plain);
    to
}

fn text(scratch: &Scratch, program: Program) -> String {
    program.run_clean(scratch, Mode::Plain).stdout().trim().to_owned()
}

/// Runs the program in both modes of the library.
fn runs(scratch: &Scratch, program: &Path, lib: &Path) {
    for rseq in MODES {
        let program = Program::new(program).env("LD_LIBRARY_PATH", lib).env("USLAB_RSEQ", rseq);
        let run = program.run_clean(scratch, Mode::Plain);
        run.expect(run.stdout().ends_with("ok\n"), "the program did not print its last line");
    }
}

#[test]
fn with_pkg_config() {
    let scratch = Scratch::new("pkg-config");
    let prefix = moved(&scratch);
    let ask = |args: &[&str]| {
        let program = Program::new(tool("pkg-config", "pkg-config"))
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
            .args(args)
            .arg("uslab");
        text(&scratch, program)
    };
    assert_eq!(ask(&["--modversion"]), VERSION);
    let source = root().join("crates/uslab-capi/examples/packet_pool.c").display().to_string();
    let whole = ["--static", "--cflags", "--libs"];
    for (name, flags) in [("shared", &["--cflags", "--libs"][..]), ("archive", &whole), ("static", &whole)] {
        let program = scratch.join(name);
        let mut args =
            vec!["-std=c11".to_owned(), "-o".into(), program.display().to_string(), source.clone()];
        args.extend(ask(flags).split_whitespace().map(|flag| {
            // The linker prefers a shared library of the same name, so the archive is given by its
            // path.
            if name == "archive" { flag.replace("-luslab", "-l:libuslab.a") } else { flag.to_owned() }
        }));
        args.extend((name == "static").then(|| "-static".to_owned()));
        compile("cc", "gcc", &args);
        let lib = if name == "shared" { prefix.join("lib") } else { scratch.dir("nothing") };
        runs(&scratch, &program, &lib);
    }
}

const CMAKE_LISTS: &str = r#"
cmake_minimum_required(VERSION 3.16)
project(consumer C CXX)
find_package(uslab 0.1 REQUIRED)
find_package(Threads REQUIRED)
add_executable(shared ${EXAMPLE})
target_link_libraries(shared PRIVATE uslab::uslab Threads::Threads)
add_executable(static ${EXAMPLE})
target_link_libraries(static PRIVATE uslab::uslab_static Threads::Threads)
add_executable(objects objects.cpp)
target_compile_features(objects PRIVATE cxx_std_17)
target_link_libraries(objects PRIVATE uslab::uslab)
find_package(uslab 99 QUIET)
if(uslab_FOUND)
  message(FATAL_ERROR "version 99 was found")
endif()
"#;

const CMAKE_OBJECTS: &str = "\
#include <cstdio>
#include <map>
#include <uslab.hpp>
int main()
{
    std::map<int, int, std::less<int>, uslab::allocator<std::pair<const int, int>>> map;
    for (int i = 0; i < 1000; ++i) map[i] = i;
    return map.size() == 1000 ? std::puts(\"ok\") < 0 : 1;
}
";

#[test]
fn with_cmake() {
    let scratch = Scratch::new("cmake");
    let prefix = moved(&scratch);
    let source = scratch.dir("source");
    scratch.write("source/CMakeLists.txt", CMAKE_LISTS);
    scratch.write("source/objects.cpp", CMAKE_OBJECTS);
    let build = scratch.join("build");
    let cmake = || Program::new(tool("cmake", "cmake")).limit_s(300);
    let example = root().join("crates/uslab-capi/examples/shrinking_cache.c");
    let configure = cmake()
        .arg("-S")
        .arg(&source)
        .arg("-B")
        .arg(&build)
        .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()))
        .arg(format!("-DEXAMPLE={}", example.display()));
    configure.run_clean(&scratch, Mode::Plain);
    cmake().arg("--build").arg(&build).run_clean(&scratch, Mode::Plain);
    for name in ["shared", "objects"] {
        runs(&scratch, &build.join(name), &prefix.join("lib"));
    }
    runs(&scratch, &build.join("static"), &scratch.dir("nothing"));
}

/// The soname and the links match the version.
#[test]
fn the_soname_is_that_of_the_link() {
    let link = std::fs::read_link(prefix().join("lib/libuslab.so")).expect("a link");
    assert_eq!(link, Path::new(capi::SONAME));
    let link = std::fs::read_link(prefix().join("lib").join(capi::SONAME)).expect("a link");
    assert_eq!(link, PathBuf::from(format!("libuslab.so.{VERSION}")));
}

/// The first block of the guide in this language.
fn guides(language: &str) -> String {
    let guide = std::fs::read_to_string(root().join("docs/guide/c.md")).expect("the guide");
    let code = guide.split(&format!("```{language}\n")).nth(1).expect("a block");
    code.split("```").next().expect("the code of the block").to_owned()
}

/// The C++ lines of the guide, unchanged, with what their program would have beside them.
#[test]
fn the_guides_cxx_lines() {
    let code = guides("cpp");
    let (includes, lines): (Vec<&str>, Vec<&str>) = code.lines().partition(|line| line.starts_with('#'));
    let text = format!(
        "{}
         struct session {{ int id; char peer[60]; }};
         struct {{
             std::size_t size() const {{ return 0; }}
             std::size_t drop(std::size_t n) {{ return n; }}
         }} parsed;
         int main() {{ {}\n return one->id != 1; }}\n",
        includes.join("\n"),
        lines.join("\n"),
    );
    let scratch = Scratch::new("guide-cxx");
    let source = scratch.write("lines.cpp", text).display().to_string();
    Program::new(program("guide-cxx", &source, "c++17", Link::Static)).run_clean(&scratch, Mode::Plain);
}

/// The first program of the guide, unchanged.
#[test]
fn the_guides_first_program() {
    let code = guides("c");
    let scratch = Scratch::new("guide");
    let source = scratch.write("first.c", code).display().to_string();
    for (name, link) in [("first-shared", Link::Shared), ("first-static", Link::Static)] {
        let run = Program::new(program(name, &source, "c99", link)).run_clean(&scratch, Mode::Plain);
        run.expect(run.stdout().contains("\nsession "), "the cache is not in the figures");
    }
}
