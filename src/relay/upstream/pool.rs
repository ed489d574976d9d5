//! Connections to an upstream that wait for the next message, so that it need not be connected to for each.

use crate::relay::client::Client;
use crate::relay::connection::Connection;
use prometheus::IntGauge;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How connections are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many may wait at once.
    pub max_idle: usize,
    /// How long one may wait.
    pub idle_timeout: Duration,
    /// How long after it was opened one may be used again.
    pub max_age: Duration,
    /// How many messages may have gone over it.
    pub max_messages: u32,
}

/// The connections that wait, the one that was used last at the end. The lock is held to move some in or out.
pub struct Pool {
    options: Options,
    state: Mutex<State>,
    /// How many they are.
    count: IntGauge,
}

#[derive(Default)]
struct State {
    idle: Vec<Idle>,
    /// None may wait.
    is_closed: bool,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

impl Pool {
    pub fn new(options: Options, count: IntGauge) -> Self {
        Self { options, state: Mutex::default(), count }
    }

    /// Takes in a connection that has done its work. Returns one that may not wait here: this, or the one that has for longest.
    pub fn put(&self, connection: Connection, now: Instant) -> Option<Connection> {
        if !self.may_be_used(&connection, now) {
            return Some(connection);
        }
        let mut state = self.lock();
        if self.options.max_idle == 0 || state.is_closed {
            return Some(connection);
        }
        let idle = &mut state.idle;
        // Who sends much is used again soon; who has waited for longest, perhaps never.
        let surplus = (idle.len() >= self.options.max_idle).then(|| idle.remove(0).connection);
        idle.push(Idle { connection, since: now });
        self.count.add(i64::from(surplus.is_none()));
        surplus
    }

    /// Of the connections that may carry mail of this client, the one that was used last: those before it may grow old and go. It
    /// may have been closed by the upstream meanwhile.
    pub fn take(&self, client: &Client, now: Instant) -> Option<Connection> {
        let idle = &mut self.lock().idle;
        let at = idle.iter().rposition(|idle| self.may_wait(idle, now) && idle.connection.speaks_for(client))?;
        self.count.dec();
        Some(idle.remove(at).connection)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().idle.len()
    }

    /// The one that has waited for longest, whomever it is for.
    pub fn take_oldest(&self) -> Option<Connection> {
        let idle = &mut self.lock().idle;
        if idle.is_empty() {
            return None;
        }
        self.count.dec();
        Some(idle.remove(0).connection)
    }

    /// Takes out those that have waited for long enough.
    pub fn expired(&self, now: Instant) -> Vec<Connection> {
        self.remove(|idle| !self.may_wait(idle, now))
    }

    /// Takes out all.
    pub fn drain(&self) -> Vec<Connection> {
        self.remove(|_| true)
    }

    /// Takes out all, and lets no more in until it is opened.
    pub fn close(&self) -> Vec<Connection> {
        self.lock().is_closed = true;
        self.drain()
    }

    /// Lets connections wait.
    pub fn open(&self) {
        self.lock().is_closed = false;
    }

    fn remove(&self, is_one: impl Fn(&Idle) -> bool) -> Vec<Connection> {
        let mut state = self.lock();
        let removed: Vec<_> = state.idle.extract_if(.., |idle| is_one(idle)).map(|idle| idle.connection).collect();
        self.count.sub(i64::try_from(removed.len()).unwrap_or(i64::MAX));
        removed
    }

    fn may_wait(&self, idle: &Idle, now: Instant) -> bool {
        let waits = now.duration_since(idle.since) < self.options.idle_timeout;
        waits && self.may_be_used(&idle.connection, now)
    }

    /// Whether its age and its messages let it carry another one.
    pub fn may_be_used(&self, connection: &Connection, now: Instant) -> bool {
        let most = connection.offered().max_messages.unwrap_or(u32::MAX).min(self.options.max_messages);
        connection.age(now) < self.options.max_age && connection.messages() < most
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
