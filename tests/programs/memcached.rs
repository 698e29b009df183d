//! memcached: eight clients check every value that they read, first with room for all values, then
//! with so little that items are evicted. A clean shutdown follows.

use uslab_tests::harness::{Mode, Program, Scratch, expect_mapped, tool};

both_modes!(load => serves_checked_clients);

fn serves_checked_clients(mode: Mode) {
    let scratch = Scratch::new("memcached");
    let client = scratch.write("client.py", include_str!("memcached.py"));
    for (megabytes, kind) in [("128", "all"), ("8", "some")] {
        let socket = scratch.join(format!("{kind}.sock"));
        let mut server = Program::new(tool("memcached", "memcached"));
        if uslab_tests::harness::is_root() {
            server = server.args(["-u", "root"]);
        }
        let server = server
            .args(["-m", megabytes, "-t", "4", "-c", "64", "-o", "modern,hashpower=13", "-s"])
            .arg(&socket)
            .limit_s(200)
            .start(&scratch, mode)
            .wait_until("its socket", |_| std::os::unix::net::UnixStream::connect(&socket).is_ok());
        let python = Program::new(tool("python3", "python3")).arg(&client).arg(&socket).arg(kind);
        let outcome = python.run_clean(&scratch, mode);
        let wanted = format!("8 clients read what they wrote, {kind} of it\n");
        outcome.expect(outcome.stdout() == wanted, "the clients printed something else");
        expect_mapped(mode, server.pid(), 1);
        server.signal(libc::SIGTERM);
        let outcome = server.wait().expect_clean();
        outcome.expect(!outcome.stderr().contains("Failed"), "the server reported a failure");
    }
}
