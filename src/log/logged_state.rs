//! State of something that is checked often and logged only when it has changed.

use std::sync::{Mutex, PoisonError};

/// The last known state, such as the error of a file that is read every few seconds. The lock is held to compare and
/// replace the state.
#[derive(Default)]
pub struct LoggedState<T>(Mutex<T>);

impl<T: Clone + PartialEq> LoggedState<T> {
    /// Stores the present state. Returns whether it differs from the state stored before. If so, the caller logs it.
    pub fn changes_to(&self, state: T) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = *last != state;
        *last = state;
        changes
    }

    /// Returns the state that was stored last.
    pub fn get(&self) -> T {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_news_when_it_begins_changes_or_ends() {
        let state = LoggedState::default();
        let found = [None, Some("none there"), Some("none there"), Some("unreadable"), None, None, Some("unreadable")];
        let news = found.map(|error| state.changes_to(error));
        assert_eq!(news, [false, true, false, true, true, false, true]);
        assert_eq!(state.get(), Some("unreadable"));
    }
}
