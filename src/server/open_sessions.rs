//! List of the open sessions, for administrators.

use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Open sessions by their ids, which sort by time. The lock is held to insert, change or remove one session, or to copy
/// one page.
#[derive(Default)]
pub struct OpenSessions(Mutex<BTreeMap<Arc<str>, SessionEntry>>);

/// Open session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEntry {
    pub id: Arc<str>,
    pub listener: Arc<str>,
    pub client: IpAddr,
    pub since: Timestamp,
    /// User who has logged in.
    pub user: Option<Arc<str>>,
}

/// Place of an open session in the list. Dropping it removes the session.
pub struct ListedSession {
    id: Arc<str>,
    sessions: Arc<OpenSessions>,
    /// Client and user in the list.
    client: IpAddr,
    user: Option<Arc<str>>,
}

impl OpenSessions {
    /// Adds a session.
    pub fn add(self: &Arc<Self>, entry: SessionEntry) -> ListedSession {
        let (id, client, user) = (entry.id.clone(), entry.client, entry.user.clone());
        self.lock().insert(id.clone(), entry);
        ListedSession { id, sessions: self.clone(), client, user }
    }

    /// Returns at most `count` sessions whose ids are greater than `after`, and the number of all sessions.
    pub fn page(&self, after: &str, count: usize) -> (Vec<SessionEntry>, usize) {
        let sessions = self.lock();
        let page = sessions.range::<str, _>((Bound::Excluded(after), Bound::Unbounded)).take(count);
        (page.map(|(_, entry)| entry.clone()).collect(), sessions.len())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, SessionEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ListedSession {
    /// Records the present client and user of the session.
    pub fn update(&mut self, client: IpAddr, user: Option<&Arc<str>>) {
        if (self.client, self.user.as_ref()) == (client, user) {
            return;
        }
        (self.client, self.user) = (client, user.cloned());
        if let Some(entry) = self.sessions.lock().get_mut(&self.id) {
            (entry.client, entry.user) = (client, self.user.clone());
        }
    }
}

impl Drop for ListedSession {
    fn drop(&mut self) {
        self.sessions.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_listed_in_pages_until_they_end() {
        let sessions = Arc::new(OpenSessions::default());
        let mut listed: Vec<ListedSession> = ["c", "a", "b"]
            .map(|id| {
                let (since, client) = (Timestamp::from_micros(0), IpAddr::from([192, 0, 2, 7]));
                sessions.add(SessionEntry { id: id.into(), listener: "s".into(), client, since, user: None })
            })
            .into();
        let ids = |after: &str, count| -> Vec<String> {
            sessions.page(after, count).0.iter().map(|entry| entry.id.to_string()).collect()
        };
        assert_eq!((ids("", 2), ids("b", 2), ids("c", 2)), (vec!["a".into(), "b".into()], vec!["c".into()], vec![]));
        let client = IpAddr::from([192, 0, 2, 8]);
        listed[1].update(client, Some(&"alice".into()));
        let first = sessions.page("", 1).0.remove(0);
        assert_eq!((first.client, first.user.as_deref()), (client, Some("alice")));
        listed.remove(1);
        assert_eq!((ids("", 9), sessions.page("", 0).1), (vec!["b".into(), "c".into()], 2));
    }
}
