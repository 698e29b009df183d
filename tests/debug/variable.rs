//! The variables: bad values, and where reports go.

use super::*;

fn faulty() -> Program {
    Program::new(faults()).args(["overflow", "60", "main"])
}

both_modes! {
    // A bad value is told in one line that names the column, and the program runs without it.
    bad_text => |mode| {
        let scratch = Scratch::new("debug-bad-text");
        for (value, told) in [
            ("FZQ", "uslab: USLAB_DEBUG is ignored: column 3: 'Q' is none of the letters F, Z, P, U, T\n"),
            ("F,a,", "uslab: USLAB_DEBUG is ignored: column 5: the name of a cache is missing\n"),
            ("F,a*b", "uslab: USLAB_DEBUG is ignored: column 4: '*' may stand only at the end of a name\n"),
        ] {
            let outcome = faulty().env("USLAB_DEBUG", value).run(&scratch, mode);
            outcome.expect(outcome.succeeded() && outcome.stderr() == told, "one line, then no debugging");
        }
    },
    // Only the caches that are named are debugged.
    names => |mode| {
        let scratch = Scratch::new("debug-names");
        for (value, is_found) in [
            ("FZ,malloc-64", true),
            ("FZ,malloc-*", true),
            ("FZ;-,malloc-64", false),
            ("FZ,malloc-80", false),
            ("F", false),
        ] {
            let outcome = faulty().env("USLAB_DEBUG", value).run(&scratch, mode);
            outcome.expect(outcome.succeeded() != is_found, value);
        }
    },
    // The name of a class is for its widely aligned objects too, which have a cache of their own
    // where plain objects are packed.
    names_of_aligned_objects => |mode| {
        let scratch = Scratch::new("debug-names-aligned");
        let faulty = Program::new(faults()).args(["aligned-delete", "60", "main"]);
        for (value, is_found) in [
            ("F,malloc-64", true),
            ("F,malloc-64-aligned", false),
            ("F,malloc-80", false),
            ("F;-,malloc-64", false),
            ("F;-,malloc-64-aligned", false),
            ("FZ,malloc-64", true),
        ] {
            let outcome = faulty.clone().env("USLAB_DEBUG", value).run(&scratch, mode);
            outcome.expect(outcome.succeeded() != is_found, value);
        }
    },
    // A report goes to a file, as text or as JSON.
    files => |mode| {
        let scratch = Scratch::new("debug-files");
        for form in ["", "json:"] {
            let file = scratch.join(format!("report-{}", form.len()));
            let value = format!("{form}{}", file.display());
            let run = faulty().env("USLAB_DEBUG", "FZPU").env("USLAB_DEBUG_REPORT", value);
            let outcome = run.run(&scratch, mode);
            outcome.expect(outcome.stderr().is_empty(), "nothing goes to standard error");
            let report = std::fs::read_to_string(&file).expect("a report");
            let start = if form.is_empty() { "uslab: overflow of 0x" } else { "{\"fault\":\"overflow\"" };
            outcome.expect(report.starts_with(start), &report);
        }
    },
    // Letter T writes a line for each allocation and free.
    trace => |mode| {
        let scratch = Scratch::new("debug-trace");
        let run = Program::new(faults())
            .args(["none", "600", "main"])
            .env("USLAB_DEBUG", "T,malloc-640");
        let stderr = run.run_clean(&scratch, mode).stderr();
        let count = |what| stderr.lines().filter(|line| line.starts_with(what)).count();
        let (allocated, freed) = (count("uslab: allocated 0x"), count("uslab: freed 0x"));
        assert!(allocated >= 800 && allocated == freed, "{allocated} {freed}");
        assert_eq!(allocated + freed, stderr.lines().count());
    },
}
