//! CPUs: detection without sysfs, without procfs, and with false lists; and how often a thread asks
//! for its own.
//!
//! The tests of detection change `/sys` and `/proc` in a mount namespace of their own, which
//! requires root.

use super::compile;
use uslab_tests::harness::{Mode, Program, Scratch, tool};

/// Lists the root directory on the highest CPU that this process may run on, and so allocates
/// there. It does so in a mount namespace in which the commands `hide` have run. Does nothing where
/// such namespaces are refused.
fn list_on_the_last_cpu(name: &str, hide: &str, mode: Mode) {
    let scratch = Scratch::new(name);
    let unshare = || Program::new(tool("unshare", "util-linux")).arg("--mount");
    if !unshare().arg("true").run(&scratch, Mode::Plain).succeeded() {
        eprintln!("NOT TESTED: {name}: unshare --mount is refused here");
        return;
    }
    let last = "last=$(taskset -cp $$ | grep -o '[0-9]*$')";
    let script = format!("{last}\n{hide}\nexec taskset -c $last ls /");
    let outcome = unshare().args(["sh", "-e", "-c", &script]).run_clean(&scratch, mode);
    outcome.expect(outcome.stdout().contains("tmp\n"), "ls shows no root directory");
}

/// The container's own file system covers the kernel's, and lists one CPU.
fn false_list(mode: Mode) {
    let cpus = "/sys/devices/system/cpu";
    let hide = format!("mount -t tmpfs none {cpus}; echo 0 >{cpus}/possible; echo 0 >{cpus}/online");
    list_on_the_last_cpu("false", &hide, mode);
}

/// The program counts the calls of `sched_getcpu`.
fn seldom_asks(mode: Mode) {
    let scratch = Scratch::new("asks");
    let program = compile(&scratch, "asks", &["-rdynamic"]);
    // On several nodes each call asks.
    let outcome = Program::new(program).env("USLAB_NUMA", "0").limit_s(60).run_clean(&scratch, mode);
    outcome.expect(outcome.stdout().ends_with("ok\n"), "the program did not print its last line");
}

both_modes! {
    neither_sys_nor_proc_is_there => |mode| {
        list_on_the_last_cpu("hidden", "mount -t tmpfs none /sys; mount -t tmpfs none /proc", mode)
    },
    a_false_list_of_cpus_is_not_believed => false_list,
    a_call_seldom_asks_for_the_cpu => seldom_asks,
}
