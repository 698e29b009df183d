//! Stages the documents that users read without the repository.
//!
//! They lie as in the repository, so that links among them hold. Of a link to a file that is not
//! staged only the text stays.

use crate::tidy::markdown;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Files and folders, from the repository's root.
const DOCUMENTS: &[&str] = &[
    "README.md",
    "SAFETY.md",
    "CHANGELOG.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "contrib/grafana",
    "crates/uslab-capi/examples",
    "docs/guide",
    "docs/results/idle.svg",
];

/// Copies the documents of the repository at `root` to `to`.
pub fn stage(root: &Path, to: &Path) -> Result<()> {
    super::dist::copy(root, DOCUMENTS, to)?;
    for page in pages(to)? {
        let text = fs::read_to_string(&page)?;
        let place = page.strip_prefix(to)?.to_str().context("a path that is not UTF-8")?;
        let kept = markdown::without_dead_links(place, &text, &|path| to.join(path).exists());
        fs::write(&page, kept).with_context(|| format!("cannot stage {}", page.display()))?;
    }
    Ok(())
}

/// The Markdown files below `folder`.
fn pages(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            pages.append(&mut self::pages(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    Ok(pages)
}
