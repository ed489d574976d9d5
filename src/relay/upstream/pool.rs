//! Connection pool of an upstream: idle connections that Weir keeps for further messages.

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
    /// True if the pool is closed: then no connection is added.
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

    /// Adds a connection. Returns a connection that the caller must close: this connection, if it cannot be used again;
    /// or, if the pool is full, the connection that has been idle for longest.
    pub fn put(&self, connection: Connection, now: Instant) -> Option<Connection> {
        if !self.may_be_used(&connection, now) {
            return Some(connection);
        }
        let mut state = self.lock();
        if self.options.max_idle == 0 || state.is_closed {
            return Some(connection);
        }
        let idle = &mut state.idle;
        // A connection that was used a moment ago will probably be needed again soon. The connection that has been idle
        // for longest is perhaps never needed again.
        let surplus = (idle.len() >= self.options.max_idle).then(|| idle.remove(0).connection);
        idle.push(Idle { connection, since: now });
        self.count.add(i64::from(surplus.is_none()));
        surplus
    }

    /// Removes and returns the most recently used connection that is allowed to carry mail of this client. So the other
    /// connections reach their idle timeout if they are not needed. The upstream has perhaps closed the returned
    /// connection already.
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

    /// Removes and returns the connection that has been idle for longest, even if it is for another client.
    pub fn take_oldest(&self) -> Option<Connection> {
        let idle = &mut self.lock().idle;
        if idle.is_empty() {
            return None;
        }
        self.count.dec();
        Some(idle.remove(0).connection)
    }

    /// Removes and returns the connections that have reached their idle timeout, maximum age or maximum number of
    /// messages.
    pub fn expired(&self, now: Instant) -> Vec<Connection> {
        self.remove(|idle| !self.may_wait(idle, now))
    }

    /// Takes all connections.
    pub fn drain(&self) -> Vec<Connection> {
        self.remove(|_| true)
    }

    /// Removes and returns all connections, and closes the pool until [`Self::open`] is called.
    pub fn close(&self) -> Vec<Connection> {
        self.lock().is_closed = true;
        self.drain()
    }

    /// Opens the pool, so that connections can be added again.
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
