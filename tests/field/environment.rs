//! The environment that a process starts in: layouts of the address space, limits, missing
//! descriptors, another user namespace. A program must print the same with and without the
//! allocator.

use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes!(
    layouts => every_layout_of_the_address_space,
    limits => every_limit,
    descriptors => no_standard_descriptors,
    namespace => a_user_namespace,
);

/// Builds and drops a tree, starts a child, and prints a checksum.
const SCRIPT: &str = "my @a = map { { n => $_, l => [1 .. 20] } } 1 .. 20000;\n\
                      my $sum = 0; $sum += $_->{n} * @{$_->{l}} for @a; @a = ();\n\
                      print \"$sum \", `echo child`;";

fn perl() -> Program {
    Program::new(tool("perl", "perl")).args(["-e", SCRIPT])
}

/// Starts perl from a shell that first runs `setting`.
fn perl_after(setting: &str) -> Program {
    let script = format!("{setting} && exec perl -e \"$0\"");
    Program::new(tool("sh", "dash")).args(["-c", &script, SCRIPT])
}

fn prints_the_same(name: &str, program: &Program, mode: Mode) {
    let scratch = Scratch::new(name);
    let wanted = perl().run_clean(&scratch, Mode::Plain).stdout();
    let outcome = program.run_clean(&scratch, mode);
    outcome.expect(outcome.stdout() == wanted, &format!("{name}: other output than {wanted:?}"));
}

fn every_layout_of_the_address_space(mode: Mode) {
    for flag in ["--addr-no-randomize", "--addr-compat-layout", "--read-implies-exec", "--3gb"] {
        let program = Program::new(tool("setarch", "util-linux")).arg(flag).arg("perl");
        prints_the_same(flag, &program.args(["-e", SCRIPT]), mode);
    }
    // The kernel then places mappings upwards from low addresses.
    prints_the_same("legacy-layout", &perl_after("ulimit -s unlimited"), mode);
}

fn every_limit(mode: Mode) {
    for limit in ["ulimit -v 200000", "ulimit -d 150000", "ulimit -n 8", "ulimit -l 0", "ulimit -s 256"] {
        prints_the_same(limit, &perl_after(limit), mode);
    }
}

/// The library opens files at start: their descriptors must not become the program's 0, 1 and 2.
fn no_standard_descriptors(mode: Mode) {
    let script = "exec perl -e 'open(my $f, \">\", $ARGV[0]) or die; \
                  print $f join(\",\", map { -e \"/proc/self/fd/$_\" ? 1 : 0 } 0 .. 2), \" \", fileno($f)' \
                  \"$0\" <&- >&- 2>&-";
    let scratch = Scratch::new("descriptors");
    let found = |mode: Mode| {
        let file = scratch.join(format!("{mode:?}"));
        Program::new(tool("sh", "dash")).args(["-c", script]).arg(&file).run_clean(&scratch, mode);
        std::fs::read_to_string(file).expect("what perl found")
    };
    assert_eq!(found(mode), found(Mode::Plain));
}

fn a_user_namespace(mode: Mode) {
    let program = Program::new(tool("unshare", "util-linux")).args(["--user", "--map-root-user", "perl"]);
    prints_the_same("namespace", &program.args(["-e", SCRIPT]), mode);
}
