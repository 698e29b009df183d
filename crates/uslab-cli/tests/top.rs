//! `uslab top`: its text, its JSON, and its screen in a terminal.

mod support;

use std::fs;
use std::process::Command;

use serde_json::Value;
use support::{Running, Sandbox, USLAB, outcome, wait_until};

#[test]
fn one_sample_is_printed_as_text_and_as_json() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let pid = running.pid();
    let (code, out, err) = outcome(&mut sandbox.uslab(&["top", &pid, "--once", "-i", "0.05"]));
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with(&format!("uslab top: sleep (pid {pid}), rseq")), "{out}");
    for part in ["\nRSS ", "\nverdict: ", "\nfake-64  ", "\nfake 128  "] {
        assert!(out.contains(part), "{part} is missing:\n{out}");
    }
    assert!(!out.contains("q quit"), "{out}");
    // The only process that publishes needs no name.
    let (code, out, _) = outcome(&mut sandbox.uslab(&["top", "--json", "-i", "0.05", "-n", "3"]));
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, value["pid"].to_string()), (0, pid));
    assert_eq!(value["caches"][0]["rates"]["net_objects_per_s"], 0.0);
    assert!(value["parts"]["rss_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
    assert!(value["verdict"]["cause"].is_string() && value["event"].is_null());
}

#[test]
fn what_cannot_be_watched_is_explained() {
    let sandbox = Sandbox::new();
    let fails = |arguments: &[&str], part: &str| {
        let (code, out, err) = outcome(&mut sandbox.uslab(arguments));
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.contains(part) && err.lines().count() == 1, "{err}");
    };
    fails(&["top", "2147483647"], "no such process: 2147483647");
    fails(&["top"], "no process publishes");
    let me = std::process::id().to_string();
    fails(&["top", &me], "does not run under uslab");
    let (one, two) = (sandbox.sleeper(&[]), sandbox.sleeper(&[]));
    fails(&["top"], "several processes publish; choose one of ");
    drop(two);
    fails(&["top", &one.pid()], "top needs a terminal");
}

#[test]
fn two_files_of_figures_are_compared() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let file = |name: &str| sandbox.root.join(name).to_str().expect("UTF-8").to_owned();
    let (before, after, other) = (file("before"), file("after"), file("other"));
    for (name, command) in [(&before, "info"), (&after, "top")] {
        let out = outcome(&mut sandbox.uslab(&[command, &running.pid(), "--json"])).1;
        fs::write(name, out).expect("written");
    }
    let (code, out, err) = outcome(&mut sandbox.uslab(&["diff", &before, &after]));
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("used ") && out.ends_with("no cache changed\n"), "{out}");
    fs::write(&other, "{}").expect("written");
    for (name, part) in
        [(&other, "it is not what `uslab info PID --json` prints"), (&file("none"), "No such file")]
    {
        let (code, _, err) = outcome(&mut sandbox.uslab(&["diff", &before, name]));
        assert!(code == 1 && err.contains(part), "{err}");
    }
}

/// A terminal that no user sees: tmux with a server of its own.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn start(sandbox: &Sandbox, script: &str) -> Terminal {
        let socket = sandbox.root.join("tmux").to_str().expect("UTF-8").to_owned();
        let terminal = Terminal { socket };
        let mut command = terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24"]);
        command.args(["sh", "-c", script]).env("USLAB_SNAPSHOT", &sandbox.snapshots);
        let (code, _, err) = outcome(command.env("LC_ALL", "C.UTF-8").env_remove("TMUX"));
        assert_eq!(code, 0, "tmux: {err}");
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-S", &self.socket]).args(arguments);
        command
    }

    fn keys(&self, keys: &[&str]) {
        assert_eq!(outcome(self.tmux(&["send-keys"]).args(keys)).0, 0);
    }

    fn screen(&self) -> String {
        outcome(&mut self.tmux(&["capture-pane", "-p"])).1
    }

    fn shows(&self, part: &str) {
        let mut last = String::new();
        let start = std::time::Instant::now();
        wait_until(&format!("the screen shows {part:?}"), || {
            last = self.screen();
            if start.elapsed().as_secs() > 18 {
                eprintln!("{last}");
            }
            last.contains(part)
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]).output();
    }
}

#[test]
fn a_terminal_shows_it_takes_keys_and_is_restored() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let pid = running.pid();
    let script = format!("stty -a >before; {USLAB} top {pid} -i 0.2; stty -a >after; echo back; cat");
    let terminal = Terminal::start(&sandbox, &format!("cd {} && {script}", sandbox.root.display()));
    terminal.shows("fake-64");
    terminal.shows("q quit");
    terminal.keys(&["Down", "Enter"]);
    terminal.shows("fake 128 (cache 1)");
    terminal.keys(&["Escape"]);
    terminal.shows("net/s");
    assert_eq!(outcome(&mut terminal.tmux(&["resize-window", "-x", "100", "-y", "12"])).0, 0);
    terminal.shows("q quit");
    terminal.keys(&["/", "1", "2", "8", "Enter"]);
    terminal.shows("/128");
    wait_until("the filter holds", || !terminal.screen().contains("fake-64"));
    drop(running);
    terminal.shows(&format!("process {pid} has ended: these are its last figures"));
    terminal.keys(&["C-c"]);
    terminal.shows("back");
    let setting = |name: &str| fs::read_to_string(sandbox.root.join(name)).expect("written");
    // The window was resized meanwhile: that line differs.
    let modes = |text: String| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(modes(setting("before")), modes(setting("after")));
}

#[test]
fn a_signal_restores_the_terminal_too() {
    for signal in ["INT", "TERM", "QUIT"] {
        let script = |pid: &str| format!("{USLAB} top {pid}; echo status $?; stty -a");
        let (watched, pid, terminal) = watch(script);
        let (_, out, _) = outcome(Command::new("pgrep").args(["-f", &format!("^{USLAB} top {pid}$")]));
        assert_eq!(outcome(Command::new("kill").args(["-s", signal, out.trim()])).0, 0);
        terminal.shows("status 0");
        wait_until("the shell's modes are back", || terminal.screen().contains(" icanon"));
        drop((terminal, watched));
    }
}

/// A process, and a shell with job control that runs a script about it; waits for its figures.
fn watch(script: impl Fn(&str) -> String) -> ((Running, Sandbox), String, Terminal) {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let pid = running.pid();
    fs::write(sandbox.root.join("script"), script(&pid)).expect("written");
    let root = sandbox.root.display();
    let terminal = Terminal::start(&sandbox, &format!("cd {root} && set -m && . ./script; cat"));
    terminal.shows("fake-64");
    ((running, sandbox), pid, terminal)
}

#[test]
fn a_stopped_screen_gives_the_terminal_back_and_comes_again() {
    // The shell reads the second line when the job has stopped.
    let script = |pid: &str| format!("{USLAB} top {pid}\nstty -a; echo stopped; sleep 2; fg; echo ended\n");
    let (_watched, _, terminal) = watch(script);
    terminal.keys(&["C-z"]);
    terminal.shows("stopped");
    terminal.shows("icanon");
    assert!(!terminal.screen().contains("-icanon"));
    terminal.shows("fake-64");
    terminal.keys(&["q"]);
    terminal.shows("ended");
}

#[test]
fn it_ends_with_its_terminal() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let pid = running.pid();
    let terminal = Terminal::start(&sandbox, &format!("exec {USLAB} top {pid}"));
    terminal.shows("fake-64");
    let is_there = || outcome(Command::new("pgrep").args(["-f", &format!("^{USLAB} top {pid}$")])).0 == 0;
    assert!(is_there());
    drop(terminal);
    wait_until("top has ended", || !is_there());
}
