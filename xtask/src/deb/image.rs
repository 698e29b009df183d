//! The Dockerfile of docs/guide/containers.md, built and run without Docker: a copy of the
//! machine's system that takes all changes in memory (overlayfs), in namespaces of mounts and
//! processes.
//!
//! It knows the instructions that the page uses. `FROM` is this machine: the packages are for its
//! system. The container's program is a small server in Python.

use crate::staged::output;
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Command;

/// The page.
const PAGE: &str = "docs/guide/containers.md";

/// The server that the Dockerfile copies.
const SERVER: &str = "import time\nsessions = [bytearray(600) for i in range(50000)]\nprint('ready', flush=True)\ntime.sleep(60)\n";

/// Builds the page's image with the packages, runs it, and asks it what the page asks.
pub fn check(workspace: &Workspace, packages: &[PathBuf]) -> Result<()> {
    let page = std::fs::read_to_string(workspace.root.join(PAGE))?;
    let build = tempfile::tempdir()?;
    std::fs::write(build.path().join("server.py"), SERVER)?;
    for package in packages {
        std::fs::copy(package, build.path().join(package.file_name().context("a package's name")?))?;
    }
    let script = build.path().join("container.sh");
    std::fs::write(&script, container(&page)?)?;
    let is_root = output(Command::new("id").arg("-u"))?.trim() == "0";
    let mut unshare = Command::new("unshare");
    if !is_root {
        unshare.arg("--map-root-user");
    }
    unshare.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-eu"]).arg(&script);
    let said = output(unshare.current_dir(build.path()))?;
    let (figures, mapped) = said.split_once("@@\n").context("two answers of the container")?;
    ensure!(figures.contains("python3") && figures.contains("MODE"), "`uslab info` wrote\n{figures}");
    let mapped: u32 = mapped.trim().parse().context("a number of mappings")?;
    ensure!(mapped > 0, "the library is not mapped in the container's first process");
    println!("deb: the guide's Dockerfile gives a container whose process runs on uslab");
    Ok(())
}

/// A script that makes the page's container and runs the page's questions in it.
fn container(page: &str) -> Result<String> {
    let dockerfile = block(page, "```dockerfile\n")?;
    let mut script = "mkdir base && mount -t tmpfs tmpfs base && mkdir base/upper base/work base/root\n\
         mount -t overlay overlay -o lowerdir=/,upperdir=base/upper,workdir=base/work base/root\n\
         mount -t proc proc base/root/proc && mount --rbind /dev base/root/dev\n\
         mount -t tmpfs tmpfs base/root/run && mount -t tmpfs tmpfs base/root/tmp\n"
        .to_owned();
    let (mut environment, mut command) = (String::new(), String::new());
    for line in dockerfile.lines().filter(|line| !line.trim().is_empty()) {
        let (instruction, rest) = line.split_once(' ').with_context(|| format!("no instruction: {line}"))?;
        let enter = |what: &str| format!("chroot base/root env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin {what}");
        match instruction {
            "FROM" => {}
            "COPY" => {
                let (from, to) = rest.split_once(' ').context("COPY: one source")?;
                script += &format!("mkdir -p base/root{to} && cp {from} base/root{to}\n");
            }
            "ENV" => environment += &format!("{rest} "),
            "RUN" => {
                script += &enter(&format!(
                    "{environment}sh -c {} > log 2>&1 || {{ cat log; exit 1; }}\n",
                    quoted(rest)
                ))
            }
            "CMD" => {
                let words: Vec<String> = serde_json::from_str(rest).context("CMD: a list")?;
                command = enter(&format!("{environment}{}", words.join(" ")));
            }
            _ => anyhow::bail!("{PAGE} uses {instruction}, which this check does not know"),
        }
    }
    ensure!(!command.is_empty(), "{PAGE} has no CMD");
    script += &format!("{command} > said &\nuntil grep -q ready said; do kill -0 $! && sleep 0.1; done\n");
    // A container's first process has number 1; here the namespace's first is this script.
    let questions = block(page, "```sh\ndocker exec")?;
    let questions: Vec<&str> =
        questions.lines().filter_map(|line| line.split_once("CONTAINER ").map(|(_, asked)| asked)).collect();
    ensure!(questions.len() == 2, "{PAGE} asks {} questions", questions.len());
    for (at, question) in questions.iter().enumerate() {
        let question = question.replace("/proc/1/", "/proc/$!/");
        let mark = if at == 0 { "echo @@" } else { "kill $!" };
        script += &format!(
            "chroot base/root env -i PATH=/usr/bin:/bin {} {question}\n{mark}\n",
            environment.split(' ').find(|set| set.starts_with("USLAB_SNAPSHOT=")).unwrap_or_default()
        );
    }
    Ok(script)
}

/// The first block of the page that begins so, without its fences.
fn block<'a>(page: &'a str, begin: &str) -> Result<&'a str> {
    let start = page.find(begin).with_context(|| format!("{PAGE} has no block {begin:?}"))?;
    let body = &page[start..];
    let body = &body[body.find('\n').map_or(0, |at| at + 1)..];
    Ok(&body[..body.find("```").context("the end of the block")?])
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::container;

    #[test]
    fn the_guides_page_has_a_dockerfile_that_the_check_knows() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let script = container(&std::fs::read_to_string(root.join(super::PAGE)).unwrap()).unwrap();
        println!("{script}");
        assert!(script.contains(" python3 /srv/server.py > said &"), "{script}");
    }

    #[test]
    fn each_instruction_is_a_step() {
        let page = "```dockerfile\nFROM x\nCOPY a_*.deb /tmp/\nRUN echo 'a'\nENV A=1\nCMD [\"b\", \"c\"]\n```\n\
                    ```sh\ndocker exec CONTAINER uslab info\ndocker exec CONTAINER grep x /proc/1/maps\n```\n";
        let script = container(page).unwrap();
        assert!(script.contains("cp a_*.deb base/root/tmp/\n"), "{script}");
        assert!(script.contains("sh -c 'echo '\\''a'\\''' > log"), "{script}");
        assert!(script.contains(" A=1 b c > said &"), "{script}");
        assert!(script.contains(" grep x /proc/$!/maps\nkill $!"), "{script}");
        assert!(container(&page.replace("FROM", "VOLUME")).is_err());
    }
}
