//! Runs a test in both modes, each in a process of its own; or in the mode that the environment
//! names.

use super::again::again;

/// The values of `USLAB_RSEQ` to test: `1`, which is as none, and `0`, or that of the two which the
/// environment has, as in CI. A build that registers threads is tested with `own` and `0`.
pub fn modes() -> &'static [&'static str] {
    match std::env::var("USLAB_RSEQ").as_deref() {
        Ok("0") => &["0"],
        Ok("own") => &["own", "0"],
        Ok(_) => &["1"],
        Err(_) => &["1", "0"],
    }
}

/// Runs `body` in a process of its own in each of the [`modes`], with `environment` added.
pub fn in_both_modes(name: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    for &mode in modes() {
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
