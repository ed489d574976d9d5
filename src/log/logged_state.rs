//! State that is logged once, when it changes, and not each time it is found again.

use std::sync::{Mutex, PoisonError};

/// The present state of something that may fail, such as the error of a file that is read again and again. The lock is
/// held to compare and replace the state.
#[derive(Default)]
pub struct LoggedState<T>(Mutex<T>);

impl<T: Clone + PartialEq> LoggedState<T> {
    /// Takes the present state. Returns whether it differs from the one before, so that it is to be logged.
    pub fn changes_to(&self, state: T) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = *last != state;
        *last = state;
        changes
    }

    /// Returns the present state.
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
