//! Python, building and dropping objects (objects.py says which), twice: as it is, with its own
//! arenas for objects of up to 512 bytes, so that malloc sees what is larger and the arenas; and
//! with `PYTHONMALLOC=malloc`, so that malloc sees every object.

use super::{Place, Workload};
use crate::process::{self, Usage};
use crate::results::Scale;

const SCRIPT: &str = include_str!("objects.py");

pub const OWN_ARENAS: Workload = Workload {
    name: "python",
    title: |scale| title("its own arenas for small objects", scale),
    run: |place| run(place, false),
};

pub const MALLOC: Workload = Workload {
    name: "python-malloc",
    title: |scale| title("PYTHONMALLOC=malloc", scale),
    run: |place| run(place, true),
};

fn records(scale: Scale) -> u32 {
    scale.pick(20, 10_000, 30_000)
}

fn title(way: &str, scale: Scale) -> String {
    format!("python3, {way}: objects, dicts, JSON and threads, {} records", records(scale))
}

fn run(place: &Place, every_object: bool) -> Result<Usage, String> {
    place.write("objects.py", SCRIPT)?;
    let mut python = place.measured("python3", "python3")?;
    // Hashes of strings change from run to run otherwise, and with them how dicts grow.
    python.args(["-S", "objects.py"]).arg(records(place.scale).to_string()).env("PYTHONHASHSEED", "1");
    if every_object {
        python.env("PYTHONMALLOC", "malloc");
    }
    process::run_watched(python)
}
