//! Names the functions of a profile, from the files that the process has mapped.
//!
//! A process in a container has files of its own: they are read through /proc/PID/root. A file is
//! used only if it still is the one that was mapped, by its inode; one that was replaced meanwhile
//! would give wrong names.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use blazesym::helper::read_elf_build_id;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolizer};

use super::heap::{Heap, Line, Mapping};
use crate::process::printable;

/// Adds function names, source lines and build ids.
pub fn resolve(heap: &mut Heap) {
    let symbolizer = Symbolizer::builder().enable_auto_reload(false).build();
    let pid = heap.pid;
    for index in 0..heap.mappings.len() {
        let mut places: Vec<usize> = Vec::new();
        places.extend((0..heap.locations.len()).filter(|&at| heap.locations[at].mapping == Some(index)));
        let mapping = &mut heap.mappings[index];
        if places.is_empty() {
            continue;
        }
        let Some(file) = file_of(mapping, pid) else { continue };
        if let Ok(Some(id)) = read_elf_build_id(&file) {
            mapping.build_id = id.iter().map(|byte| format!("{byte:02x}")).collect();
        }
        let offset = |address: u64| address.wrapping_sub(mapping.start).wrapping_add(mapping.file_offset);
        let offsets: Vec<u64> = places.iter().map(|&at| offset(heap.locations[at].address)).collect();
        let source = Source::Elf(Elf::new(&file));
        let Ok(found) = symbolizer.symbolize(&source, Input::FileOffset(&offsets)) else { continue };
        for (&at, symbol) in places.iter().zip(&found) {
            heap.locations[at].lines = symbol.as_sym().map(lines).unwrap_or_default();
        }
    }
}

/// The file behind a mapping, if it can still be read.
fn file_of(mapping: &Mapping, pid: u32) -> Option<PathBuf> {
    if !mapping.path.starts_with('/') {
        return None;
    }
    let places = [
        format!("/proc/{pid}/root{}", mapping.path),
        mapping.path.clone(),
        format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end),
    ];
    // The process chose the path: a device or a pipe must not be opened.
    let is_it =
        |place: &String| fs::metadata(place).is_ok_and(|data| data.is_file() && data.ino() == mapping.inode);
    places.into_iter().find(is_it).map(PathBuf::from)
}

/// The functions at an address, the innermost first.
fn lines(symbol: &Sym) -> Vec<Line> {
    let line = |name: &str, code: Option<&CodeInfo>| Line {
        function: printable(name),
        file: code.map(|code| printable(&code.to_path().to_string_lossy())).unwrap_or_default(),
        line: code.and_then(|code| code.line).unwrap_or(0),
    };
    let inlined = symbol.inlined.iter().rev().map(|inner| line(&inner.name, inner.code_info.as_ref()));
    let mut lines: Vec<Line> = inlined.collect();
    lines.push(line(&symbol.name, symbol.code_info.as_deref()));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::heap::Location;

    #[test]
    fn a_function_of_this_program_is_named() {
        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        let address = resolve as *const () as usize as u64 + 8;
        let text = format!(
            "uslab-profile 1\npid {}\nsite c 8 1 8 1 8 1 1 0 0 0 {address:x} 10\nmaps\n{maps}",
            std::process::id()
        );
        let mut heap = crate::profile::dump::parse(&text).expect("a profile");
        resolve(&mut heap);
        let line = heap.locations[0].lines.last().expect("a line");
        assert!(line.function.contains("symbols::resolve"), "{line:?}");
        assert!(line.file.ends_with("symbols.rs"), "{line:?}");
        assert_eq!(heap.locations[1], Location { address: 0xf, ..Location::default() });
    }

    #[test]
    fn a_file_that_was_replaced_is_not_used() {
        let path = "/proc/self/exe".to_owned();
        assert_eq!(file_of(&Mapping { path, inode: 1, ..Mapping::default() }, 1), None);
        assert_eq!(file_of(&Mapping { path: "[vdso]".into(), ..Mapping::default() }, 1), None);
    }
}
