//! The layer arrows of the library.
//!
//! ```text
//!   sync <- os <- rseq <- pages <- report <- slab <- percpu <- cache <- malloc <- reclaim
//!   counters above os, for all; stats above cache; profile above malloc; debug above reclaim
//! ```
//!
//! Knots begin where a lower layer names a higher one: the page layer learns about slabs "just for
//! the statistics", and neither can be tested alone any more. [`LAYERS`] is the architecture; a
//! change of it is a change of the design and needs a record in docs/adr.
//!
//! Paths are read wherever they stand, in `use` or in an expression, through `crate::` or through
//! `super::`. Layers name each other by module: a name re-exported by the crate's root would hide
//! the arrow.
//!
//! Files form no cycles either, but for those in [`ONE_SUBJECT`]. A folder's `mod.rs` is its door:
//! its re-exports are looked up where they are defined, and paths between a folder and its files
//! are no arrows.

use super::source::{self, Source, Token};
use super::{File, Violation};

const RULE: &str = "layers";
const SOURCE: &str = "crates/uslab/src/";
const ROOT: &str = "crates/uslab/src/lib.rs";

/// A module at the top of the library, and what it may use besides itself and [`FOR_ALL`].
struct Layer {
    name: &'static str,
    /// Modules, or a part of one (`module::part`).
    uses: &'static [&'static str],
}

impl Layer {
    /// Whether the module `name` is for all, and this layer stands above what that module uses.
    fn is_above_for_all(&self, name: &str) -> bool {
        let is_used = |other: &Layer| other.name == name && other.uses.contains(&self.name);
        FOR_ALL.contains(&name) && !LAYERS.iter().any(is_used)
    }
}

/// The architecture, lowest layer first.
const LAYERS: &[Layer] = &[
    Layer { name: "sync", uses: &[] },
    Layer { name: "os", uses: &["sync"] },
    Layer { name: "rseq", uses: &["sync", "os"] },
    Layer { name: "pages", uses: &["sync", "os", "rseq"] },
    Layer { name: "report", uses: &["sync", "os", "rseq", "pages"] },
    Layer { name: "slab", uses: &["sync", "os", "rseq", "pages", "report"] },
    Layer { name: "percpu", uses: &["sync", "os", "rseq", "pages", "slab"] },
    Layer { name: "cache", uses: &["sync", "os", "rseq", "pages", "report", "slab", "percpu"] },
    Layer { name: "malloc", uses: &["sync", "os", "rseq", "pages", "report", "slab", "percpu", "cache"] },
    Layer { name: "reclaim", uses: &["sync", "os", "rseq", "pages", "slab", "percpu", "cache", "malloc"] },
    Layer { name: "profile", uses: &["os", "malloc"] },
    Layer { name: "counters", uses: &["sync", "os"] },
    Layer { name: "stats", uses: &["os", "rseq", "pages", "cache"] },
    Layer {
        name: "debug",
        uses: &["sync", "os", "rseq", "pages", "report", "slab", "percpu", "cache", "malloc", "reclaim"],
    },
];

/// Modules for all layers but those that they use themselves.
const FOR_ALL: &[&str] = &["counters"];

/// Files that tools outside the library compile too, and that may therefore use nothing but `core`.
const CORE_ONLY: &[&str] = &[
    "crates/uslab/src/counters/layout.rs",
    "crates/uslab/src/os/config.rs",
    "crates/uslab/src/os/debugging.rs",
    "crates/uslab/src/os/hardening.rs",
    "crates/uslab/src/os/limit.rs",
];

/// Files that name each other because they are one subject: a type, its builder, its checks, its
/// end.
const ONE_SUBJECT: &[&[&str]] = &[
    // The handles of a cache, their builder, and what it builds.
    &["cache/builder", "cache/life", "cache/raw", "cache/typed"],
    // Bare slabs take their own memory from malloc, and free looks them up.
    &["malloc/bare", "malloc/entry"],
    // Runs of pages as objects: medium ones, large ones, and both under debugging.
    &["malloc/debugged", "malloc/large", "malloc/medium"],
    // A cache's slots, in all of its rows; their slow path grows, drains and, in a fork,
    // waits, and each of these walks slots.
    &[
        "percpu/adapt",
        "percpu/counted",
        "percpu/counts",
        "percpu/cpu_cache",
        "percpu/drain",
        "percpu/fork",
        "percpu/rows",
        "percpu/surplus",
        "percpu/used",
        "percpu/valid",
    ],
    // Sheaves, and the table of their owners in debug builds.
    &["percpu/ownership", "percpu/sheaf"],
];

/// The table, for people.
pub fn table() -> String {
    let mut text = format!("used by all but those that they use: {}\n", FOR_ALL.join(", "));
    for layer in LAYERS {
        let uses = if layer.uses.is_empty() { "nothing".into() } else { layer.uses.join(", ") };
        text += &format!("{:<8} uses {uses}\n", layer.name);
    }
    text
}

/// Checks one file; files outside the library's source have no rule. Circles among files are
/// reported at the library's root.
pub fn check(file: &File, source: &Source) -> Vec<Violation> {
    if file.path == ROOT {
        return cycles_on_disk().iter().map(|cycle| Violation::new(file, 1, RULE, cycle)).collect();
    }
    let Some(modules) = module_path(file.path) else { return Vec::new() };
    if CORE_ONLY.contains(&file.path) {
        return core_only(file, &source.code);
    }
    let Some(layer) = LAYERS.iter().find(|layer| layer.name == modules[0]) else {
        let why =
            format!("`{}` has no place in the layer table (LAYERS in xtask/src/tidy/layers.rs)", modules[0]);
        return vec![Violation::new(file, 1, RULE, why)];
    };
    references(&source.code, &modules)
        .into_iter()
        .filter_map(|(line, path)| Some(Violation::new(file, line, RULE, breach(layer, &path)?)))
        .collect()
}

/// Why `layer` may not name `path` (from the crate's root), or nothing.
fn breach(layer: &Layer, path: &[&str]) -> Option<String> {
    let head = path[0];
    let allowed = |entry: &&str| entry.split("::").zip(path).all(|(want, have)| want == *have);
    let known = LAYERS.iter().any(|other| other.name == head);
    if head == layer.name || layer.is_above_for_all(head) || layer.uses.iter().any(allowed) {
        None
    } else if known {
        let uses = layer.uses.iter().chain(FOR_ALL.iter().filter(|name| layer.is_above_for_all(name)));
        let uses = uses.copied().collect::<Vec<_>>().join(", ");
        Some(format!("`{}` may not use `{}`; it may use {uses}", layer.name, path.join("::")))
    } else {
        Some(format!(
            "name the module that defines `{head}`, not the crate's root, so that the arrow can be seen"
        ))
    }
}

/// `slab::bitmap` for `crates/uslab/src/slab/bitmap.rs`; nothing for lib.rs and for other crates.
fn module_path(path: &str) -> Option<Vec<&str>> {
    let inside = path.strip_prefix(SOURCE)?.strip_suffix(".rs")?;
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    (inside != "lib").then(|| inside.split('/').collect())
}

/// Every path through `crate::` or `super::`, from the crate's root, with its line; those that stay
/// within the file are left out. Exported macros live at the root and are left out too. `modules`
/// is where the file is.
fn references<'a>(code: &[Token<'a>], modules: &[&'a str]) -> Vec<(usize, Vec<&'a str>)> {
    let mut found = Vec::new();
    let mut braces = 0;
    let mut inline = Vec::new();
    let mut at = 0;
    while let Some(token) = code.get(at) {
        match token.text {
            "{" => {
                braces += 1;
                if at >= 2 && code[at - 2].is("mod") {
                    inline.push(braces);
                }
            }
            "}" => {
                if inline.last() == Some(&braces) {
                    inline.pop();
                }
                braces -= 1;
            }
            "crate" if follows(code, at, "::") => tree(code, &mut (at + 2), &mut Vec::new(), &mut found),
            "super" if follows(code, at, "::") => {
                let mut climbed = 1;
                at += 2;
                while code.get(at).is_some_and(|token| token.is("super")) && follows(code, at, "::") {
                    climbed += 1;
                    at += 2;
                }
                let depth = modules.len() + inline.len();
                if climbed > inline.len() && climbed <= depth {
                    let mut prefix = modules[..depth - climbed].to_vec();
                    tree(code, &mut at.clone(), &mut prefix, &mut found);
                }
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// The cycles among the library's files as they are on the disk, as messages.
fn cycles_on_disk() -> Vec<String> {
    let Ok(workspace) = crate::workspace::Workspace::find() else { return Vec::new() };
    let walked = match super::walk(&workspace.root.join(SOURCE)) {
        Ok(walked) => String::from_utf8_lossy(&walked).into_owned(),
        Err(error) => return vec![error.to_string()],
    };
    let paths = walked.split('\0').filter(|path| path.ends_with(".rs")).map(|path| format!("{SOURCE}{path}"));
    let read = |path: String| Some((std::fs::read_to_string(workspace.root.join(&path)).ok()?, path));
    let files: Vec<(String, String)> = paths.filter_map(read).collect();
    let told = cycles(&files).into_iter().map(|cycle| {
        format!("a cycle among files: {} (ONE_SUBJECT lists those that may be)", cycle.join(", "))
    });
    told.collect()
}

/// Groups of files, given as text and path, that name each other all around and are no one subject.
fn cycles(files: &[(String, String)]) -> Vec<Vec<String>> {
    let sources: Vec<_> = files.iter().map(|(text, _)| source::read(text)).collect();
    let files: Vec<(Vec<&str>, Vec<Token>)> = files
        .iter()
        .zip(sources)
        .filter_map(|((_, path), source)| Some((module_path(path)?, source.code)))
        .filter(|(modules, _)| !modules.iter().any(|&module| module == "tests" || module == "simulation"))
        .collect();
    let doors: Vec<_> = files.iter().map(|(modules, code)| reexports(code, modules)).collect();
    let place = |modules: &[&str]| files.iter().position(|(other, _)| other == modules);
    // Where what a path names is defined.
    let defined = |path: &[&str]| {
        let mut path = path.to_vec();
        for _ in 0..8 {
            let (length, at) = (1..=path.len()).rev().find_map(|n| Some((n, place(&path[..n])?)))?;
            let Some(name) = path.get(length) else { return Some(at) };
            let Some((_, target)) = doors[at].iter().find(|(exported, _)| exported == name) else {
                return Some(at);
            };
            path = target.iter().chain(&path[length + 1..]).copied().collect();
        }
        None
    };
    let mut reaches = vec![vec![false; files.len()]; files.len()];
    for (from, (modules, code)) in files.iter().enumerate() {
        for (_, path) in references(&private(code), modules) {
            let Some(to) = defined(&path) else { continue };
            let related = modules.starts_with(&files[to].0) || files[to].0.starts_with(modules);
            reaches[from][to] |= !related;
        }
    }
    for over in 0..files.len() {
        for from in 0..files.len() {
            if reaches[from][over] {
                let further = reaches[over].clone();
                reaches[from].iter_mut().zip(further).for_each(|(reached, further)| *reached |= further);
            }
        }
    }
    let cycle_of = |file: usize| -> Vec<String> {
        let members = (0..files.len()).filter(|&other| reaches[file][other] && reaches[other][file]);
        let mut names: Vec<_> = members.map(|member| files[member].0.join("/")).collect();
        names.sort();
        names
    };
    let mut found: Vec<_> = (0..files.len()).map(cycle_of).filter(|cycle| !cycle.is_empty()).collect();
    found.sort();
    found.dedup();
    let is_listed = |cycle: &Vec<String>| {
        ONE_SUBJECT.iter().any(|listed| cycle.iter().all(|file| listed.contains(&file.as_str())))
    };
    found.retain(|cycle| !is_listed(cycle));
    found
}

/// A file's re-exports: names, and the paths behind them.
fn reexports<'a>(code: &[Token<'a>], modules: &[&'a str]) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut found = Vec::new();
    for at in (0..code.len()).filter(|&at| is_public_use(code, at)) {
        let (mut start, mut prefix) = (at + 1, modules.to_vec());
        while let Some(step) = code.get(start).filter(|_| follows(code, start, "::")) {
            match step.text {
                "crate" => prefix.clear(),
                "super" => _ = prefix.pop(),
                "self" => {}
                _ => break,
            }
            start += 2;
        }
        tree(code, &mut start, &mut prefix, &mut found);
    }
    let named = |(_, path): (usize, Vec<&'a str>)| Some((*path.last()?, path));
    found.into_iter().filter_map(named).collect()
}

/// Whether a `use` at this place is public, to the crate or beyond.
fn is_public_use(code: &[Token], at: usize) -> bool {
    code[at].is("use") && at > 0 && (code[at - 1].is("pub") || code[at - 1].is(")"))
}

/// The code without what it re-exports and without modules in braces: those are tests.
fn private<'a>(code: &[Token<'a>]) -> Vec<Token<'a>> {
    let (mut is_public, mut braces) = (false, 0);
    let mut kept = Vec::new();
    for (at, token) in code.iter().enumerate() {
        is_public |= is_public_use(code, at);
        let opens_module = token.is("{") && at >= 2 && code[at - 2].is("mod");
        braces += usize::from(opens_module || (braces > 0 && token.is("{")));
        if !is_public && braces == 0 {
            kept.push(*token);
        }
        braces -= usize::from(braces > 0 && token.is("}"));
        is_public &= !token.is(";");
    }
    kept
}

fn is(code: &[Token], at: usize, text: &str) -> bool {
    code.get(at).is_some_and(|token| token.is(text))
}

fn follows(code: &[Token], at: usize, text: &str) -> bool {
    code.get(at + 1).is_some_and(|token| token.is(text))
}

/// Reads one use-tree (`a::b`, `{a, b::c as d}`, `*`) and adds each of its paths.
fn tree<'a>(
    code: &[Token<'a>],
    at: &mut usize,
    prefix: &mut Vec<&'a str>,
    found: &mut Vec<(usize, Vec<&'a str>)>,
) {
    let Some(token) = code.get(*at) else { return };
    *at += 1;
    if token.is("{") {
        while *at < code.len() && !is(code, *at, "}") {
            tree(code, at, prefix, found);
            while *at < code.len() && !is(code, *at, ",") && !is(code, *at, "}") {
                *at += 1;
            }
            *at += usize::from(is(code, *at, ","));
        }
        *at += 1;
    } else if (token.is_word() || token.is("*")) && !(prefix.is_empty() && is(code, *at, "!")) {
        prefix.push(token.text);
        if is(code, *at, "::") {
            *at += 1;
            tree(code, at, prefix, found);
        } else {
            found.push((token.line, prefix.clone()));
        }
        prefix.pop();
    }
}

/// A file that others compile by path can lean on nothing of this crate, nor on the host's library.
fn core_only(file: &File, code: &[Token]) -> Vec<Violation> {
    let heads = ["crate", "super", "std", "alloc", "libc"];
    code.windows(2)
        .filter(|pair| heads.iter().any(|head| pair[0].is(head)) && pair[1].is("::"))
        .map(|pair| {
            let why =
                format!("`{}::` in a file that tools compile by path: it may use only `core`", pair[0].text);
            Violation::new(file, pair[0].line, RULE, why)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    const NONE: [usize; 0] = [];

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&File { path, text }, &source::read(text)).iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn the_table_is_ordered_and_complete() {
        for (position, layer) in LAYERS.iter().enumerate() {
            for used in layer.uses {
                let below =
                    LAYERS[..position].iter().any(|other| used.split("::").next() == Some(other.name));
                assert!(below, "{} uses {used}, which is not below it", layer.name);
            }
        }
        assert!(table().contains("slab     uses sync, os, rseq, pages, report\n"));
    }

    #[test]
    fn arrows_down_pass_and_arrows_up_do_not() {
        assert_eq!(
            lines("crates/uslab/src/percpu/drain.rs", "use crate::slab::Slab;\nuse crate::counters::Cells;"),
            NONE
        );
        assert_eq!(
            lines("crates/uslab/src/slab/mod.rs", "use crate::sync::Lock;\nuse crate::percpu::Sheaf;"),
            [2]
        );
        assert_eq!(lines("crates/uslab/src/os/mod.rs", "use crate::rseq::Slot;"), [1]);
        assert_eq!(lines("crates/uslab/src/sync/lock.rs", "use crate::cache::Cache;"), [1]);
        assert_eq!(lines("crates/uslab/src/counters/text.rs", "use crate::cache::Cache;"), [1]);
    }

    #[test]
    fn groups_expressions_and_visibility_are_read() {
        let text = "use crate::{sync::Lock, malloc::{self, Heap as H}, os};";
        assert_eq!(lines("crates/uslab/src/pages/mod.rs", text), [1, 1]);
        assert_eq!(lines("crates/uslab/src/pages/mod.rs", "fn f() {\n    crate::cache::get();\n}"), [2]);
        assert_eq!(lines("crates/uslab/src/pages/mod.rs", "pub(crate) fn f() { $crate::sync::x(); }"), NONE);
    }

    #[test]
    fn super_is_followed_through_inline_modules() {
        assert_eq!(lines("crates/uslab/src/slab/bitmap.rs", "use super::super::percpu::Sheaf;"), [1]);
        assert_eq!(lines("crates/uslab/src/slab/bitmap.rs", "use super::percpu::Sheaf;"), NONE);
        let text =
            "mod tests {\n    use super::*;\n    use super::super::cache::Cache;\n}\nuse super::os::Map;";
        assert_eq!(lines("crates/uslab/src/slab.rs", text), [3]);
    }

    #[test]
    fn the_root_may_not_stand_in_for_a_module_but_macros_live_there() {
        assert_eq!(lines("crates/uslab/src/slab/mod.rs", "use crate::Cache;\nuse crate::*;"), [1, 2]);
        assert_eq!(lines("crates/uslab/src/slab/mod.rs", "fn f() { crate::inject!(3); }"), NONE);
        assert_eq!(lines("crates/uslab/src/odd.rs", ""), [1]);
        assert_eq!(lines("crates/uslab/src/lib.rs", "pub use crate::cache::Cache;"), NONE);
        assert_eq!(lines("crates/uslab-cli/src/main.rs", "use crate::run::Run;"), NONE);
    }

    #[test]
    fn a_module_for_all_is_not_for_those_that_it_uses() {
        let of = |name: &str| LAYERS.iter().find(|layer| layer.name == name).expect("a layer");
        assert_eq!(breach(of("slab"), &["counters", "tally"]), None);
        for below in ["sync", "os"] {
            assert!(breach(of(below), &["counters", "tally"]).is_some(), "{below}");
        }
    }

    #[test]
    fn a_part_of_a_module_can_be_allowed_alone() {
        let layer = Layer { name: "low", uses: &["os::futex"] };
        assert_eq!(breach(&layer, &["os", "futex", "wait"]), None);
        assert!(breach(&layer, &["os", "memory"]).is_some());
    }

    /// Circles among files of the library with these texts.
    fn cycles_of(texts: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files: Vec<_> =
            texts.iter().map(|(path, text)| (text.to_string(), format!("{SOURCE}{path}.rs"))).collect();
        cycles(&files)
    }

    #[test]
    fn cycles_among_files_are_found_behind_re_exports() {
        let door = ("slab/mod", "mod list;\nmod pool;\npub use list::List;\npub(crate) use pool::{Pool};");
        let list = ("slab/list", "use super::Pool;");
        assert_eq!(cycles_of(&[door, list, ("slab/pool", "")]), Vec::<Vec<String>>::new());
        let pool = ("slab/pool", "fn f() { super::List::new() }");
        assert_eq!(cycles_of(&[door, list, pool]), [["slab/list", "slab/pool"]]);
        let round =
            [("os/a", "use super::b;"), ("os/b", "use crate::os::c::C;"), ("os/c", "use super::a::A;")];
        assert_eq!(cycles_of(&round), [["os/a", "os/b", "os/c"]]);
    }

    #[test]
    fn a_folder_and_its_door_are_no_cycle_nor_are_tests() {
        let door = ("slab/mod", "mod list;\npub const BYTES: usize = super::slab::list::f();");
        assert_eq!(cycles_of(&[door, ("slab/list", "use super::BYTES;")]), Vec::<Vec<String>>::new());
        let tested = ("os/a", "mod tests { use super::super::b::B; }");
        let tests = [("os/b", "use super::a::A;"), tested];
        assert_eq!(cycles_of(&tests), Vec::<Vec<String>>::new());
    }

    #[test]
    fn comments_and_strings_draw_no_arrow() {
        let text =
            "/// See [`crate::cache::Cache`].\nconst S: &str = \"crate::cache::x\"; // crate::cache::y";
        assert_eq!(lines("crates/uslab/src/slab/mod.rs", text), NONE);
    }

    #[test]
    fn the_snapshot_layout_uses_only_core() {
        let text = "use core::sync::atomic::AtomicU64;\nuse crate::sync::Lock;\nuse std::fs;";
        assert_eq!(lines("crates/uslab/src/counters/layout.rs", text), [2, 3]);
    }
}
