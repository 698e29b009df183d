//! Reads an executable: its code, its functions, and the descriptors of its restartable sequences.
//!
//! A descriptor is the kernel's `struct rseq_cs`, 32 bytes in section `__rseq_cs`:
//!
//! ```text
//!   u32 version   u32 flags   u64 start   u64 post_commit_offset   u64 abort
//! ```
//!
//! In a position-independent executable the two addresses stand in relocations of type RELATIVE,
//! whose addend is the address. Packed relocations (RELR) leave the addresses in the section.

use anyhow::{Context, Result, bail};
use object::read::{Object, ObjectSection, ObjectSymbol};
use object::{Architecture, RelocationFlags, SectionKind, SymbolKind};
use std::collections::HashMap;
use std::ops::Range;

const SECTION: &str = "__rseq_cs";
const DESCRIPTOR_BYTES: usize = 32;

/// A function.
#[derive(Clone)]
pub struct Symbol {
    /// Its name in the symbol table.
    pub name: String,
    /// Its addresses.
    pub range: Range<u64>,
}

/// A restartable sequence: `[start, start + length)`, and its abort handler.
#[derive(Clone)]
pub struct Descriptor {
    /// Must be 0.
    pub version: u32,
    /// Must be 0.
    pub flags: u32,
    /// First instruction.
    pub start: u64,
    /// Bytes up to the end of the committing instruction.
    pub length: u64,
    /// The abort handler.
    pub abort: u64,
}

/// The parts of an executable that are checked.
pub struct Image {
    /// Sections of code with their addresses.
    pub code: Vec<(u64, Vec<u8>)>,
    /// Functions, in order of address.
    pub symbols: Vec<Symbol>,
    /// All sequences, in order of address.
    pub sequences: Vec<Descriptor>,
}

impl Image {
    /// Reads an ELF executable or shared library for x86-64.
    pub fn parse(bytes: &[u8]) -> Result<Image> {
        let file = object::File::parse(bytes)?;
        if file.architecture() != Architecture::X86_64 {
            bail!("it is for {:?}, not for x86-64", file.architecture());
        }
        let code = file
            .sections()
            .filter(|section| section.kind() == SectionKind::Text)
            .map(|section| Ok((section.address(), section.data()?.to_vec())))
            .collect::<Result<_>>()?;
        let mut symbols: Vec<Symbol> = file
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
            .filter_map(|symbol| {
                let range = symbol.address()..symbol.address() + symbol.size();
                Some(Symbol { name: symbol.name().ok()?.into(), range })
            })
            .collect();
        symbols.sort_by_key(|symbol| symbol.range.start);
        let mut sequences = match file.section_by_name(SECTION) {
            Some(section) => descriptors(section.address(), section.data()?, &relative_relocations(&file))?,
            None => Vec::new(),
        };
        sequences.sort_by_key(|sequence| sequence.start);
        Ok(Image { code, symbols, sequences })
    }

    /// The functions whose names start with `prefix`, by name; one that has two names is listed
    /// under both.
    pub fn functions(&self, prefix: &str) -> Vec<Symbol> {
        let mut found: Vec<Symbol> =
            self.symbols.iter().filter(|symbol| symbol.name.starts_with(prefix)).cloned().collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found.dedup_by(|a, b| a.name == b.name);
        found
    }

    /// The code from an address to the end of its section.
    pub fn code_at(&self, address: u64) -> Option<&[u8]> {
        self.code.iter().find_map(|(start, bytes)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            bytes.get(offset..).filter(|rest| !rest.is_empty())
        })
    }

    /// The function at an address, for messages.
    pub fn name_at(&self, address: u64) -> String {
        let symbol = self.symbols.iter().find(|symbol| symbol.range.contains(&address));
        symbol.map_or_else(|| "no function".into(), |symbol| symbol.name.clone())
    }
}

/// Address of the place, address to put there.
fn relative_relocations(file: &object::File) -> HashMap<u64, u64> {
    let relative = RelocationFlags::Elf { r_type: object::elf::R_X86_64_RELATIVE };
    file.dynamic_relocations()
        .into_iter()
        .flatten()
        .filter(|(_, relocation)| relocation.flags() == relative)
        .map(|(place, relocation)| (place, relocation.addend().cast_unsigned()))
        .collect()
}

/// Cuts the section into descriptors. Padding between them (32 zero bytes without relocation) is
/// skipped.
fn descriptors(address: u64, data: &[u8], relocations: &HashMap<u64, u64>) -> Result<Vec<Descriptor>> {
    if !data.len().is_multiple_of(DESCRIPTOR_BYTES) {
        bail!("section {SECTION} has {} bytes, no multiple of {DESCRIPTOR_BYTES}", data.len());
    }
    let mut found = Vec::new();
    for (index, bytes) in data.chunks_exact(DESCRIPTOR_BYTES).enumerate() {
        let base = address + (index * DESCRIPTOR_BYTES) as u64;
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let word = |at: usize| {
            let raw = u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
            relocations.get(&(base + at as u64)).copied().unwrap_or(raw)
        };
        let descriptor = Descriptor {
            version: half(0),
            flags: half(4),
            start: word(8),
            length: word(16),
            abort: word(24),
        };
        if descriptor.start == 0 && descriptor.length == 0 && descriptor.abort == 0 {
            continue;
        }
        descriptor
            .start
            .checked_add(descriptor.length)
            .context("a descriptor runs past the address space")?;
        found.push(descriptor);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: [u64; 4]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn descriptors_take_addresses_from_relocations_or_from_the_file() {
        let data = [bytes([0, 0, 9, 0]), bytes([0; 4]), bytes([0x2_0000_0001, 0x50, 7, 0x90])].concat();
        let relocations = HashMap::from([(0x1008, 0x40), (0x1018, 0x80)]);
        let found = descriptors(0x1000, &data, &relocations).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].start, found[0].length, found[0].abort), (0x40, 9, 0x80));
        assert_eq!((found[1].version, found[1].flags, found[1].start, found[1].abort), (1, 2, 0x50, 0x90));
    }

    #[test]
    fn a_torn_section_is_refused() {
        assert!(descriptors(0, &[0; 33], &HashMap::new()).is_err());
        assert!(descriptors(0, &bytes([0, u64::MAX, 2, 3]), &HashMap::new()).is_err());
    }

    #[test]
    fn code_is_found_by_address() {
        let image = Image { code: vec![(16, vec![1, 2, 3])], symbols: Vec::new(), sequences: Vec::new() };
        assert_eq!(image.code_at(17), Some(&[2, 3][..]));
        assert_eq!(image.code_at(15), None);
        assert_eq!(image.code_at(19), None);
        assert_eq!(image.name_at(17), "no function");
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn this_test_itself_is_a_readable_image() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let image = Image::parse(&bytes).unwrap();
        assert!(!image.symbols.is_empty() && !image.code.is_empty());
        let main = image.functions("main").into_iter().find(|symbol| symbol.name == "main").unwrap();
        assert!(image.code_at(main.range.start).is_some());
    }
}
