//! One upstream: its connections, extensions and health.
//!
//! A [`connector`] opens connections, and tries [`bad_addresses`] last. A [`pool`] keeps idle connections. [`health`]
//! records whether the upstream works, and [`admin_state`] whether it is enabled. [`capabilities`] has the extensions
//! that it offers. [`maintenance`] is a background task that keeps health and extensions up to date.

mod admin_state;
mod bad_addresses;
mod capabilities;
mod connector;
mod health;
mod maintenance;
mod pool;

pub(super) use connector::Connector;

use crate::metrics::{self, ReplyStage};
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
    /// Lock that is held during a probe, so that there is only one probe at a time.
    probing: tokio::sync::Mutex<()>,
}

/// Pause before the next try if the upstream refused a connection although fewer connections were open than it is known
/// to accept. The upstream perhaps still counts a connection that has just ended.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

impl Upstream {
    /// Creates an upstream. Reads the files that its configuration names, and returns an error if a file cannot be
    /// used.
    pub fn new(
        options: &Options,
        upstream: &UpstreamOptions,
        resolver: Arc<Resolver>,
        metrics: &Arc<metrics::Upstreams>,
    ) -> Result<Self, ConfigError> {
        let metrics = metrics.of(&upstream.name);
        Ok(Self {
            pool: Pool::new(upstream.pool, metrics.idle.clone()),
            slots: Slots::new(upstream.max_connections),
            connector: Connector::new(options, upstream, resolver, metrics)?,
            health: Health::default(),
            capabilities: Capabilities::default(),
            probing: tokio::sync::Mutex::default(),
        })
    }

    /// Returns the configuration with which the upstream was created. Its field `enabled` is perhaps out of date.
    pub fn options(&self) -> &UpstreamOptions {
        self.connector.options()
    }

    /// Returns whether this upstream is allowed for the mail. `route` is the name of the upstream to which a limit
    /// routes the mail; `None` if no limit routes the mail.
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

    /// Looks up the upstream's addresses and returns them in the order in which Weir tries them. For a mail exchanger
    /// without an address, the list has the error of its lookup.
    pub async fn addresses(&self) -> Vec<Result<IpAddr, LookupError>> {
        self.connector.addresses().await
    }

    /// Returns the connector, which also knows the addresses that fail.
    pub fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Returns the extensions that the upstream offered on its newest connection; `None` if there was no connection
    /// yet.
    pub fn offered(&self) -> Option<Extensions> {
        self.capabilities.get().map(|known| known.offered)
    }

    /// Returns whether the configuration enables the upstream.
    pub fn is_enabled(&self) -> bool {
        self.connector.admin_state().is_enabled()
    }

    /// Returns the properties by which the upstreams are ordered for a message.
    pub fn standing(&self) -> Standing {
        let UpstreamOptions { priority, weight, .. } = *self.options();
        Standing { priority, weight, is_well: self.health.is_well(), is_able: true }
    }

    /// Returns the error by which the upstream is down.
    pub fn last_error(&self) -> Option<Box<str>> {
        self.health.error()
    }

    /// Enables the upstream. It gets mail only after it has answered, because the server has perhaps been replaced, or
    /// is perhaps not ready yet.
    pub fn enable(&self) {
        self.health.restart(Instant::now());
        self.pool.open();
        self.connector.admin_state().set(Setting::Enabled);
    }

    /// Disables the upstream until it is enabled again. It still finishes transactions that have begun. Must be called
    /// within a Tokio runtime.
    pub fn disable(&self) {
        if self.connector.admin_state().set(Setting::Disabled) {
            self.close_pool();
        }
    }

    /// Disables the upstream permanently, because it is no longer in the configuration.
    pub fn remove(&self) {
        self.connector.admin_state().set(Setting::Removed);
        self.close_pool();
    }

    fn close_pool(&self) {
        for connection in self.pool.close() {
            self.quit_in_background(connection, None);
        }
    }

    /// Sets the `up` metric to the present health.
    pub fn update_metric(&self) {
        self.connector.admin_state().update_metric(|| self.health.is_well());
    }

    /// Returns whether a connection can be used for another transaction at once, without being put into the pool.
    pub fn may_reuse(&self, connection: &Connection) -> bool {
        let is_of_use = self.connector.admin_state().is_enabled() && self.health.is_well();
        !connection.in_message() && is_of_use && self.pool.may_be_used(connection, Instant::now())
    }

    /// Removes from the pool and returns an idle connection that is allowed to carry mail of this client and that the
    /// upstream has not closed.
    pub async fn idle_connection(&self, client: &Client) -> Option<Connection> {
        loop {
            let mut connection = self.pool.take(client, Instant::now())?;
            if connection.is_quiet().await {
                self.connector.metrics().reused.inc();
                return Some(connection);
            }
        }
    }

    /// Waits until `until` at the latest for a connection slot for mail of this client.
    pub async fn slot(&self, client: &Client, until: Instant) -> Result<Slot, RelayError> {
        let timeout = until.saturating_duration_since(Instant::now());
        self.slots.take(client.address, timeout).await.ok_or(RelayError::Busy)
    }

    /// Opens a connection in this slot. Returns [`RelayError::Busy`] if the upstream refuses a further connection. If
    /// Weir expected the upstream to accept one more connection, and enough time is left before `until`, returns the
    /// error after a pause, so that the caller can try again.
    pub async fn connect_in(&self, mut slot: Slot, client: &Client, until: Instant) -> Result<Connection, RelayError> {
        // Idle connections also count for the limit.
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

    /// Opens a connection for mail of this client. If the upstream refuses the connection, closes an idle connection,
    /// which is perhaps a connection for another client, and tries again.
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
                if let Some(reply) = error.reply_to_connecting() {
                    self.connector.metrics().count_reply(ReplyStage::Connect, reply.code());
                }
                // If the upstream refuses only because other connections are open, it is not down.
                let is_one_too_many = matches!(error, RelayError::Refused(reply) if reply.code() < 500)
                    && self.slots.has_others(usize::from(client.is_some())).await;
                if !is_one_too_many && self.shows_health(error) {
                    self.attempt_failed(error, began);
                }
            }
        }
        outcome
    }

    /// Records a successful connection, whose attempt began at `began`: the upstream is well, and offers the
    /// connection's extensions.
    fn connected(&self, connection: &Connection, began: Instant) {
        let metrics = self.connector.metrics();
        metrics.opened.inc();
        metrics.count_reply(ReplyStage::Connect, 250);
        metrics.connect_seconds.observe(began.elapsed().as_secs_f64());
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

    /// Returns whether this error of opening a connection means that the upstream is down.
    fn shows_health(&self, error: &RelayError) -> bool {
        match error {
            RelayError::Disabled => false,
            // The upstream refused one client; it perhaps accepts other clients.
            RelayError::Xclient(_) | RelayError::ClientLogin { .. } | RelayError::PasswordUnknown => false,
            RelayError::Login(..) => !self.options().wants_credentials(),
            _ => true,
        }
    }

    /// Closes the connection that has been idle for longest. Returns false if no connection is idle.
    async fn make_room(&self) -> bool {
        match self.pool.take_oldest() {
            Some(connection) => connection.quit().await,
            None => return false,
        }
        true
    }

    /// Counts a failure in the metric. Does not change the health, because if the upstream fails during a message, the
    /// cause is perhaps the message.
    pub fn count_failure(&self) {
        self.connector.metrics().failures.inc();
    }

    /// Records that the upstream failed in this client's session after it had answered. The cause is perhaps the
    /// client, so the upstream counts as down only after several such sessions in a row.
    pub fn session_failed(&self, client: &Client, error: &RelayError) {
        self.count_failure();
        if self.health.session_failed(&client.session, Instant::now(), error) {
            self.log_down(error);
        }
    }

    /// Records a failed attempt to connect, which began at `began`.
    fn attempt_failed(&self, error: &RelayError, began: Instant) {
        self.count_failure();
        if self.health.failed(began, Instant::now(), error) {
            self.log_down(error);
        }
    }

    fn log_down(&self, error: &RelayError) {
        self.update_metric();
        tracing::warn!(upstream = &**self.name(), reason = %error, "upstream down");
    }

    /// Closes all idle connections. Called after the upstream did not answer on one of them, because the other
    /// connections are perhaps dead, too.
    pub fn drop_idle(&self) {
        for connection in self.pool.drain() {
            self.quit_in_background(connection, None);
        }
    }

    /// Records that the upstream answered DATA with 354.
    pub fn message_accepted(&self) {
        self.health.message_accepted();
    }

    /// Gives a connection back to the pool if it can be used again.
    pub fn release(self: &Arc<Self>, mut connection: Connection) {
        if connection.in_message() {
            // Return without QUIT: the connection is dropped, and the upstream discards the incomplete message.
            return;
        }
        if connection.is_idle() {
            return self.keep(connection);
        }
        let upstream = self.clone();
        // Send RSET in the background, so that the client need not wait for the reply.
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

    /// Closes a connection in the background. Its slot, if it has one, becomes free only after the reply to QUIT, or
    /// after the timeout for that reply.
    fn quit_in_background(&self, connection: Connection, slot: Option<Slot>) {
        tokio::spawn(async move {
            connection.quit().await;
            drop(slot);
        });
    }

    /// Closes all idle connections, and waits until they are closed.
    pub async fn close(&self) {
        let mut leaving = JoinSet::new();
        for connection in self.pool.drain() {
            leaving.spawn(connection.quit());
        }
        while leaving.join_next().await.is_some() {}
    }
}
