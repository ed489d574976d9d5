//! One upstream: connections to it, what it offers, and whether it is of use.

use super::Fault;
use super::authentication::Login;
use super::connection::Connection;
use super::health::Health;
use super::keys::KeyRing;
use super::knowledge::{Knowledge, REFRESH};
use super::opening::Opening;
use super::options::{ConfigError, Options, UpstreamOptions};
use super::order::Standing;
use super::pool::Pool;
use super::tls::{Policy, Tls};
use crate::metrics::{Metrics, UpstreamMetrics};
use crate::smtp::extensions::Extensions;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// An upstream that is configured.
pub struct Upstream {
    options: UpstreamOptions,
    /// What Weir calls itself.
    hostname: String,
    timeout: Duration,
    tls: Option<Tls>,
    pool: Pool,
    health: Health,
    keys: KeyRing,
    known: Knowledge,
    /// Held while what it offers is learnt for clients that wait to be told.
    probing: tokio::sync::Mutex<()>,
    metrics: UpstreamMetrics,
}

/// How often connections that have waited for too long are looked for.
const SWEEP: Duration = Duration::from_secs(1);

impl Upstream {
    /// Its files are read, to see whether they are good.
    pub fn new(options: &Options, upstream: &UpstreamOptions, metrics: &Metrics) -> Result<Self, ConfigError> {
        if let Some(login) = &upstream.login {
            login.read().map_err(ConfigError::Secret)?;
        }
        let metrics = metrics.upstream(&upstream.name);
        Ok(Self {
            hostname: options.hostname.clone(),
            timeout: options.timeout,
            tls: Tls::new(&upstream.tls, &upstream.host)?,
            pool: Pool::new(upstream.pool, metrics.waiting.clone()),
            health: Health::default(),
            keys: KeyRing::default(),
            known: Knowledge::default(),
            probing: tokio::sync::Mutex::default(),
            metrics,
            options: upstream.clone(),
        })
    }

    /// Its name in logs.
    pub fn name(&self) -> &Arc<str> {
        &self.options.name
    }

    /// How messages to the administrator name it.
    pub fn describe(&self) -> String {
        format!("upstream {} ({}:{})", self.options.name, self.options.host, self.options.port)
    }

    /// What it offered when it was last connected to; `None`, if it never was.
    pub fn offered(&self) -> Option<Extensions> {
        self.known.get().map(|known| known.offered)
    }

    /// What speaks for it.
    pub fn standing(&self) -> Standing {
        let UpstreamOptions { priority, weight, .. } = self.options;
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

    /// Looks after it for as long as Weir serves: learns what it offers, where clients do not have it connected to anyway; finds
    /// out when it is back; and takes leave of it on connections that have waited for too long.
    pub async fn look_after(&self) {
        tokio::join!(self.keep_informed(), self.sweep());
    }

    async fn keep_informed(&self) {
        loop {
            let fresh_for = REFRESH.saturating_sub(self.known.get().map_or(REFRESH, |known| known.at.elapsed()));
            tokio::select! {
                () = self.health.retry() => {}
                () = tokio::time::sleep(fresh_for), if self.health.is_well() => {}
            }
            let _one_at_a_time = self.probing.lock().await;
            let is_known = self.known.get().is_some_and(|known| known.at.elapsed() < REFRESH);
            if !is_known || !self.health.is_well() {
                let _ = self.probe().await;
            }
        }
    }

    async fn sweep(&self) {
        loop {
            tokio::time::sleep(SWEEP).await;
            for connection in self.pool.expired(Instant::now()) {
                self.dismiss(connection);
            }
        }
    }

    /// Connects to it to learn what it offers, and says good-bye.
    pub async fn probe(&self) -> Result<Extensions, Fault> {
        let connection = self.connect().await?;
        let offered = connection.offered();
        connection.quit().await;
        Ok(offered)
    }

    /// A connection that waits for a message and was not closed meanwhile.
    pub async fn waiting(&self) -> Option<Connection> {
        loop {
            let mut connection = self.pool.take(Instant::now())?;
            if connection.is_quiet().await {
                self.metrics.reused.inc();
                return Some(connection);
            }
        }
    }

    /// A new connection, past its opening.
    pub async fn connect(&self) -> Result<Connection, Fault> {
        let opened = tokio::time::timeout(self.timeout, self.try_connect()).await;
        let connection = opened.unwrap_or(Err(Fault::Silent)).inspect_err(|fault| self.failed(fault))?;
        self.metrics.opened.inc();
        let upstream = &**self.name();
        if self.health.answered() {
            self.metrics.up.set(1);
            tracing::info!(upstream, "upstream back");
        }
        let offered = connection.offered();
        if self.known.learn(offered, Instant::now()) {
            tracing::info!(upstream, offers = offered.names(), "upstream offers");
        }
        Ok(connection)
    }

    /// It was of no use.
    pub fn failed(&self, fault: &Fault) {
        self.metrics.failures.inc();
        if self.health.failed(Instant::now()) {
            self.metrics.up.set(0);
            tracing::warn!(upstream = &**self.name(), reason = %fault, "upstream down");
        }
    }

    /// It has taken or refused an envelope.
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

    fn keep(&self, connection: Connection) {
        if let Some(surplus) = self.pool.put(connection, Instant::now()) {
            self.dismiss(surplus);
        }
    }

    /// Nobody waits for an upstream's good-bye.
    fn dismiss(&self, connection: Connection) {
        tokio::spawn(connection.quit());
    }

    /// Takes leave of it on all connections that wait.
    pub async fn close(&self) {
        let mut leaving = JoinSet::new();
        for connection in self.pool.drain() {
            leaving.spawn(connection.quit());
        }
        while leaving.join_next().await.is_some() {}
    }

    async fn try_connect(&self) -> Result<Connection, Fault> {
        let policy = self.options.tls.policy;
        match self.open(policy).await {
            // Where TLS is only welcome, a handshake that fails costs no mail.
            Err(Fault::Tls(error)) if policy == Policy::Opportunistic && self.options.login.is_none() => {
                tracing::warn!(upstream = &**self.name(), %error, "TLS failed; going on without");
                self.open(Policy::None).await
            }
            outcome => outcome,
        }
    }

    async fn open(&self, policy: Policy) -> Result<Connection, Fault> {
        let host = self.options.host.trim_start_matches('[').trim_end_matches(']');
        let opening = Opening::new(&self.hostname, policy, self.login().await?);
        let counted = self.metrics.count_connection();
        Connection::open((host, self.options.port), self.timeout, opening, self.tls.as_ref(), &self.keys, counted).await
    }

    /// What to log in with now.
    async fn login(&self) -> Result<Option<Login>, Fault> {
        let Some(options) = self.options.login.clone() else { return Ok(None) };
        let read = tokio::task::spawn_blocking(move || options.read()).await;
        read.map_err(|error| Fault::Io(error.into()))?.map(Some).map_err(Fault::Secret)
    }
}
