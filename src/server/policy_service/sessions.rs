//! SMTP sessions of Postfix, by their names. A request takes its session out, and puts it back after the decision.

use crate::delegation::{SessionName, SmtpSession};
use crate::server::open_sessions::ListedSession;
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Maximum number of sessions. Each process of Postfix has one at a time, so this is far more than one Postfix has.
const MAX_SESSIONS: usize = 20_000;

/// Sessions of a listener. The lock is held to take, put back or remove sessions, and never across an `await`.
#[derive(Default)]
pub struct Sessions {
    entries: Mutex<Entries>,
    /// Signals that a session for which a request waits was put back or removed.
    returned: Notify,
}

type Entries = HashMap<SessionName, Entry, RandomState>;

enum Entry {
    Idle(Open),
    /// A request has taken the session. `is_awaited`: another request waits for it, or has waited.
    Taken {
        is_awaited: bool,
    },
}

impl Entry {
    fn idle(self) -> Option<Open> {
        if let Self::Idle(open) = self { Some(open) } else { None }
    }
}

/// Session, with its place in the list for administrators.
pub struct Open {
    pub session: Box<SmtpSession>,
    pub listed: ListedSession,
}

/// Right to put a session back. If it is dropped instead, the session is forgotten, so that no other request waits for
/// it forever.
pub struct Taken<'a> {
    sessions: &'a Sessions,
    name: Option<SessionName>,
}

impl Sessions {
    /// Takes the session of this name; `None` if there is none. Waits while another request has taken it: Postfix
    /// repeats a request on a new connection if the answer is late.
    pub async fn take(&self, name: SessionName) -> (Taken<'_>, Option<Open>) {
        loop {
            let returned = match self.try_take(&name) {
                Ok(open) => return (Taken { sessions: self, name: Some(name) }, open),
                Err(returned) => returned,
            };
            returned.await;
        }
    }

    /// Takes the session of this name. If another request has taken it, returns the signal to wait for.
    fn try_take(&self, name: &SessionName) -> Result<Option<Open>, Notified<'_>> {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(name) else {
            entries.insert(name.clone(), Entry::Taken { is_awaited: false });
            return Ok(None);
        };
        if let Entry::Taken { is_awaited } = entry {
            *is_awaited = true;
            return Err(self.returned.notified());
        }
        Ok(std::mem::replace(entry, Entry::Taken { is_awaited: false }).idle())
    }

    /// Removes the session of this name, unless a request has taken it.
    pub fn remove(&self, name: &SessionName) -> Option<Open> {
        let mut entries = self.lock();
        let (name, entry) = entries.remove_entry(name)?;
        if let Entry::Idle(open) = entry {
            return Some(open);
        }
        entries.insert(name, entry);
        None
    }

    /// Removes the idle sessions that meet a condition.
    pub fn take_if(&self, is_over: impl Fn(&SmtpSession) -> bool) -> Vec<Open> {
        let mut entries = self.lock();
        let over = entries.extract_if(|_, entry| matches!(entry, Entry::Idle(open) if is_over(&open.session)));
        over.filter_map(|(_, entry)| entry.idle()).collect()
    }

    /// Wakes the requests that wait for a session, if `former` says that there are any. `former` is the entry that was
    /// replaced or removed.
    fn signal(&self, former: Option<Entry>) {
        if let Some(Entry::Taken { is_awaited: true }) = former {
            self.returned.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken<'_> {
    /// Puts the session back. If there are more than [`MAX_SESSIONS`] then, removes and returns the idle session that was
    /// used least recently.
    pub fn put_back(mut self, open: Open) -> Option<Open> {
        let (mut entries, name) = (self.sessions.lock(), self.name.take()?);
        let former = entries.insert(name, Entry::Idle(open));
        let surplus = surplus(&mut entries);
        drop(entries);
        self.sessions.signal(former);
        surplus
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            let former = self.sessions.lock().remove(&name);
            self.sessions.signal(former);
        }
    }
}

/// Removes the idle session that was used least recently if there are more than [`MAX_SESSIONS`].
fn surplus(entries: &mut Entries) -> Option<Open> {
    if entries.len() <= MAX_SESSIONS {
        return None;
    }
    let last = |entry: &Entry| if let Entry::Idle(open) = entry { Some(open.session.last_request()) } else { None };
    let oldest = entries.iter().filter_map(|(name, entry)| Some((last(entry)?, name))).min()?.1.clone();
    entries.remove(&oldest).and_then(Entry::idle)
}
