//! One upstream: its connections, extensions and health.
//!
//! A [`connector`] opens connections, and tries [`bad_addresses`] last; idle ones wait in a [`pool`]. [`health`] says
//! whether the upstream works, [`admin_state`] whether it is enabled, and [`capabilities`] its extensions; a background
//! task, [`maintenance`], keeps all three current.

mod admin_state;
mod bad_addresses;
mod capabilities;
mod connector;
mod health;
mod maintenance;
mod pool;

pub(super) use connector::Connector;

use crate::metrics;
use crate::relay::client::Client;
use crate::relay::config_error::ConfigError;
use crate::relay::connection::Connection;
use crate::relay::connection_slots::{Slot, Slots};
use crate::relay::dns::{LookupError, Resolver};
use crate::relay::error::RelayError;
use crate::relay::options::{Options, UpstreamOptions};
use crate::relay::selection::Standing;
use crate::smtp::extensions::Extensions;
use admin_state::Setting;
use capabilities::Capabilities;
use health::{Health, HealthState};
use pool::Pool;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A configured upstream.
pub struct Upstream {
    connector: Connector,
    pool: Pool,
    slots: Arc<Slots>,
    health: Health,
    capabilities: Capabilities,
    /// Held during a probe: one at a time.
    probing: tokio::sync::Mutex<()>,
}

/// Pause before the next connection if the upstream refused one within its known bound: it may still count one that has
/// just ended.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

impl Upstream {
    /// Reads the files that the configuration names, to check them.
    pub fn new(
        options: &Options,
        upstream: &UpstreamOptions,
        resolver: Arc<Resolver>,
        metrics: &Arc<metrics::Upstreams>,
    ) -> Result<Self, ConfigError> {
        let metrics = metrics.of(&upstream.name);
        Ok(Self {
            pool: Pool::new(upstream.pool, metrics.waiting.clone()),
            slots: Slots::new(upstream.max_connections),
            connector: Connector::new(options, upstream, resolver, metrics)?,
            health: Health::default(),
            capabilities: Capabilities::default(),
            probing: tokio::sync::Mutex::default(),
        })
    }

    /// Returns the configuration at creation. `enabled` may have changed since.
    pub fn options(&self) -> &UpstreamOptions {
        self.connector.options()
    }

    /// Returns whether mail with this route (`None`: without any) may go to this upstream.
    pub fn takes_route(&self, route: Option<&Arc<str>>) -> bool {
        route.map_or(!self.options().only_routed, |name| name == self.name())
    }

    /// Returns the upstream's name in logs.
    pub fn name(&self) -> &Arc<str> {
        &self.options().name
    }

    /// Returns the upstream's description in messages to the administrator.
    pub fn describe(&self) -> String {
        let UpstreamOptions { name, host, port, .. } = self.options();
        format!("upstream {name} ({host}:{port})")
    }

    /// Returns the addresses in the order in which they are tried, and why an exchanger has none.
    pub async fn addresses(&self) -> Vec<Result<IpAddr, LookupError>> {
        self.connector.addresses().await
    }

    /// Returns the connector, with its record of failed connections.
    pub fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Returns the extensions offered on the last connection; `None` if there was none.
    pub fn offered(&self) -> Option<Extensions> {
        self.capabilities.get().map(|known| known.offered)
    }

    /// Returns the properties that decide the order of upstreams.
    pub fn standing(&self) -> Standing {
        let UpstreamOptions { priority, weight, .. } = *self.options();
        Standing { priority, weight, is_well: self.health.is_well(), is_able: true }
    }

    /// Enables the upstream. It gets mail once it has answered: it may be another than before, or not ready.
    pub fn enable(&self) {
        self.health.restart(Instant::now());
        self.pool.open();
        self.connector.admin_state().set(Setting::Enabled);
    }

    /// Disables the upstream, until it is enabled again. Mail in progress goes on. Needs a runtime.
    pub fn disable(&self) {
        if self.connector.admin_state().set(Setting::Disabled) {
            self.close_pool();
        }
    }

    /// Disables the upstream for ever.
    pub fn remove(&self) {
        self.connector.admin_state().set(Setting::Removed);
        self.close_pool();
    }

    fn close_pool(&self) {
        for connection in self.pool.close() {
            self.quit_in_background(connection, None);
        }
    }

    /// Sets the `up` metric.
    pub fn update_metric(&self) {
        self.connector.admin_state().update_metric(|| self.health.is_well());
    }

    /// Returns whether a connection may carry another message at once.
    pub fn may_reuse(&self, connection: &Connection) -> bool {
        let is_of_use = self.connector.admin_state().is_enabled() && self.health.is_well();
        !connection.in_message() && is_of_use && self.pool.may_be_used(connection, Instant::now())
    }

    /// Takes an idle connection that may carry mail of this client and that the upstream has not closed.
    pub async fn idle_connection(&self, client: &Client) -> Option<Connection> {
        loop {
            let mut connection = self.pool.take(client, Instant::now())?;
            if connection.is_quiet().await {
                self.connector.metrics().reused.inc();
                return Some(connection);
            }
        }
    }

    /// Waits until `until` for a slot for mail of this client.
    pub async fn slot(&self, client: &Client, until: Instant) -> Result<Slot, RelayError> {
        let timeout = until.saturating_duration_since(Instant::now());
        self.slots.take(client.address, timeout).await.ok_or(RelayError::Busy)
    }

    /// Opens a connection in this slot. Returns [`RelayError::Busy`] if the upstream refuses more connections than are
    /// open; after a pause, if it was expected to accept one more and the client can wait that long.
    pub async fn connect_in(&self, mut slot: Slot, client: &Client, until: Instant) -> Result<Connection, RelayError> {
        // Idle connections count, too.
        if self.slots.is_exceeded(self.pool.count()) {
            self.make_room().await;
        }
        match self.connect(Some(client)).await {
            Ok(mut connection) => {
                slot.opened();
                connection.occupy(slot);
                Ok(connection)
            }
            Err(RelayError::Refused(reply)) if reply.code() < 500 && self.slots.refused() => {
                let has_time = Instant::now() + REFUSAL_PAUSE < until;
                if has_time && !self.slots.is_exceeded(0) {
                    tokio::time::sleep(REFUSAL_PAUSE).await;
                }
                Err(RelayError::Busy)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a connection for mail of this client. If the upstream refuses one more, closes an idle one, perhaps of
    /// another client, and tries again.
    pub async fn connect(&self, client: Option<&Client>) -> Result<Connection, RelayError> {
        let mut began = Instant::now();
        let mut outcome = self.connector.connect(client).await;
        if let Err(RelayError::Refused(_) | RelayError::Closed | RelayError::Unreachable(_)) = outcome
            && self.make_room().await
        {
            began = Instant::now();
            outcome = self.connector.connect(client).await;
        }
        match &outcome {
            Ok(connection) => self.connected(connection, began),
            Err(error) => {
                // A refusal of one connection too many says nothing about the upstream's health.
                let is_one_too_many = matches!(error, RelayError::Refused(reply) if reply.code() < 500)
                    && self.slots.has_others(usize::from(client.is_some())).await;
                if !is_one_too_many && self.shows_health(error) {
                    self.attempt_failed(error, began);
                }
            }
        }
        outcome
    }

    /// Takes a new connection, whose attempt began at `began`: the upstream is well, and offers these extensions.
    fn connected(&self, connection: &Connection, began: Instant) {
        self.connector.metrics().opened.inc();
        let upstream = &**self.name();
        match self.health.answered(began, Instant::now()) {
            None | Some(HealthState::Well) => {}
            Some(HealthState::Untried) => tracing::info!(upstream, "upstream answers: it gets mail"),
            Some(HealthState::Down) => tracing::info!(upstream, "upstream back"),
        }
        self.update_metric();
        let offered = connection.offered();
        self.connector.announcer().check_offered(&offered);
        if self.capabilities.learn(offered, Instant::now()) {
            tracing::info!(upstream, offers = offered.names(), "upstream offers");
        }
    }

    /// Returns whether the error of a connection says something about the upstream's health.
    fn shows_health(&self, error: &RelayError) -> bool {
        match error {
            RelayError::Disabled => false,
            // A refusal of one client says nothing about others.
            RelayError::Xclient(_) | RelayError::ClientLogin(_) | RelayError::PasswordUnknown => false,
            RelayError::Login(..) => !self.options().wants_credentials(),
            _ => true,
        }
    }

    /// Closes the longest idle connection; false if there is none.
    async fn make_room(&self) -> bool {
        match self.pool.take_oldest() {
            Some(connection) => connection.quit().await,
            None => return false,
        }
        true
    }

    /// Counts a message that the upstream lost or refused. The message may be to blame, so health does not change.
    pub fn count_failure(&self) {
        self.connector.metrics().failures.inc();
    }

    /// Takes a session of this client that failed after the upstream had answered. The client may be to blame, so only
    /// several in a row bring the upstream down.
    pub fn session_failed(&self, client: &Client, error: &RelayError) {
        self.count_failure();
        if self.health.session_failed(&client.session, Instant::now()) {
            self.log_down(error);
        }
    }

    /// Takes a failed attempt that began at `began`.
    fn attempt_failed(&self, error: &RelayError, began: Instant) {
        self.count_failure();
        if self.health.failed(began, Instant::now()) {
            self.log_down(error);
        }
    }

    fn log_down(&self, error: &RelayError) {
        self.update_metric();
        tracing::warn!(upstream = &**self.name(), reason = %error, "upstream down");
    }

    /// Closes all idle connections, after one did not answer: the others may not, either.
    pub fn drop_idle(&self) {
        for connection in self.pool.drain() {
            self.quit_in_background(connection, None);
        }
    }

    /// Notes an accepted message.
    pub fn message_accepted(&self) {
        self.health.message_accepted();
    }

    /// Keeps a connection for the next message, if possible.
    pub fn release(self: &Arc<Self>, mut connection: Connection) {
        if connection.in_message() {
            // Dropping cuts the connection, so that the upstream does not accept half a message.
            return;
        }
        if connection.is_idle() {
            return self.keep(connection);
        }
        let upstream = self.clone();
        // The client need not wait for the reply to RSET.
        tokio::spawn(async move {
            if connection.reset().await.is_ok() {
                upstream.keep(connection);
            }
        });
    }

    fn keep(&self, mut connection: Connection) {
        let slot = connection.vacate();
        if let Some(surplus) = self.pool.put(connection, Instant::now()) {
            self.quit_in_background(surplus, slot);
        }
    }

    /// Closes a connection in the background. Its slot, if any, is free only after the upstream's good-bye.
    fn quit_in_background(&self, connection: Connection, slot: Option<Slot>) {
        tokio::spawn(async move {
            connection.quit().await;
            drop(slot);
        });
    }

    /// Closes all idle connections.
    pub async fn close(&self) {
        let mut leaving = JoinSet::new();
        for connection in self.pool.drain() {
            leaving.spawn(connection.quit());
        }
        while leaving.join_next().await.is_some() {}
    }
}
