//! The script for gdb on programs with caches of their own: linked with the archive, or wholly
//! static, and on their cores after `strip`. `tests/debug/gdb.rs` has the preloaded library.

use super::*;
use crate::library::program_with;
use uslab_tests::harness::{Gdb, tool};

const SOURCE: &str = "\
#include <uslab.h>
#include <stdlib.h>
void *session, *packet;
void look(void) {}
__attribute__((noinline)) void make(uslab_cache *tracked) { packet = uslab_cache_alloc(tracked, 0); }
int main(void)
{
    uslab_cache_options options = {sizeof options, 0, USLAB_STORE_USER, 0, 0, 0, 0, 0, 0, 0};
    uslab_cache *plain = uslab_cache_create(\"session\", 72, NULL);
    uslab_cache *tracked = uslab_cache_create(\"packet\", 200, &options);
    if (plain == NULL || tracked == NULL) return 1;
    uslab_cache_free(plain, uslab_cache_alloc(plain, 0));
    session = uslab_cache_alloc(plain, 0);
    make(tracked);
    look();
    abort();
}
";

#[test]
fn gdb_shows_the_caches_of_a_program() {
    let scratch = Scratch::new("capi-gdb");
    let source = scratch.write("gdb.c", SOURCE).display().to_string();
    let commands = ["uslab find session", "uslab find packet", "uslab objects session", "uslab caches"];
    for (rseq, link, name) in [("1", Link::Static, "gdb-static"), ("0", Link::Whole, "gdb-whole")] {
        // The linker gives wholly static programs no index of unwind tables by itself.
        let program = program_with(name, &source, "c11", link, &["-Wl,--eh-frame-hdr"]);
        let core = scratch.join("core");
        let mut live = Gdb::new(&program, None).run_to("look", &[("USLAB_RSEQ", rseq)]);
        for command in commands {
            live = live.command(command);
        }
        // A stripped file has no names, so the core is asked by address.
        let live = live.command("output/x (long)session").command("echo \\n");
        let live = live.command(&format!("gcore {}", core.display())).command("kill").output(&scratch);
        check(&live);
        assert!(live.contains(" make + "), "{live}");
        let address = live.lines().find(|line| line.starts_with("0x") && !line.contains(' '));
        let address = address.expect("the address of the session");
        let stripped = scratch.join("stripped");
        let strip = Program::new(tool("strip", "binutils")).arg(&program).arg("-o").arg(&stripped);
        strip.run_clean(&scratch, Mode::Plain);
        let mut dead = Gdb::new(&stripped, Some(&core)).command(&format!("uslab find {address}"));
        for command in &commands[2..] {
            dead = dead.command(command);
        }
        let dead = dead.output(&scratch);
        assert!(
            dead.contains(&format!("{address} is the start of object {address} of cache session")),
            "{dead}"
        );
        assert!(dead.contains("\n1 live objects\n"), "{dead}");
    }
}

fn check(output: &str) {
    for expected in [
        " of cache session\n  live, 72 bytes; object ",
        " of cache packet\n  live, 200 bytes requested, of a cache; object ",
        "\n  allocated by thread ",
        "live objects of cache session, 72 bytes each\n  0x",
        "\n1 live objects\n",
        "caches of the program\n",
    ] {
        assert!(output.contains(expected), "no {expected:?} in:\n{output}");
    }
}
