//! php: a script with Debian's modules (SQLite through PDO, iconv, phar and others), its own heap
//! and the C heap alone, opcache with its compiler, and forked children; compared with plain runs.
//!
//! PHP opens its modules with `RTLD_DEEPBIND`, so a module's `free` would be glibc's. The preload
//! library removes the flag; without that, no script with a module would start.

use std::sync::OnceLock;

use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes!(modules => own_heap, objects => c_heap, compiled => opcache, bare => no_modules);

const PACKAGE: &str = "php-cli php-sqlite3";

/// PHP's own heap maps chunks of 2 MiB; modules and libraries call malloc.
fn own_heap(mode: Mode) {
    same_output(mode, &[], &[]);
}

/// Each object of a script comes from malloc.
fn c_heap(mode: Mode) {
    same_output(mode, &[], &[("USE_ZEND_ALLOC", "0")]);
}

fn opcache(mode: Mode) {
    let settings = ["opcache.enable_cli=1", "opcache.jit=tracing", "opcache.jit_buffer_size=16M"];
    same_output(mode, &settings, &[]);
}

/// Without an ini file PHP loads no module that is not built in.
fn no_modules(mode: Mode) {
    let script = "$a = []; for ($i = 0; $i < 200000; $i++) $a[\"k$i\"] = [$i, str_repeat('x', $i % 300)]; \
                  $n = 0; foreach ($a as $k => $v) $n += strlen($k . $v[1]); echo count($a), ' ', $n, \"\\n\";";
    let scratch = Scratch::new("php-n");
    let php = Program::new(tool("php", PACKAGE)).args(["-n", "-d", "memory_limit=-1", "-r", script]);
    for env in [[].as_slice(), &[("USE_ZEND_ALLOC", "0")]] {
        let php = env.iter().fold(php.clone(), |p, (key, value)| p.env(key, value));
        let (plain, ours) = (php.run_clean(&scratch, Mode::Plain), php.run_clean(&scratch, mode));
        ours.expect(
            ours.stdout() == plain.stdout() && !plain.stdout().is_empty(),
            "other sum than without the allocator",
        );
    }
}

fn same_output(mode: Mode, settings: &[&str], env: &[(&str, &str)]) {
    let run = |mode: Mode| {
        let scratch = Scratch::new("php");
        let script = scratch.write("script.php", include_str!("modules.php"));
        let mut php = Program::new(tool("php", PACKAGE)).args(["-d", "memory_limit=-1"]);
        for setting in settings {
            php = php.args(["-d", setting]);
        }
        for (key, value) in env {
            php = php.env(key, value);
        }
        let outcome = php.arg(script).run_clean(&scratch, mode);
        outcome.expect(outcome.stderr().is_empty(), "php wrote to standard error");
        outcome.expect(outcome.stdout().ends_with("end\n"), "the script did not reach its end");
        outcome.stdout()
    };
    // The settings do not change the script's output.
    static PLAIN: OnceLock<String> = OnceLock::new();
    let plain = PLAIN.get_or_init(|| run(Mode::Plain));
    assert_eq!(plain, &run(mode), "{mode:?}: other output than without the allocator");
}
