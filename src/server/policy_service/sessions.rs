//! SMTP sessions of Postfix, by their names. A request takes its session out, and puts it back after the decision.

use crate::delegation::{SessionName, SmtpSession};
use crate::server::open_sessions::ListedSession;
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Maximum number of sessions of a shard. All shards together hold about 20,000: far more than one Postfix has, whose
/// processes have one session each at a time.
const MAX_SESSIONS_OF_SHARD: usize = 20_000 / SHARDS;

/// Number of shards. The number is so large that two processors seldom need the same shard.
const SHARDS: usize = 16;

/// Sessions of a listener, divided into shards with one lock each. A lock is held to take, put back or remove sessions,
/// and never across an `await`.
#[derive(Default)]
pub struct Sessions {
    shards: [Shard; SHARDS],
    /// Chooses the shard of a name.
    chooser: RandomState,
    /// Signals that a session for which a request waits was put back or removed.
    returned: Notify,
}

/// Sessions of a shard. Processors fetch cache lines of 64 octets in pairs, so a shard has 128 octets for itself: a
/// processor that uses it does not wait for a processor that uses the next shard.
#[derive(Default)]
#[repr(align(128))]
struct Shard(Mutex<Entries>);

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
        let mut entries = self.lock(name);
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
        let mut entries = self.lock(name);
        let (name, entry) = entries.remove_entry(name)?;
        if let Entry::Idle(open) = entry {
            return Some(open);
        }
        entries.insert(name, entry);
        None
    }

    /// Removes the idle sessions that meet a condition.
    pub fn take_if(&self, is_over: impl Fn(&SmtpSession) -> bool) -> Vec<Open> {
        let is_taken =
            |_: &SessionName, entry: &mut Entry| matches!(entry, Entry::Idle(open) if is_over(&open.session));
        let mut over = Vec::new();
        for shard in &self.shards {
            over.extend(shard.lock().extract_if(is_taken).filter_map(|(_, entry)| entry.idle()));
        }
        over
    }

    /// Wakes the requests that wait for a session, if `former` says that there are any. `former` is the entry that was
    /// replaced or removed.
    fn signal(&self, former: Option<Entry>) {
        if let Some(Entry::Taken { is_awaited: true }) = former {
            self.returned.notify_waiters();
        }
    }

    /// Locks the shard of a name.
    fn lock(&self, name: &SessionName) -> MutexGuard<'_, Entries> {
        self.shards[self.chooser.hash_one(name) as usize % SHARDS].lock()
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken<'_> {
    /// Puts the session back. If its shard has more than [`MAX_SESSIONS_OF_SHARD`] then, removes and returns the shard's idle
    /// session that was used least recently.
    pub fn put_back(mut self, open: Open) -> Option<Open> {
        let name = self.name.take()?;
        let mut entries = self.sessions.lock(&name);
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
            let former = self.sessions.lock(&name).remove(&name);
            self.sessions.signal(former);
        }
    }
}

/// Removes the idle session of a shard that was used least recently if it has more than [`MAX_SESSIONS_OF_SHARD`].
fn surplus(entries: &mut Entries) -> Option<Open> {
    if entries.len() <= MAX_SESSIONS_OF_SHARD {
        return None;
    }
    let last = |entry: &Entry| if let Entry::Idle(open) = entry { Some(open.session.last_request()) } else { None };
    let oldest = entries.iter().filter_map(|(name, entry)| Some((last(entry)?, name))).min()?.1.clone();
    entries.remove(&oldest).and_then(Entry::idle)
}
