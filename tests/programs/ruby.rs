//! ruby: objects that a compacting collector moves about, threads, forked children and spawned
//! programs; compared with a plain run.

use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes!(forks => collects_and_forks);

fn collects_and_forks(mode: Mode) {
    let scratch = Scratch::new("ruby");
    let script = scratch.write("script.rb", include_str!("script.rb"));
    let ruby = Program::new(tool("ruby", "ruby")).arg(script);
    let (plain, ours) = (ruby.run_clean(&scratch, Mode::Plain), ruby.run_clean(&scratch, mode));
    ours.expect(ours.stderr().is_empty(), "ruby wrote to standard error");
    ours.expect(ours.stdout().ends_with("end\n"), "the script did not come to its end");
    assert_eq!(plain.stdout(), ours.stdout(), "{mode:?}: other output than without the allocator");
}
