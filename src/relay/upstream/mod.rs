//! One upstream: connections to it, what it offers, and whether it is of use.
//!
//! A [`connector`] opens connections, to addresses that are [`bad_addresses`] last; those that wait are in a [`pool`]. [`health`] is whether it
//! is of use, [`admin_state`] whether it is to be used, and [`capabilities`] what it offers. [`slots`] bound the connections in use.

mod admin_state;
mod bad_addresses;
mod capabilities;
mod connector;
mod health;
pub mod pool;
mod slots;

pub(super) use connector::Connector;
pub(super) use slots::{Slot, WAIT};

use crate::metrics;
use crate::relay::RelayError;
use crate::relay::client::Client;
use crate::relay::connection::Connection;
use crate::relay::dns::{Failure, Resolver};
use crate::relay::options::{ConfigError, Options, UpstreamOptions};
use crate::relay::selection::Standing;
use crate::smtp::extensions::Extensions;
use admin_state::Use;
use capabilities::{Capabilities, REFRESH};
use health::{Found, Health};
use pool::Pool;
use slots::Slots;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// An upstream that is configured.
pub struct Upstream {
    connector: Connector,
    pool: Pool,
    slots: Arc<Slots>,
    health: Health,
    known: Capabilities,
    /// Held while what it offers is learnt for clients that wait to be told.
    probing: tokio::sync::Mutex<()>,
}

/// How often connections that have waited for too long are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// How long until an upstream is looked at again that had no connection left for that, as mail has them all.
const PROBE_PAUSE: Duration = Duration::from_secs(10);

/// How long until an upstream is asked again that refused a connection though it should take one more: it may not have noticed yet that
/// another has ended.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

impl Upstream {
    /// Its files are read, to see whether they are good.
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
            known: Capabilities::default(),
            probing: tokio::sync::Mutex::default(),
        })
    }

    /// What it was made with. Whether it is enabled may have changed since.
    pub fn options(&self) -> &UpstreamOptions {
        self.connector.options()
    }

    /// Whether it may have mail that is routed so, or not at all.
    pub fn is_on(&self, route: Option<&Arc<str>>) -> bool {
        route.map_or(!self.options().only_routed, |name| name == self.name())
    }

    /// Its name in logs.
    pub fn name(&self) -> &Arc<str> {
        &self.options().name
    }

    /// How messages to the administrator name it.
    pub fn describe(&self) -> String {
        let UpstreamOptions { name, host, port, .. } = self.options();
        format!("upstream {name} ({host}:{port})")
    }

    /// Where it is: its addresses in the order in which they are tried, and why an exchanger has none.
    pub async fn addresses(&self) -> Vec<Result<IpAddr, Failure>> {
        self.connector.addresses().await
    }

    /// How its connections have fared.
    pub fn connector(&self) -> &Connector {
        &self.connector
    }

    /// What it offered when it was last connected to; `None`, if it never was.
    pub fn offered(&self) -> Option<Extensions> {
        self.known.get().map(|known| known.offered)
    }

    /// What speaks for it.
    pub fn standing(&self) -> Standing {
        let UpstreamOptions { priority, weight, .. } = *self.options();
        Standing { priority, weight, is_well: self.health.is_well(), is_able: true }
    }

    /// Looks what it offers, if that is in doubt.
    pub async fn acquaint(&self) {
        if self.known.is_doubtful(Instant::now()) {
            let _one_at_a_time = self.probing.lock().await;
            if self.known.is_doubtful(Instant::now()) {
                let _ = self.probe().await;
            }
        }
    }

    /// Whether it is worth while for a client to wait for [`Self::acquaint`].
    pub fn is_doubtful(&self) -> bool {
        self.known.is_doubtful(Instant::now())
    }

    /// Clients have waited to be told what it offers, with success or without.
    pub fn has_been_waited_for(&self) {
        self.known.tried(Instant::now());
    }

    /// It gets mail from now on, when it has shown that it is there: it may be another than it was, or not be ready.
    pub fn enable(&self) {
        self.health.begin_anew(Instant::now());
        self.pool.open();
        self.connector.service().set(Use::Enabled);
    }

    /// It gets no mail from now on, until it is enabled. What is under way comes to its end. Needs a runtime.
    pub fn disable(&self) {
        if self.connector.service().set(Use::Disabled) {
            self.empty();
        }
    }

    /// It gets no mail any more.
    pub fn remove(&self) {
        self.connector.service().set(Use::Removed);
        self.empty();
    }

    fn empty(&self) {
        for connection in self.pool.close() {
            self.dismiss(connection, None);
        }
    }

    /// Tells Prometheus whether it is of use.
    pub fn show(&self) {
        self.connector.service().show(|| self.health.is_well());
    }

    /// Looks after it for as long as it is there, while it is enabled: learns what it offers, where clients do not have it connected to
    /// anyway; finds out when it is back; and takes leave of it on connections that have waited for too long.
    pub async fn look_after(&self) {
        while self.connector.service().until_not(Use::Disabled).await == Use::Enabled {
            tokio::select! {
                () = self.keep_informed() => {}
                () = self.sweep() => {}
            }
        }
    }

    async fn keep_informed(&self) {
        loop {
            let fresh_for = REFRESH.saturating_sub(self.known.get().map_or(REFRESH, |known| known.at.elapsed()));
            tokio::select! {
                _ = self.connector.service().until_not(Use::Enabled) => return,
                () = self.health.retry() => {}
                () = tokio::time::sleep(fresh_for), if self.health.is_well() => {}
            }
            let one_at_a_time = self.probing.lock().await;
            let is_known = self.known.get().is_some_and(|known| known.at.elapsed() < REFRESH);
            if (!is_known || !self.health.is_well()) && self.probe().await.is_err() && self.health.is_well() {
                drop(one_at_a_time);
                tokio::time::sleep(PROBE_PAUSE).await;
            }
        }
    }

    async fn sweep(&self) {
        loop {
            tokio::time::sleep(SWEEP).await;
            for connection in self.pool.expired(Instant::now()) {
                self.dismiss(connection, None);
            }
        }
    }

    /// Connects to it to learn what it offers, and says good-bye.
    pub async fn probe(&self) -> Result<Extensions, RelayError> {
        let connection = self.connect(None).await?;
        let offered = connection.offered();
        connection.quit().await;
        Ok(offered)
    }

    /// Whether a connection may carry another message, without waiting for it.
    pub fn may_reuse(&self, connection: &Connection) -> bool {
        let is_of_use = self.connector.service().is_enabled() && self.health.is_well();
        !connection.in_message() && is_of_use && self.pool.may_be_used(connection, Instant::now())
    }

    /// A connection that waits for a message, may carry one of this client and was not closed meanwhile.
    pub async fn waiting(&self, client: &Client) -> Option<Connection> {
        loop {
            let mut connection = self.pool.take(client, Instant::now())?;
            if connection.is_quiet().await {
                self.connector.metrics().reused.inc();
                return Some(connection);
            }
        }
    }

    /// Permission for a connection for mail of this client, waited for until then.
    pub async fn slot(&self, client: &Client, until: Instant) -> Result<Slot, RelayError> {
        let patience = until.saturating_duration_since(Instant::now());
        self.slots.take(client.address, patience).await.ok_or(RelayError::Busy)
    }

    /// A new connection in this slot. [`RelayError::Busy`] where the upstream takes no more than are open; not before a pause, where it
    /// seemed to take one more and there is somebody to wait until then.
    pub async fn connect_in(&self, mut slot: Slot, client: &Client, until: Instant) -> Result<Connection, RelayError> {
        // Those that wait for a message count, too.
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
            Err(fault) => Err(fault),
        }
    }

    /// A new connection, past its opening: for mail of this client. Where the upstream takes no more, one that waits, for others
    /// perhaps, makes room.
    pub async fn connect(&self, client: Option<&Client>) -> Result<Connection, RelayError> {
        let mut began = Instant::now();
        let mut outcome = self.connector.connect(client).await;
        if let Err(RelayError::Refused(_) | RelayError::Closed | RelayError::Unreachable(_)) = outcome
            && self.make_room().await
        {
            began = Instant::now();
            outcome = self.connector.connect(client).await;
        }
        // One more than it takes at once says nothing about whether it is of use.
        let is_one_too_many = match &outcome {
            Err(RelayError::Refused(reply)) if reply.code() < 500 => {
                self.slots.has_others(usize::from(client.is_some())).await
            }
            _ => false,
        };
        let connection = outcome.inspect_err(|fault| {
            let says_nothing = match fault {
                RelayError::Disabled => true,
                // Whom it refuses to serve says nothing about others.
                RelayError::Xclient(_) | RelayError::ClientLogin(_) | RelayError::Forgotten => true,
                RelayError::Login(..) => self.options().wants_credentials(),
                _ => false,
            };
            if !says_nothing && !is_one_too_many {
                self.failed(fault, began);
            }
        })?;
        let connector = &self.connector;
        connector.metrics().opened.inc();
        let upstream = &**self.name();
        match self.health.answered(began, Instant::now()) {
            None | Some(Found::Well) => {}
            Some(Found::Untried) => tracing::info!(upstream, "upstream answers: it gets mail"),
            Some(Found::Down) => tracing::info!(upstream, "upstream back"),
        }
        self.show();
        let offered = connection.offered();
        connector.announcer().check(&offered);
        if self.known.learn(offered, Instant::now()) {
            tracing::info!(upstream, offers = offered.names(), "upstream offers");
        }
        Ok(connection)
    }

    /// Takes leave of it on the connection that has waited for longest; false if there is none.
    async fn make_room(&self) -> bool {
        match self.pool.take_oldest() {
            Some(connection) => connection.quit().await,
            None => return false,
        }
        true
    }

    /// It lost a message, or did not want one: which may be the message's fault, and says nothing about others.
    pub fn lost(&self) {
        self.connector.metrics().failures.inc();
    }

    /// It failed a session of this client that it began well with. Whoever is sent away may deserve it: it takes several.
    pub fn doubted(&self, client: &Client, fault: &RelayError) {
        self.lost();
        if self.health.doubted(&client.session, Instant::now()) {
            self.is_down(fault);
        }
    }

    /// It was of no use to what began then.
    fn failed(&self, fault: &RelayError, began: Instant) {
        self.lost();
        if self.health.failed(began, Instant::now()) {
            self.is_down(fault);
        }
    }

    fn is_down(&self, fault: &RelayError) {
        self.show();
        tracing::warn!(upstream = &**self.name(), reason = %fault, "upstream down");
    }

    /// It is silent on a connection that waited: so may the others be.
    pub fn forget_waiting(&self) {
        for connection in self.pool.drain() {
            self.dismiss(connection, None);
        }
    }

    /// It takes a message.
    pub fn worked(&self) {
        self.health.worked();
    }

    /// Keeps a connection for the next message, if it may.
    pub fn release(self: &Arc<Self>, mut connection: Connection) {
        if connection.in_message() {
            // Cut, so that half a message does not count.
            return;
        }
        if connection.is_idle() {
            return self.keep(connection);
        }
        let upstream = self.clone();
        // The client need not wait until the upstream has forgotten its transaction.
        tokio::spawn(async move {
            if connection.reset().await.is_ok() {
                upstream.keep(connection);
            }
        });
    }

    fn keep(&self, mut connection: Connection) {
        let slot = connection.vacate();
        if let Some(surplus) = self.pool.put(connection, Instant::now()) {
            self.dismiss(surplus, slot);
        }
    }

    /// Nobody waits for an upstream's good-bye, but for its slot, if there is one.
    fn dismiss(&self, connection: Connection, slot: Option<Slot>) {
        tokio::spawn(async move {
            connection.quit().await;
            drop(slot);
        });
    }

    /// Takes leave of it on all connections that wait.
    pub async fn close(&self) {
        let mut leaving = JoinSet::new();
        for connection in self.pool.drain() {
            leaving.spawn(connection.quit());
        }
        while leaving.join_next().await.is_some() {}
    }
}
