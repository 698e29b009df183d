//! Snapshots as JSON: the fields of the layout under their own names, units last, and what is derived from
//! them.
//!
//! The names are an interface: scripts read them. `format` is raised when one changes its meaning or goes
//! away.

use serde::Serialize;
use serde_json::{Value, json};

use crate::snapshot::{Cache, Snapshot};
use crate::text::mode_name;

const FORMAT: u32 = 1;

#[derive(Serialize)]
struct CacheFigures<'a> {
    id: u32,
    name: &'a str,
    destroyed: bool,
    user_bytes: u32,
    object_bytes: u32,
    objects_per_slab: u32,
    pages_per_slab: u32,
    sheaf_capacity: u32,
    empty_target: u32,
    active_objects: u64,
    total_objects: u64,
    slab_bytes: u64,
    slabs: u64,
    partial_slabs: u64,
    empty_slabs: u64,
    slab_free: u64,
    sheaf_free: u64,
    alloc_slow: u64,
    free_slow: u64,
    refills: u64,
    flushes: u64,
    drains: u64,
    grows: u64,
    shrinks: u64,
    failures: u64,
}

impl<'a> From<&'a Cache> for CacheFigures<'a> {
    fn from(cache: &'a Cache) -> Self {
        CacheFigures {
            id: cache.id,
            name: &cache.name,
            destroyed: cache.destroyed,
            user_bytes: cache.user_bytes,
            object_bytes: cache.object_bytes,
            objects_per_slab: cache.objects_per_slab,
            pages_per_slab: cache.pages_per_slab,
            sheaf_capacity: cache.sheaf_capacity,
            empty_target: cache.empty_target,
            active_objects: cache.active_objects(),
            total_objects: cache.total_objects(),
            slab_bytes: cache.slab_bytes(),
            slabs: cache.slabs,
            partial_slabs: cache.partial_slabs,
            empty_slabs: cache.empty_slabs,
            slab_free: cache.slab_free,
            sheaf_free: cache.sheaf_free,
            alloc_slow: cache.alloc_slow,
            free_slow: cache.free_slow,
            refills: cache.refills,
            flushes: cache.flushes,
            drains: cache.drains,
            grows: cache.grows,
            shrinks: cache.shrinks,
            failures: cache.failures,
        }
    }
}

/// Everything about one process, all caches included.
pub fn process(snapshot: &Snapshot, command: &str) -> String {
    let mut value = facts(snapshot, command);
    value["format"] = FORMAT.into();
    value["caches"] = json!(snapshot.caches.iter().map(CacheFigures::from).collect::<Vec<_>>());
    pretty(&value)
}

/// All processes, without their caches.
pub fn list(processes: &[(Snapshot, String)]) -> String {
    pretty(&processes.iter().map(|(snapshot, command)| facts(snapshot, command)).collect())
}

fn facts(snapshot: &Snapshot, command: &str) -> Value {
    json!({
        "pid": snapshot.pid,
        "command": command,
        "mode": mode_name(snapshot.mode),
        "mode_reason": snapshot.reason(),
        "cpus": snapshot.cpus,
        "nodes": snapshot.nodes,
        "page_bytes": snapshot.page_bytes,
        "finished": snapshot.finished,
        "start_ns": snapshot.start_ns,
        "reserved_bytes": snapshot.reserved_bytes,
        "committed_bytes": snapshot.committed_bytes,
        "used_bytes": snapshot.used_bytes,
        "dirty_bytes": snapshot.dirty_bytes,
        "purged_bytes": snapshot.purged_bytes,
        "metadata_bytes": snapshot.metadata_bytes,
        "large_objects": snapshot.large_objects,
        "large_bytes": snapshot.large_bytes,
        "large_allocs": snapshot.large_allocs,
    })
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::Image;

    #[test]
    fn a_process_has_its_facts_and_its_caches() {
        let snapshot = Image::sample().parse().expect("whole");
        let value: Value = serde_json::from_str(&process(&snapshot, "a\"b")).expect("JSON");
        assert_eq!((&value["format"], &value["pid"]), (&json!(1), &json!(4711)));
        assert_eq!((&value["command"], &value["mode"]), (&json!("a\"b"), &json!("rseq")));
        assert_eq!(value["mode_reason"], Value::Null);
        let cache = &value["caches"][0];
        assert_eq!((&cache["name"], &cache["active_objects"]), (&json!("malloc-64"), &json!(72_900)));
        assert_eq!(value["caches"].as_array().map(Vec::len), Some(5));
    }

    #[test]
    fn no_processes_are_an_empty_list() {
        assert_eq!(list(&[]), "[]\n");
    }
}
