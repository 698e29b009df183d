//! The figures of caches add up while 16 threads allocate and free: sampled 1000 times from another
//! process, they are right, or mark themselves as torn.

use super::seen::Seen;
use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use uslab_tests::harness::{Mode, Scratch};

#[path = "../../crates/uslab/src/counters/layout.rs"]
#[allow(dead_code, reason = "the test reads a part of the file")]
mod layout;
use layout::{HEADER_BYTES, Header, MAX_RECORDS, Record};

both_modes! {
    sampled => figures_add_up_in_every_sample,
}

const SAMPLES: usize = 1000;
/// Torn samples of a cache that may follow each other: the next one is right.
const MAX_TORN: usize = SAMPLES / 10;

/// The snapshot as it was read at one moment.
struct Sample(Vec<u8>);

impl Sample {
    fn word<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0[at..at + N].try_into().expect("within the file")
    }

    fn figure(&self, record: usize, field: usize) -> i64 {
        i64::from_ne_bytes(self.word(HEADER_BYTES + record * size_of::<Record>() + field))
    }

    fn small(&self, record: usize, field: usize) -> i64 {
        u32::from_ne_bytes(self.word(HEADER_BYTES + record * size_of::<Record>() + field)).into()
    }
}

fn figures_add_up_in_every_sample(mode: Mode) {
    let scratch = Scratch::new("churn");
    let Some(churn) = Seen::of(&scratch, mode, "churn", &[]) else { return };
    let file = File::open(churn.snapshots.join(churn.child.id().to_string())).expect("a snapshot");
    let mut torn = 0;
    let mut seen = 0;
    for _ in 0..SAMPLES {
        std::thread::sleep(Duration::from_micros(500));
        let mut head = Sample(vec![0; HEADER_BYTES]);
        file.read_exact_at(&mut head.0, 0).expect("a header");
        let records = u32::from_ne_bytes(head.word(offset_of!(Header, records_used))) as usize;
        let cpus = i64::from(u32::from_ne_bytes(head.word(offset_of!(Header, cpus))));
        let mut sample = Sample(vec![0; HEADER_BYTES + records.min(MAX_RECORDS) * size_of::<Record>()]);
        file.read_exact_at(&mut sample.0, 0).expect("the records");
        for record in 0..records {
            if sample.small(record, offset_of!(Record, state)) != i64::from(layout::STATE_LIVE) {
                continue;
            }
            let slabs = sample.figure(record, offset_of!(Record, slabs));
            let per_slab = sample.small(record, offset_of!(Record, objects_per_slab));
            let in_slabs = sample.figure(record, offset_of!(Record, slab_free));
            let in_sheaves = sample.figure(record, offset_of!(Record, sheaf_free));
            let live = slabs * per_slab - in_slabs - in_sheaves;
            if live < 0 {
                torn += 1;
                continue;
            }
            if sample.small(record, offset_of!(Record, user_bytes)) != 64 {
                continue;
            }
            // Each CPU's two sheaves are counted as of its last slow path, and each thread may have
            // one in its hands.
            let unsure = sample.small(record, offset_of!(Record, sheaf_capacity)) * (2 * cpus + 2 * 16);
            let range = 16 * 4000 - unsure..16 * 8000 + unsure + 1000;
            assert!(range.contains(&live), "{live} live objects, expected {range:?}");
            seen += 1;
        }
    }
    eprintln!("churn: {seen} samples of 64 bytes add up, {torn} of all caches are torn");
    assert!(seen >= SAMPLES - MAX_TORN, "{seen} samples, {torn} torn");
}
