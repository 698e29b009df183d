//! What dpkg is told of a package: `DEBIAN/` with control, md5sums, symbols and triggers, and in its documentation the copyright and Debian's changelog.
//!
//! Needed libraries are read from the files themselves by dpkg-shlibdeps, exported symbols by dpkg-gensymbols. No package has a maintainer script:
//! nothing runs at installation but ldconfig, by its trigger.

use super::Release;
use super::tree::{Package, compress, list, write};
use crate::capi;
use crate::staged::output;
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Completes the trees of all packages. `scratch` is a folder for files that the tools want to see.
pub fn write_all(
    workspace: &Workspace,
    release: &Release,
    packages: &[Package],
    scratch: &Path,
) -> Result<()> {
    let source = scratch.join("trees/source");
    write(&source.join("debian/control"), stanzas(release, packages))?;
    write(&source.join("debian/changelog"), changelog(release)?)?;
    for package in packages {
        let doc = package.tree.join("usr/share/doc").join(package.name);
        compress(&source.join("debian/changelog"), &doc.join("changelog.Debian.gz"))?;
        write(&doc.join("copyright"), copyright(workspace, package)?)?;
        let debian = package.tree.join("DEBIAN");
        write(&debian.join("md5sums"), sums(&package.tree)?)?;
        if package.section == "libs" {
            write(&debian.join("triggers"), "activate-noawait ldconfig\n")?;
            symbols(release, package, &source, &debian.join("symbols"))?;
            let major = capi::SONAME.rsplit('.').next().unwrap_or_default();
            // Before 1.0 any version may change the interface: who was linked with one needs it, or a later one.
            let shlibs = format!("libuslab {major} {} (>= {})\n", package.name, release.upstream());
            write(&debian.join("shlibs"), shlibs)?;
        }
        let mut depends = libraries(package, &source)?;
        depends.extend(package.depends.iter().cloned());
        write(&debian.join("control"), control(release, package, &depends.join(", "))?)?;
        settle(&package.tree, release.epoch_s)?;
    }
    Ok(())
}

/// What dpkg's tools ask of the source package, there being none.
fn stanzas(release: &Release, packages: &[Package]) -> String {
    let mut text = format!("Source: uslab\nMaintainer: {}\n", release.maintainer);
    for package in packages {
        let _ =
            write!(text, "\nPackage: {}\nArchitecture: any\nSection: {}\n", package.name, package.section);
        if package.multi_arch_same {
            text += "Multi-Arch: same\n";
        }
    }
    text
}

fn control(release: &Release, package: &Package, depends: &str) -> Result<String> {
    let mut text = format!("Package: {}\n", package.name);
    if package.name != "uslab" {
        text += "Source: uslab\n";
    }
    let _ = write!(
        text,
        "Version: {}\nArchitecture: {}\nMaintainer: {}\nInstalled-Size: {}\n",
        release.version,
        release.architecture,
        release.maintainer,
        installed_kib(&package.tree)?
    );
    if !depends.is_empty() {
        let _ = writeln!(text, "Depends: {depends}");
    }
    let _ = writeln!(text, "Section: {}\nPriority: optional", package.section);
    if package.multi_arch_same {
        text += "Multi-Arch: same\n";
    }
    let (line, more) = package.description;
    let _ = writeln!(text, "Description: {line}");
    more.lines().for_each(|line| text += &format!(" {line}\n"));
    Ok(text)
}

/// As dpkg-gencontrol counts: files in whole KiB, one for everything else.
fn installed_kib(tree: &Path) -> Result<u64> {
    let mut kib = 0;
    for entry in output(Command::new("find").arg(tree).args(["-printf", "%y %s\n"]))?.lines() {
        let bytes = entry.strip_prefix("f ").map(str::parse::<u64>).transpose()?;
        kib += bytes.map_or(1, |bytes| bytes.div_ceil(1024));
    }
    Ok(kib)
}

fn sums(tree: &Path) -> Result<String> {
    let mut sum = Command::new("md5sum");
    sum.current_dir(tree);
    for file in list(&tree.join("usr"))? {
        if !file.is_symlink() {
            sum.arg(file.strip_prefix(tree)?);
        }
    }
    output(&mut sum)
}

/// The packages of the libraries that the package's own files name.
fn libraries(package: &Package, source: &Path) -> Result<Vec<String>> {
    let mut ask = Command::new("dpkg-shlibdeps");
    ask.current_dir(source).arg("-O");
    let mut any = false;
    for file in list(&package.tree.join("usr"))? {
        if !file.is_symlink() && is_dynamic(&file)? {
            ask.arg(file);
            any = true;
        }
    }
    if !any {
        return Ok(Vec::new());
    }
    let answer = output(&mut ask)?;
    let depends = answer.lines().find_map(|line| line.strip_prefix("shlibs:Depends=")).unwrap_or_default();
    Ok(depends.split(", ").filter(|one| !one.is_empty()).map(str::to_owned).collect())
}

/// ELF, and no object or archive: a program or a shared library.
fn is_dynamic(file: &Path) -> Result<bool> {
    let bytes = std::fs::read(file)?;
    Ok(bytes.starts_with(b"\x7fELF") && matches!(bytes.get(16), Some(2 | 3)))
}

/// What the library exports, to a file: to standard output the tool writes how that differs from the last time, too.
fn symbols(release: &Release, package: &Package, source: &Path, to: &Path) -> Result<()> {
    let mut ask = Command::new("dpkg-gensymbols");
    ask.current_dir(source).arg(format!("-p{}", package.name)).arg(format!("-v{}", release.upstream()));
    ask.arg(format!("-P{}", package.tree.display())).arg(format!("-O{}", to.display()));
    output(&mut ask)?;
    Ok(std::fs::set_permissions(to, PermissionsExt::from_mode(0o644))?)
}

fn changelog(release: &Release) -> Result<String> {
    let date = output(Command::new("date").env("LC_ALL", "C").args([
        "-u",
        "-R",
        "-d",
        &format!("@{}", release.epoch_s),
    ]))?;
    Ok(format!(
        "uslab ({}) unstable; urgency=medium\n\n  * Made by `cargo xtask deb`. What changed in uslab is in changelog.gz.\n\n \
         -- {}  {}\n",
        release.version,
        release.maintainer,
        date.trim()
    ))
}

/// In the machine-readable form, with the text of MIT and the place of Apache's, and with what is compiled in.
fn copyright(workspace: &Workspace, package: &Package) -> Result<String> {
    let mit = std::fs::read_to_string(workspace.root.join("LICENSE-MIT")).context("no LICENSE-MIT")?;
    let holder = mit
        .lines()
        .find_map(|line| line.strip_prefix("Copyright (c) "))
        .context("no copyright in LICENSE-MIT")?;
    let text = mit.split_once(holder).map_or("", |(_, text)| text).trim();
    let text: String = text
        .lines()
        .map(|line| if line.trim().is_empty() { " .\n".into() } else { format!(" {line}\n") })
        .collect();
    let crates: String = crates(workspace, package)?.iter().map(|one| format!("  {one}\n")).collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: uslab\n\
         Comment:\n The files of this package are compiled with Rust's standard library (MIT or Apache-2.0)\n \
         and these packages of crates.io, under the licenses in brackets:\n .\n{crates}\n\
         Files: *\nCopyright: {holder}\nLicense: Expat or Apache-2.0\n\n\
         License: Expat\n{text}\n\
         License: Apache-2.0\n On Debian systems the text of the Apache License, version 2.0, is in\n \
         /usr/share/common-licenses/Apache-2.0.\n"
    ))
}

/// What Cargo compiles into the package from elsewhere: `libc 0.2.191 (MIT OR Apache-2.0)`.
fn crates(workspace: &Workspace, package: &Package) -> Result<Vec<String>> {
    let mut tree = workspace.cargo(&["tree", "--offline", "--locked", "--edges", "normal,no-proc-macro"]);
    tree.args(["--prefix", "none", "--no-dedupe", "--format", "{p} ({l})"]);
    for name in package.crates {
        tree.args(["--package", name]);
    }
    let mut crates: Vec<String> = output(&mut tree)?
        .lines()
        // The workspace's own come with their folder.
        .filter(|line| !line.contains("(/") && !line.trim().is_empty())
        .map(|line| line.replacen(" v", " ", 1))
        .collect();
    crates.sort();
    crates.dedup();
    Ok(crates)
}

/// Modes of folders and all times, last of all.
fn settle(tree: &Path, epoch_s: u64) -> Result<()> {
    for folder in output(Command::new("find").arg(tree).args(["-type", "d"]))?.lines() {
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
    }
    let time = format!("@{epoch_s}");
    output(Command::new("find").arg(tree).args(["-exec", "touch", "-h", "-d", &time, "{}", "+"])).map(drop)
}
