//! Notices that are to be delivered, and the open episodes of notifications: kept in the state file, so that a restart
//! loses neither.

mod memory;
mod row;

pub use memory::{Batch, NoticeMemory};
pub use row::{EpisodeRow, NoticeKey, NoticeRow, StoredNotices};
