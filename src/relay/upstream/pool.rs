//! Connection pool of an upstream: idle connections that are kept for a further message.

use crate::relay::client::Client;
use crate::relay::connection::Connection;
use crate::relay::options::PoolOptions;
use prometheus::IntGauge;
use std::sync::{Mutex, PoisonError};
use tokio::time::Instant;

/// The idle connections, most recently used last. The lock is held to add or take connections.
pub struct Pool {
    options: PoolOptions,
    state: Mutex<State>,
    /// Metric that counts the idle connections.
    count: IntGauge,
}

#[derive(Default)]
struct State {
    idle: Vec<Idle>,
    /// Whether the pool is closed: no connection is added.
    is_closed: bool,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

impl Pool {
    pub fn new(options: PoolOptions, count: IntGauge) -> Self {
        Self { options, state: Mutex::default(), count }
    }

    /// Adds a connection. Returns a connection that the caller must close: this one, if it may not be used again; or,
    /// if the pool is full, the one that has been idle for longest.
    pub fn put(&self, connection: Connection, now: Instant) -> Option<Connection> {
        if !self.may_be_used(&connection, now) {
            return Some(connection);
        }
        let mut state = self.lock();
        if self.options.max_idle == 0 || state.is_closed {
            return Some(connection);
        }
        let idle = &mut state.idle;
        // A connection used a moment ago will probably be needed again soon, the one that has been idle for longest
        // perhaps never.
        let surplus = (idle.len() >= self.options.max_idle).then(|| idle.remove(0).connection);
        idle.push(Idle { connection, since: now });
        self.count.add(i64::from(surplus.is_none()));
        surplus
    }

    /// Takes, of the connections that may carry mail of this client, the one used most recently, so that the others
    /// reach their idle timeout if they are not needed. The upstream may have closed the connection already.
    pub fn take(&self, client: &Client, now: Instant) -> Option<Connection> {
        let idle = &mut self.lock().idle;
        let at = idle.iter().rposition(|idle| self.may_wait(idle, now) && idle.connection.speaks_for(client))?;
        self.count.dec();
        Some(idle.remove(at).connection)
    }

    /// Returns the number of idle connections.
    pub fn count(&self) -> usize {
        self.lock().idle.len()
    }

    /// Takes the connection that has been idle for longest, for whichever client it may be used.
    pub fn take_oldest(&self) -> Option<Connection> {
        let idle = &mut self.lock().idle;
        if idle.is_empty() {
            return None;
        }
        self.count.dec();
        Some(idle.remove(0).connection)
    }

    /// Takes the connections that have reached their idle timeout or their maximum age.
    pub fn expired(&self, now: Instant) -> Vec<Connection> {
        self.remove(|idle| !self.may_wait(idle, now))
    }

    /// Takes all connections.
    pub fn drain(&self) -> Vec<Connection> {
        self.remove(|_| true)
    }

    /// Takes all connections, and closes the pool until [`Self::open`] is called.
    pub fn close(&self) -> Vec<Connection> {
        self.lock().is_closed = true;
        self.drain()
    }

    /// Opens the pool: connections may be added again.
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

    /// Returns whether the age of a connection, and the number of messages it has carried, allow another message.
    pub fn may_be_used(&self, connection: &Connection, now: Instant) -> bool {
        let most = connection.offered().max_messages.unwrap_or(u32::MAX).min(self.options.max_messages);
        connection.age(now) < self.options.max_age && connection.messages() < most
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
