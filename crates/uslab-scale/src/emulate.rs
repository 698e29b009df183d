//! An emulator of the instructions that the library consists of, for the trace: a step on the
//! processor by the trap flag takes a signal, and in a virtual machine two exits to its host.
//!
//! ```text
//!   trap ─▶ keep registers ─▶ known instruction? ─ yes ─▶ emulate ─┐
//!             ▲                       └ no ─▶ back to the processor, for one instruction
//!             └────────────────────────────────────────────────────┘
//! ```
//!
//! It knows integer instructions of 8 to 64 bits, jumps and calls. Everything else (vectors, system
//! calls, repeated string instructions) runs on the processor. Locked instructions are emulated as
//! plain ones: a trace has one thread.
//!
//! It runs in a signal handler on a stack of its own, and allocates nothing.

use iced_x86::{ConditionCode, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// The saved registers of a thread, as the kernel passes them to a signal handler.
pub type Saved = [libc::greg_t; 23];

const CARRY: u64 = 1;
const PARITY: u64 = 1 << 2;
const ZERO: u64 = 1 << 6;
const SIGN: u64 = 1 << 7;
const OVERFLOW: u64 = 1 << 11;
const RESULT: u64 = PARITY | ZERO | SIGN;

/// Instructions that the cache of decoded ones has room for.
const PLACES: usize = 1 << 14;
/// "No general register" in [`Emulator::places`].
const NONE: u8 = u8::MAX;

/// The state of the emulator: what it has decoded.
pub struct Emulator {
    decoded: Box<[Instruction]>,
    /// The place of each register's 64 bits in [`Saved`].
    places: [u8; 256],
    thread_base: u64,
}

impl Emulator {
    /// `thread_base` is the base of the segment `fs`.
    pub fn new(registers: &[(Register, libc::c_int)], thread_base: u64) -> Emulator {
        let mut places = [NONE; 256];
        for register in Register::values() {
            let is_high_byte = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
            let found = registers.iter().find(|(full, _)| *full == register.full_register());
            if let Some(&(_, place)) = found.filter(|_| !is_high_byte) {
                places[register as usize] = place as u8;
            }
        }
        // The first decoder builds the tables of the crate, which allocates.
        let mut emulator =
            Emulator { decoded: vec![Instruction::default(); PLACES].into(), places, thread_base };
        emulator.decode(Emulator::new as *const () as u64);
        emulator
    }

    fn decode(&mut self, code: u64) -> Instruction {
        let place = &mut self.decoded[(code ^ code >> 14) as usize % PLACES];
        if place.ip() != code || place.is_invalid() {
            *place = decode(code);
        }
        *place
    }

    /// Runs the instruction that the thread is about to run, if it is a known one. False with
    /// nothing changed otherwise.
    ///
    /// # Safety
    /// The registers must be those of the calling thread, which runs valid code, and whose stack
    /// the caller must not be on.
    pub unsafe fn step(&mut self, saved: &mut Saved) -> bool {
        let instruction = self.decode(saved[libc::REG_RIP as usize] as u64);
        let mut thread = Thread { emulator: self, saved, instruction: &instruction };
        let next = instruction.next_ip();
        // SAFETY: the caller's promise.
        let Some(to) = (unsafe { thread.run(next) }) else { return false };
        saved[libc::REG_RIP as usize] = to as i64;
        true
    }
}

/// The instruction at `code`.
pub fn decode(code: u64) -> Instruction {
    const MAX_BYTES: usize = 15;
    let mut bytes = [0u8; MAX_BYTES];
    // SAFETY: the processor runs the instruction there. Fifteen bytes may reach past the end of a
    // mapping only behind the last function of one; `_fini` stands there.
    unsafe { std::ptr::copy_nonoverlapping(code as *const u8, bytes.as_mut_ptr(), MAX_BYTES) };
    Decoder::with_ip(64, &bytes, code, DecoderOptions::NONE).decode()
}

/// The low `bytes` bytes.
fn mask(bytes: usize) -> u64 {
    u64::MAX >> (64 - 8 * bytes)
}

fn sign_extended(value: u64, bytes: usize) -> u64 {
    let shift = 64 - 8 * bytes;
    ((value << shift) as i64 >> shift) as u64
}

fn is_negative(value: u64, bytes: usize) -> bool {
    value >> (8 * bytes - 1) & 1 != 0
}

/// Carry and overflow as flags.
fn carry_overflow(carry: bool, overflow: bool) -> u64 {
    (u64::from(carry) * CARRY) | (u64::from(overflow) * OVERFLOW)
}

struct Thread<'a> {
    emulator: &'a Emulator,
    saved: &'a mut Saved,
    instruction: &'a Instruction,
}

impl Thread<'_> {
    fn place(&self, register: Register) -> Option<usize> {
        match self.emulator.places[register as usize] {
            NONE => None,
            place => Some(place.into()),
        }
    }

    fn register(&self, register: Register) -> Option<u64> {
        Some(self.saved[self.place(register)?] as u64 & mask(register.size()))
    }

    fn set_register(&mut self, register: Register, value: u64) -> Option<()> {
        let place = &mut self.saved[self.emulator.places[register as usize] as usize];
        *place = match register.size() {
            8 => value,
            // The upper half becomes zero.
            4 => value & mask(4),
            bytes => *place as u64 & !mask(bytes) | value & mask(bytes),
        } as i64;
        Some(())
    }

    /// The address that the memory operand names, within its segment.
    fn offset(&self) -> Option<u64> {
        let of = |register: Register| match register {
            Register::None | Register::RIP => Some(0),
            // Others wrap at 32 bits.
            _ if register.size() == 8 => self.register(register),
            _ => None,
        };
        let instruction = self.instruction;
        let base = of(instruction.memory_base())?;
        let index = of(instruction.memory_index())?.wrapping_mul(instruction.memory_index_scale().into());
        Some(base.wrapping_add(index).wrapping_add(instruction.memory_displacement64()))
    }

    fn address(&self) -> Option<u64> {
        let base = match self.instruction.memory_segment() {
            Register::FS => self.emulator.thread_base,
            Register::GS => return None,
            _ => 0,
        };
        Some(self.offset()?.wrapping_add(base))
    }

    /// Bytes of an operand; `None` if it is no integer of 1 to 8 bytes.
    fn bytes(&self, operand: u32) -> Option<usize> {
        let bytes = match self.instruction.op_kind(operand) {
            OpKind::Register => {
                let register = self.instruction.op_register(operand);
                self.place(register)?;
                register.size()
            }
            OpKind::Memory => {
                self.address()?;
                self.instruction.memory_size().size()
            }
            _ => return None,
        };
        matches!(bytes, 1 | 2 | 4 | 8).then_some(bytes)
    }

    /// # Safety
    /// As [`Emulator::step`].
    unsafe fn load(&self, address: u64, bytes: usize) -> u64 {
        // SAFETY: the thread's next instruction loads these bytes.
        unsafe {
            match bytes {
                1 => (address as *const u8).read_volatile().into(),
                2 => (address as *const u16).read_unaligned().into(),
                4 => (address as *const u32).read_unaligned().into(),
                _ => (address as *const u64).read_unaligned(),
            }
        }
    }

    /// # Safety
    /// As [`Emulator::step`].
    unsafe fn store(&self, address: u64, bytes: usize, value: u64) {
        // SAFETY: the thread's next instruction stores these bytes.
        unsafe {
            match bytes {
                1 => (address as *mut u8).write_volatile(value as u8),
                2 => (address as *mut u16).write_unaligned(value as u16),
                4 => (address as *mut u32).write_unaligned(value as u32),
                _ => (address as *mut u64).write_unaligned(value),
            }
        }
    }

    /// # Safety
    /// As [`Emulator::step`].
    unsafe fn read(&self, operand: u32) -> Option<u64> {
        match self.instruction.op_kind(operand) {
            OpKind::Register => self.register(self.instruction.op_register(operand)),
            // SAFETY: the caller's promise.
            OpKind::Memory => Some(unsafe { self.load(self.address()?, self.bytes(operand)?) }),
            _ => self.instruction.try_immediate(operand).ok(),
        }
    }

    /// # Safety
    /// As [`Emulator::step`].
    unsafe fn write(&mut self, operand: u32, value: u64) -> Option<()> {
        match self.instruction.op_kind(operand) {
            OpKind::Register => self.set_register(self.instruction.op_register(operand), value),
            // SAFETY: the caller's promise.
            _ => unsafe {
                self.store(self.address()?, self.bytes(operand)?, value);
                Some(())
            },
        }
    }

    fn flags(&self) -> u64 {
        self.saved[libc::REG_EFL as usize] as u64
    }

    /// Sets the flags of `which`, of which those of `values` are on.
    fn set_flags(&mut self, which: u64, values: u64) {
        self.saved[libc::REG_EFL as usize] = (self.flags() & !which | values & which) as i64;
    }

    /// Sets parity, zero and sign as `result` has them, and those of `which` as `values` has them.
    fn set_result(&mut self, result: u64, bytes: usize, which: u64, values: u64) {
        let result = result & mask(bytes);
        let parity = if (result as u8).count_ones().is_multiple_of(2) { PARITY } else { 0 };
        let zero = if result == 0 { ZERO } else { 0 };
        let sign = if is_negative(result, bytes) { SIGN } else { 0 };
        self.set_flags(RESULT | which, parity | zero | sign | values);
    }

    fn holds(&self) -> Option<bool> {
        let has = |flag| self.flags() & flag != 0;
        let is_less = has(SIGN) != has(OVERFLOW);
        Some(match self.instruction.condition_code() {
            ConditionCode::o => has(OVERFLOW),
            ConditionCode::no => !has(OVERFLOW),
            ConditionCode::b => has(CARRY),
            ConditionCode::ae => !has(CARRY),
            ConditionCode::e => has(ZERO),
            ConditionCode::ne => !has(ZERO),
            ConditionCode::be => has(CARRY) || has(ZERO),
            ConditionCode::a => !(has(CARRY) || has(ZERO)),
            ConditionCode::s => has(SIGN),
            ConditionCode::ns => !has(SIGN),
            ConditionCode::p => has(PARITY),
            ConditionCode::np => !has(PARITY),
            ConditionCode::l => is_less,
            ConditionCode::ge => !is_less,
            ConditionCode::le => is_less || has(ZERO),
            ConditionCode::g => !(is_less || has(ZERO)),
            ConditionCode::None => return None,
        })
    }

    fn add(&mut self, a: u64, b: u64, carry: u64, bytes: usize) -> u64 {
        let all = u128::from(a & mask(bytes)) + u128::from(b & mask(bytes)) + u128::from(carry);
        let sum = all as u64 & mask(bytes);
        let overflow = is_negative((a ^ sum) & (b ^ sum), bytes);
        self.set_result(sum, bytes, CARRY | OVERFLOW, carry_overflow(all >> (8 * bytes) != 0, overflow));
        sum
    }

    fn subtract(&mut self, a: u64, b: u64, borrow: u64, bytes: usize) -> u64 {
        let (a, b) = (a & mask(bytes), b & mask(bytes));
        let difference = a.wrapping_sub(b).wrapping_sub(borrow) & mask(bytes);
        let carry = u128::from(a) < u128::from(b) + u128::from(borrow);
        let overflow = is_negative((a ^ b) & (a ^ difference), bytes);
        self.set_result(difference, bytes, CARRY | OVERFLOW, carry_overflow(carry, overflow));
        difference
    }

    fn logic(&mut self, result: u64, bytes: usize) -> u64 {
        self.set_result(result, bytes, CARRY | OVERFLOW, 0);
        result
    }

    fn shift(&mut self, value: u64, count: u64, bytes: usize) -> u64 {
        let bits = 8 * bytes as u64;
        let count = count & if bytes == 8 { 63 } else { 31 };
        if count == 0 {
            return value;
        }
        let value = value & mask(bytes);
        let (wide, signed) = (u128::from(value), i128::from(sign_extended(value, bytes) as i64));
        let (result, carry) = match self.instruction.mnemonic() {
            Mnemonic::Shl => ((wide << count) as u64, wide << count >> bits & 1 != 0),
            Mnemonic::Shr => ((wide >> count) as u64, wide >> (count - 1) & 1 != 0),
            _ => ((signed >> count) as u64, signed >> (count - 1) & 1 != 0),
        };
        let overflow = match self.instruction.mnemonic() {
            Mnemonic::Shl => is_negative(result, bytes) != carry,
            Mnemonic::Shr => is_negative(value, bytes),
            _ => false,
        };
        self.set_result(result, bytes, CARRY | OVERFLOW, carry_overflow(carry, overflow));
        result
    }

    /// # Safety
    /// As [`Emulator::step`].
    unsafe fn push(&mut self, value: u64) {
        let stack = &mut self.saved[libc::REG_RSP as usize];
        *stack -= 8;
        let address = *stack as u64;
        // SAFETY: the caller's promise.
        unsafe { self.store(address, 8, value) };
    }

    /// # Safety
    /// As [`Emulator::step`].
    unsafe fn pop(&mut self) -> u64 {
        let stack = &mut self.saved[libc::REG_RSP as usize];
        let address = *stack as u64;
        *stack += 8;
        // SAFETY: the caller's promise.
        unsafe { self.load(address, 8) }
    }

    /// The target of a jump or a call.
    ///
    /// # Safety
    /// As [`Emulator::step`].
    unsafe fn target(&self) -> Option<u64> {
        match self.instruction.op0_kind() {
            OpKind::NearBranch64 => Some(self.instruction.near_branch_target()),
            // SAFETY: the caller's promise.
            _ => unsafe { self.bytes(0).filter(|&bytes| bytes == 8).and(self.read(0)) },
        }
    }

    /// Runs the instruction; returns the address of the next one. Returns `None`, with nothing
    /// changed, if it is not known.
    ///
    /// # Safety
    /// As [`Emulator::step`].
    unsafe fn run(&mut self, next: u64) -> Option<u64> {
        use Mnemonic::{
            Adc, Add, And, Bsf, Bsr, Bt, Call, Cdqe, Cmp, Cmpxchg, Dec, Endbr64, Imul, Inc, Jmp, Lea, Mov,
            Movsx, Movsxd, Movzx, Mul, Neg, Nop, Not, Or, Pause, Pop, Prefetchnta, Prefetcht0, Prefetchw,
            Push, Ret, Sar, Sbb, Shl, Shr, Sub, Test, Tzcnt, Xadd, Xchg, Xor,
        };
        let instruction = self.instruction;
        let mnemonic = instruction.mnemonic();
        // SAFETY: the caller's promise, in all of these blocks.
        unsafe {
            match mnemonic {
                Nop | Endbr64 | Pause | Prefetchnta | Prefetcht0 | Prefetchw => return Some(next),
                Jmp => return self.target(),
                Call => {
                    let to = self.target()?;
                    self.push(next);
                    return Some(to);
                }
                Ret if instruction.op_count() == 0 => return Some(self.pop()),
                Push if instruction.stack_pointer_increment() == -8 => {
                    let value = self.read(0)?;
                    self.push(value);
                    return Some(next);
                }
                Pop if instruction.op0_kind() == OpKind::Register && self.bytes(0)? == 8 => {
                    let value = self.pop();
                    self.write(0, value)?;
                    return Some(next);
                }
                Cdqe => {
                    let value = sign_extended(self.register(Register::EAX)?, 4);
                    self.set_register(Register::RAX, value)?;
                    return Some(next);
                }
                _ => {}
            }
            if instruction.is_jcc_short_or_near() {
                return Some(if self.holds()? { instruction.near_branch_target() } else { next });
            }
            let bytes = self.bytes(0)?;
            if let Some(holds) = self.holds() {
                match instruction.op_count() {
                    1 => self.write(0, holds.into())?,
                    _ => {
                        let (old, new) = (self.read(0)?, self.read(1)?);
                        self.write(0, if holds { new } else { old })?;
                    }
                }
                return Some(next);
            }
            match mnemonic {
                Mov => {
                    let value = self.read(1)?;
                    self.write(0, value)?;
                }
                Movzx | Movsx | Movsxd => {
                    let (value, from) = (self.read(1)?, self.bytes(1)?);
                    self.write(0, if mnemonic == Movzx { value } else { sign_extended(value, from) })?;
                }
                Lea => {
                    let value = self.offset()?;
                    self.write(0, value)?;
                }
                Add | Adc | Sub | Sbb | And | Or | Xor | Cmp | Test => {
                    let (a, b) = (self.read(0)?, self.read(1)?);
                    let carry = self.flags() & CARRY;
                    let result = match mnemonic {
                        Add => self.add(a, b, 0, bytes),
                        Adc => self.add(a, b, carry, bytes),
                        Sub | Cmp => self.subtract(a, b, 0, bytes),
                        Sbb => self.subtract(a, b, carry, bytes),
                        And | Test => self.logic(a & b, bytes),
                        Or => self.logic(a | b, bytes),
                        _ => self.logic(a ^ b, bytes),
                    };
                    if !matches!(mnemonic, Cmp | Test) {
                        self.write(0, result)?;
                    }
                }
                Inc | Dec | Neg | Not => {
                    let a = self.read(0)?;
                    let carry = self.flags() & CARRY;
                    let result = match mnemonic {
                        Inc => self.add(a, 1, 0, bytes),
                        Dec => self.subtract(a, 1, 0, bytes),
                        Neg => self.subtract(0, a, 0, bytes),
                        _ => !a,
                    };
                    if matches!(mnemonic, Inc | Dec) {
                        self.set_flags(CARRY, carry);
                    }
                    self.write(0, result)?;
                }
                Shl | Shr | Sar => {
                    let (value, count) = (self.read(0)?, self.read(1)?);
                    let result = self.shift(value, count, bytes);
                    self.write(0, result)?;
                }
                Imul if instruction.op_count() > 1 => {
                    let first = instruction.op_count() - 2;
                    let signed = |value| i128::from(sign_extended(value, bytes) as i64);
                    let product = signed(self.read(first)?) * signed(self.read(first + 1)?);
                    let is_lost = product != signed(product as u64);
                    self.set_result(
                        product as u64,
                        bytes,
                        CARRY | OVERFLOW,
                        carry_overflow(is_lost, is_lost),
                    );
                    self.write(0, product as u64)?;
                }
                Mul if bytes >= 4 => {
                    let (low, high) = match bytes {
                        8 => (Register::RAX, Register::RDX),
                        _ => (Register::EAX, Register::EDX),
                    };
                    let product = u128::from(self.read(0)?) * u128::from(self.register(low)?);
                    let top = (product >> (8 * bytes)) as u64;
                    self.set_flags(CARRY | OVERFLOW, carry_overflow(top != 0, top != 0));
                    self.set_register(low, product as u64)?;
                    self.set_register(high, top)?;
                }
                Bt if instruction.op0_kind() == OpKind::Register => {
                    let (value, bit) = (self.read(0)?, self.read(1)? % (8 * bytes as u64));
                    self.set_flags(CARRY, value >> bit & 1);
                }
                Bsf | Tzcnt | Bsr => {
                    let value = self.read(1)?;
                    if value == 0 && mnemonic != Tzcnt {
                        return None;
                    }
                    let bits = 8 * bytes as u32;
                    let result = match mnemonic {
                        Bsr => 63 - value.leading_zeros(),
                        _ => value.trailing_zeros().min(bits),
                    };
                    let is_zero = if mnemonic == Tzcnt { result == 0 } else { value == 0 };
                    let carry = if value == 0 { CARRY } else { 0 };
                    self.set_flags(CARRY | ZERO, carry | if is_zero { ZERO } else { 0 });
                    self.write(0, result.into())?;
                }
                Xchg => {
                    let (a, b) = (self.read(0)?, self.read(1)?);
                    // The operand in memory first: its address may depend on the other.
                    let memory = u32::from(instruction.op0_kind() != OpKind::Memory);
                    self.write(memory, if memory == 0 { b } else { a })?;
                    self.write(1 - memory, if memory == 0 { a } else { b })?;
                }
                Xadd => {
                    let (a, b) = (self.read(0)?, self.read(1)?);
                    let sum = self.add(a, b, 0, bytes);
                    self.write(0, sum)?;
                    self.write(1, a)?;
                }
                Cmpxchg => {
                    let accumulator = match bytes {
                        8 => Register::RAX,
                        4 => Register::EAX,
                        2 => Register::AX,
                        _ => Register::AL,
                    };
                    let (found, expected) = (self.read(0)?, self.register(accumulator)?);
                    let new = self.read(1)?;
                    self.subtract(expected, found, 0, bytes);
                    if found == expected {
                        self.write(0, new)?;
                    } else {
                        self.set_register(accumulator, found)?;
                    }
                }
                _ => return None,
            }
        }
        Some(next)
    }
}
