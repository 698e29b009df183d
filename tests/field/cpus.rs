//! CPUs and what can be found out about them: no sysfs, no procfs, false lists.
//!
//! Each test changes what `/sys` and `/proc` show in a mount namespace of its own, which takes root.

use uslab_tests::harness::{Mode, Outcome, Program, Scratch, tool};

/// Runs `script` in a mount namespace of its own, unless that is refused.
fn in_own_namespace(name: &str, script: &str, mode: Mode) -> Option<Outcome> {
    let scratch = Scratch::new(name);
    let unshare = || Program::new(tool("unshare", "util-linux")).arg("--mount");
    if !unshare().arg("true").run(&scratch, Mode::Plain).succeeded() {
        eprintln!("NOT TESTED: {name}: unshare --mount is refused here");
        return None;
    }
    let shell = ["sh", "-e", "-c", script];
    Some(unshare().args(shell).run_clean(&scratch, mode))
}

/// The highest CPU that this process may run on, and all the rest of it: each allocation is on that CPU.
const ON_THE_LAST_CPU: &str = "
    last=$(taskset -cp $$ | grep -o '[0-9]*$')
    HIDE
    exec taskset -c $last ls /
";

fn hidden(mode: Mode) {
    let hide = "mount -t tmpfs none /sys; mount -t tmpfs none /proc";
    let script = ON_THE_LAST_CPU.replace("HIDE", hide);
    let Some(outcome) = in_own_namespace("hidden", &script, mode) else { return };
    outcome.expect(outcome.stdout().contains("tmp"), "ls shows no root directory");
}

/// A file system of the container's own lies over the kernel's, and says that there is one CPU.
fn false_list(mode: Mode) {
    let hide = "
        mount -t tmpfs none /mnt; mkdir -p /mnt/cpu; echo 0 >/mnt/cpu/possible
        mount --bind /mnt/cpu /sys/devices/system/cpu
    ";
    let script = ON_THE_LAST_CPU.replace("HIDE", hide);
    let Some(outcome) = in_own_namespace("false", &script, mode) else { return };
    outcome.expect(outcome.stdout().contains("tmp"), "ls shows no root directory");
}

both_modes! {
    neither_sys_nor_proc_is_there => hidden,
    a_false_list_of_cpus_is_not_believed => false_list,
}
