//! Snapshots as JSON: the fields of the layout under their own names, units last, and what is
//! derived from them.
//!
//! The names are an interface: scripts read them. `format` is raised when one changes its meaning
//! or goes away.

use serde_json::{Value, json};

use crate::accounts::Parts;
use crate::residence::ByNode;
use crate::snapshot::{Cache, Snapshot};
use crate::text::mode_name;
use crate::top::Verdict;

const FORMAT: u32 = 1;

/// Everything about one process, all caches included.
pub fn process(snapshot: &Snapshot, command: &str) -> String {
    pretty(&whole(snapshot, command))
}

/// [`process`] with the arena's resident bytes on each node; null where the kernel does not tell.
pub fn by_node(snapshot: &Snapshot, command: &str, resident: Option<ByNode>) -> String {
    let mut value = whole(snapshot, command);
    value["resident_by_node"] = json!(resident);
    pretty(&value)
}

/// What is derived from several samples at a process.
pub struct Derived<'a> {
    pub parts: &'a Parts,
    pub verdict: &'a Verdict,
    pub event: Option<&'a str>,
    pub fork_children: &'a [i32],
    /// Those of a cache, by its id.
    pub rates: &'a dyn Fn(u32) -> Value,
}

/// [`process`] with what is derived from several samples.
pub fn watched(snapshot: &Snapshot, command: &str, derived: &Derived) -> String {
    let mut value = whole(snapshot, command);
    value["parts"] = json!(derived.parts);
    value["verdict"] = json!(derived.verdict);
    value["event"] = derived.event.into();
    value["fork_children"] = json!(derived.fork_children);
    for (figures, cache) in value["caches"].as_array_mut().into_iter().flatten().zip(&snapshot.caches) {
        figures["rates"] = (derived.rates)(cache.id);
    }
    pretty(&value)
}

fn whole(snapshot: &Snapshot, command: &str) -> Value {
    let mut value = facts(snapshot, command);
    value["format"] = FORMAT.into();
    value["caches"] = snapshot.caches.iter().map(figures).collect();
    value
}

/// All processes, without their caches.
pub fn list(processes: &[(Snapshot, String)]) -> String {
    pretty(&processes.iter().map(|(snapshot, command)| facts(snapshot, command)).collect())
}

fn facts(snapshot: &Snapshot, command: &str) -> Value {
    let mut value = json!(snapshot);
    for (figures, shrinker) in
        value["shrinkers"].as_array_mut().into_iter().flatten().zip(&snapshot.shrinkers)
    {
        figures["seeks"] = shrinker.seeks().into();
        figures.as_object_mut().map(|figures| figures.remove("millis_of_seek"));
    }
    value["command"] = command.into();
    value["mode"] = mode_name(snapshot.mode).into();
    value["mode_reason"] = snapshot.reason().into();
    value
}

fn figures(cache: &Cache) -> Value {
    let mut value = json!(cache);
    value["active_objects"] = cache.active_objects().into();
    value["total_objects"] = cache.total_objects().into();
    value["slab_bytes"] = cache.slab_bytes().into();
    value["is_torn"] = cache.is_torn().into();
    value
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residence::Arena;
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
        let names = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(cache).len(), 29, "{:?}", names(cache));
        assert_eq!(names(&value).len(), 29, "{:?}", names(&value));
    }

    #[test]
    fn nodes_are_named_by_their_numbers() {
        let mut image = Image::sample();
        image.nodes(2);
        image.node_slabs(0, &[900, 300]);
        let snapshot = image.parse().expect("whole");
        let resident = ByNode::from([(1, Arena { data_bytes: 8192, table_bytes: 4096 })]);
        let value: Value = serde_json::from_str(&by_node(&snapshot, "a", Some(resident))).expect("JSON");
        assert_eq!(value["resident_by_node"], json!({"1": {"data_bytes": 8192, "table_bytes": 4096}}));
        assert_eq!(value["caches"][0]["node_slabs"], json!([900, 300]));
        let value: Value = serde_json::from_str(&by_node(&snapshot, "a", None)).expect("JSON");
        assert_eq!(value["resident_by_node"], Value::Null);
    }

    #[test]
    fn no_processes_are_an_empty_list() {
        assert_eq!(list(&[]), "[]\n");
    }
}
