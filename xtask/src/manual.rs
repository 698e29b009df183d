//! Checks manual pages: mandoc and man read them without a warning, and the programs in them
//! compile and run.
//!
//! The tests read `docs/man` and compare it with what it describes: the exported symbols, the
//! headers, the guide's table of variables. `cargo xtask dist --check` and `deb --check` read the
//! installed pages, among them the command's own, which it generates.

use crate::staged::{has, output};
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The pages below a folder; links, and pages that only lead to another, are left out.
pub fn pages(man: &Path) -> Result<Vec<PathBuf>> {
    let found = output(Command::new("find").arg(man).args(["-type", "f"]))?;
    let mut pages: Vec<PathBuf> = found.lines().map(PathBuf::from).collect();
    pages.retain(|page| !std::fs::read(page).is_ok_and(|text| text.starts_with(b".so ")));
    pages.sort();
    Ok(pages)
}

/// Fails if mandoc or man has a warning for a page.
pub fn lint(page: &Path) -> Result<()> {
    if !has("mandoc") {
        bail!("there is no mandoc to read {} (package mandoc)", page.display());
    }
    // Style warnings are left out: a missing page that the text refers to is no fault, and clap
    // chooses the lines of its page.
    let mandoc = Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).arg(page).output()?;
    let said = String::from_utf8_lossy(&mandoc.stdout);
    ensure!(said.is_empty(), "mandoc has something to say:\n{}", said.trim());
    if has("man") {
        let mut man = Command::new("man");
        man.args(["--warnings", "-E", "UTF-8", "-Tutf8", "-Z", "-l"]).arg(page);
        let man = man.env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8").output()?;
        let said = String::from_utf8_lossy(&man.stderr);
        ensure!(man.status.success() && said.is_empty(), "man has something to say: {}", said.trim());
    }
    Ok(())
}

/// A page's text, also of a compressed one.
pub fn text(page: &Path) -> Result<String> {
    if page.extension().is_some_and(|extension| extension == "gz") {
        return output(Command::new("gzip").arg("-dc").arg(page));
    }
    std::fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))
}

/// Compiles and runs the programs of a page, with the compiler's flags for the library; returns
/// their number.
pub fn run_examples(page: &Path, flags: &str, lib: &Path) -> Result<usize> {
    let text = text(page)?;
    let scratch = tempfile::tempdir()?;
    let programs = examples(&text);
    for source in &programs {
        let is_cxx = source.contains(".hpp>");
        let file = scratch.path().join(if is_cxx { "example.cpp" } else { "example.c" });
        let program = scratch.path().join("example");
        std::fs::write(&file, source)?;
        let mut compiler = Command::new(if is_cxx { "c++" } else { "cc" });
        compiler.arg(if is_cxx { "-std=c++17" } else { "-std=c99" }).args(["-Wall", "-Wextra", "-Werror"]);
        compiler.arg(&file).arg("-o").arg(&program).args(flags.split_whitespace());
        output(&mut compiler).with_context(|| format!("an example of {}", page.display()))?;
        output(Command::new(&program).env("LD_LIBRARY_PATH", lib))?;
    }
    Ok(programs.len())
}

/// The literal displays of a page that are whole programs, as a reader sees them.
fn examples(text: &str) -> Vec<String> {
    text.split(".Bd -literal")
        .skip(1)
        .filter_map(|rest| rest.split_once('\n')?.1.split(".Ed").next())
        .filter(|program| program.contains("int main("))
        .map(|program| program.replace("\\e", "\\").replace("\\&", ""))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capi;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    fn page(name: &str) -> String {
        text(&root().join("docs/man").join(name)).unwrap()
    }

    fn describes(page: &str, name: &str) {
        let synopsis = page.split(".Sh DESCRIPTION").next().unwrap();
        assert!(
            synopsis.lines().any(|line| line.starts_with(&format!(".Fn {name} "))),
            "{name} is not in the synopsis"
        );
    }

    #[test]
    fn every_page_is_sound() {
        let pages = pages(&root().join("docs/man")).unwrap();
        assert!(pages.len() >= 4);
        for page in pages {
            lint(&page).unwrap();
        }
    }

    #[test]
    fn every_exported_function_is_described() {
        let pages = ["uslab.h.3", "uslab_debug.3", "uslab_reclaim.3"].map(page);
        for name in capi::exports(&root().join("crates/uslab-capi/uslab.map")).unwrap() {
            let has_it = |page: &&String| page.contains(&format!("\n.Fn {name} "));
            let page = pages.iter().find(has_it).unwrap_or(&pages[0]);
            describes(page, &name);
            let (_, description) = page.split_once(".Sh DESCRIPTION").unwrap();
            assert!(description.contains(&format!(".Fn {name}")), "{name} is not described");
        }
    }

    #[test]
    fn every_constant_of_the_header_is_described() {
        let header = std::fs::read_to_string(root().join("crates/uslab-capi/include/uslab.h")).unwrap();
        let page = ["uslab.h.3", "uslab_debug.3", "uslab_reclaim.3"].map(page).concat();
        for line in header.lines().filter_map(|line| line.strip_prefix("#define ")) {
            let name = line.split([' ', '(']).next().unwrap();
            let internal = ["USLAB_H", "USLAB_ATTRIBUTE", "USLAB_NOEXCEPT", "USLAB_DIRECT"].contains(&name);
            assert!(internal || page.contains(&format!(" {name}")), "{name} is not described");
        }
    }

    #[test]
    fn every_function_with_a_kernel_name_is_described() {
        let header = std::fs::read_to_string(root().join("crates/uslab-capi/include/uslab/kmem.h")).unwrap();
        let page = page("uslab_kmem.h.3");
        let mut names = vec!["KMEM_CACHE"];
        for line in header.lines() {
            let Some((declared, _)) = line.split_once('(') else { continue };
            let name = declared.rsplit([' ', '*']).next().unwrap();
            let is_function = declared.starts_with("static inline ") && !name.starts_with("uslab_");
            if is_function || declared.starts_with("#define k") {
                names.push(name);
            }
        }
        assert!(names.len() > 30, "{names:?}");
        names.iter().for_each(|name| describes(&page, name));
    }

    #[test]
    fn every_variable_of_the_guide_is_described() {
        let guide = std::fs::read_to_string(root().join("docs/guide/README.md")).unwrap();
        let page = page("libuslab_malloc.7");
        let (_, table) = guide.split_once("## Environment variables").unwrap();
        let mut variables = 0;
        for cell in table.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next()) {
            for name in cell.split('`').filter(|name| name.contains('_')) {
                assert!(page.contains(name), "{name} is not described");
                variables += 1;
            }
        }
        assert!(variables >= 10);
    }

    #[test]
    fn examples_are_whole_programs_with_their_backslashes() {
        let page = ".Bd -literal\nstruct x;\n.Ed\n.Bd -literal -offset indent\nint main(void) { puts(\"\\en\"); }\n.Ed\n";
        assert_eq!(examples(page), ["int main(void) { puts(\"\\n\"); }\n"]);
    }
}
