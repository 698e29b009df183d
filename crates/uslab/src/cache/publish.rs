//! Publication that the program asks for while it runs.

use super::{registry, start};
use crate::counters::{self, PublishError};

/// Publishes the process's figures from now on, and takes requests.
pub(crate) fn publish() -> Result<(), PublishError> {
    start::know();
    // No cache is made or destroyed while the figures move.
    let _registry = registry::lock();
    counters::begin_publishing()
}
