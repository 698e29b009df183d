//! node: child processes and threads that hash, compress, parse and return results. The parent
//! checks them, and the output must equal that of a run without the allocator.

use std::sync::OnceLock;

use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes!(workers => forks_workers);

fn forks_workers(mode: Mode) {
    static PLAIN: OnceLock<String> = OnceLock::new();
    let plain = PLAIN.get_or_init(|| run(Mode::Plain));
    let ours = run(mode);
    assert!(ours.contains("12 results agree"), "{mode:?}: {ours}");
    assert_eq!(plain, &ours, "{mode:?}: node prints something else than without the allocator");
}

fn run(mode: Mode) -> String {
    let scratch = Scratch::new("node");
    let script = scratch.write("workers.js", include_str!("workers.js"));
    let node = tool("node", "nodejs");
    let version = Program::new(&node).arg("--version").run_clean(&scratch, mode).stdout();
    let major: u32 =
        version.trim_start_matches('v').split('.').next().and_then(|v| v.parse().ok()).unwrap_or(0);
    assert!(major >= 18, "node 18 or later is needed, not {version}; on Debian: apt-get install nodejs");
    Program::new(&node).arg(script).limit_s(300).run_clean(&scratch, mode).stdout()
}
