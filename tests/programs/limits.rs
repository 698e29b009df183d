//! Programs whose address space is limited to 4 GiB before they start: the allocator uses less and
//! works.

use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes!(address_space => works_in_4_gib);

const LIMIT_KIB: u64 = 4 << 20;

fn works_in_4_gib(mode: Mode) {
    let scratch = Scratch::new("limits");
    let python = |script: &str| {
        Program::new(tool("python3", "python3")).env("PYTHONMALLOC", "malloc").args(["-c", script])
    };
    let threads = python(
        "import threading\n\
         def work(n): return sum(len(str(i) * (i % 50)) for i in range(n, n + 100000))\n\
         out = []\n\
         threads = [threading.Thread(target=lambda n=n: out.append(work(n))) for n in range(8)]\n\
         [t.start() for t in threads]; [t.join() for t in threads]\n\
         big = [bytearray(1 << 20) for _ in range(1024)]\n\
         print(sum(out), sum(map(len, big)))",
    );
    let script =
        "seq 1 300000 | sort -r --parallel=4 -S 200M | sha256sum && xz -T2 -9 </bin/bash | xz -d | sha256sum";
    let pipeline = Program::new(tool("bash", "bash")).args(["-c", script]);
    for program in [threads, pipeline] {
        let wanted = program.run_clean(&scratch, Mode::Plain).stdout();
        let limited = program.address_space_kib(LIMIT_KIB).run_clean(&scratch, mode);
        limited.expect(limited.stdout() == wanted, &format!("other output than without a limit:\n{wanted}"));
    }

    // Requests beyond the limit are refused, and the program continues.
    let refused = python(
        "kept = []\n\
         for _ in range(3):\n\
         \x20 try:\n\
         \x20   while True: kept.append(bytearray(64 << 20))\n\
         \x20 except MemoryError: print(len(kept) >= 16); kept.clear()\n\
         print(sum(len(str(i)) for i in range(10)))",
    );
    let limited = refused.address_space_kib(LIMIT_KIB).run_clean(&scratch, mode);
    let text = limited.stdout();
    limited.expect(text == "True\nTrue\nTrue\n10\n", "not refused, or too early, or not usable afterwards");
}
