//! Result of a login.

use std::sync::Arc;

/// The result of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    /// The password is right; the user is in these groups.
    Right {
        groups: Arc<[Box<str>]>,
    },
    Wrong,
    /// Too many other logins wait, or the users file is being written.
    Busy,
    /// The client left before its turn: no password was checked.
    Left,
}
