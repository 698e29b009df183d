//! Runs a test in both modes, each in a process of its own.

use super::again::again;

/// Runs `body` in a process of its own in each mode, with `environment` added. If the tests run
/// under `USLAB_RSEQ=own`, that holds in rseq mode, too.
pub fn in_both_modes(name: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    let own = std::env::var("USLAB_RSEQ").is_ok_and(|value| value == "own");
    for mode in [if own { "own" } else { "1" }, "0"] {
        let environment = [environment, &[("USLAB_RSEQ", mode)]].concat();
        let Some(output) = again(name, &environment) else { return body() };
        let text = String::from_utf8_lossy(&output.stdout);
        for line in text.lines().filter(|line| line.contains(": ")) {
            println!("{line}");
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "USLAB_RSEQ={mode}: {}\n{text}\n{errors}", output.status);
    }
}
