//! Rows of the login history, and the part of the history that is in memory.

mod known_origins;
mod memory;
mod row;

pub use memory::LoginMemory;
pub use row::{LoginKey, LoginRow, MAX_NAMES, Origin, name};

/// Maximum networks of a user in the history. If there are more, the network with the oldest latest login is forgotten.
pub const MAX_ROWS_PER_USER: usize = 50;

/// Maximum rows that the writer writes in one transaction. Administrators' commands wait for this transaction.
pub const MAX_ROWS_PER_COMMIT: usize = 250;
