//! `cargo xtask results`: the pages of docs/results, written from the JSON files there.
//!
//! ```text
//!   docs/results/DATE/*.json ──┬─ report.html        every figure, with charts
//!    (the latest folder)       ├─ README.md          machine, versions, claims
//!                              ├─ ../README.md        the claims, between two markers
//!                              ├─ README.md           of the project: programs, memory left
//!                              ├─ ../order.md         slab orders, between two markers
//!                              └─ ../order.svg        and as a picture
//! ```
//!
//! `--check` compares instead of writing, and is what CI runs. `--measure` first makes the folder
//! of today. The benchmark itself turns JSON into text; this program only places it. Must never:
//! change a JSON file that it did not measure, or write a figure of its own.

use crate::staged;
use crate::workspace::{self, Workspace};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const FOLDER: &str = "docs/results";
const README: &str = "docs/results/README.md";
/// The first page that a user reads: it shows what whole programs take.
const FIRST_PAGE: &str = "README.md";
/// The page and the picture of suite `order`, made where the latest folder has that suite.
const ORDERS: &str = "docs/results/order.md";
const ORDERS_PICTURE: &str = "docs/results/order.svg";
/// The markers around the text that this program writes into a page.
pub const BEGIN: &str = "<!-- results:begin -->";
pub const END: &str = "<!-- results:end -->";

/// Arguments of `cargo xtask results`.
#[derive(clap::Args)]
pub struct Args {
    /// Fail where README.md, docs/results/{README.md,order.md,order.svg} or the latest folder's
    /// pages differ from the results; write nothing.
    #[arg(long, conflicts_with = "measure")]
    check: bool,
    /// Measure every suite in both modes into the folder of today first.
    #[arg(long)]
    measure: bool,
    /// With --measure: a first look with few rounds; the results carry that caution.
    #[arg(long, requires = "measure")]
    quick: bool,
    /// With --measure: only these suites; files of others stay.
    #[arg(long, value_name = "SUITE", value_delimiter = ',', requires = "measure")]
    only: Vec<String>,
}

impl Args {
    /// The options of CI.
    pub fn checking() -> Self {
        Self { check: true, measure: false, quick: false, only: Vec::new() }
    }
}

/// Writes, or checks, the pages of the latest results.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let root = workspace.root.join(FOLDER);
    build(workspace)?;
    if args.measure {
        measure(workspace, &root, args)?;
    }
    let (date, folder) = latest(&root)?;
    let name = folder.to_str().context("the folder's path is not UTF-8")?;
    let table = bench(workspace, &["summary", name])?;
    let mut wanted = vec![
        page(workspace, README, &section(&date, &table))?,
        page(workspace, FIRST_PAGE, &format!("\n{}\n", bench(workspace, &["summary", "--spread", name])?))?,
        (folder.join("README.md"), folder_page(&date, &bench(workspace, &["summary", "--facts", name])?)),
        (folder.join("report.html"), bench(workspace, &["report", name, "-o", "-"])?),
    ];
    if folder.join("order.json").is_file() {
        let tables = bench(workspace, &["orders", name])?;
        wanted.push(page(workspace, ORDERS, &format!("\n{tables}\n"))?);
        wanted.push((workspace.root.join(ORDERS_PICTURE), bench(workspace, &["orders", "--svg", name])?));
    }
    for (path, text) in wanted {
        let shown = path.strip_prefix(&workspace.root).unwrap_or(&path).display();
        if fs::read_to_string(&path).is_ok_and(|present| present == text) {
            println!("{shown}: as {FOLDER}/{date} says");
        } else if args.check {
            bail!("{shown} is not what {FOLDER}/{date}/*.json give: run `cargo xtask results` and commit");
        } else {
            fs::write(&path, text).with_context(|| format!("cannot write {shown}"))?;
            println!("{shown}: written from {FOLDER}/{date}");
        }
    }
    Ok(())
}

fn build(workspace: &Workspace) -> Result<()> {
    // Programs are measured under the preload library, and C programs are linked with the C
    // library.
    workspace::check(workspace.release_build().arg("--quiet"))
}

fn program(workspace: &Workspace, args: &[&str]) -> Command {
    let mut command = Command::new(workspace.release_dir().join("uslab-bench"));
    workspace::without_settings(&mut command).current_dir(&workspace.root);
    command.args(args).stdin(Stdio::null());
    command
}

/// The output of uslab-bench.
fn bench(workspace: &Workspace, args: &[&str]) -> Result<String> {
    let mut command = program(workspace, args);
    let line = workspace::line_of(&command);
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed: {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` printed no text"))
}

/// Every suite in a file of its own, so that one can be measured again; a file changes only when
/// its suite is done.
fn measure(workspace: &Workspace, root: &Path, args: &Args) -> Result<()> {
    let list: serde_json::Value = serde_json::from_str(&bench(workspace, &["--list", "--json"])?)?;
    let suites: Vec<&str> =
        list["suites"].as_array().into_iter().flatten().filter_map(|suite| suite["name"].as_str()).collect();
    if let Some(unknown) = args.only.iter().find(|name| !suites.contains(&name.as_str())) {
        bail!("there is no suite `{unknown}`; suites are: {}", suites.join(", "));
    }
    let commit = commit(workspace)?;
    let folder = root.join(today()?);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for suite in suites {
        if !args.only.is_empty() && !args.only.iter().any(|name| name == suite) {
            continue;
        }
        let mut line = vec![suite, "--both-modes", "--json"];
        line.extend(args.quick.then_some("--quick"));
        println!("$ {}", workspace::line_of(&program(workspace, &line)));
        // Without spaces, which make up most of a file with every run of a program.
        let mut json: serde_json::Value = serde_json::from_str(&bench(workspace, &line)?)?;
        json["build"]["commit"] = commit.as_str().into();
        let path = folder.join(format!("{suite}.json"));
        fs::write(&path, format!("{json}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The commit that is checked out; `-dirty` behind it, if files differ from it.
fn commit(workspace: &Workspace) -> Result<String> {
    let mut git = Command::new("git");
    git.current_dir(&workspace.root).args(["describe", "--always", "--dirty", "--abbrev=12"]);
    Ok(staged::output(&mut git)?.trim().to_owned())
}

fn today() -> Result<String> {
    let output = Command::new("date").args(["-u", "+%F"]).output().context("cannot start date")?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !is_date(&text) {
        bail!("`date -u +%F` gave no date: {text:?}");
    }
    Ok(text)
}

/// 2026-11-21: such names sort by time.
fn is_date(name: &str) -> bool {
    name.len() == 10
        && name
            .bytes()
            .enumerate()
            .all(|(i, b)| if i == 4 || i == 7 { b == b'-' } else { b.is_ascii_digit() })
}

fn latest(root: &Path) -> Result<(String, PathBuf)> {
    let entries = fs::read_dir(root).with_context(|| format!("no {}", root.display()))?;
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_date(name))
        .max()
        .map(|date| (date.clone(), root.join(date)))
        .with_context(|| {
            format!("{} has no dated folder: `cargo xtask results --measure` makes one", root.display())
        })
}

/// The text between the markers.
fn section(date: &str, table: &str) -> String {
    format!(
        "\n{}\n\nAll figures: [{date}]({date}/README.md), and with charts in its \
         [report.html]({date}/report.html).\n\n",
        table.trim_end()
    )
}

/// The page at `path` with `section` between its markers.
fn page(workspace: &Workspace, path: &str, section: &str) -> Result<(PathBuf, String)> {
    let place = workspace.root.join(path);
    let text = fs::read_to_string(&place).with_context(|| format!("no {path}"))?;
    let text = spliced(&text, section).with_context(|| format!("cannot write {path}"))?;
    Ok((place, text))
}

/// `text` with `section` between its markers.
fn spliced(text: &str, section: &str) -> Result<String> {
    let place = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, after)) = place else {
        bail!("the page has not both markers, {BEGIN} and {END}, in this order");
    };
    Ok(format!("{before}{BEGIN}\n{section}{END}{after}"))
}

fn folder_page(date: &str, facts: &str) -> String {
    format!(
        "# Results of {date}\n\n`cargo xtask results` wrote this page from the JSON files beside it.\n\
         [report.html](report.html) has every figure, with charts.\n\
         [../README.md](../README.md) tells how to repeat them.\n\n{}\n",
        facts.trim_end()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_markers_changes() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let new = spliced(&text, "new\n").unwrap();
        assert_eq!(new, format!("a\n{BEGIN}\nnew\n{END}\nb\n"));
        assert_eq!(spliced(&new, "new\n").unwrap(), new);
        assert!(spliced("a", "new").is_err());
        assert!(spliced(&format!("{END}{BEGIN}"), "new").is_err());
    }

    #[test]
    fn the_latest_folder_is_the_last_date() {
        let root = std::env::temp_dir().join(format!("uslab-results-{}", std::process::id()));
        for name in ["2025-12-31", "2026-02-03", "2026-1-1", "zzz"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let found = latest(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found.unwrap().0, "2026-02-03");
        assert!(latest(&root).is_err());
    }

    #[test]
    fn today_is_a_date() {
        assert!(is_date(&today().unwrap()));
    }
}
