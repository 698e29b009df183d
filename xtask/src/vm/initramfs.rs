//! A guest's files: the programs, the libraries that they ask for, and nothing else, as the archive
//! that the kernel unpacks.
//!
//! Programs land in `/bin`, libraries where the host has them, since that is where the dynamic
//! linker looks. The archive is cpio's "newc" format, uncompressed: under emulation it is quicker
//! to copy than to unpack.

use anyhow::{Context, Result, bail};
use cpio::newc::{Builder, ModeFileType, trailer};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The device that the first process finds as its console.
const CONSOLE: (u32, u32) = (5, 1);

/// Writes the archive `to`: `init` as `/init`, each program as `/bin/NAME`, and their libraries.
pub fn write(to: &Path, init: &Path, programs: &[(String, PathBuf)]) -> Result<()> {
    let mut files = BTreeMap::new();
    files.insert(PathBuf::from("init"), init.to_path_buf());
    for (name, program) in programs {
        files.insert(Path::new("bin").join(name), program.clone());
    }
    for library in programs.iter().map(|(_, path)| path.as_path()).chain([init]).map(libraries) {
        for library in library? {
            files.insert(library.strip_prefix("/")?.to_path_buf(), library);
        }
    }
    let mut out = BufWriter::new(File::create(to).with_context(|| format!("cannot write {}", to.display()))?);
    let mut number = 0;
    let mut entry = |name: &Path| -> Result<Builder> {
        number += 1;
        let name = name.to_str().with_context(|| format!("{} is not UTF-8", name.display()))?;
        Ok(Builder::new(name).ino(number).nlink(1))
    };
    for dir in directories(files.keys()) {
        entry(&dir)?.mode(0o755).set_mode_file_type(ModeFileType::Directory).write(&mut out, 0).finish()?;
    }
    entry(Path::new("dev/console"))?
        .mode(0o600)
        .set_mode_file_type(ModeFileType::Char)
        .rdev_major(CONSOLE.0)
        .rdev_minor(CONSOLE.1)
        .write(&mut out, 0)
        .finish()?;
    for (name, source) in &files {
        let bytes = std::fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        let size =
            u32::try_from(bytes.len()).with_context(|| format!("{} is too large", source.display()))?;
        let mut writer =
            entry(name)?.mode(0o755).set_mode_file_type(ModeFileType::Regular).write(&mut out, size);
        writer.write_all(&bytes)?;
        writer.finish()?;
    }
    trailer(&mut out)?;
    out.flush()?;
    Ok(())
}

/// All directories above `files`, and those that the first process needs; parents first.
fn directories<'a>(files: impl Iterator<Item = &'a PathBuf>) -> BTreeSet<PathBuf> {
    files
        .flat_map(|file| file.ancestors().skip(1))
        .chain([Path::new("dev"), Path::new("tmp"), Path::new("proc"), Path::new("sys")])
        .filter(|dir| !dir.as_os_str().is_empty())
        .map(Path::to_path_buf)
        .collect()
}

/// The shared libraries of `program`, and the linker that loads them.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot start ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if text.contains("not found") {
        bail!("{} asks for a library that is not there:\n{text}", program.display());
    }
    // A static program makes ldd fail, and has none.
    Ok(paths_in(&text))
}

/// `NAME => PATH (ADDRESS)` and `PATH (ADDRESS)`; the kernel's own page has no path.
fn paths_in(ldd: &str) -> Vec<PathBuf> {
    ldd.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_the_paths_that_ldd_names() {
        let text = "\tlinux-vdso.so.1 (0x7ffc)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f)\n\t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        assert_eq!(
            paths_in(text),
            [Path::new("/lib/x86_64-linux-gnu/libc.so.6"), Path::new("/lib64/ld-linux-x86-64.so.2")]
        );
        assert!(paths_in("\tstatically linked\n").is_empty());
    }

    #[test]
    fn directories_come_before_what_is_in_them() {
        let files = [PathBuf::from("lib/x/libc.so.6")];
        let all: Vec<PathBuf> = directories(files.iter()).into_iter().collect();
        let at = |name: &str| all.iter().position(|dir| dir == Path::new(name)).unwrap();
        assert!(at("lib") < at("lib/x"));
        assert!(all.contains(&PathBuf::from("proc")));
    }

    #[test]
    fn an_archive_has_the_programs_and_what_they_load() {
        let program = std::env::current_exe().unwrap();
        let to = std::env::temp_dir().join(format!("uslab-initramfs-{}", std::process::id()));
        write(&to, &program, &[("again".into(), program.clone())]).unwrap();
        let names = names(&std::fs::read(&to).unwrap());
        std::fs::remove_file(&to).unwrap();
        for name in ["init", "bin/again", "dev/console"] {
            assert!(names.iter().any(|there| there == name), "{name} is not in {names:?}");
        }
        assert!(names.iter().any(|name| name.contains("libc.so")), "{names:?}");
    }

    fn names(archive: &[u8]) -> Vec<String> {
        let (mut names, mut rest) = (Vec::new(), archive);
        loop {
            let reader = cpio::newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                return names;
            }
            names.push(reader.entry().name().to_string());
            rest = reader.finish().unwrap();
        }
    }
}
