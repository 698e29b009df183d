//! A Rust program that carries settings in its string `uslab_conf`.

#[path = "support/again.rs"]
mod again;

use again::again;
use core::sync::atomic::Ordering::Relaxed;
use uslab::internal::{header, layout};

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static uslab_conf: &[u8; 22] = b"limit=1G,decay_ms=250\0";

/// Its text and its origin, as another process reads them.
fn setting(name: &str) -> (String, u32) {
    let index = layout::SETTINGS.iter().position(|setting| *setting == name).expect("a setting");
    let start = (&raw const *header()).cast::<u8>().wrapping_add(layout::SETTINGS_OFFSET);
    // SAFETY: the settings lie behind the header, in one block that is never unmapped.
    let setting = unsafe { &*start.cast::<layout::Setting>().add(index) };
    let text: Vec<u8> =
        setting.text.iter().map(|byte| byte.load(Relaxed)).take_while(|&byte| byte != 0).collect();
    (String::from_utf8(text).expect("UTF-8"), setting.origin.load(Relaxed))
}

#[test]
fn a_variable_without_a_meaning_leaves_the_programs_setting() {
    for text in ["", "1Q"] {
        let name = "a_variable_without_a_meaning_leaves_the_programs_setting";
        let Some(output) = again(name, &[("USLAB_LIMIT", text), ("USLAB_DECAY_MS", "70")]) else {
            uslab::Cache::<u64>::new("conf").insert(1).expect("there is memory");
            assert_eq!(setting("limit"), ("1G".to_owned(), layout::ORIGIN_PROGRAM));
            assert_eq!(setting("decay_ms"), ("70".to_owned(), layout::ORIGIN_ENVIRONMENT));
            return;
        };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        assert_eq!(errors.contains("USLAB_LIMIT is ignored"), !text.is_empty());
    }
}

#[test]
fn the_programs_string_sets_what_the_environment_does_not() {
    let cache = uslab::Cache::<u64>::new("conf");
    let object = cache.insert(1).expect("there is memory");
    assert_eq!(header().soft_limit_bytes.load(Relaxed), 1 << 30);
    assert_eq!(setting("limit"), ("1G".to_owned(), layout::ORIGIN_PROGRAM));
    assert_eq!(setting("decay_ms"), ("250".to_owned(), layout::ORIGIN_PROGRAM));
    assert_eq!(setting("stats"), ("0".to_owned(), layout::ORIGIN_DEFAULT));
    uslab::set_decay(None);
    assert_eq!(setting("decay_ms"), ("never".to_owned(), layout::ORIGIN_CALL));
    uslab::set_limit(0, 0).expect("no limit");
    assert_eq!(setting("limit"), ("0,0".to_owned(), layout::ORIGIN_CALL));
    drop(object);
}
