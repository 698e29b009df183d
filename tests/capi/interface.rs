//! Compares the header with the library: constants, structures, functions, and exported symbols.
//!
//! ```text
//!   uslab.h ──── names, fields, parameters, read as text ────▶ ◀──── abi.rs and `extern "C" fn uslab_…`, read as text
//!      └──────── values, sizes, offsets, by a C compiler ────▶ ◀──── abi.rs, compiled in
//!      └──────── names of functions ─────────────────────────▶ ◀──── uslab.map, nm of both libraries
//! ```
//!
//! The parsers know only the C and Rust that these files contain. They must never skip unknown
//! text: an unknown type stays unchanged, and so equals no other.

use crate::library::{Link, VERSION, capi, prefix, program, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::mem::{offset_of, size_of};
use uslab_tests::harness::{Mode, Program, Scratch, tool};

/// The library's definitions of its types.
#[allow(dead_code)]
#[path = "../../crates/uslab-capi/src/abi.rs"]
mod abi;

/// The header without comments and preprocessor lines.
fn code(header: &str) -> String {
    let mut rest = header;
    let mut code = String::new();
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    code.push_str(rest);
    code.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n")
}

fn header() -> String {
    std::fs::read_to_string(prefix().join("include/uslab.h")).expect("the header")
}

/// The files of the crate, with their names.
fn sources() -> Vec<(String, String)> {
    let directory = root().join("crates/uslab-capi/src");
    let files = std::fs::read_dir(directory).expect("the sources").flatten();
    files
        .map(|file| {
            let text = std::fs::read_to_string(file.path()).expect("a source");
            (file.file_name().to_string_lossy().into_owned(), text)
        })
        .collect()
}

/// A type in a form common to both languages: without `const`, spaces and the name of the variable.
fn c_type(declaration: &str) -> String {
    if declaration.contains("(*") {
        return "function".into();
    }
    let words = declaration.replace('*', " * ");
    let mut words: Vec<&str> = words.split_whitespace().filter(|&word| word != "const").collect();
    // `size_t size`, `void * * objects`: the name is last; a type alone is one word and stars.
    if words.len() > 1 && words.last().is_some_and(|&word| word != "*") {
        words.pop();
    }
    words.concat()
}

fn rust_type(file: &str, text: &str) -> String {
    let text = text.trim();
    if let Some(to) = text.strip_prefix("*mut ").or_else(|| text.strip_prefix("*const ")) {
        return format!("{}*", rust_type(file, to));
    }
    match text {
        "c_char" => "char".into(),
        "c_void" => "void".into(),
        "c_int" | "i32" => "int".into(),
        "c_uint" => "unsigned".into(),
        "usize" => "size_t".into(),
        "u64" => "uint64_t".into(),
        "bool" => "bool".into(),
        // `Self` is the handle that the file defines.
        "Object" => format!("uslab_{}", file.trim_end_matches(".rs")),
        "Handle<Cache>" => "uslab_cache".into(),
        "Handle<Sheaf>" => "uslab_sheaf".into(),
        _ if text.starts_with("Option<") => "function".into(),
        _ => format!("uslab_{}", snake(text)),
    }
}

/// `CacheStats` as `cache_stats`.
fn snake(name: &str) -> String {
    let mut out = String::new();
    for (at, c) in name.char_indices() {
        if c.is_ascii_uppercase() && at > 0 {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// The parts between commas outside of brackets.
fn parameters(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '(' | '<' => depth += 1,
            ')' | '>' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(list[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(list[from..].trim());
    parts.retain(|part| !part.is_empty() && *part != "void");
    parts
}

/// The text up to the bracket that closes the first one.
fn bracketed(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return &text[1..at],
            ')' => depth -= 1,
            _ => {}
        }
    }
    panic!("a bracket is not closed in {text}")
}

/// Functions by name, as "result(parameters)".
fn declared(code: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (at, _) in code.match_indices("uslab_") {
        let starts = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let name: String =
            code[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let after = &code[at + name.len()..];
        if !starts || !after.starts_with('(') {
            continue;
        }
        let before = code[..at].rsplit([';', '}', '{']).next().expect("a part");
        let list: Vec<String> = parameters(bracketed(after)).into_iter().map(c_type).collect();
        // Adds a name after the result's type, because `c_type` drops the last word.
        let result = c_type(&format!("{before} name"));
        found.insert(name, format!("{result}({})", list.join(", ")));
    }
    found
}

/// The functions of the crate, in the same form.
fn defined() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (file, text) in sources() {
        for (at, mark) in text.match_indices("extern \"C\" fn uslab_") {
            // Only functions exported under their name.
            let attributes = text[..at].rsplit("\n\n").next().expect("a part");
            assert!(attributes.contains("unsafe(no_mangle)"), "{file}: {}", &text[at..at + 60]);
            let name_at = at + mark.len() - "uslab_".len();
            let name: String =
                text[name_at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let after = &text[name_at + name.len()..];
            let inside = bracketed(after);
            let list: Vec<String> = parameters(inside)
                .iter()
                .map(|part| rust_type(&file, part.split_once(": ").expect("a parameter").1))
                .collect();
            let rest = after[inside.len() + 2..].split('{').next().expect("a part").trim();
            let result = rest.strip_prefix("->").map_or("void".into(), |text| rust_type(&file, text));
            assert!(found.insert(name, format!("{result}({})", list.join(", "))).is_none());
        }
    }
    found
}

#[test]
fn functions_have_the_parameters_that_the_header_says() {
    let (declared, defined) = (declared(&code(&header())), defined());
    assert!(declared.len() > 45, "{declared:#?}");
    for (name, signature) in &declared {
        assert_eq!(Some(signature), defined.get(name), "{name}: header and library");
    }
    assert_eq!(declared.len(), defined.len());
    // Checks the parser itself on two difficult declarations.
    assert_eq!(declared["uslab_cache_free_bulk"], "void(uslab_cache*, size_t, void**)");
    assert_eq!(declared["uslab_visit_caches"], "int(function, void*)");
}

/// The symbols that `nm` lists for a library.
fn symbols(args: &[&str], library: &str) -> Vec<String> {
    let scratch = Scratch::new("nm");
    let program = Program::new(tool("nm", "binutils")).args(args).arg(prefix().join("lib").join(library));
    let listed = program.run_clean(&scratch, Mode::Plain).stdout();
    listed.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
}

#[test]
fn the_header_the_map_and_the_libraries_have_the_same_functions() {
    let declared: BTreeSet<String> = declared(&code(&header())).into_keys().collect();
    let map: BTreeSet<String> =
        capi::exports(&root().join("crates/uslab-capi/uslab.map")).expect("the map").into_iter().collect();
    assert_eq!(declared, map);

    let exported: BTreeSet<String> = symbols(&["-D", "--defined-only"], "libuslab.so")
        .iter()
        .filter_map(|name| name.strip_suffix("@@USLAB_1").map(str::to_owned))
        .collect();
    assert_eq!(declared, exported);
    // No other symbol, except the name of the version.
    assert_eq!(symbols(&["-D", "--defined-only"], "libuslab.so").len(), exported.len() + 1);
    let archived: BTreeSet<String> = symbols(&["-g", "--defined-only"], "libuslab.a").into_iter().collect();
    assert_eq!(declared, archived);
}

/// Constants of the header that are numbers, except the version, which is compared part by part.
fn header_constants(header: &str) -> BTreeSet<String> {
    let defined = header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    defined
        .filter(|(name, value)| {
            let is_number = value.trim_start().starts_with(|c: char| c == '(' || c.is_ascii_digit());
            is_number && !name.contains('(') && !name.starts_with("USLAB_VERSION_")
        })
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Structures by name, each with its fields and their types in order.
type Structures = BTreeMap<String, Vec<(String, String)>>;

fn header_structures(code: &str) -> Structures {
    let mut found = BTreeMap::new();
    for part in code.split("typedef struct ").skip(1) {
        let Some((name, rest)) = part.split_once('{') else { continue };
        if name.contains(';') {
            continue;
        }
        let mut fields = Vec::new();
        for field in rest.split('}').next().expect("a part").split(';').map(str::trim) {
            if field.is_empty() {
                continue;
            }
            let name = match field.split_once("(*") {
                Some((_, rest)) => rest.split(')').next().expect("a name"),
                None => field.rsplit([' ', '*']).next().expect("a name"),
            };
            fields.push((name.to_owned(), c_type(field)));
        }
        found.insert(name.trim().to_owned(), fields);
    }
    found
}

fn library_structures(abi: &str) -> Structures {
    let mut found = BTreeMap::new();
    for part in abi.split("#[repr(C)]").skip(1) {
        let (head, rest) = part.split_once('{').expect("fields");
        let name = head.rsplit("struct ").next().expect("a name").trim();
        let fields = rest.split('}').next().expect("a part").lines().filter_map(|line| {
            let (name, kind) = line.trim().strip_prefix("pub ")?.trim_end_matches(',').split_once(": ")?;
            Some((name.to_owned(), rust_type("abi.rs", kind)))
        });
        found.insert(format!("uslab_{}", snake(name)), fields.collect());
    }
    found
}

/// Compares names and kinds by the text, and values, sizes and offsets by a C compiler. No item may
/// exist on one side only.
#[test]
fn types_and_constants_are_those_of_the_library() {
    let mut text = String::from("#include <stddef.h>\n#include <uslab.h>\n");
    let mut constants = BTreeSet::new();
    let mut structures: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut equal = |what: String, value: usize| {
        writeln!(text, "_Static_assert({what} == {value}, \"{what} is {value} in the library\");").unwrap();
    };
    macro_rules! constants {
        ($($name:ident),+ $(,)?) => { $(
            equal(stringify!($name).into(), abi::$name as usize);
            constants.insert(stringify!($name).to_owned());
        )+ };
    }
    macro_rules! structure {
        ($c:literal, $rust:ident; $($field:ident),+ $(,)?) => {
            equal(format!("sizeof({})", $c), size_of::<abi::$rust>());
            $(equal(format!("offsetof({}, {})", $c, stringify!($field)), offset_of!(abi::$rust, $field));)+
            structures.insert($c, vec![$(stringify!($field)),+]);
        };
    }
    constants!(
        USLAB_HWCACHE_ALIGN,
        USLAB_NO_CACHING,
        USLAB_COLD,
        USLAB_RED_ZONE,
        USLAB_POISON,
        USLAB_STORE_USER,
        USLAB_CONSISTENCY_CHECKS,
        USLAB_TRACE,
        USLAB_NUMA_LOCAL,
        USLAB_NUMA_BIND,
        USLAB_NUMA_INTERLEAVE,
        USLAB_ZERO,
        USLAB_NORECLAIM,
        USLAB_SEEKS_NONE,
        USLAB_HUGE_PAGES_AUTO,
        USLAB_HUGE_PAGES_NEVER,
        USLAB_HUGE_PAGES_ALWAYS,
        USLAB_SHRINK_STOP,
        USLAB_SOURCE_AUTO,
        USLAB_SOURCE_ON,
        USLAB_SOURCE_OFF,
    );
    structure!("uslab_cache_options", CacheOptions;
        type_size, align, flags, ctor, min_objects, min_order, max_order, sheaf_capacity,
        numa_policy, numa_node);
    structure!("uslab_shrink_control", ShrinkControl; nr_to_scan, priority, flags);
    structure!("uslab_shrinker_options", ShrinkerOptions; type_size, count, scan, context, seeks, batch);
    structure!("uslab_pressure_options", PressureOptions; type_size, systemd, psi, cgroup, log);
    structure!("uslab_cache_stats", CacheStats;
        type_size, user_bytes, object_bytes, objects_per_slab, slab_bytes, sheaf_capacity, slabs,
        partial_slabs, empty_slabs, total_objects, active_objects, slab_free, sheaf_free, alloc_slow,
        free_slow, refills, flushes, drains, grows, shrinks, failures);
    structure!("uslab_heap_stats", HeapStats;
        type_size, objects, object_bytes, slab_bytes, large_objects, large_bytes);
    structure!("uslab_usage", Usage;
        type_size, used_bytes, dirty_bytes, allocated_bytes, free_objects, large_objects, large_bytes);
    structure!("uslab_leaks", Leaks;
        type_size, objects, bytes, indirect_objects, indirect_bytes, suppressed_objects,
        suppressed_bytes, places, misses_registers);
    for (part, value) in ["MAJOR", "MINOR", "PATCH"].iter().zip(VERSION.split('.')) {
        equal(format!("USLAB_VERSION_{part}"), value.parse().expect("a number"));
    }
    text.push_str("int main(void) { return 0; }\n");
    let scratch = Scratch::new("types");
    let source = scratch.write("types.c", text.replace("18446744073709551615", "(size_t)-1"));
    program("types", &source.display().to_string(), "c11", Link::None);

    let header = header();
    let abi = sources().into_iter().find(|(file, _)| file == "abi.rs").expect("abi.rs").1;
    assert_eq!(header_constants(&header), constants, "constants of the header, and those that are compared");
    let ours: BTreeSet<String> = abi
        .lines()
        .filter_map(|line| Some(line.strip_prefix("pub const ")?.split_once(':')?.0.to_owned()))
        .collect();
    assert_eq!(ours, constants, "constants of the library, and those that are compared");
    let in_header = header_structures(&code(&header));
    assert_eq!(in_header, library_structures(&abi), "structures of the header and of the library");
    let named: BTreeMap<&str, Vec<&str>> = in_header
        .iter()
        .map(|(name, fields)| (name.as_str(), fields.iter().map(|field| field.0.as_str()).collect()))
        .collect();
    assert_eq!(named, structures, "structures of the header, and those that are compared");
}
