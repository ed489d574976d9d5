//! Route of the next transaction: the upstream that a limit's action chose after the current transaction had begun.

use std::sync::Arc;

/// The upstream that gets the mail from the next MAIL on.
pub(super) struct NextRoute {
    upstream: Arc<str>,
    /// Sender and user of the transaction in which the limit chose the upstream: mail of other senders on the same
    /// connection is not rerouted. `None`: the limit chose the upstream outside of a transaction, so the route is for
    /// the next sender.
    owner: Option<(String, Option<Arc<str>>)>,
    /// True if the current transaction uses this route.
    is_taken: bool,
}

impl NextRoute {
    pub fn new(upstream: Arc<str>, owner: Option<(String, Option<Arc<str>>)>) -> Self {
        Self { upstream, owner, is_taken: false }
    }

    /// Returns the upstream if the route is for this sender and user. Sets `is_taken`.
    pub fn take(&mut self, sender: &str, user: Option<&Arc<str>>) -> Option<Arc<str>> {
        // Ignore the letter case, so that a sender cannot avoid the route by changing the letter case of its address.
        let is_same =
            |(owner, of): &(String, Option<Arc<str>>)| owner.eq_ignore_ascii_case(sender) && of.as_ref() == user;
        self.is_taken = self.owner.as_ref().is_none_or(is_same);
        self.is_taken.then(|| self.upstream.clone())
    }

    pub fn is_taken(&self) -> bool {
        self.is_taken
    }
}
