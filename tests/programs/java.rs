//! A JVM: javac compiles a program, which then collects garbage on several threads, compresses,
//! hashes, allocates memory outside the heap, and starts programs by each launch mechanism of the
//! JVM.
//!
//! The class files and the program's output must equal those of plain runs. Native memory tracking
//! wraps every malloc of the JVM in headers and footers that it checks at each free.

use std::sync::OnceLock;

use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes!(jvm => compiles_and_runs);

const PACKAGE: &str = "default-jdk-headless";
const CLASSES: [&str; 2] = ["Work.class", "Work$Node.class"];

fn compiles_and_runs(mode: Mode) {
    static PLAIN: OnceLock<(Vec<Vec<u8>>, String)> = OnceLock::new();
    let plain = PLAIN.get_or_init(|| {
        let scratch = Scratch::new("java");
        (compile(&scratch, Mode::Plain), run(&scratch, Mode::Plain, &["-XX:+UseSerialGC"]))
    });
    let scratch = Scratch::new("java");
    assert!(compile(&scratch, mode) == plain.0, "{mode:?}: the class files differ");
    let parallel =
        ["-XX:+UseParallelGC", "-XX:ParallelGCThreads=4", "-Djdk.lang.Process.launchMechanism=VFORK"];
    assert_eq!(plain.1, run(&scratch, mode, &parallel), "{mode:?}: other output than without the allocator");
    let tracked = [
        "-XX:+UseG1GC",
        "-XX:NativeMemoryTracking=detail",
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:+PrintNMTStatistics",
        "-Djdk.lang.Process.launchMechanism=FORK",
    ];
    let text = run(&scratch, mode, &tracked);
    let (answers, statistics) = text.split_once("\nNative Memory Tracking:").expect("the statistics");
    assert_eq!(plain.1.trim_end(), answers.trim_end(), "{mode:?}: other output than without the allocator");
    assert!(statistics.contains("malloc="), "{mode:?}: nothing was tracked: {statistics}");
}

fn compile(scratch: &Scratch, mode: Mode) -> Vec<Vec<u8>> {
    let source = scratch.write("Work.java", include_str!("Work.java"));
    let javac =
        Program::new(tool("javac", PACKAGE)).args(["-J-Xmx128m", "-J-XX:TieredStopAtLevel=1", "-d", "."]);
    let outcome = javac.arg(source).run_clean(scratch, mode);
    outcome.expect(outcome.stderr().is_empty(), "the compiler wrote to standard error");
    CLASSES.map(|name| std::fs::read(scratch.join(name)).expect("a class file")).into()
}

fn run(scratch: &Scratch, mode: Mode, options: &[&str]) -> String {
    let java = Program::new(tool("java", PACKAGE)).args(["-Xmx64m", "-cp", "."]).args(options).arg("Work");
    let outcome = java.run_clean(scratch, mode);
    outcome.expect(outcome.stderr().is_empty(), "the JVM wrote to standard error");
    outcome.stdout()
}
