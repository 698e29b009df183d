//! Plug-ins that are unloaded, while other code comes to lie where they lay.

use super::compiled;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
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

/// The program of `plugins.c` and its plug-ins, compiled at the first call. The frame of the first
/// one is larger than the rest of the stack: a walk that took the second one's for as large would
/// leave the stack.
fn built() -> &'static (PathBuf, [PathBuf; 3]) {
    static BUILT: OnceLock<(PathBuf, [PathBuf; 3])> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = compiled(("cc", "gcc"), "plugins.c", "-ldl");
        (program, [0x2_0008, 0x88, 0x1_0008].map(plugin))
    })
}

both_modes! {
    reloaded => |mode| {
        let scratch = Scratch::new("debug-plugins");
        let (program, plugins) = built();
        for (name, value) in [("USLAB_PROFILE", "4096"), ("USLAB_DEBUG", "U"), ("USLAB_DEBUG", "FZPU")] {
            let run = Program::new(program).args(plugins);
            let outcome = run.env(name, value).limit_s(120).run_clean(&scratch, mode);
            outcome.expect(outcome.stdout() == "ok\n", "the plug-ins lay at one address");
        }
    },
}
