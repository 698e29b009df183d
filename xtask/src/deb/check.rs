//! `cargo xtask deb --check`: runs lintian, then installs, uses and removes the packages in a root
//! of their own.
//!
//! The root is a folder with an empty dpkg database, so dpkg neither reads nor changes the
//! machine's own packages. Other users than root run dpkg in a user namespace, since it gives files
//! to root.

use crate::staged::{Installed, has, output};
use anyhow::{Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Checks the packages.
pub fn run(packages: &[PathBuf]) -> Result<()> {
    lintian(packages)?;
    let scratch = tempfile::tempdir()?;
    let root = scratch.path();
    for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    std::fs::write(root.join("var/lib/dpkg/status"), "")?;

    output(dpkg(root)?.arg("--install").args(packages))?;
    same_bytes(root)?;
    installed(root)?.check()?;
    let names: Vec<&str> =
        packages.iter().filter_map(|path| path.file_name()?.to_str()?.split('_').next()).collect();
    output(dpkg(root)?.arg("--purge").args(names))?;
    let left = left_in(root)?;
    ensure!(left.is_empty(), "the packages leave something behind:\n{left}");
    println!("deb: installed, used and removed in a root of its own; {} packages", packages.len());
    Ok(())
}

/// The paths below the root, but for /var, which has dpkg's database.
fn left_in(root: &Path) -> Result<String> {
    let mut find = Command::new("find");
    output(find.current_dir(root).args([".", "-mindepth", "1", "-path", "./var", "-prune", "-o", "-print"]))
}

fn lintian(packages: &[PathBuf]) -> Result<()> {
    if !has("lintian") {
        bail!("lintian is not installed: apt-get install lintian");
    }
    let mut lintian = Command::new("lintian");
    // It leaves temporary files behind.
    let scratch = tempfile::tempdir()?;
    lintian.env("TMPDIR", scratch.path());
    // Root is allowed, because the packages are the project's. The caller's settings are ignored.
    lintian.args(["--no-cfg", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"]);
    // The tag asks which request the first upload to Debian's archive answers; there is none.
    lintian.args(["--suppress-tags", "initial-upload-closes-no-bugs"]);
    let said = output(lintian.args(packages))?;
    print!("{said}");
    println!("lintian: no error and no warning");
    Ok(())
}

/// dpkg for that root, which lacks the packages' dependencies.
fn dpkg(root: &Path) -> Result<Command> {
    let is_root = output(Command::new("id").arg("-u"))?.trim() == "0";
    let mut command = Command::new(if is_root { "dpkg" } else { "unshare" });
    if !is_root {
        command.args(["--map-root-user", "dpkg"]);
    }
    command.arg(format!("--root={}", root.display())).args(["--log=/dev/null", "--force-depends"]);
    Ok(command)
}

/// The installed files match md5sums.
fn same_bytes(root: &Path) -> Result<()> {
    let said = output(dpkg(root)?.arg("--verify"))?;
    ensure!(said.is_empty(), "files are not what md5sums says:\n{said}");
    Ok(())
}

fn installed(root: &Path) -> Result<Installed> {
    let multiarch = output(Command::new("dpkg-architecture").arg("-qDEB_HOST_MULTIARCH"))?;
    let lib = root.join("usr/lib").join(multiarch.trim());
    Ok(Installed {
        prefix: root.join("usr"),
        preload: lib.join("uslab/libuslab_malloc.so"),
        zsh: root.join("usr/share/zsh/vendor-completions"),
        examples: root.join("usr/share/doc/libuslab-dev/examples"),
        // The file says /usr, which is below the root here: folders of the system count too.
        pkg_config: vec![
            ("PKG_CONFIG_SYSROOT_DIR", root.into()),
            ("PKG_CONFIG_LIBDIR", lib.join("pkgconfig")),
            ("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1".into()),
            ("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1".into()),
        ],
        lib,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_found_in_a_root_below_var() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().join("var/tmp");
        std::fs::create_dir_all(root.join("var/lib/dpkg")).unwrap();
        assert_eq!(left_in(&root).unwrap(), "");
        std::fs::create_dir_all(root.join("usr/lib/variants")).unwrap();
        assert_eq!(left_in(&root).unwrap(), "./usr\n./usr/lib\n./usr/lib/variants\n");
    }
}
