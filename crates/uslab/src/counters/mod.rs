//! Counters and their publication. The layout that observers read is in [`layout`].
//!
//! The figures live in one block of memory: private, or at start moved to a shared file where
//! `USLAB_SNAPSHOT` names a directory. Only slow paths write them.

pub mod layout;
pub(crate) mod peak;
mod publish;
mod usage;

pub use publish::{finish, header, init, is_published, publish_in_child, record, request};
pub use usage::{Usage, usage};
