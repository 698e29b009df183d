//! Counters and their publication. The layout that observers read is in [`layout`].
//!
//! The figures live in one block of memory: private, or at start moved to a shared file where
//! `USLAB_SNAPSHOT` names a directory. Only slow paths write them.

pub mod layout;
mod notes;
pub(crate) mod peak;
mod publish;
mod tally;
mod usage;

pub use notes::{Changer, Places, note_change, note_name, note_pass, note_settings};
pub use publish::{
    finish, header, init, is_published, publish_in_child, record, request, shrinker, sources, write_beside,
};
pub(crate) use tally::FACTS;
pub use tally::{SlowCall, Tally};
pub use usage::{Usage, usage};
