//! Handles Ctrl-C and SIGTERM, which `timeout` sends: the run stops after the present round, within
//! about a millisecond, and keeps the rows that are done. Further ones change nothing, since a
//! shell and `timeout` may send two at once. Ctrl-\ ends the process without results.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Takes over Ctrl-C and SIGTERM, once for the life of the process.
pub fn watch() -> Result<(), String> {
    let cannot = |error: io::Error| format!("cannot take over Ctrl-C and SIGTERM: {error}");
    let mut registered = Ok(());
    ASKED.get_or_init(|| {
        let asked = Arc::new(AtomicBool::new(false));
        let register = |signal| flag::register(signal, Arc::clone(&asked)).map(drop).map_err(cannot);
        registered = [SIGINT, SIGTERM].into_iter().try_for_each(register);
        asked
    });
    registered
}

/// Whether one of them came since [`watch`].
pub fn asked() -> bool {
    ASKED.get().is_some_and(|asked| asked.load(Relaxed))
}
