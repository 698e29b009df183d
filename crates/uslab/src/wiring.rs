//! Where the layers are put together: what the caches need of those above them, whom they do not know.
//!
//! One constant table, so that nothing has to be registered before the first allocation. Must never: hold anything but this table.

use crate::cache::Hooks;
use crate::{malloc, reclaim};

/// The doors upwards.
pub(crate) static HOOKS: Hooks = Hooks {
    before_fork: || {
        malloc::lock_for_fork();
        reclaim::before_fork();
    },
    after_fork: |child| {
        reclaim::after_fork(child);
        malloc::unlock_after_fork(child);
    },
    want_thread: reclaim::want_thread,
    short: reclaim::short,
};
