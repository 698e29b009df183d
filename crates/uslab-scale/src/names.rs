//! Names of lines and of code: the program's own symbols and line tables.

use addr2line::Loader;
use object::{Object, ObjectSymbol, SymbolKind};
use std::collections::BTreeMap;

/// Names for addresses of this process.
pub struct Names {
    base: u64,
    /// The program's own variables.
    pub statics: std::ops::Range<u64>,
    data: BTreeMap<u64, (u64, String)>,
    loader: Option<Loader>,
}

impl Names {
    /// Reads this program's file.
    pub fn read() -> Names {
        let path = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        let bytes = std::fs::read(&path).unwrap_or_default();
        let mut data = BTreeMap::new();
        if let Ok(file) = object::File::parse(bytes.as_slice()) {
            for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Data) {
                let name = rustc_demangle::demangle(symbol.name().unwrap_or_default());
                data.insert(symbol.address(), (symbol.size(), format!("{name:#}")));
            }
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let own = maps.lines().find(|line| line.ends_with(&*path.to_string_lossy()));
        let base = own.and_then(|line| u64::from_str_radix(line.split('-').next()?, 16).ok()).unwrap_or(0);
        let first = data.first_key_value().map_or(0, |(&at, _)| at);
        let last = data.last_key_value().map_or(0, |(&at, (size, _))| at + size);
        Names { base, statics: base + first..base + last, data, loader: Loader::new(&path).ok() }
    }

    /// The address in the file, and the bytes, of the variable whose path ends with `name`.
    pub fn find(&self, name: &str) -> Option<(u64, u64)> {
        let is_named = |own: &str| own.strip_suffix(name).is_some_and(|rest| rest.ends_with("::"));
        self.data.iter().find(|(_, (_, own))| is_named(own)).map(|(&at, &(size, _))| (at, size))
    }

    /// The static variables on the line at `address`.
    pub fn of_line(&self, address: u64, bytes: u64) -> Option<String> {
        let start = address.checked_sub(self.base)?;
        let mut names: Vec<&str> = Vec::new();
        for (&at, (size, name)) in self.data.range(..start + bytes).rev().take(16) {
            if at + size.max(&1) > start {
                names.push(name.rsplit("uslab::").next().unwrap_or(name));
            }
        }
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// File and line of an instruction, without the folders before the library's.
    pub fn of_code(&self, code: u64) -> String {
        let location = self
            .loader
            .as_ref()
            .and_then(|loader| {
                let mut frames = loader.find_frames(code.wrapping_sub(self.base)).ok()?;
                let mut best = None;
                // The innermost frame of the library: not that of the standard library's atomics.
                while let Ok(Some(frame)) = frames.next() {
                    let Some(place) = frame.location else { continue };
                    let file = place.file.unwrap_or_default();
                    let is_own = file.contains("uslab/src/");
                    if best.is_none() || is_own {
                        best = Some(format!("{}:{}", file, place.line.unwrap_or(0)));
                    }
                    // Locks and lists are named by the code that uses them.
                    if is_own && !file.contains("src/sync/") {
                        break;
                    }
                }
                best
            })
            .unwrap_or_else(|| format!("{code:#x}"));
        location.rsplit("uslab/src/").next().unwrap_or(&location).to_string()
    }
}
