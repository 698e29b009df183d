//! A fake CPU id, with which a test runs per-CPU code of many CPUs on one thread.
//!
//! In rseq mode all sequences use an area of this module, into which the test writes the CPU
//! number. The kernel does not know that area and restarts no sequence, so only one thread may use
//! the library meanwhile. In locked mode the number replaces the answer of `getcpu`.

use super::detect::{HAS_OWN_AREA_ALONE, Mode, area_offset, mode, set_area_offset};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// The fake CPU plus 1; 0 while there is none.
static FAKE: AtomicU32 = AtomicU32::new(0);
/// The part of `struct rseq` that sequences use: cpu_id_start, cpu_id, rseq_cs. Alone on its line,
/// as the real one is: models leave it out.
#[repr(align(64))]
struct Area([AtomicUsize; 4]);
static AREA: Area = Area([const { AtomicUsize::new(0) }; 4]);

#[inline]
pub(super) fn cpu() -> Option<usize> {
    match FAKE.load(Relaxed) {
        0 => None,
        cpu => Some(cpu as usize - 1),
    }
}

/// While it lives, the library takes the thread to be on the CPU of the last [`FakeCpu::set`].
pub struct FakeCpu {
    real_offset: usize,
}

impl FakeCpu {
    /// Starts on CPU `cpu`.
    ///
    /// # Safety
    /// No other thread may use the library until the value is dropped, and the value must stay on
    /// this thread. The library must be set up already (allocate something first).
    ///
    /// # Panics
    /// With musl in rseq mode, where sequences can use one area only.
    pub unsafe fn start(cpu: usize) -> FakeCpu {
        assert!(!HAS_OWN_AREA_ALONE || mode() == Mode::Locked, "with musl in locked mode only");
        let fake = FakeCpu { real_offset: area_offset() };
        fake.set(cpu);
        if mode() == Mode::Rseq {
            let area = AREA.0.as_ptr() as usize;
            set_area_offset(area.wrapping_sub(super::arch::thread_pointer()));
        }
        fake
    }

    /// Moves to CPU `cpu`. In rseq mode it must be a possible CPU of this machine.
    pub fn set(&self, cpu: usize) {
        FAKE.store(cpu as u32 + 1, Relaxed);
        // `cpu_id_start` and `cpu_id` are the halves of the first word.
        AREA.0[0].store(cpu | cpu << 32, Relaxed);
    }
}

/// The addresses of the area that stands for the one of each thread.
pub fn area() -> core::ops::Range<usize> {
    let start = (&raw const AREA).addr();
    start..start + size_of::<Area>()
}

impl Drop for FakeCpu {
    fn drop(&mut self) {
        set_area_offset(self.real_offset);
        FAKE.store(0, Relaxed);
    }
}
