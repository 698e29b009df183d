//! Python, building and dropping objects (objects.py says which), twice: as it is, with its own arenas for objects
//! of up to 512 bytes, so that malloc sees what is larger and the arenas; and with `PYTHONMALLOC=malloc`, so that
//! malloc sees every object.

use super::{Place, Workload};
use crate::process::{self, Usage};
use crate::results::Scale;

const SCRIPT: &str = include_str!("objects.py");

pub struct Python {
    name: &'static str,
    about: &'static str,
    every_object: bool,
}

pub const OWN_ARENAS: Python =
    Python { name: "python", about: "python3, its own arenas for small objects", every_object: false };

pub const MALLOC: Python =
    Python { name: "python-malloc", about: "python3, PYTHONMALLOC=malloc", every_object: true };

fn records(scale: Scale) -> u32 {
    scale.pick(20, 10_000, 30_000)
}

impl Workload for Python {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self, scale: Scale) -> String {
        format!("{}: objects, dicts, JSON and threads, {} records", self.about, records(scale))
    }

    fn run(&self, place: &Place) -> Result<Usage, String> {
        place.write("objects.py", SCRIPT)?;
        let mut python = place.measured("python3", "python3")?;
        // Hashes of strings change from run to run otherwise, and with them how dicts grow.
        python.args(["-S", "objects.py"]).arg(records(place.scale).to_string()).env("PYTHONHASHSEED", "1");
        if self.every_object {
            python.env("PYTHONMALLOC", "malloc");
        }
        process::run(python)
    }
}
