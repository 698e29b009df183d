//! The hot path of a function: the instructions that run when no conditional branch is taken.
//!
//! The compiler lays this path out straight, since slow paths are marked cold, and an undisturbed
//! restartable sequence takes it. A direct jump within the function is followed; one that leads out
//! of it is a call in disguise. A loop (a bulk copy) is walked once and left by its first exit.

use super::image::{Image, Symbol};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, Instruction, IntelFormatter, Mnemonic, OpKind, Register,
    SymbolResolver, SymbolResult,
};

/// Longer than any fast path; a walk that gets here is lost.
const MAX_INSTRUCTIONS: usize = 400;

/// The walked path.
#[derive(Default)]
pub struct Path {
    /// The instructions in the order they run, in a form without addresses.
    pub text: Vec<String>,
    /// Conditional branches among them.
    pub branches: usize,
}

/// Walks `symbol` from its entry to its `ret`. The second part of the result lists forbidden
/// instructions.
pub fn hot_path(image: &Image, symbol: &Symbol) -> (Path, Vec<String>) {
    let mut walked: Vec<Instruction> = Vec::new();
    let mut problems = Vec::new();
    let mut address = symbol.range.start;
    loop {
        let Some(instruction) = decode(image, address) else {
            problems.push(format!("no valid instruction at {address:#x}"));
            break;
        };
        walked.push(instruction);
        if instruction.has_lock_prefix()
            || (instruction.mnemonic() == Mnemonic::Xchg && has_memory(&instruction))
        {
            problems.push(format!("a locked instruction: {}", plain(&instruction)));
        }
        address = match instruction.flow_control() {
            FlowControl::Next | FlowControl::ConditionalBranch => instruction.next_ip(),
            FlowControl::Return => break,
            FlowControl::UnconditionalBranch => {
                let target = instruction.near_branch_target();
                if !symbol.range.contains(&target) {
                    problems.push(format!("a jump out of the function, to {}", image.name_at(target)));
                    break;
                }
                match after_jump(&walked, target) {
                    Some(next) => next,
                    None => {
                        problems.push(format!("a loop without an exit at {target:#x}"));
                        break;
                    }
                }
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                let callee = match instruction.near_branch_target() {
                    0 => "through a pointer".into(),
                    target => format!("of {}", image.name_at(target)),
                };
                problems.push(format!("a call {callee}"));
                instruction.next_ip()
            }
            _ => {
                problems.push(format!("an instruction that leaves the path: {}", plain(&instruction)));
                break;
            }
        };
        if walked.len() == MAX_INSTRUCTIONS {
            problems.push(format!("no ret within {MAX_INSTRUCTIONS} instructions"));
            break;
        }
    }
    let branches = walked.iter().filter(|i| i.flow_control() == FlowControl::ConditionalBranch).count();
    (Path { text: normalised(&walked), branches }, problems)
}

/// The next address after a jump: its target, or, if that was walked already, the loop's exit.
fn after_jump(walked: &[Instruction], target: u64) -> Option<u64> {
    let seen = |address: u64| walked.iter().any(|instruction| instruction.ip() == address);
    if !seen(target) {
        return Some(target);
    }
    let top = walked.iter().position(|instruction| instruction.ip() == target)?;
    walked[top..]
        .iter()
        .filter(|instruction| instruction.flow_control() == FlowControl::ConditionalBranch)
        .map(Instruction::near_branch_target)
        .find(|exit| !seen(*exit))
}

/// Decodes the instruction at an address.
pub fn decode(image: &Image, address: u64) -> Option<Instruction> {
    let instruction = Decoder::with_ip(64, image.code_at(address)?, address, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

fn has_memory(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory)
}

/// One instruction as text, without addresses.
pub fn plain(instruction: &Instruction) -> String {
    normalised(std::slice::from_ref(instruction)).remove(0)
}

/// Instructions as text that does not depend on the linker's placement.
fn normalised(walked: &[Instruction]) -> Vec<String> {
    let addresses = walked.iter().map(Instruction::ip).collect();
    let mut formatter = IntelFormatter::with_options(Some(Box::new(Nameless { addresses })), None);
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_first_operand_char_index(0);
    options.set_space_after_operand_separator(true);
    options.set_show_branch_size(false);
    options.set_rip_relative_addresses(false);
    walked
        .iter()
        .map(|instruction| {
            let mut text = String::new();
            formatter.format(instruction, &mut text);
            text
        })
        .collect()
}

/// Names each address by its kind alone.
struct Nameless {
    addresses: Vec<u64>,
}

impl SymbolResolver for Nameless {
    fn symbol(
        &mut self,
        instruction: &Instruction,
        _operand: u32,
        _instruction_operand: Option<u32>,
        address: u64,
        _address_size: u32,
    ) -> Option<SymbolResult<'_>> {
        let branch = !matches!(instruction.flow_control(), FlowControl::Next | FlowControl::Return)
            && matches!(
                instruction.op0_kind(),
                OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
            );
        let name = if branch {
            // `ahead` and `back` are on the path; `away` leaves it.
            match self.addresses.contains(&address) {
                true if address <= instruction.ip() => "back",
                true => "ahead",
                false => "away",
            }
        } else if instruction.is_ip_rel_memory_operand() {
            "symbol"
        } else if instruction.memory_segment() == Register::FS && instruction.memory_base() == Register::None
        {
            "thread"
        } else {
            return None;
        };
        Some(SymbolResult::with_str(address, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(code: &[u8]) -> (Path, Vec<String>) {
        let symbol = Symbol { name: "golden_x".into(), range: 0x100..0x100 + code.len() as u64 };
        let image =
            Image { code: vec![(0x100, code.to_vec())], symbols: vec![symbol.clone()], sequences: vec![] };
        hot_path(&image, &symbol)
    }

    #[test]
    fn branches_fall_through_and_jumps_are_followed() {
        // test rax, rax; je away; jmp +1; int3; ret
        let (path, problems) = walk(&[0x48, 0x85, 0xc0, 0x74, 0x7f, 0xeb, 0x01, 0xcc, 0xc3]);
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(path.text, ["test rax, rax", "je away", "jmp ahead", "ret"]);
        assert_eq!(path.branches, 1);
    }

    #[test]
    fn addresses_leave_no_trace_in_the_text() {
        // lea rax, [rip+0x1234]; mov rcx, fs:[0x28]; mov [rdx+rcx*8+8], rax; ret
        let code = [
            &[0x48, 0x8d, 0x05, 0x34, 0x12, 0, 0][..],
            &[0x64, 0x48, 0x8b, 0x0c, 0x25, 0x28, 0, 0, 0],
            &[0x48, 0x89, 0x44, 0xca, 0x08, 0xc3],
        ]
        .concat();
        let (path, problems) = walk(&code);
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(path.text, ["lea rax, [symbol]", "mov rcx, fs:[thread]", "mov [rdx+rcx*8+8], rax", "ret"]);
    }

    #[test]
    fn a_loop_is_walked_once_and_left_by_its_exit() {
        // 100: cmp rax, rcx; 103: jae 109; 105: inc eax; 107: jmp 100; 109: ret
        let (path, problems) = walk(&[0x48, 0x39, 0xc8, 0x73, 0x04, 0xff, 0xc0, 0xeb, 0xf7, 0xc3]);
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(path.text, ["cmp rax, rcx", "jae ahead", "inc eax", "jmp back", "ret"]);
        assert!(walk(&[0xeb, 0xfe]).1[0].contains("loop without an exit"));
    }

    #[test]
    fn calls_locks_and_ways_out_are_found() {
        let problem = |code: &[u8]| walk(code).1.first().cloned().unwrap_or_default();
        assert!(problem(&[0xe8, 0, 0, 0, 0, 0xc3]).contains("a call of golden_x"));
        assert!(problem(&[0xff, 0xd0, 0xc3]).contains("a call through a pointer"));
        assert!(problem(&[0xf0, 0x48, 0x0f, 0xb1, 0x0a, 0xc3]).contains("a locked instruction"));
        assert!(problem(&[0x48, 0x87, 0x0a, 0xc3]).contains("a locked instruction"));
        assert!(problem(&[0xe9, 0, 1, 0, 0]).contains("a jump out of the function"));
        assert!(
            problem(&[0x0f, 0x05, 0xc3]).contains("a call")
                || problem(&[0x0f, 0x05, 0xc3]).contains("leaves")
        );
        assert!(problem(&[0x0f, 0x0b]).contains("leaves the path"));
        assert!(problem(&[0x90]).contains("no valid instruction"));
        assert_eq!(problem(&[0x48, 0x87, 0xca, 0xc3]), "");
    }
}
