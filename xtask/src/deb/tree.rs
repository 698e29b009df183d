//! Where the files of the stage lie on a Debian system: one tree for each package, with everything but what dpkg itself is told.
//!
//! Every file of the stage goes to one package or is named in [`LEFT_OUT`]; one that is neither is an error, so that nothing new is forgotten.
//! Modes are set here, never taken from the stage: they must not depend on who staged it.

use super::Release;
use crate::capi;
use crate::staged::output;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// One package, laid out.
pub struct Package {
    pub name: &'static str,
    pub section: &'static str,
    /// Whether it may be installed for several architectures at a time.
    pub multi_arch_same: bool,
    /// The crates that are compiled into it, with what they depend on.
    pub crates: &'static [&'static str],
    /// The packages that it needs, beside those of the libraries that its files name.
    pub depends: Vec<String>,
    /// One line, then more.
    pub description: (&'static str, &'static str),
    /// Where it is laid out.
    pub tree: PathBuf,
}

/// What the stage has and no package: files that are remade for Debian, and the benchmarks.
const LEFT_OUT: &[&str] = &[
    "bin/uslab-bench",
    "lib/pkgconfig/uslab.pc",
    "lib/cmake/uslab/uslab-config.cmake",
    "share/doc/uslab/CHANGELOG.md",
    "share/doc/uslab/LICENSE-MIT",
    "share/doc/uslab/LICENSE-APACHE",
];

/// Where the shells look for completions: in the stage, and in Debian's packages, for which its zsh has a folder of its own.
const COMPLETIONS: &[(&str, &str)] = &[
    ("share/bash-completion/completions", "share/bash-completion/completions"),
    ("share/fish/vendor_completions.d", "share/fish/vendor_completions.d"),
    ("share/zsh/site-functions", "share/zsh/vendor-completions"),
];

/// Lays all packages out below `to`.
pub fn lay_out(workspace: &Workspace, release: &Release, stage: &Path, to: &Path) -> Result<Vec<Package>> {
    let packages = packages(release, to);
    let [library, dev, command] = &packages[..] else { bail!("there are three packages") };
    let (lib, version) = (release.lib(), release.upstream());
    let below_usr = format!("lib/{}", release.multiarch);
    let mut files = Files { stage, taken: LEFT_OUT.iter().map(|name| name.to_string()).collect() };

    let shared = format!("libuslab.so.{version}");
    files.put(&format!("lib/{shared}"), &library.tree.join(&lib).join(&shared), 0o644)?;
    strip(&library.tree.join(&lib).join(&shared), &["--strip-unneeded"])?;
    files.put_link(&format!("lib/{}", capi::SONAME), &library.tree.join(&lib).join(capi::SONAME))?;

    files.put_link("lib/libuslab.so", &dev.tree.join(&lib).join("libuslab.so"))?;
    let archive = dev.tree.join(&lib).join("libuslab.a");
    files.put("lib/libuslab.a", &archive, 0o644)?;
    strip(&archive, &["--strip-debug", "--enable-deterministic-archives"])?;
    files.put_all("include", |name| dev.tree.join("usr/include").join(name))?;
    write(&dev.tree.join(&lib).join("pkgconfig/uslab.pc"), capi::pkgconfig(version, "/usr", &below_usr))?;
    let cmake = dev.tree.join(&lib).join("cmake/uslab");
    write(&cmake.join("uslab-config.cmake"), capi::cmake(&below_usr))?;
    let name = "uslab-config-version.cmake";
    files.put(&format!("lib/cmake/uslab/{name}"), &cmake.join(name), 0o644)?;

    files.put("bin/uslab", &command.tree.join("usr/bin/uslab"), 0o755)?;
    strip(&command.tree.join("usr/bin/uslab"), &[])?;
    // Nothing is linked with it, so it has no soname, and its place is none where the linker looks.
    let preload = command.tree.join(&lib).join("uslab/libuslab_malloc.so");
    files.put("lib/libuslab_malloc.so", &preload, 0o644)?;
    strip(&preload, &["--strip-unneeded"])?;
    for (folder, place) in COMPLETIONS {
        files.put_all(folder, |name| command.tree.join("usr").join(place).join(name))?;
    }

    files.put_manual(&dev.tree, &command.tree)?;
    let doc = dev.tree.join("usr/share/doc/libuslab-dev");
    files.put_all("share/doc/uslab/crates/uslab-capi/examples", |name| doc.join("examples").join(name))?;
    files.put_all("share/doc/uslab/docs/guide", |name| doc.join("guide").join(name))?;
    for page in list(&doc.join("guide"))? {
        let text = std::fs::read_to_string(&page)?;
        write(&page, text.replace("../../crates/uslab-capi/examples", "../examples"))?;
    }
    files.put("share/doc/uslab/README.md", &command.tree.join("usr/share/doc/uslab/README.md"), 0o644)?;
    files.all_taken()?;
    for package in &packages {
        let doc = package.tree.join("usr/share/doc").join(package.name);
        std::fs::create_dir_all(&doc)?;
        compress(&workspace.root.join("CHANGELOG.md"), &doc.join("changelog.gz"))?;
    }
    Ok(packages)
}

fn packages(release: &Release, to: &Path) -> Vec<Package> {
    let tree = |name: &str| to.join(name);
    vec![
        Package {
            name: "libuslab1",
            section: "libs",
            multi_arch_same: true,
            crates: &["uslab-capi"],
            depends: Vec::new(),
            description: (
                "Linux slab allocator for user space (shared library)",
                "uslab is the slab allocator of the Linux kernel rebuilt for programs: caches of\n\
                 objects of one size, served from arrays of each CPU without lock or atomic\n\
                 instruction, a malloc on top, and shrinkers, with which a program's own caches\n\
                 give entries up when memory is short.\n\
                 .\n\
                 This package has the library that programs are linked with.",
            ),
            tree: tree("libuslab1"),
        },
        Package {
            name: "libuslab-dev",
            section: "libdevel",
            multi_arch_same: true,
            crates: &["uslab-capi"],
            depends: vec![format!("libuslab1 (= {})", release.version), "libc6-dev".into()],
            description: (
                "Linux slab allocator for user space (development files)",
                "uslab is the slab allocator of the Linux kernel rebuilt for programs: caches of\n\
                 objects of one size, served from arrays of each CPU without lock or atomic\n\
                 instruction, a malloc on top, and shrinkers, with which a program's own caches\n\
                 give entries up when memory is short.\n\
                 .\n\
                 This package has headers for C and C++ and one with the kernel's names, the\n\
                 static library, what pkg-config and CMake read, manual pages and examples.",
            ),
            tree: tree("libuslab-dev"),
        },
        Package {
            name: "uslab",
            section: "utils",
            multi_arch_same: false,
            crates: &["uslab-cli", "uslab-preload"],
            depends: Vec::new(),
            description: (
                "run programs on the uslab allocator and look at their caches",
                "uslab is the slab allocator of the Linux kernel rebuilt for programs: caches of\n\
                 objects of one size, served from arrays of each CPU without lock or atomic\n\
                 instruction, and a malloc on top.\n\
                 .\n\
                 This package has a library that takes the place of malloc in unmodified\n\
                 programs, and the command that starts programs with it and shows the caches of\n\
                 running ones, as /proc/slabinfo shows the kernel's.",
            ),
            tree: tree("uslab"),
        },
    ]
}

/// The stage, and what of it has a place.
struct Files<'a> {
    stage: &'a Path,
    taken: BTreeSet<String>,
}

impl Files<'_> {
    fn put(&mut self, name: &str, to: &Path, mode: u32) -> Result<()> {
        let from = self.stage.join(name);
        create_parent(to)?;
        std::fs::copy(&from, to).with_context(|| format!("cannot copy {}", from.display()))?;
        std::fs::set_permissions(to, PermissionsExt::from_mode(mode))?;
        self.taken.insert(name.into());
        Ok(())
    }

    fn put_link(&mut self, name: &str, to: &Path) -> Result<()> {
        create_parent(to)?;
        symlink(std::fs::read_link(self.stage.join(name))?, to)?;
        self.taken.insert(name.into());
        Ok(())
    }

    /// Puts every file below `folder` to its place, given its name in there.
    fn put_all(&mut self, folder: &str, place: impl Fn(&Path) -> PathBuf) -> Result<()> {
        let from = self.stage.join(folder);
        for file in list(&from)? {
            let name = file.strip_prefix(&from)?;
            self.put(&format!("{folder}/{}", name.display()), &place(name), 0o644)?;
        }
        Ok(())
    }

    /// Manual pages, compressed: of functions to `dev`, of the command and what it preloads to `command`. A page that only leads to another is a
    /// link.
    fn put_manual(&mut self, dev: &Path, command: &Path) -> Result<()> {
        for page in list(&self.stage.join("share/man"))? {
            let name = page.strip_prefix(self.stage)?.to_path_buf();
            let tree = if name.starts_with("share/man/man3") { dev } else { command };
            let to = tree.join("usr").join(format!("{}.gz", name.display()));
            create_parent(&to)?;
            let text = std::fs::read_to_string(&page)?;
            match text.strip_prefix(".so ").and_then(|rest| Path::new(rest.trim()).file_name()) {
                Some(target) => symlink(format!("{}.gz", target.display()), &to)?,
                None => compress(&page, &to)?,
            }
            self.taken.insert(name.display().to_string());
        }
        Ok(())
    }

    fn all_taken(&self) -> Result<()> {
        for file in list(self.stage)? {
            let name = file.strip_prefix(self.stage)?.display().to_string();
            if !self.taken.contains(&name) {
                bail!("{name} is staged and in no package: give it a place in xtask/src/deb/tree.rs");
            }
        }
        Ok(())
    }
}

/// Without `more` everything goes that a program does not need to run.
fn strip(file: &Path, more: &[&str]) -> Result<()> {
    // What compilers leave about themselves is of no use either.
    let sections = ["--remove-section=.comment", "--remove-section=.note"];
    output(Command::new("strip").args(sections).args(more).arg(file)).map(drop)
}

/// gzip with neither name nor time in it.
pub fn compress(from: &Path, to: &Path) -> Result<()> {
    create_parent(to)?;
    let gzip =
        Command::new("gzip").args(["-9", "-n", "-c"]).arg(from).output().context("cannot start gzip")?;
    if !gzip.status.success() {
        bail!("gzip failed: {}", String::from_utf8_lossy(&gzip.stderr).trim());
    }
    write(to, gzip.stdout)
}

/// Writes a file that all may read.
pub fn write(to: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    create_parent(to)?;
    std::fs::write(to, bytes).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(std::fs::set_permissions(to, PermissionsExt::from_mode(0o644))?)
}

fn create_parent(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), |parent| Ok(std::fs::create_dir_all(parent)?))
}

/// The files and links below a folder, in order of their names.
pub fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() { open.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    Ok(found)
}
