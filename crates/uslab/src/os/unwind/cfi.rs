//! Call frame information: from a code address to its rule, by `.eh_frame_hdr` and `.eh_frame`
//! (Linux Standard Base; DWARF 5, section 6.4).
//!
//! It reads the forms that compilers and linkers produce. Any other form ends the walk. Registers
//! but the stack pointer, the frame pointer and the return address are ignored.

use super::object::Object;
use super::rule::Rule;

/// DWARF's numbers of the stack pointer, the frame pointer and the return address.
const SP: u64 = if cfg!(target_arch = "aarch64") { 31 } else { 7 };
const FP: u64 = if cfg!(target_arch = "aarch64") { 29 } else { 6 };
const RETURN: u64 = if cfg!(target_arch = "aarch64") { 30 } else { 16 };

/// Pointer forms: a signed word of four bytes, relative to its place, or to the table.
const PCREL_SDATA4: u8 = 0x1b;
const DATAREL_SDATA4: u8 = 0x3b;
const UDATA4: u8 = 0x03;

/// The rule of the code at `pc`, which is in `object`.
pub fn rule_at(object: &Object, pc: usize) -> Option<Rule> {
    let mut table = Reader(object.frame_header?);
    // SAFETY: the loader's pointer to the header of a mapped object, whose form the first four
    // bytes state. The same holds for all reads below.
    unsafe {
        let start = table.0;
        if [table.byte(), table.byte(), table.byte(), table.byte()]
            != [1, PCREL_SDATA4, UDATA4, DATAREL_SDATA4]
        {
            return None;
        }
        table.i32();
        let count = table.i32() as u32 as usize;
        let first = table.0.cast::<[i32; 2]>();
        let begin =
            |index: usize| start.wrapping_offset(first.add(index).read_unaligned()[0] as isize) as usize;
        // The last entry that begins at or before `pc`.
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = (low + high) / 2;
            if begin(middle) <= pc { low = middle + 1 } else { high = middle }
        }
        let index = low.checked_sub(1)?;
        rule_in(start.wrapping_offset(first.add(index).read_unaligned()[1] as isize), pc)
    }
}

/// The rule by the frame description at `fde`, if it covers `pc`.
///
/// # Safety
/// `fde` must point to an entry of `.eh_frame`.
unsafe fn rule_in(fde: *const u8, pc: usize) -> Option<Rule> {
    // SAFETY: the caller's promise; the lengths bound the reads of the programs.
    unsafe {
        let (mut entry, end) = Reader(fde).entry()?;
        let place = entry.0;
        let cie = place.wrapping_sub(entry.i32() as u32 as usize);
        let mut common = Common::read(cie)?;
        let place = entry.0;
        let begin = place.wrapping_offset(entry.i32() as isize) as usize;
        let bytes = entry.i32() as u32 as usize;
        if !(begin..begin + bytes).contains(&pc) {
            return None;
        }
        if common.has_augmentation {
            let bytes = entry.unsigned() as usize;
            entry.0 = entry.0.wrapping_add(bytes);
        }
        let mut state = State { cfa: None, fp: None, link: None, is_end: false };
        common.run(common.program, common.end, &mut state, None, usize::MAX)?;
        common.initial = state;
        common.run(entry.0, end, &mut state, Some(begin), pc)?;
        state.rule()
    }
}

/// What a program has computed so far.
#[derive(Clone, Copy)]
struct State {
    /// Register and offset of the CFA.
    cfa: Option<(u64, i64)>,
    fp: Option<i64>,
    link: Option<i64>,
    /// There is no caller, or a register was saved in a way that rules cannot express.
    is_end: bool,
}

impl State {
    fn rule(self) -> Option<Rule> {
        let (register, offset) = self.cfa?;
        let is_known = !self.is_end && (register == SP || register == FP);
        is_known.then(|| Rule::new(register == FP, offset, self.fp, self.link))
    }

    fn set(&mut self, register: u64, offset: i64) {
        match register {
            FP => self.fp = Some(offset),
            RETURN => self.link = Some(offset),
            _ => {}
        }
    }

    fn restore(&mut self, register: u64, initial: &State) {
        match register {
            FP => self.fp = initial.fp,
            RETURN => (self.link, self.is_end) = (initial.link, initial.is_end),
            _ => {}
        }
    }
}

/// The common part of frame descriptions.
struct Common {
    code_align: u64,
    data_align: i64,
    has_augmentation: bool,
    program: *const u8,
    end: *const u8,
    initial: State,
}

impl Common {
    /// # Safety
    /// `cie` must point to a common entry of `.eh_frame`.
    unsafe fn read(cie: *const u8) -> Option<Common> {
        // SAFETY: the caller's promise.
        unsafe {
            let (mut entry, end) = Reader(cie).entry()?;
            let (_id, version) = (entry.i32(), entry.byte());
            if version != 1 && version != 3 {
                return None;
            }
            let augmentation = entry.0;
            while entry.byte() != 0 {}
            let (code_align, data_align) = (entry.unsigned(), entry.signed());
            if version == 1 {
                entry.byte();
            } else {
                entry.unsigned();
            }
            let mut letters = Reader(augmentation);
            let has_augmentation = augmentation.read() == b'z';
            let mut program = entry.0;
            if has_augmentation {
                let bytes = entry.unsigned() as usize;
                program = entry.0.wrapping_add(bytes);
                letters.byte();
            }
            let mut pointers = 0;
            loop {
                match letters.byte() {
                    0 => break,
                    b'R' => pointers = entry.byte(),
                    b'L' => drop(entry.byte()),
                    b'P' => {
                        let form = entry.byte();
                        let bytes = match form & 0xf {
                            0 | 4 | 12 => 8,
                            3 | 11 => 4,
                            2 | 10 => 2,
                            _ => return None,
                        };
                        entry.0 = entry.0.wrapping_add(bytes);
                    }
                    b'B' | b'G' => {}
                    // A signal's frame: its registers lie in the kernel's form.
                    _ => return None,
                }
            }
            let initial = State { cfa: None, fp: None, link: None, is_end: false };
            (pointers == PCREL_SDATA4).then_some(Common {
                code_align,
                data_align,
                has_augmentation,
                program,
                end,
                initial,
            })
        }
    }

    /// Runs a program up to the code at `pc`; `location` is the address that it begins at. `None`
    /// at an instruction that is not known.
    ///
    /// # Safety
    /// `program` to `end` must be a program.
    unsafe fn run(
        &self,
        program: *const u8,
        end: *const u8,
        state: &mut State,
        location: Option<usize>,
        pc: usize,
    ) -> Option<()> {
        let mut at = Reader(program);
        let mut location = location.unwrap_or(0);
        let mut saved = [*state; 8];
        let mut depth = 0;
        while at.0 < end {
            // SAFETY: the caller's promise.
            unsafe {
                let byte = at.byte();
                let low = u64::from(byte & 0x3f);
                let mut advance = 0;
                match (byte & 0xc0, byte) {
                    (0x40, _) => advance = low,
                    (0x80, _) => {
                        let offset = at.unsigned() as i64 * self.data_align;
                        state.set(low, offset);
                    }
                    (0xc0, _) => state.restore(low, &self.initial),
                    (_, 0x00) => {}
                    (_, 0x02) => advance = u64::from(at.byte()),
                    (_, 0x03) => advance = u64::from(u16::from_le_bytes([at.byte(), at.byte()])),
                    (_, 0x04) => advance = u64::from(at.i32() as u32),
                    (_, 0x05) => {
                        let (register, offset) = (at.unsigned(), at.unsigned());
                        state.set(register, offset as i64 * self.data_align);
                    }
                    (_, 0x06) => state.restore(at.unsigned(), &self.initial),
                    (_, 0x07) => state.is_end |= at.unsigned() == RETURN,
                    (_, 0x08) => match at.unsigned() {
                        FP => state.fp = None,
                        RETURN => state.link = None,
                        _ => {}
                    },
                    (_, 0x09) => {
                        let (register, _) = (at.unsigned(), at.unsigned());
                        state.is_end |= register == FP || register == RETURN;
                    }
                    (_, 0x0a) => {
                        *saved.get_mut(depth)? = *state;
                        depth += 1;
                    }
                    (_, 0x0b) => {
                        depth = depth.checked_sub(1)?;
                        *state = saved[depth];
                    }
                    (_, 0x0c) => state.cfa = Some((at.unsigned(), at.unsigned() as i64)),
                    (_, 0x0d) => state.cfa = Some((at.unsigned(), state.cfa?.1)),
                    (_, 0x0e) => {
                        state.cfa = Some((state.cfa.map_or(u64::MAX, |cfa| cfa.0), at.unsigned() as i64))
                    }
                    (_, 0x0f) => {
                        let bytes = at.unsigned() as usize;
                        at.0 = at.0.wrapping_add(bytes);
                        state.cfa = Some((u64::MAX, 0));
                    }
                    (_, 0x10 | 0x16) => {
                        let (register, bytes) = (at.unsigned(), at.unsigned() as usize);
                        at.0 = at.0.wrapping_add(bytes);
                        state.is_end |= register == FP || register == RETURN;
                    }
                    (_, 0x11) => {
                        let (register, offset) = (at.unsigned(), at.signed());
                        state.set(register, offset * self.data_align);
                    }
                    (_, 0x12) => state.cfa = Some((at.unsigned(), at.signed() * self.data_align)),
                    (_, 0x13) => {
                        let offset = at.signed() * self.data_align;
                        state.cfa = Some((state.cfa?.0, offset));
                    }
                    // Return addresses are signed from here on, or no longer.
                    (_, 0x2d) => {}
                    (_, 0x2e) => drop(at.unsigned()),
                    _ => return None,
                }
                location = location.wrapping_add((advance * self.code_align) as usize);
                if location > pc {
                    return Some(());
                }
            }
        }
        Some(())
    }
}

/// A place in the tables.
struct Reader(*const u8);

impl Reader {
    /// # Safety
    /// One byte must be readable there; the same holds for the methods below and their bytes.
    unsafe fn byte(&mut self) -> u8 {
        // SAFETY: the caller's promise.
        let byte = unsafe { self.0.read() };
        self.0 = self.0.wrapping_add(1);
        byte
    }

    /// # Safety
    /// As [`Reader::byte`], for four.
    unsafe fn i32(&mut self) -> i32 {
        // SAFETY: the caller's promise.
        let word = unsafe { self.0.cast::<i32>().read_unaligned() };
        self.0 = self.0.wrapping_add(4);
        word
    }

    /// An unsigned number in LEB128.
    ///
    /// # Safety
    /// As [`Reader::byte`], for the whole number.
    unsafe fn unsigned(&mut self) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            // SAFETY: the caller's promise.
            let byte = unsafe { self.byte() };
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }

    /// A signed number in LEB128.
    ///
    /// # Safety
    /// As [`Reader::byte`], for the whole number.
    unsafe fn signed(&mut self) -> i64 {
        let start = self.0;
        // SAFETY: the caller's promise.
        let value = unsafe { self.unsigned() } as i64;
        let bits = 7 * (self.0 as usize - start as usize) as u32;
        if bits >= 64 { value } else { value << (64 - bits) >> (64 - bits) }
    }

    /// The contents of an entry, and its end; `None` for the last entry and for those beyond 4 GiB.
    ///
    /// # Safety
    /// The place must be that of an entry.
    unsafe fn entry(mut self) -> Option<(Reader, *const u8)> {
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.i32() } as u32;
        if bytes == 0 || bytes == u32::MAX {
            return None;
        }
        let end = self.0.wrapping_add(bytes as usize);
        Some((self, end))
    }
}
