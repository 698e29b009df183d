//! Counters and their publication. The layout that observers read is in [`layout`].
//!
//! The figures live in one block of memory: private, or in a file that other processes read. They
//! move to the file at start where `USLAB_SNAPSHOT` names a directory, and later when the program
//! asks for it ([`late`]). Only slow paths write them.

mod late;
pub mod layout;
mod notes;
pub(crate) mod peak;
mod place;
mod publish;
mod tally;
mod usage;

pub use late::{PublishError, begin as begin_publishing, is_moving, publish_in_child, settle};
pub use notes::{Changer, Places, note_change, note_name, note_pass, note_settings};
pub use publish::{finish, header, init, is_published, record, request, shrinker, sources, write_beside};
pub(crate) use tally::FACTS;
pub use tally::{SlowCall, Tally};
pub use usage::{Usage, usage};
