//! Counters and their publication. The layout that observers read is in [`layout`].
//!
//! The figures live in private memory, or in a file that other processes read. They move to the
//! file at start where `USLAB_SNAPSHOT` names a directory, and later when the program asks for it
//! ([`late`]). Only slow paths write them. Memory for many caches is mapped when they are made
//! ([`segments`]).

mod late;
pub mod layout;
mod notes;
pub(crate) mod peak;
mod place;
mod publish;
mod segments;
mod tally;
mod usage;

pub use late::{PublishError, begin as begin_publishing, is_moving, publish_in_child, settle};
pub use notes::{Changer, Places, note_change, note_name, note_pass, note_settings};
pub use publish::{
    RESERVED_RECORDS, finish, header, init, is_published, request, shrinker, sources, write_beside,
};
pub use segments::{has_record, note_fork, provide, provide_shrinkers, record, records};
pub(crate) use tally::FACTS;
pub use tally::{SlowCall, Tally};
pub use usage::{Usage, usage};
