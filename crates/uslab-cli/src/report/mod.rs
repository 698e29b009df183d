//! `uslab report`: one page of HTML from a record, which no server and no network has to serve.
//!
//! ```text
//!   record::format ──▶ series ──▶ page ◀── chart
//!                                  ▲ ◀──── flame ◀── profile
//! ```

pub mod args;
mod chart;
mod flame;
mod page;
mod series;

use std::fs::File;
use std::path::PathBuf;

use crate::failure::{FAILED, Failure, Outcome, print};
use crate::{output, profile};
use args::Report;

/// Writes the page.
pub fn report(options: &Report) -> Outcome {
    let record = &options.record;
    let fail = |error| Failure::new(FAILED, format_args!("cannot use {}: {error}", record.display()));
    let series = series::read(File::open(record).map_err(fail)?).map_err(fail)?;
    let heap = options.profile.as_deref().map(profile::load).transpose()?;
    let file = options.output.clone().unwrap_or_else(|| {
        let mut name = record.clone().into_os_string();
        name.push(".html");
        PathBuf::from(name)
    });
    for input in [Some(record), options.profile.as_ref()].into_iter().flatten() {
        if output::is_same(input, &file) {
            let line = format_args!("the page would replace {}, which it is made of", input.display());
            return Err(Failure::new(FAILED, line));
        }
    }
    let page = page::page(&series, heap.as_ref());
    if output::is_standard_output(&file) {
        return print(page);
    }
    // The user named the one file; the other lies where other users may have planted a link.
    let written = if options.output.is_some() {
        output::write(&file, page.as_bytes())
    } else {
        output::replace(&file, page.as_bytes(), None)
    };
    written
        .map_err(|error| Failure::new(FAILED, format_args!("cannot write {}: {error}", file.display())))?;
    print(format!("{}\n", file.display()))
}
