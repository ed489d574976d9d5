//! Connection pool of an upstream: idle connections that wait for the next message.

use crate::relay::client::Client;
use crate::relay::connection::Connection;
use crate::relay::options::PoolOptions;
use prometheus::IntGauge;
use std::sync::{Mutex, PoisonError};
use tokio::time::Instant;

/// The idle connections, most recently used last. The lock is held to move some in or out.
pub struct Pool {
    options: PoolOptions,
    state: Mutex<State>,
    /// Metric of idle connections.
    count: IntGauge,
}

#[derive(Default)]
struct State {
    idle: Vec<Idle>,
    /// No connection may be added.
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

    /// Adds a connection. Returns one that may not stay: this, or the longest idle one.
    pub fn put(&self, connection: Connection, now: Instant) -> Option<Connection> {
        if !self.may_be_used(&connection, now) {
            return Some(connection);
        }
        let mut state = self.lock();
        if self.options.max_idle == 0 || state.is_closed {
            return Some(connection);
        }
        let idle = &mut state.idle;
        // The client of a recent connection probably sends more; that of the longest idle one perhaps never.
        let surplus = (idle.len() >= self.options.max_idle).then(|| idle.remove(0).connection);
        idle.push(Idle { connection, since: now });
        self.count.add(i64::from(surplus.is_none()));
        surplus
    }

    /// Takes the most recently used connection that may carry mail of this client; older ones may reach their timeout.
    /// The upstream may have closed it meanwhile.
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

    /// Takes the longest idle connection, of any client.
    pub fn take_oldest(&self) -> Option<Connection> {
        let idle = &mut self.lock().idle;
        if idle.is_empty() {
            return None;
        }
        self.count.dec();
        Some(idle.remove(0).connection)
    }

    /// Takes the connections whose time is over.
    pub fn expired(&self, now: Instant) -> Vec<Connection> {
        self.remove(|idle| !self.may_wait(idle, now))
    }

    /// Takes all connections.
    pub fn drain(&self) -> Vec<Connection> {
        self.remove(|_| true)
    }

    /// Takes all connections, and keeps no more until [`Self::open`].
    pub fn close(&self) -> Vec<Connection> {
        self.lock().is_closed = true;
        self.drain()
    }

    /// Allows connections to be kept.
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

    /// Returns whether a connection's age and messages allow another message.
    pub fn may_be_used(&self, connection: &Connection, now: Instant) -> bool {
        let most = connection.offered().max_messages.unwrap_or(u32::MAX).min(self.options.max_messages);
        connection.age(now) < self.options.max_age && connection.messages() < most
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
