//! `policies NODES [WITH_CPUS]`: the memory of caches with a policy lies where the policy has it,
//! as the kernel tells for each page. All nodes have CPUs, unless told how many of the first ones.
//!
//! A cache bound to each node, an interleaved one and a local one are filled on the CPUs of all
//! nodes, freed on those of another node, and filled again. Afterwards the process trims, and the
//! kernel must have no policy for what they had. The snapshot must count the slabs on the nodes
//! that the kernel tells. One line of JSON has the figures. It must never be run outside a guest.

#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use uslab::internal::{cpu, policy_at, record};
use uslab::{CacheBuilder, CreateError, NumaPolicy, RawCache};

/// A page, so that each object has a node of its own.
const BYTES: usize = 4096;
/// Objects that each node allocates: 16 MiB.
const OBJECTS: usize = 4096;

fn main() -> ExitCode {
    let wanted = |at: usize| std::env::args().nth(at).and_then(|number| number.parse().ok());
    // The first use sets the library up.
    let local = placed(NumaPolicy::Local);
    let (nodes, homes) = (cpu::memory_nodes(), uslab::internal::header().nodes.load(Relaxed) as usize);
    if wanted(1) != Some(nodes) || wanted(2).unwrap_or(nodes) != homes {
        println!("the library sees {nodes} nodes, {homes} of them with CPUs");
        return ExitCode::FAILURE;
    }
    let refused = CacheBuilder::new("nowhere").numa(NumaPolicy::Bind(nodes)).build_raw(BYTES).err();
    let bound: Vec<_> = (0..nodes).map(|node| placed(NumaPolicy::Bind(node))).collect();
    let interleaved = placed(NumaPolicy::Interleave);
    let (mut misplaced, mut foreign, mut miscounted, mut spread) = (0, 0, 0, vec![0; nodes]);
    let mut had = Vec::new();
    for _ in 0..2 {
        for (node, cache) in bound.iter().enumerate() {
            let filled = fill(cache, homes);
            misplaced += filled.iter().filter(|&&object| node_of(object) != Some(node)).count();
            miscounted += usize::from(!is_counted(cache, &filled, nodes));
            give_back(cache, filled, homes, &mut had);
        }
        let filled = fill(&interleaved, homes);
        filled.iter().filter_map(|&object| node_of(object)).for_each(|node| spread[node] += 1);
        give_back(&interleaved, filled, homes, &mut had);
        let filled = fill(&local, homes);
        let is_home = |&(n, &object): &(usize, &NonNull<u8>)| node_of(object) == Some(n / OBJECTS);
        foreign += filled.len() - filled.iter().enumerate().filter(is_home).count();
        miscounted += usize::from(!is_counted(&local, &filled, nodes));
        give_back(&local, filled, homes, &mut Vec::new());
    }
    let all: usize = spread.iter().sum();
    let is_spread = spread.iter().all(|&pages| pages * nodes * 10 > all * 9);
    bound.into_iter().chain([interleaved]).for_each(|cache| cache.destroy().expect("no object lives"));
    uslab::trim(0);
    let is_left = |address: &&usize| policy_at(**address).is_some_and(|(mode, _)| mode != libc::MPOL_DEFAULT);
    let left = had.iter().filter(is_left).count();
    println!(
        r#"{{"mode":"{}","nodes":{nodes},"homes":{homes},"misplaced":{misplaced},"foreign":{foreign},"miscounted":{miscounted},"interleaved":{spread:?},"left":{left}}}"#,
        uslab::mode()
    );
    if let Err(invalid) = uslab::debug::validate() {
        println!("{invalid}");
        return ExitCode::FAILURE;
    }
    // The local cache is there for comparison: a few of its pages may lie elsewhere.
    let is_right = misplaced == 0
        && foreign * 100 < 2 * homes * OBJECTS
        && miscounted == 0
        && is_spread
        && left == 0
        && refused == Some(CreateError::NumaRefused);
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn placed(policy: NumaPolicy) -> RawCache {
    CacheBuilder::new("placed").numa(policy).build_raw(BYTES).expect("there is memory")
}

/// Whether the snapshot counts about as many objects' slabs on each node as the kernel tells pages
/// of objects.
fn is_counted(cache: &RawCache, objects: &[NonNull<u8>], nodes: usize) -> bool {
    let stats = cache.stats().expect("a cache has figures");
    let counted = &record(stats.id as u16).node_slabs;
    (0..nodes).all(|node| {
        let pages = objects.iter().filter(|&&object| node_of(object) == Some(node)).count();
        let room = counted[node].load(Relaxed) as usize * stats.objects_per_slab as usize;
        room.abs_diff(pages) * 100 < 2 * objects.len()
    })
}

/// Allocates and writes objects on a CPU of each node in turn.
fn fill(cache: &RawCache, nodes: usize) -> Vec<NonNull<u8>> {
    let mut objects = Vec::new();
    for node in 0..nodes {
        run_on(node);
        for _ in 0..OBJECTS {
            let object = cache.alloc().expect("there is memory");
            // SAFETY: of as many bytes, and this program's.
            unsafe { object.write_bytes(1, BYTES) };
            objects.push(object);
        }
    }
    objects
}

/// Frees objects, each on another node than the one that allocated it, and notes where they were.
fn give_back(cache: &RawCache, objects: Vec<NonNull<u8>>, nodes: usize, had: &mut Vec<usize>) {
    for (node, objects) in objects.chunks(OBJECTS).enumerate() {
        run_on((node + 1) % nodes);
        had.extend(objects.iter().map(|object| object.addr().get()));
        // SAFETY: each is freed once.
        objects.iter().for_each(|&object| unsafe { cache.free(object) });
    }
}

/// Moves the calling thread to a CPU of `node` that is online.
fn run_on(node: usize) {
    let mut is_there = false;
    cpu::for_each_cpu_of_node(node, |cpu| {
        // SAFETY: zeroes are an empty set, which has room for the CPU.
        is_there = is_there
            || unsafe {
                let mut set: libc::cpu_set_t = core::mem::zeroed();
                libc::CPU_SET(cpu, &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &set) == 0
            };
    });
    assert!(is_there, "node {node} has a CPU");
}

/// The node of the memory behind an object, which was written.
fn node_of(object: NonNull<u8>) -> Option<usize> {
    /// `MPOL_F_NODE | MPOL_F_ADDR`: the node of the page at an address.
    const NODE_OF_ADDRESS: usize = 1 | 2;
    let (mut node, nothing) = (-1i32, core::ptr::null::<u8>());
    // SAFETY: the kernel writes one number, and reads nothing at the address.
    let result = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut node, nothing, 0, object.as_ptr(), NODE_OF_ADDRESS)
    };
    usize::try_from(node).ok().filter(|_| result == 0)
}
