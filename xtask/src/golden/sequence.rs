//! The rules for every restartable sequence, wherever it was inlined.
//!
//! The kernel may abort a sequence before any of its instructions, and never after the last. So the
//! one store that makes its work visible must be that last instruction: an abort behind an earlier
//! one would do the work twice. Earlier stores may go to memory that no other thread reads yet: the
//! tail of a sheaf above its count, the caller's own buffer. They may not go to the place of the
//! committing store.
//!
//! The store that arms the sequence stands before its start and is not part of it.

use super::image::{Descriptor, Image};
use super::trace::{decode, plain};
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register, UsedMemory};

/// The signature that the kernel requires in the four bytes before an abort handler on x86.
const SIGNATURE: u32 = 0x5305_3053;

/// The facts about a sequence that the listing keeps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Instructions.
    pub instructions: usize,
    /// Instructions that store, the committing one included.
    pub stores: usize,
    /// The committing instruction, without its operands: registers of slow paths change with every
    /// build.
    pub commit: String,
}

/// Checks one sequence.
pub fn check(image: &Image, descriptor: &Descriptor) -> Result<Shape, Vec<String>> {
    let mut problems = header(image, descriptor);
    let end = descriptor.start + descriptor.length;
    let mut info = InstructionInfoFactory::new();
    let mut instructions = Vec::new();
    // Every store, with the position of its instruction.
    let mut stores: Vec<(usize, UsedMemory)> = Vec::new();
    let mut address = descriptor.start;
    while address < end {
        let Some(instruction) = decode(image, address) else {
            problems.push(format!("no valid instruction at {address:#x}"));
            return Err(problems);
        };
        let stays = match instruction.flow_control() {
            // A conditional branch may leave: that is the failure exit, and nothing was committed
            // yet.
            FlowControl::Next | FlowControl::ConditionalBranch => true,
            FlowControl::UnconditionalBranch => {
                (descriptor.start..end).contains(&instruction.near_branch_target())
            }
            _ => false,
        };
        if !stays {
            problems.push(format!("it is left within: {}", plain(&instruction)));
        }
        let position = instructions.len();
        stores.extend(
            info.info(&instruction).used_memory().iter().filter(stored).map(|memory| (position, *memory)),
        );
        address = instruction.next_ip();
        instructions.push(instruction);
    }
    if address != end {
        problems.push("its end is in the middle of an instruction".into());
    }
    problems.extend(commit_faults(&instructions, &stores));
    stores.dedup_by_key(|(position, _)| *position);
    match instructions.last() {
        Some(last) if problems.is_empty() => {
            Ok(Shape { instructions: instructions.len(), stores: stores.len(), commit: operation(last) })
        }
        _ => Err(problems),
    }
}

/// `mov`, `xchg`, `lock cmpxchg`.
fn operation(instruction: &Instruction) -> String {
    let text = plain(instruction);
    let words = if instruction.has_lock_prefix() { 2 } else { 1 };
    text.split(' ').take(words).collect::<Vec<_>>().join(" ")
}

/// Checks the fields that the kernel checks, and those that change its behaviour.
fn header(image: &Image, descriptor: &Descriptor) -> Vec<String> {
    let mut problems = Vec::new();
    if descriptor.version != 0 || descriptor.flags != 0 {
        problems.push(format!("version {} and flags {:#x}, not 0", descriptor.version, descriptor.flags));
    }
    let inside = descriptor.start..descriptor.start + descriptor.length;
    if inside.is_empty() {
        problems.push("it is empty".into());
    }
    if inside.contains(&descriptor.abort) {
        problems.push("its abort handler is inside it: the kernel refuses that".into());
    }
    let before = descriptor.abort.checked_sub(4).and_then(|address| image.code_at(address));
    let signature = before.and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes));
    if signature != Some(SIGNATURE) {
        problems.push(format!("the abort handler at {:#x} has no signature before it", descriptor.abort));
    }
    problems
}

/// The last instruction stores, and nothing stored there before it.
fn commit_faults(instructions: &[Instruction], stores: &[(usize, UsedMemory)]) -> Vec<String> {
    let Some(last) = instructions.len().checked_sub(1) else { return Vec::new() };
    let Some((_, commit)) = stores.iter().find(|(position, _)| *position == last) else {
        return vec![format!("its last instruction does not store: {}", plain(&instructions[last]))];
    };
    let place = |memory: &UsedMemory| (memory.base(), memory.index(), memory.scale(), memory.displacement());
    stores
        .iter()
        .filter(|(position, memory)| *position != last && place(memory) == place(commit))
        .map(|(position, _)| {
            format!("it stores where it commits before the end: {}", plain(&instructions[*position]))
        })
        .collect()
}

/// A write to memory that is not the stack. Only `rsp` is taken for the stack: release code keeps
/// no frame pointer.
fn stored(memory: &&UsedMemory) -> bool {
    use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
    matches!(memory.access(), Write | CondWrite | ReadWrite | ReadCondWrite) && memory.base() != Register::RSP
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: &[u8] = &[0x8b, 0x01]; // mov eax, [rcx]
    const STORE: &[u8] = &[0x89, 0x01]; // mov [rcx], eax
    const STORE_TAIL: &[u8] = &[0x48, 0x89, 0x54, 0xc1, 0x10]; // mov [rcx+rax*8+16], rdx
    const STORE_STACK: &[u8] = &[0x48, 0x89, 0x44, 0x24, 0x08]; // mov [rsp+8], rax
    const EXCHANGE: &[u8] = &[0xf0, 0x48, 0x0f, 0xb1, 0x11]; // lock cmpxchg [rcx], rdx
    const CALL: &[u8] = &[0xff, 0xd0]; // call rax

    fn image(parts: &[&[u8]], signature: u32) -> (Image, Descriptor) {
        let mut code = parts.concat();
        let length = code.len() as u64;
        code.extend(signature.to_le_bytes());
        code.push(0xc3);
        let descriptor = Descriptor { version: 0, flags: 0, start: 0x100, length, abort: 0x100 + length + 4 };
        (Image { code: vec![(0x100, code)], symbols: vec![], sequences: vec![] }, descriptor)
    }

    fn checked(parts: &[&[u8]]) -> Result<Shape, String> {
        let (image, descriptor) = image(parts, SIGNATURE);
        check(&image, &descriptor).map_err(|problems| problems.join("; "))
    }

    #[test]
    fn a_sequence_ends_with_its_commit() {
        let shape = checked(&[LOAD, STORE]).unwrap();
        assert_eq!(shape, Shape { instructions: 2, stores: 1, commit: "mov".into() });
        assert!(checked(&[STORE, LOAD]).unwrap_err().contains("last instruction does not store"));
        assert!(checked(&[LOAD]).unwrap_err().contains("last instruction does not store"));
        assert_eq!(checked(&[LOAD, EXCHANGE]).unwrap().commit, "lock cmpxchg");
    }

    #[test]
    fn stores_that_nobody_sees_are_counted_and_others_refused() {
        assert_eq!(checked(&[LOAD, STORE_TAIL, STORE]).unwrap().stores, 2);
        assert_eq!(checked(&[LOAD, STORE_STACK, STORE]).unwrap().stores, 1);
        assert!(checked(&[STORE, LOAD, STORE]).unwrap_err().contains("stores where it commits"));
        assert!(
            checked(&[LOAD, STORE, STORE_STACK]).unwrap_err().contains("last instruction does not store")
        );
    }

    #[test]
    fn a_sequence_is_not_left_within() {
        assert!(checked(&[CALL, STORE]).unwrap_err().contains("left within: call rax"));
        assert!(checked(&[&[0x0f, 0x05], STORE]).unwrap_err().contains("left within: syscall"));
        assert!(checked(&[&[0xeb, 0x02], STORE]).unwrap_err().contains("left within: jmp"));
        assert!(checked(&[&[0xeb, 0x00], STORE]).is_ok());
        assert!(checked(&[&[0x73, 0x7f], STORE]).is_ok());
    }

    #[test]
    fn what_the_kernel_checks_is_checked() {
        let (unsigned, descriptor) = image(&[LOAD, STORE], 0x5305_3054);
        assert!(check(&unsigned, &descriptor).unwrap_err()[0].contains("no signature"));
        let (good, descriptor) = image(&[LOAD, STORE], SIGNATURE);
        let faults = |change: &dyn Fn(&mut Descriptor)| {
            let mut descriptor = descriptor.clone();
            change(&mut descriptor);
            check(&good, &descriptor).unwrap_err().join("; ")
        };
        assert!(faults(&|d| d.flags = 1).contains("flags 0x1"));
        assert!(faults(&|d| d.abort = d.start + 2).contains("inside it"));
        assert!(faults(&|d| d.length = 3).contains("middle of an instruction"));
        assert!(faults(&|d| d.length = 0).contains("it is empty"));
    }
}
