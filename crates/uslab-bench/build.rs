//! What the benchmark must know about its own build, and the one peer that no crate offers ready.
//!
//! **Facts.** The optimisation level, the profile, the compiler and the flags are baked in, because
//! a benchmark built without optimisation measures nothing and must be able to say so; the versions
//! of the peers' crates come from Cargo.lock.
//!
//! **mimalloc v2.** libmimalloc-sys holds the sources of v2 and v3, but a build has one of them. v3
//! is linked through the crate; v2 is compiled here from the same sources, with every symbol but
//! four renamed ones made local, so that both stand in one process. Without objcopy the benchmark
//! builds all the same and lists v2 as missing.
//!
//! It must never: fetch anything, write outside OUT_DIR, or fail the build for want of a peer.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates whose versions are reported beside the results.
const REPORTED: [&str; 4] = ["libmimalloc-sys", "rpmalloc-sys", "snmalloc-sys", "tikv-jemalloc-sys"];

/// What v2 is called as. An alias has the address of what it stands for, so it costs no second
/// call.
const V2_NAMES: [(&str, &str); 4] = [
    ("mi_malloc", "uslab_peer_mi2_malloc"),
    ("mi_free", "uslab_peer_mi2_free"),
    ("mi_free_size", "uslab_peer_mi2_free_size"),
    ("mi_version", "uslab_peer_mi2_version"),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(mimalloc_v2)");
    facts();
    versions();
    if let Err(why) = mimalloc_v2() {
        println!("cargo:warning=mimalloc v2 is left out of the benchmark: {why}");
    }
}

fn export(name: &str, value: &str) {
    println!("cargo:rustc-env=USLAB_BENCH_{name}={}", value.replace(['\n', '\r'], " "));
}

fn facts() {
    let target = env::var("TARGET").unwrap_or_default();
    export("OPT_LEVEL", &env::var("OPT_LEVEL").unwrap_or_default());
    export("PROFILE", &env::var("PROFILE").unwrap_or_default());
    export("TARGET", &target);
    export("RUSTFLAGS", &env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default().replace('\u{1f}', " "));
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    export("RUSTC", &first_line(Command::new(rustc).arg("--version")));
    export("CC", &first_line(cc::Build::new().get_compiler().to_command().arg("--version")));

    // snmalloc keeps its assertions unless NDEBUG is defined, and its crate never defines it.
    let underscored = target.replace('-', "_");
    let names = [
        format!("CXXFLAGS_{underscored}"),
        format!("CXXFLAGS_{target}"),
        "TARGET_CXXFLAGS".into(),
        "CXXFLAGS".into(),
    ];
    for name in &names {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let ndebug = names.iter().any(|name| env::var(name).is_ok_and(|flags| flags.contains("-DNDEBUG")));
    export("CXX_NDEBUG", if ndebug { "1" } else { "0" });
}

fn first_line(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or("unknown").trim().to_owned()
}

/// The versions in Cargo.lock: `name = "…"` followed by `version = "…"`.
fn versions() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let lock = manifest.ancestors().map(|folder| folder.join("Cargo.lock")).find(|path| path.exists());
    let text = lock.as_ref().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    if let Some(path) = &lock {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    for crate_name in REPORTED {
        let heading = format!("name = \"{crate_name}\"\nversion = \"");
        let version =
            text.split_once(&heading).and_then(|(_, rest)| rest.split('"').next()).unwrap_or("unknown");
        export(&crate_name.to_uppercase().replace('-', "_"), version);
    }
}

fn mimalloc_v2() -> Result<(), String> {
    println!("cargo:rerun-if-env-changed=OBJCOPY");
    let include =
        env::var("DEP_MIMALLOC_INCLUDE_DIR").map_err(|_| "libmimalloc-sys told no include folder")?;
    let v2 =
        Path::new(&include).join("../../v2").canonicalize().map_err(|e| format!("no v2 sources: {e}"))?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);

    // The flags are those of mimalloc's own release build (CMakeLists.txt), static library, no
    // override.
    let wrapper = out.join("mimalloc_v2.c");
    let mut text = format!("#include \"{}\"\n", v2.join("src/static.c").display());
    for (name, alias) in V2_NAMES {
        text.push_str(&format!(
            "extern __typeof__({name}) {alias} __attribute__((alias(\"{name}\"), used));\n"
        ));
    }
    fs::write(&wrapper, text).map_err(|e| format!("cannot write the wrapper: {e}"))?;
    let objects = cc::Build::new()
        .file(&wrapper)
        .include(v2.join("include"))
        .include(v2.join("src"))
        .opt_level(3)
        .define("NDEBUG", None)
        .define("MI_BUILD_RELEASE", None)
        .define("MI_DEBUG", "0")
        .flag_if_supported("-ftls-model=initial-exec")
        .warnings(false)
        .try_compile_intermediates()
        .map_err(|e| format!("it does not compile: {e}"))?;
    let object = objects.first().ok_or("the compiler made nothing")?;

    let mut objcopy = Command::new(env::var_os("OBJCOPY").unwrap_or_else(|| "objcopy".into()));
    for (_, alias) in V2_NAMES {
        objcopy.arg(format!("--keep-global-symbol={alias}"));
    }
    let status = objcopy.arg(object).status().map_err(|e| format!("objcopy (of binutils) is needed: {e}"))?;
    if !status.success() {
        return Err(format!("objcopy: {status}"));
    }
    cc::Build::new().object(object).try_compile("uslab_peer_mimalloc_v2").map_err(|e| e.to_string())?;
    println!("cargo:rustc-cfg=mimalloc_v2");
    Ok(())
}
