//! `uslab-bench report`: one self-contained HTML page from result files.
//!
//! page.html is the template: it has the colours and a script that draws tables and charts as SVG
//! from the data that stands in the page. This file puts the data there. `cargo xtask balance`
//! fills the same template.
//!
//! The page needs no network. It is a function of the results alone: the same files give the same
//! bytes, so that CI can tell whether the page in docs/results is theirs. Must never: show a figure
//! that is not in the files, or read the clock.

use crate::facts::date;
use crate::load::{self, Joined, Taken};
use crate::suites;
use crate::summary::{self, Claim, Fact};
use clap::ValueHint;
use serde::Serialize;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const TEMPLATE: &str = include_str!("page.html");

/// Points of a course; a chart is about this many pixels wide.
const MAX_COURSE_POINTS: usize = 300;

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Files that `--json` wrote, or folders of them; "-" and nothing at all are standard input
    #[arg(value_name = "RESULTS", value_hint = ValueHint::AnyPath)]
    results: Vec<PathBuf>,

    /// Where the page goes; "-" is standard output
    #[arg(short, long, value_name = "FILE", default_value = "report.html", value_hint = ValueHint::FilePath)]
    output: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  uslab-bench all --both-modes --json > all.json && uslab-bench report all.json
  uslab-bench report docs/results/2026-11-21 -o report.html
  uslab-bench bulk --quick --json | uslab-bench report -o - > bulk.html

Of several results of one suite in one mode, the latest is shown.";

/// The reason why there is no page: wrong input, or a file that cannot be written.
pub enum Refused {
    Input(String),
    Output(String),
}

/// Makes the page, and writes it to its file. A page for standard output is returned.
pub fn text(args: &Args) -> Result<Option<String>, Refused> {
    let page = page(&load::load(&args.results).map_err(Refused::Input)?);
    if args.output == Path::new("-") {
        return Ok(Some(page));
    }
    let name = load::shown(&args.output);
    if args.results.iter().any(|input| same_file(input, &args.output)) {
        return Err(Refused::Input(format!("{name} is a result file; the page must have another name")));
    }
    fs::write(&args.output, page)
        .map_err(|error| Refused::Output(format!("cannot write {name}: {error}")))?;
    eprintln!("uslab-bench: wrote {name}");
    Ok(None)
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// The data that the template's script draws.
#[derive(Serialize)]
struct Page<'a> {
    title: &'a str,
    about: &'a str,
    cautions: Vec<String>,
    facts: Vec<Fact<'a>>,
    columns: [&'a str; 8],
    claims: Vec<Claim>,
    runs: Vec<Value>,
}

fn page(joined: &Joined) -> String {
    let page = Page {
        title: "uslab benchmark results",
        about: "Costs beside other allocators. The best peer is the best of its own row.",
        cautions: summary::cautions(joined),
        facts: summary::facts_of(joined),
        columns: summary::COLUMNS,
        claims: summary::claims(joined),
        runs: joined.runs.iter().map(|taken| drawn(joined, taken)).collect(),
    };
    let data = serde_json::to_string(&page).expect("a page has nothing that JSON cannot say");
    // An HTML parser ends a script at "</script", wherever it stands.
    TEMPLATE.replace("{{DATA}}", &data.replace('<', "\\u003c"))
}

/// A run for the page: with its suite's description and its day, without data that is not drawn.
fn drawn(joined: &Joined, taken: &Taken) -> Value {
    let mut run = serde_json::to_value(&taken.run).expect("a run has nothing that JSON cannot say");
    slim(&mut run);
    let about = suites::find(&taken.run.suite).map_or("", |suite| suite.summary);
    run["about"] = about.into();
    run["date"] = date(joined.source(taken).started_unix_s).into();
    run
}

/// Removes single runs and distributions, thins courses, and rounds to six digits.
fn slim(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, field| {
                !(field.is_null() || name.ends_with("_by_run") || name.ends_with("_by_nines"))
            });
            for (name, field) in fields {
                if let (true, Value::Array(course)) = (name.contains("_by_"), &mut *field) {
                    let (every, last) =
                        (course.len().div_ceil(MAX_COURSE_POINTS).max(1), course.len().saturating_sub(1));
                    let mut at = 0..;
                    course.retain(|_| at.next().is_some_and(|at| at % every == 0 || at == last));
                }
                slim(field);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(slim),
        Value::Number(number) if number.is_f64() => {
            let rounded = number.as_f64().and_then(|number| format!("{number:.5e}").parse::<f64>().ok());
            *value = rounded.into();
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tests::sample;
    use std::process::Command;

    #[test]
    fn a_page_stands_alone_and_is_the_same_for_the_same_results() {
        let text = page(&sample());
        for outside in ["http:", "https:", "src=", "@import", "url(", "{{", "_by_run"] {
            assert!(!text.contains(outside), "{outside}");
        }
        assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>\n"));
        assert_eq!(text, page(&sample()));
    }

    #[test]
    fn courses_are_thinned_and_keep_their_last_point() {
        let course: Vec<[f64; 2]> = (0..1000).map(|i| [f64::from(i), 1.0 / 3.0]).collect();
        let mut value = serde_json::json!({ "y_by_s": course, "value_by_run": course, "ratio": null });
        slim(&mut value);
        let kept = value["y_by_s"].as_array().unwrap();
        assert!(kept.len() <= MAX_COURSE_POINTS + 1, "{}", kept.len());
        assert_eq!(kept.last().unwrap(), &serde_json::json!([999.0, 0.333333]));
        assert_eq!(value.as_object().unwrap().len(), 1);
    }

    /// The output of the page's script, where `node` is installed.
    fn drawn_by_script(page: &str) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let part = |begin: &str| page.split_once(begin).unwrap().1.split_once("</script>").unwrap().0;
        let (data, script) = (part("id=\"data\">"), part("<script>"));
        let stub = format!(
            "const data_ = {data:?};\n{}\n",
            "const document = { getElementById: () => ({ textContent: data_ }),
               body: { insertAdjacentHTML: (_, text) => console.log(text) } };"
        );
        let file = folder.path().join("page.js");
        fs::write(&file, stub + script).unwrap();
        let output = Command::new("node").arg(&file).output().ok()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(String::from_utf8(output.stdout).unwrap())
    }

    #[test]
    fn the_script_draws_every_form_of_results() {
        let Some(text) = drawn_by_script(&page(&sample())) else { return };
        for part in [
            "In short",
            "suite-pair",
            "slab 2015 bulk, cycles",
            "beside the published cycles",
            "uslab, locked",
            "The same in locked mode",
            "<small>time of an operation against threads</small>",
            "<small>resident against time</small>",
            ">p99.99</text>",
            "object size, bytes",
            "peak, MiB",
        ] {
            assert!(text.contains(part), "no {part}");
        }
        for bad in ["NaN", "Infinity", "undefined", "[object", "peer10"] {
            assert!(!text.contains(bad), "{bad}");
        }
        for name in ["svg", "table", "section", "figure", "g"] {
            let count = |mark: String| text.matches(&mark).count();
            let opened = count(format!("<{name}>")) + count(format!("<{name} "));
            assert_eq!(opened, count(format!("</{name}>")), "{name}");
        }
    }

    #[test]
    fn what_a_file_says_is_text() {
        let mut joined = sample();
        let run = &mut joined.runs[0].run;
        run.suite = "<img onerror=x>\"'".into();
        run.rows[0].group = "</script><b>".into();
        run.rows[0].figures[0].contestant = "</svg><b>".into();
        let page = page(&joined);
        let drawn = drawn_by_script(&page).unwrap_or_default();
        for bad in ["<img", "<b>"] {
            assert!(!page.contains(bad) && !drawn.contains(bad), "{bad}");
        }
    }

    #[test]
    fn odd_values_make_a_page_still() {
        let mut joined = sample();
        let odd = [0.0, -1.0, 1e300, 1e-300, f64::MAX];
        let rows = joined.runs.iter_mut().flat_map(|taken| &mut taken.run.rows);
        for (i, figure) in rows.flat_map(|row| &mut row.figures).enumerate() {
            (figure.value.min, figure.value.median) = (odd[i % 5], odd[(i + 1) % 5]);
            figure.extra.values_mut().for_each(|value| *value = odd[(i + 2) % 5]);
        }
        let drawn = drawn_by_script(&page(&joined)).unwrap_or_default();
        assert!(!drawn.contains("NaN") && !drawn.contains("undefined"));
        joined.runs.iter_mut().for_each(|taken| taken.run.rows.clear());
        page(&joined);
    }

    /// WCAG's contrast of two colours.
    fn contrast(a: &str, b: &str) -> f64 {
        let luminance = |colour: &str| {
            let channel = |at: usize| {
                let c = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
                if c <= 0.03928 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
        };
        let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
        a.max(b) / a.min(b)
    }

    #[test]
    fn every_colour_of_a_text_can_be_read_in_both_themes() {
        let colours: Vec<(&str, [&str; 2])> = TEMPLATE
            .lines()
            .filter_map(|line| {
                line.trim().strip_prefix("--")?.strip_suffix(");")?.split_once(": light-dark(")
            })
            .filter_map(|(name, pair)| Some((name, pair.split_once(", ")?.into())))
            .collect();
        assert_eq!(colours.len(), 22);
        let grounds: Vec<_> = colours.iter().filter(|c| ["paper", "shade"].contains(&c.0)).collect();
        for (name, pair) in colours.iter().filter(|c| !["paper", "shade", "rule"].contains(&c.0)) {
            for (theme, ground) in
                [0, 1].into_iter().flat_map(|theme| grounds.iter().map(move |g| (theme, g)))
            {
                let contrast = contrast(pair[theme], ground.1[theme]);
                assert!(contrast >= 4.5, "{name} on {} of theme {theme}: {contrast:.2}", ground.0);
            }
        }
    }
}
