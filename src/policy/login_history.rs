//! Options of the login history.

use std::time::Duration;

/// Options of the login history: the networks, countries and EHLO names from which each user has logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginHistory {
    /// Time for which a login is remembered. Zero: no history.
    pub keep: Duration,
    /// Time from the first login with a property, such as a country, until the property is no longer new for the user.
    /// Otherwise a thief would be known from the second login on.
    pub known_after: Duration,
}

impl Default for LoginHistory {
    fn default() -> Self {
        Self { keep: Duration::from_secs(30 * 86_400), known_after: Duration::from_secs(86_400) }
    }
}
