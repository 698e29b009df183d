//! Plug-ins that are unloaded, while other code comes to lie where they lay.

use super::compiled;
use std::path::{Path, PathBuf};
use uslab_tests::harness::{Mode, Program, Scratch, tool};

fn plugin(frame_bytes: usize) -> PathBuf {
    let scratch = Scratch::new("debug-plugin");
    let plugin = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("debug-plugin-{frame_bytes}.so"));
    Program::new(tool("cc", "gcc"))
        .args(["-shared", "-nostdlib", &format!("-DFRAME={frame_bytes}")])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("debug/plugin.S"))
        .arg("-o")
        .arg(&plugin)
        .limit_s(120)
        .run_clean(&scratch, Mode::Plain);
    plugin
}

// The frame of the first one is larger than the rest of the stack. A walk that took the second
// one's for as large would leave the stack.
both_modes! {
    reloaded => |mode| {
        let scratch = Scratch::new("debug-plugins");
        let program = compiled(("cc", "gcc"), "plugins.c", "-ldl");
        for (name, value) in [("USLAB_PROFILE", "4096"), ("USLAB_DEBUG", "U"), ("USLAB_DEBUG", "FZPU")] {
            let run = Program::new(&program).arg(plugin(0x2_0008)).arg(plugin(0x88)).arg(plugin(0x1_0008));
            let outcome = run.env(name, value).limit_s(120).run_clean(&scratch, mode);
            outcome.expect(outcome.stdout() == "ok\n", "the plug-ins lay at one address");
        }
    },
}
