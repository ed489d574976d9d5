//! By which way the next mail of whoever is over goes: a limit says so of a mail that is on its way already.

use super::State;
use crate::policy::verdict::Verdict;
use std::sync::Arc;

/// The upstream by which mail goes from the next MAIL on.
pub(super) struct NextRoute {
    upstream: Arc<str>,
    /// The sender and the user of the transaction in which the rung was reached: others send over the same connection. `None`: it was
    /// reached outside of one, and is for whoever sends next.
    whose: Option<(String, Option<Arc<str>>)>,
    /// Whether the mail that began last is of these.
    is_taken: bool,
}

impl NextRoute {
    fn is_for(&self, sender: &str, user: Option<&Arc<str>>) -> bool {
        // Other letters for the same sender are no way around it.
        let is_same = |(own, of): &(String, Option<Arc<str>>)| own.eq_ignore_ascii_case(sender) && of.as_ref() == user;
        self.whose.as_ref().is_none_or(is_same)
    }
}

impl State {
    /// Notes by which way the next mail goes.
    pub(super) fn routed(&mut self, verdict: &mut Verdict) {
        if let Some(upstream) = verdict.route.take() {
            let whose = self.sender().map(|sender| (sender, self.user.clone()));
            self.detour = Some(NextRoute { upstream, whose, is_taken: false });
        }
    }

    /// The upstream that is to have the mail of this sender, which begins now, by what was said before.
    pub(super) fn take_detour(&mut self, sender: &str) -> Option<Arc<str>> {
        let detour = self.detour.as_mut()?;
        detour.is_taken = detour.is_for(sender, self.user.as_ref());
        detour.is_taken.then(|| detour.upstream.clone())
    }

    /// A message has been taken: one that went by the detour, and did not reach the rung again, was the last to do so. One that came to
    /// nothing will come again.
    pub(super) fn end_detour(&mut self) {
        self.detour.take_if(|detour| detour.is_taken);
    }
}
