//! The machine that guests boot: QEMU, Debian's cloud kernel, and how the two are started.
//!
//! QEMU is the installed one. The kernel's package is fetched and unpacked below the target
//! directory, never installed. QEMU uses KVM where that boots the kernel, and emulates the
//! processor elsewhere.

use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The processor of a guest, and what depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Arch {
    /// 64-bit x86.
    #[value(name = "x86_64")]
    X86,
    /// 64-bit Arm, emulated on other hosts.
    #[value(name = "aarch64")]
    Arm,
}

impl Arch {
    /// The host's.
    pub const HOST: Arch = if cfg!(target_arch = "aarch64") { Arch::Arm } else { Arch::X86 };

    /// QEMU, and Debian's package of it.
    fn qemu(self) -> (&'static str, &'static str) {
        match self {
            Arch::X86 => ("qemu-system-x86_64", "qemu-system-x86"),
            Arch::Arm => ("qemu-system-aarch64", "qemu-system-arm"),
        }
    }

    /// The machine that QEMU makes.
    fn machine(self) -> &'static str {
        match self {
            Arch::X86 => "pc",
            Arch::Arm => "virt,gic-version=3",
        }
    }

    /// Debian's name.
    fn debian(self) -> &'static str {
        match self {
            Arch::X86 => "amd64",
            Arch::Arm => "arm64",
        }
    }

    /// The package that depends on the newest kernel.
    fn kernel(self) -> String {
        format!("linux-image-cloud-{}", self.debian())
    }

    /// The console, and parameters that only this processor's kernel knows: others would pass them
    /// on to the first process. The test of the timer is off, which a busy host fails.
    fn parameters(self) -> &'static str {
        match self {
            Arch::X86 => "console=ttyS0 no_timer_check",
            Arch::Arm => "console=ttyAMA0",
        }
    }

    /// Rust's target for the programs of guests that are not like the host: static ones, since no
    /// library for them is installed.
    pub fn target(self) -> Option<&'static str> {
        (self != Arch::HOST).then_some(match self {
            Arch::X86 => "x86_64-unknown-linux-musl",
            Arch::Arm => "aarch64-unknown-linux-musl",
        })
    }
}

/// The CPUs and nodes of a guest.
pub struct Shape {
    /// All CPUs. Each node has as many, but for the last ones that have memory alone.
    pub cpus: usize,
    /// Memory of each node, in MiB.
    pub nodes_mib: &'static [usize],
    /// The last nodes, without CPUs.
    pub memory_only: usize,
}

/// The processor of a guest under KVM: the host's, without a register of which QEMU 7.2 cannot
/// write the value that newer processors have. A guest needs it for nothing.
const KVM_CPU: &str = "host,arch-capabilities=off";

/// The guest of most tests.
pub const USUAL: Shape = Shape { cpus: 8, nodes_mib: &[768, 768], memory_only: 0 };

/// How QEMU runs a guest's instructions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// The host's processor does.
    Kvm,
    /// QEMU translates them.
    Emulation,
}

impl Accelerator {
    /// KVM, if it boots `kernel` in time. The device alone does not tell: in a virtual machine it
    /// may be there and refuse, or run a guest a hundred times slower than emulation does.
    fn find(kernel: &Path) -> Accelerator {
        if boots_by_kvm(kernel).unwrap_or(false) { Accelerator::Kvm } else { Accelerator::Emulation }
    }

    /// One word for the user.
    pub fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "KVM",
            Accelerator::Emulation => "emulation",
        }
    }

    fn args(self, cpus: usize) -> [&'static str; 4] {
        match self {
            Accelerator::Kvm => ["-accel", "kvm", "-cpu", KVM_CPU],
            Accelerator::Emulation if cpus > MAX_HOST_THREADS => {
                ["-accel", "tcg,thread=single", "-cpu", "max"]
            }
            Accelerator::Emulation => ["-accel", "tcg,thread=multi", "-cpu", "max"],
        }
    }
}

/// The most emulated CPUs that each have a thread of the host. A CPU that goes offline makes all
/// others spin until each has come by. In threads of the host, more than it has CPUs, each spins to
/// the end of its time slice; in one thread, the next one's turn comes with a `pause`.
const MAX_HOST_THREADS: usize = 8;

/// CPUs of a socket at most: so that the library finds several groups on machines of 16 and 64.
const CPUS_OF_SOCKET: usize = 8;

/// The time that a kernel without a root file system has to end under KVM. Emulated, a whole boot
/// takes half of it.
const BOOT: Duration = Duration::from_secs(6);

/// Whether KVM runs `kernel` to its panic, for want of a root file system, within [`BOOT`].
fn boots_by_kvm(kernel: &Path) -> std::io::Result<bool> {
    if std::fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(false);
    }
    let mut command = Command::new(Arch::HOST.qemu().0);
    command.args(["-machine", Arch::HOST.machine(), "-m", "512M", "-no-reboot", "-nodefaults"]);
    command.args(["-display", "none"]);
    command.args(Accelerator::Kvm.args(1)).arg("-kernel").arg(kernel).args(["-append", "quiet panic=-1"]);
    let mut qemu = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let begin = Instant::now();
    while begin.elapsed() < BOOT {
        if let Some(status) = qemu.try_wait()? {
            return Ok(status.success());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    qemu.kill()?;
    qemu.wait()?;
    Ok(false)
}

/// The means to boot a guest.
pub struct Machine {
    arch: Arch,
    kernel: PathBuf,
    /// How QEMU runs it.
    pub accelerator: Accelerator,
}

impl Machine {
    /// Finds QEMU and a kernel, and downloads a kernel if `dir` has none. The error is one line
    /// that names the missing part. `emulate`: not even a KVM that works is used.
    pub fn find(dir: &Path, arch: Arch, emulate: bool) -> Result<Machine> {
        let (qemu, package) = arch.qemu();
        let version = Command::new(qemu).arg("--version").stdin(Stdio::null()).output();
        if !version.is_ok_and(|output| output.status.success()) {
            bail!("no {qemu}: apt-get install --no-install-recommends {package}");
        }
        let dir = dir.join(if arch == Arch::HOST { "kernel" } else { arch.debian() });
        let kernel = match kept(&dir)? {
            Some(kernel) => kernel,
            None => {
                download(&dir, arch)?;
                kept(&dir)?.with_context(|| format!("{} has no boot/vmlinuz-*", arch.kernel()))?
            }
        };
        let emulate = emulate || arch != Arch::HOST;
        let accelerator = if emulate { Accelerator::Emulation } else { Accelerator::find(&kernel) };
        Ok(Machine { arch, kernel, accelerator })
    }

    /// The command that boots a guest, whose console is the command's standard output. `words` go
    /// to the guest's first process, `parameters` to its kernel beside those of all guests. The
    /// file `disk`, if there is one, is the guest's `/dev/nvme0n1`.
    pub fn boot(
        &self,
        shape: &Shape,
        initramfs: &Path,
        disk: Option<&Path>,
        parameters: &[String],
        words: &[String],
    ) -> Command {
        let mut command = Command::new(self.arch.qemu().0);
        command.args(["-machine", self.arch.machine()]).args(self.accelerator.args(shape.cpus));
        let memory_mib: usize = shape.nodes_mib.iter().sum();
        // The CPUs of a socket share a last-level cache.
        let sockets = shape.cpus.div_ceil(CPUS_OF_SOCKET);
        let each = shape.cpus / sockets;
        command.args(["-m", &format!("{memory_mib}M")]);
        command.args(["-smp", &format!("{},sockets={sockets},cores={each}", shape.cpus)]);
        let with_cpus = shape.nodes_mib.len() - shape.memory_only;
        let each = shape.cpus / with_cpus;
        for (node, mib) in shape.nodes_mib.iter().enumerate() {
            let (first, last) = (node * each, (node + 1) * each - 1);
            let cpus = if node < with_cpus { format!(",cpus={first}-{last}") } else { String::new() };
            command.args(["-object", &format!("memory-backend-ram,id=node{node},size={mib}M")]);
            command.args(["-numa", &format!("node,nodeid={node},memdev=node{node}{cpus}")]);
        }
        command.args(["-display", "none", "-nodefaults", "-serial", "stdio", "-no-reboot"]);
        if let Some(disk) = disk {
            // The driver of this disk is part of the kernel.
            command.args(["-drive", &format!("file={},if=none,id=disk,format=raw", disk.display())]);
            command.args(["-device", "nvme,serial=disk,drive=disk"]);
        }
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(initramfs);
        // A level of 1 lets a panic through and nothing else; `panic=-1` ends QEMU there and then.
        // Pages stay on their nodes: to move one the kernel interrupts all CPUs, and each interrupt
        // waits until the host runs the CPU that it is for. The self-test of ciphers is off:
        // emulated, it took minutes.
        let kernel = "quiet loglevel=1 panic=-1 psi=1 cryptomgr.notests numa_balancing=disable";
        let line: Vec<&str> = [kernel, self.arch.parameters()]
            .into_iter()
            .chain(parameters.iter().map(String::as_str))
            .chain(["--"])
            .collect();
        command.args(["-append", &format!("{} {}", line.join(" "), words.join(" "))]);
        command
    }
}

/// The newest kernel below `dir`.
fn kept(dir: &Path) -> Result<Option<PathBuf>> {
    let Ok(entries) = std::fs::read_dir(dir.join("boot")) else { return Ok(None) };
    let mut kernels = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")) {
            kernels.push(path);
        }
    }
    kernels.sort();
    Ok(kernels.pop())
}

/// apt's settings for packages of another processor: it keeps the lists of these below `dir`, so
/// the system's own stay as they are.
fn apt_settings(dir: &Path, arch: Arch) -> Result<Vec<String>> {
    if arch == Arch::HOST {
        return Ok(Vec::new());
    }
    let state = dir.join("apt");
    std::fs::create_dir_all(state.join("lists/partial"))?;
    std::fs::create_dir_all(state.join("archives/partial"))?;
    std::fs::write(state.join("status"), "")?;
    let (name, state) = (arch.debian(), state.display());
    let settings = [
        format!("APT::Architecture={name}"),
        format!("APT::Architectures={name}"),
        format!("Dir::State={state}"),
        format!("Dir::State::status={state}/status"),
        format!("Dir::Cache={state}"),
    ];
    let settings: Vec<String> = settings.into_iter().flat_map(|value| ["-o".into(), value]).collect();
    quietly(Command::new("apt-get").args(&settings).args(["-q", "update"]))
        .with_context(|| format!("no kernel: apt-get cannot list the packages for {name}"))?;
    Ok(settings)
}

/// Unpacks the newest kernel's package below `dir`.
fn download(dir: &Path, arch: Arch) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let settings = apt_settings(dir, arch)?;
    let package = newest_kernel(arch, &settings)?;
    println!("vm: fetching {package}");
    quietly(Command::new("apt-get").current_dir(dir).args(&settings).args(["-q", "download", &package]))
        .with_context(|| format!("no kernel: apt-get cannot download {package}"))?;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            quietly(Command::new("dpkg-deb").arg("-x").arg(&path).arg(dir))?;
            std::fs::remove_file(path)?;
        }
    }
    // The modules are five times as large as the kernel, and a guest loads none.
    for unused in ["lib", "usr", "apt"] {
        let _ = std::fs::remove_dir_all(dir.join(unused));
    }
    Ok(())
}

fn newest_kernel(arch: Arch, settings: &[String]) -> Result<String> {
    let kernel = arch.kernel();
    let output = Command::new("apt-cache").args(settings).args(["depends", "--important", &kernel]).output();
    let output = output.context("no kernel: without apt-cache (Debian) its package cannot be found")?;
    package_in(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("no kernel: apt-cache knows no {kernel}; apt-get update may help"))
}

/// The kernel that the package depends on.
fn package_in(depends: &str) -> Option<String> {
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .map(String::from)
}

/// Runs a command, and shows its output only if it fails.
fn quietly(command: &mut Command) -> Result<()> {
    let line = crate::workspace::line_of(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` failed: {}", told.trim().lines().last().unwrap_or_default());
    }
    Ok(())
}

/// The directory of kernels and guests' files.
pub fn dir(workspace: &Workspace) -> PathBuf {
    workspace.target.join("vm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_what_the_package_depends_on() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
        assert_eq!(package_in(text).as_deref(), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(package_in("linux-image-cloud-amd64\n"), None);
    }

    #[test]
    fn a_guest_has_all_its_cpus_on_two_nodes_and_its_words_at_the_end() {
        let machine =
            Machine { arch: Arch::X86, kernel: "vmlinuz".into(), accelerator: Accelerator::Emulation };
        let command =
            machine.boot(&USUAL, Path::new("initramfs"), None, &["a=b".into()], &["vm-boots".into()]);
        let line = crate::workspace::line_of(&command);
        assert!(line.contains("cpus=0-3") && line.contains("cpus=4-7"), "{line}");
        assert!(line.ends_with("no_timer_check a=b -- vm-boots'"), "{line}");
    }

    #[test]
    fn the_nodes_of_a_guest_may_have_different_memory() {
        let machine = Machine { arch: Arch::X86, kernel: "vmlinuz".into(), accelerator: Accelerator::Kvm };
        let shape = Shape { cpus: 16, nodes_mib: &[512, 256, 1024, 256], memory_only: 0 };
        let line = crate::workspace::line_of(&machine.boot(&shape, Path::new("initramfs"), None, &[], &[]));
        for part in [
            "-accel kvm",
            "-smp 16,sockets=2,cores=8",
            "-m 2048M",
            "id=node2,size=1024M",
            "memdev=node3,cpus=12-15",
        ] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }

    #[test]
    fn a_node_of_a_guest_may_have_memory_alone() {
        let machine = Machine { arch: Arch::X86, kernel: "vmlinuz".into(), accelerator: Accelerator::Kvm };
        let shape = Shape { cpus: 4, nodes_mib: &[512, 256], memory_only: 1 };
        let line = crate::workspace::line_of(&machine.boot(&shape, Path::new("initramfs"), None, &[], &[]));
        assert!(line.contains("memdev=node0,cpus=0-3 ") && line.contains("memdev=node1 "), "{line}");
    }

    #[test]
    fn an_empty_directory_keeps_no_kernel() {
        assert!(kept(Path::new("/nonexistent")).unwrap().is_none());
    }
}
