//! The trace: each memory access of a piece of the library, one instruction at a time.
//!
//! ```text
//!   raise(SIGTRAP) ─▶ handler keeps the registers ─▶ emulates ─▶ keeps the registers ─▶ …
//!                        ▲                              └ unknown: trap flag, ─┐
//!                        └──────────────────────── one instruction by itself ◀─┘
//!   afterwards       decode (iced-x86): address, bytes, read, write, locked
//! ```
//!
//! The trace runs the released code unchanged: no build with other atomics, and the assembly of the
//! sequences is seen as well. The kernel's own accesses are not seen; system calls are counted.
//!
//! One thread only. The handler writes to memory that exists already and allocates nothing.

use crate::emulate::{self, Emulator};
use iced_x86::{InstructionInfoFactory, Mnemonic, OpAccess, Register, UsedMemory};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::Relaxed};

/// Registers of one step, in the order of [`REGISTERS`], and the instruction's address.
type Step = [u64; 17];

const REGISTERS: [(Register, libc::c_int); 16] = [
    (Register::RAX, libc::REG_RAX),
    (Register::RBX, libc::REG_RBX),
    (Register::RCX, libc::REG_RCX),
    (Register::RDX, libc::REG_RDX),
    (Register::RSI, libc::REG_RSI),
    (Register::RDI, libc::REG_RDI),
    (Register::RBP, libc::REG_RBP),
    (Register::RSP, libc::REG_RSP),
    (Register::R8, libc::REG_R8),
    (Register::R9, libc::REG_R9),
    (Register::R10, libc::REG_R10),
    (Register::R11, libc::REG_R11),
    (Register::R12, libc::REG_R12),
    (Register::R13, libc::REG_R13),
    (Register::R14, libc::REG_R14),
    (Register::R15, libc::REG_R15),
];
const TRAP_FLAG: i64 = 0x100;
/// Steps that one trace has room for.
const MAX_STEPS: usize = 1 << 22;
/// The stack of the handler. Emulated code writes to that of the thread.
const STACK_BYTES: usize = 256 << 10;

/// What the handler works on, on lines of its own.
#[repr(align(64))]
struct Recorder {
    /// Null: the processor runs each instruction.
    emulator: AtomicPtr<Emulator>,
    steps: AtomicPtr<Step>,
    count: AtomicUsize,
    stops: AtomicBool,
}

static RECORDER: Recorder = Recorder {
    emulator: AtomicPtr::new(std::ptr::null_mut()),
    steps: AtomicPtr::new(std::ptr::null_mut()),
    count: AtomicUsize::new(0),
    stops: AtomicBool::new(false),
};

extern "C" fn on_trap(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a context, which this thread alone uses, on a stack of the handler;
    // `RECORDER` has room for `MAX_STEPS`, and its emulator is used here alone.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        loop {
            if RECORDER.stops.load(Relaxed) {
                registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
                return;
            }
            let count = RECORDER.count.load(Relaxed);
            if count < MAX_STEPS {
                let step = &mut *RECORDER.steps.load(Relaxed).add(count);
                for (place, (_, index)) in step.iter_mut().zip(REGISTERS) {
                    *place = registers[index as usize] as u64;
                }
                step[16] = registers[libc::REG_RIP as usize] as u64;
            }
            RECORDER.count.store(count + 1, Relaxed);
            registers[libc::REG_EFL as usize] |= TRAP_FLAG;
            let emulator = RECORDER.emulator.load(Relaxed);
            if emulator.is_null() || !(*emulator).step(registers) {
                return;
            }
        }
    }
}

/// How an instruction touches memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read,
    Write,
    /// An atomic read-modify-write that may take a lock: `cmpxchg`.
    Compare,
    /// Any other atomic read-modify-write.
    Modify,
}

/// One access.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub address: u64,
    pub kind: Kind,
    /// The instruction.
    pub code: u64,
    /// Instructions of the trace before this one.
    pub at: u32,
}

/// The accesses of one piece of code.
#[derive(Default)]
pub struct Trace {
    pub accesses: Vec<Access>,
    pub instructions: u32,
    pub system_calls: u32,
}

struct Decoded {
    memory: Vec<(UsedMemory, Kind)>,
    is_system_call: bool,
}

/// Traces pieces of code on the calling thread.
pub struct Tracer {
    decoded: HashMap<u64, Decoded>,
    factory: InstructionInfoFactory,
    thread_base: u64,
    /// The memory that counts: the library's.
    memory: Vec<Range<u64>>,
    /// Instructions of a trace of nothing.
    empty: u32,
    /// How often each instruction ran, by its address.
    pub runs: HashMap<u64, u64>,
}

impl Tracer {
    /// Takes over `SIGTRAP` in this process. Accesses outside `memory` are left out, as are those
    /// to what belongs to a thread. Without `emulates` the processor runs each instruction, which
    /// takes a hundred times as long.
    pub fn new(memory: Vec<Range<u64>>, emulates: bool) -> Tracer {
        let steps: &'static mut [Step] = vec![[0; 17]; MAX_STEPS].leak();
        RECORDER.steps.store(steps.as_mut_ptr(), Relaxed);
        // SAFETY: the handler is async-signal-safe, and its stack lives for ever. `pthread_self` is
        // the thread's base on x86-64.
        let thread_base = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_trap as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let stack = vec![0u8; STACK_BYTES].leak();
            let stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: STACK_BYTES };
            libc::sigaltstack(&raw const stack, std::ptr::null_mut());
            libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut());
            libc::pthread_self() as u64
        };
        if emulates {
            let emulator = Box::new(Emulator::new(&REGISTERS, thread_base));
            RECORDER.emulator.store(Box::into_raw(emulator), Relaxed);
        }
        let mut tracer = Tracer {
            decoded: HashMap::new(),
            factory: InstructionInfoFactory::new(),
            thread_base,
            memory,
            empty: 0,
            runs: HashMap::new(),
        };
        tracer.empty = tracer.trace(|| {}).instructions;
        tracer
    }

    /// Runs `code` and returns its accesses.
    pub fn trace(&mut self, code: impl FnOnce()) -> Trace {
        RECORDER.count.store(0, Relaxed);
        RECORDER.stops.store(false, Relaxed);
        // SAFETY: the handler is installed.
        unsafe { libc::raise(libc::SIGTRAP) };
        code();
        RECORDER.stops.store(true, Relaxed);
        let count = RECORDER.count.load(Relaxed);
        assert!(count < MAX_STEPS, "a traced piece has at most {MAX_STEPS} instructions");
        // SAFETY: the handler wrote `count` steps, and runs no more.
        let steps = unsafe { std::slice::from_raw_parts(RECORDER.steps.load(Relaxed), count) };
        let mut trace = Trace { instructions: (count as u32).saturating_sub(self.empty), ..Trace::default() };
        for (at, step) in steps.iter().enumerate() {
            self.add(&mut trace, at, step);
        }
        trace
    }

    fn add(&mut self, trace: &mut Trace, at: usize, step: &Step) {
        let code = step[16];
        *self.runs.entry(code).or_default() += 1;
        let factory = &mut self.factory;
        let decoded = self.decoded.entry(code).or_insert_with(|| decode(factory, code));
        trace.system_calls += u32::from(decoded.is_system_call);
        for (memory, kind) in &decoded.memory {
            let address = memory.virtual_address(0, |register, _, _| match register {
                Register::FS => Some(self.thread_base),
                Register::GS | Register::DS | Register::ES | Register::CS | Register::SS => Some(0),
                _ => {
                    let full = register.full_register();
                    let at = REGISTERS.iter().position(|&(of, _)| of == full)?;
                    Some(step[at])
                }
            });
            let Some(address) = address else { continue };
            let recorder = (&raw const RECORDER).addr();
            let is_own = [recorder..recorder + size_of::<Recorder>(), uslab::internal::fake::area()]
                .iter()
                .any(|range| range.contains(&(address as usize)));
            if !is_own && self.memory.iter().any(|range| range.contains(&address)) {
                trace.accesses.push(Access { address, kind: *kind, code, at: at as u32 });
            }
        }
    }
}

fn decode(factory: &mut InstructionInfoFactory, code: u64) -> Decoded {
    let instruction = emulate::decode(code);
    let is_exchange = instruction.mnemonic() == Mnemonic::Xchg;
    let is_compare = matches!(instruction.mnemonic(), Mnemonic::Cmpxchg | Mnemonic::Cmpxchg8b);
    let is_hint = matches!(
        instruction.mnemonic(),
        Mnemonic::Prefetchw | Mnemonic::Prefetcht0 | Mnemonic::Prefetchnta | Mnemonic::Lea | Mnemonic::Nop
    );
    let atomic = |kind| match kind {
        _ if !(instruction.has_lock_prefix() || is_exchange) => kind,
        _ if is_compare => Kind::Compare,
        _ => Kind::Modify,
    };
    let memory = factory.info(&instruction).used_memory().iter().filter_map(|memory| {
        let kind = match memory.access() {
            OpAccess::Read | OpAccess::CondRead => Kind::Read,
            OpAccess::Write | OpAccess::CondWrite => Kind::Write,
            OpAccess::ReadWrite | OpAccess::ReadCondWrite => atomic(Kind::Write),
            OpAccess::None | OpAccess::NoMemAccess => return None,
        };
        Some((*memory, kind))
    });
    Decoded {
        memory: if is_hint { Vec::new() } else { memory.collect() },
        is_system_call: instruction.mnemonic() == Mnemonic::Syscall,
    }
}
