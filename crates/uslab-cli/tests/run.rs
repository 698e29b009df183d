//! `uslab run`: the environment that the program gets, its exit status, its statistics, and what is
//! said when it cannot be.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use support::{Sandbox, USLAB, compile, is_root, library, outcome};

#[test]
fn the_program_gets_the_library_and_the_directory() {
    let sandbox = Sandbox::new();
    let script =
        "echo $LD_PRELOAD; echo $USLAB_SNAPSHOT; echo ${USLAB_RSEQ-unset}; ls $USLAB_SNAPSHOT/$$ >/dev/null";
    let expected =
        |preload: &str, rseq: &str| format!("{preload}\n{}\n{rseq}\n", sandbox.snapshots.display());
    let library = library().to_str().expect("UTF-8");
    let (code, out, err) = outcome(&mut sandbox.run_script(&[], script));
    assert_eq!((code, out, err.as_str()), (0, expected(library, "unset"), ""));
    let mut command = sandbox.run_script(&["--rseq", "off"], script);
    let (code, out, _) = outcome(command.env("LD_PRELOAD", library).env("USLAB_RSEQ", "1"));
    assert_eq!((code, out), (0, expected(library, "0")));
}

#[test]
fn the_letters_of_debugging_reach_the_program() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.run_script(&["--debug", "FZ,malloc-*"], "echo $USLAB_DEBUG");
    let (code, out, err) = outcome(&mut command);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "FZ,malloc-*\n", ""));
}

#[test]
fn a_value_that_the_library_would_ignore_is_refused_before_the_program_starts() {
    let sandbox = Sandbox::new();
    for (options, why) in [
        (&["--limit", "1x"][..], "it is no SOFT or SOFT,HARD in bytes or percent"),
        (&["--guard=some"], "it is neither all nor a number of milliseconds"),
        (&["--debug", "FQ"], "column 2: 'Q' is none of the letters"),
        (&["--conf", "decay_ms=5,limits=1G"], "there is no setting `limits`"),
    ] {
        let (code, out, err) = outcome(&mut sandbox.run_script(options, "echo started"));
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(options[0].trim_end_matches("=some")) && err.contains(why), "{err}");
    }
}

#[test]
fn the_search_for_leaks_reaches_the_program() {
    let sandbox = Sandbox::new();
    let known = sandbox.root.join("known.txt");
    fs::write(&known, "leak:main\n").expect("a file");
    let script = "echo ${USLAB_LEAKS-unset} ${USLAB_LEAK_SUPPRESSIONS-unset}";
    for (options, expected) in [
        (&[][..], "unset unset\n".to_owned()),
        (&["--leaks"], "1 unset\n".to_owned()),
        (&["--leaks=report"], "report unset\n".to_owned()),
        (&["--leaks", "--leak-suppressions", "known.txt"], format!("1 {}\n", known.display())),
    ] {
        let mut command = sandbox.run_script(options, script);
        let (code, out, err) = outcome(command.current_dir(&sandbox.root));
        assert_eq!((code, out, err.as_str()), (0, expected, ""));
    }
    let mut command = sandbox.run_script(&["--leaks", "--leak-suppressions", "absent"], script);
    let (code, _, err) = outcome(command.current_dir(&sandbox.root));
    assert_eq!(code, 125);
    assert!(err.starts_with("uslab: cannot read absent: "), "{err}");
    let long = sandbox.root.join("x".repeat(200)).join("y".repeat(200));
    fs::create_dir_all(long.parent().expect("a folder")).expect("a folder");
    fs::write(&long, "leak:main\n").expect("a file");
    let long = long.to_str().expect("UTF-8");
    let (code, _, err) = outcome(&mut sandbox.run_script(&["--leaks", "--leak-suppressions", long], script));
    assert!(code == 125 && err.contains("is longer than 255 bytes"), "{err}");
    for wrong in [&["--leaks=all"][..], &["--profile=0"], &["--stats-json", "-"]] {
        let (code, _, err) = outcome(&mut sandbox.run_script(wrong, script));
        assert_eq!(code, 2, "{err}");
    }
}

#[test]
fn without_statistics_the_program_takes_our_place() {
    let sandbox = Sandbox::new();
    let script = "echo $$; exec \"$0\" run -- sh -c 'echo $$; exit 5'";
    let mut command = Command::new("sh");
    command.args(["-c", script, USLAB]).env("USLAB_LIB", library()).env("USLAB_SNAPSHOT", &sandbox.snapshots);
    let (code, out, _) = outcome(&mut command);
    let pids: Vec<&str> = out.lines().collect();
    assert_eq!(code, 5);
    assert_eq!(pids[0], pids[1]);
}

#[test]
fn statistics_are_printed_at_the_end_and_the_file_is_gone() {
    let sandbox = Sandbox::new();
    // Not a shell: dash leaves by _exit(2), and then nothing runs at its end.
    let program = ["run", "--stats", "--rseq", "off", "expr", "3", "=", "4"];
    let (code, out, err) = outcome(&mut sandbox.uslab(&program));
    assert_eq!((code, out.as_str()), (1, "0\n"));
    assert!(err.starts_with("uslab: expr (pid "), "{err}");
    assert!(err.contains("locked (forced by USLAB_RSEQ=0)\nheap:  5 MiB used"), "{err}");
    assert!(err.contains("\nfake-64    64   6300  6400 98%   100 400   60    0     7"), "{err}");
    assert!(!err.contains("slow paths)"), "it ended properly: {err}");
    assert_eq!(sandbox.published(), [""; 0]);
}

#[test]
fn only_the_program_itself_leaves_its_file_to_us() {
    let sandbox = Sandbox::new();
    let script = "ls $USLAB_SNAPSHOT | wc -l; ls $USLAB_SNAPSHOT | wc -l; exec expr 1 + 1";
    let (_, out, err) = outcome(&mut sandbox.run_script(&["--stats"], script));
    let counts: Vec<&str> = out.split_ascii_whitespace().collect();
    assert_eq!(counts.len(), 3);
    assert!(counts[..2].iter().all(|count| matches!(*count, "2" | "3")), "the shell, ls and wc: {out}");
    assert!(err.starts_with("uslab: sh (pid ") && !err.contains("slow paths)"), "{err}");
    assert_eq!(sandbox.published(), [""; 0]);
}

#[test]
fn statistics_can_be_json() {
    let sandbox = Sandbox::new();
    let file = sandbox.root.join("figures.json");
    let path = file.to_str().expect("UTF-8");
    let (code, _, err) = outcome(&mut sandbox.uslab(&["run", "--stats-json", path, "true"]));
    assert_eq!((code, err.as_str()), (0, ""));
    let text = fs::read_to_string(&file).expect("written");
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&value["caches"][0]["name"], &value["finished"]), (&"fake-64".into(), &true.into()));
    let (code, _, err) = outcome(&mut sandbox.uslab(&["run", "--stats-json", "/nonexistent/x", "true"]));
    assert_eq!(code, 125, "it does not start the program");
    assert!(err.contains("cannot write /nonexistent/x"), "{err}");
}

#[test]
fn a_signal_that_ends_the_program_is_in_the_status_and_in_the_table() {
    let sandbox = Sandbox::new();
    let (code, _, err) = outcome(&mut sandbox.run_script(&["--stats"], "kill -KILL $$"));
    assert_eq!(code, 137);
    assert!(err.contains("(ended by signal 9: figures are those of its last slow paths)"), "{err}");
}

#[test]
fn missing_statistics_are_explained() {
    let sandbox = Sandbox::new();
    let (code, _, err) = outcome(sandbox.run_script(&["--stats"], "exit 4").env("FAKE_SILENT", "1"));
    assert_eq!(code, 4);
    assert!(err.starts_with("uslab: no statistics: sh left no snapshot "), "{err}");
    let (_, _, err) = outcome(sandbox.run_script(&["--stats"], ":").env("FAKE_VERSION", "9"));
    assert!(err.contains("it is of version 9, and this program reads version 5"), "{err}");
    let (_, _, err) = outcome(sandbox.run_script(&["--stats"], ":").env("FAKE_TRUNCATED", "1"));
    assert!(err.contains("it is shorter than it says"), "{err}");
    assert_eq!(sandbox.published(), [""; 0]);
}

#[test]
fn programs_that_cannot_run_have_the_shells_statuses() {
    let sandbox = Sandbox::new();
    let text = sandbox.root.join("text");
    fs::write(&text, "no program").expect("written");
    let script = sandbox.root.join("script");
    fs::write(&script, "#!/nonexistent/interpreter\n").expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("permissions");
    let (text, script) = (text.to_str().expect("UTF-8"), script.to_str().expect("UTF-8"));
    for stats in [&["run", "--"][..], &["run", "--stats", "--"]] {
        let fails = |program: &str, code: i32, line: String| {
            let (found, out, err) = outcome(&mut sandbox.uslab(&[stats, &[program]].concat()));
            assert_eq!((found, out.as_str(), err), (code, "", line));
        };
        fails("no-such-program", 127, "uslab: program not found: no-such-program\n".into());
        fails("/no/such/program", 127, "uslab: program not found: /no/such/program\n".into());
        fails(text, 126, format!("uslab: cannot execute {text}: Permission denied\n"));
        fails("/tmp", 126, "uslab: cannot execute /tmp: it is a directory\n".into());
        fails(script, 127, format!("uslab: cannot execute {script}: its interpreter was not found\n"));
    }
}

#[test]
fn the_library_is_looked_for_where_an_installation_has_it() {
    let sandbox = Sandbox::new();
    let (bin, lib) = (sandbox.root.join("bin"), sandbox.root.join("lib"));
    fs::create_dir_all(&bin).expect("a directory");
    let program = bin.join("uslab");
    fs::copy(USLAB, &program).expect("copied");
    let run = || {
        let mut command = Command::new(&program);
        command.args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"]).env_remove("USLAB_LIB");
        outcome(command.env("USLAB_SNAPSHOT", &sandbox.snapshots))
    };
    let (beside, installed) = (bin.join("libuslab_malloc.so"), lib.join("libuslab_malloc.so"));
    let folder = lib.join(format!("{}-linux-gnu/uslab", std::env::consts::ARCH));
    let packaged = folder.join("libuslab_malloc.so");
    let (code, _, err) = run();
    let looked = [&installed, &packaged, &beside].map(|place| place.display().to_string()).join(" and ");
    let looked = format!("looked at {looked} (set USLAB_LIB");
    assert_eq!(code, 125);
    assert!(err.starts_with("uslab: cannot find libuslab_malloc.so; ") && err.contains(&looked), "{err}");
    fs::copy(library(), &beside).expect("copied");
    assert_eq!(run().1, format!("{}\n", beside.display()));
    fs::create_dir_all(&folder).expect("a directory");
    fs::copy(library(), &packaged).expect("copied");
    assert_eq!(run().1, format!("{}\n", packaged.display()));
    fs::copy(library(), &installed).expect("copied");
    assert_eq!(run().1, format!("{}\n", installed.display()));
    let (code, _, err) = outcome(sandbox.uslab(&["run", "true"]).env("USLAB_LIB", "/nonexistent.so"));
    assert_eq!(code, 125);
    assert!(err.contains("looked at /nonexistent.so (set"), "{err}");
}

#[test]
fn a_path_that_cannot_be_preloaded_is_refused() {
    let sandbox = Sandbox::new();
    let odd = sandbox.root.join("a b.so");
    fs::copy(library(), &odd).expect("copied");
    let (code, _, err) = outcome(sandbox.uslab(&["run", "true"]).env("USLAB_LIB", &odd));
    assert_eq!(code, 125);
    assert!(err.contains("ld.so splits paths at blanks and colons"), "{err}");
}

#[test]
fn static_and_privileged_programs_are_warned_about() {
    let sandbox = Sandbox::new();
    let (source, program) = (sandbox.root.join("p.c"), sandbox.root.join("p"));
    fs::write(&source, "int main(void) { return 6; }\n").expect("written");
    let (source, path) = (source.to_str().expect("UTF-8"), program.to_str().expect("UTF-8"));
    compile(&["-static", source, "-o", path]);
    let (code, _, err) = outcome(&mut sandbox.uslab(&["run", "--stats", "--", path]));
    assert_eq!(code, 6);
    let mut lines = err.lines();
    let warning = format!("uslab: warning: {path} is static: it runs on its own allocator");
    assert_eq!(lines.next(), Some(warning.as_str()));
    assert!(lines.next().is_some_and(|line| line.starts_with("uslab: no statistics")), "{err}");

    if is_root() {
        compile(&[source, "-o", path]);
        std::os::unix::fs::chown(&program, Some(65534), None).expect("chown");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("permissions");
        let (code, _, err) = outcome(&mut sandbox.uslab(&["run", "--", path]));
        assert_eq!(code, 6);
        assert!(err.contains("is setuid: the dynamic loader preloads nothing"), "{err}");
    }
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    let sandbox = Sandbox::new();
    fs::set_permissions(&sandbox.snapshots, fs::Permissions::from_mode(0o777)).expect("permissions");
    let (code, _, err) = outcome(&mut sandbox.uslab(&["run", "true"]));
    assert_eq!(code, 125);
    assert!(err.contains("others may write there (mode 777)"), "{err}");
}

#[test]
fn files_of_dead_processes_are_cleaned_up() {
    let sandbox = Sandbox::new();
    sandbox.leave(&i32::MAX.to_string());
    // Files of the user's own, whatever their names.
    let notes = ["2147483646", "note"];
    notes.iter().for_each(|name| fs::write(sandbox.snapshots.join(name), "x").expect("written"));
    assert_eq!(outcome(&mut sandbox.uslab(&["run", "--stats", "true"])).0, 0);
    let mut left = sandbox.published();
    left.sort();
    assert_eq!(left, notes);
}

#[test]
fn the_usual_directory_is_made_when_none_is_named() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.run_script(&["--stats"], "echo $USLAB_SNAPSHOT; stat -c %a $USLAB_SNAPSHOT");
    let (code, out, err) = outcome(command.env_remove("USLAB_SNAPSHOT"));
    assert_eq!(code, 0, "{err}");
    let (directory, mode) = out.trim_end().split_once('\n').expect("two lines");
    let name = directory.rsplit_once("/uslab-").expect("a directory of ours").1;
    assert!(name.parse::<u32>().is_ok() && mode == "700", "{out}");
    assert!(err.starts_with("uslab: sh (pid "), "{err}");
}

#[test]
fn bench_needs_its_sibling() {
    let sandbox = Sandbox::new();
    let program = sandbox.root.join("uslab");
    fs::copy(USLAB, &program).expect("copied");
    let bench = || outcome(Command::new(&program).args(["bench", "pair", "--json"]));
    let (code, _, err) = bench();
    assert_eq!(code, 127);
    let sibling = sandbox.root.join("uslab-bench");
    assert_eq!(err, format!("uslab: there is no {}: the benchmarks are not installed\n", sibling.display()));
    fs::write(&sibling, "#!/bin/sh\necho \"$@\"; exit 8\n").expect("written");
    fs::set_permissions(&sibling, fs::Permissions::from_mode(0o755)).expect("permissions");
    let (code, out, _) = bench();
    assert_eq!((code, out.as_str()), (8, "pair --json\n"));
}
