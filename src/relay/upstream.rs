//! One upstream: opens connections to it, and knows what it offers.

use super::announce::Announcer;
use super::client::Client;
use super::connection::Connection;
use super::knowledge::{Knowledge, REFRESH};
use super::opening::Opening;
use super::options::{ConfigError, Options, UpstreamOptions};
use super::tls::{Policy, Tls};
use super::{Fault, login};
use crate::smtp::extensions::Extensions;
use crate::smtp::sasl::Credentials;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// An upstream that is configured.
pub struct Upstream {
    pub options: UpstreamOptions,
    /// What Weir calls itself.
    hostname: String,
    timeout: Duration,
    tls: Option<Tls>,
    login: Option<Credentials>,
    announcer: Arc<Announcer>,
    known: Knowledge,
    /// Held while what it offers is learnt for clients that wait to be told.
    probing: tokio::sync::Mutex<()>,
}

/// How soon to try again after it could not be learnt what it offers; a little later each time.
const TRY_AGAIN: Duration = Duration::from_secs(2);

impl Upstream {
    pub fn new(options: &Options, upstream: &UpstreamOptions) -> Result<Self, ConfigError> {
        Ok(Self {
            hostname: options.hostname.clone(),
            timeout: options.timeout,
            tls: Tls::new(&upstream.tls, &upstream.host)?,
            login: upstream.login.as_ref().map(login::credentials).transpose()?,
            announcer: Arc::new(Announcer::new(upstream.name.clone(), upstream.announce)),
            known: Knowledge::default(),
            probing: tokio::sync::Mutex::default(),
            options: upstream.clone(),
        })
    }

    /// How messages to the administrator name it.
    pub fn describe(&self) -> String {
        format!("upstream {} ({}:{})", self.options.name, self.options.host, self.options.port)
    }

    /// What it offered when it was last connected to; `None`, if it never was.
    pub fn offered(&self) -> Option<Extensions> {
        self.known.get().map(|known| known.offered)
    }

    /// Looks what it offers, if that is in doubt and can be learnt soon.
    pub async fn acquaint(&self, patience: Duration) {
        if !self.known.is_doubtful(Instant::now()) {
            return;
        }
        let look = async {
            let _one_at_a_time = self.probing.lock().await;
            if self.known.is_doubtful(Instant::now()) {
                let _ = self.probe().await;
            }
        };
        let _ = tokio::time::timeout(patience, look).await;
        self.known.tried(Instant::now());
    }

    /// Learns what it offers again and again, where clients do not have it connected to anyway.
    pub async fn keep_informed(&self) {
        let mut failures = 0;
        loop {
            let fresh_for = REFRESH.saturating_sub(self.known.get().map_or(REFRESH, |known| known.at.elapsed()));
            let pause = match failures {
                0 => fresh_for,
                failures => REFRESH.min(TRY_AGAIN * failures),
            };
            tokio::time::sleep(pause).await;
            let _one_at_a_time = self.probing.lock().await;
            if self.known.get().is_some_and(|known| known.at.elapsed() < REFRESH) {
                failures = 0;
                continue;
            }
            let probed = self.probe().await;
            if let Err(fault) = &probed
                && failures == 0
            {
                let upstream = &*self.options.name;
                tracing::warn!(upstream, reason = %fault, "upstream away: what it offers cannot be learnt");
            }
            failures = if probed.is_ok() { 0 } else { failures + 1 };
        }
    }

    /// Connects to it to learn what it offers, and says good-bye.
    pub async fn probe(&self) -> Result<Extensions, Fault> {
        let connection = self.connect(None).await?;
        let offered = connection.offered();
        connection.quit().await;
        Ok(offered)
    }

    /// A new connection, past its opening: for mail of this client.
    pub async fn connect(&self, client: Option<&Client>) -> Result<Connection, Fault> {
        let opened = tokio::time::timeout(self.timeout, self.try_connect(client)).await;
        let connection = opened.unwrap_or(Err(Fault::Silent))?;
        let offered = connection.offered();
        if self.known.learn(offered, Instant::now()) {
            tracing::info!(upstream = self.options.name, offers = offered.names(), "upstream offers");
        }
        self.announcer.check(&offered);
        Ok(connection)
    }

    async fn try_connect(&self, client: Option<&Client>) -> Result<Connection, Fault> {
        let policy = self.options.tls.policy;
        match self.open(policy, client).await {
            // Where TLS is only welcome, a handshake that fails costs no mail.
            Err(fault @ Fault::Tls(_)) if policy == Policy::Opportunistic && self.login.is_none() => {
                tracing::warn!(upstream = self.options.name, reason = %fault, "TLS failed; going on without");
                self.open(Policy::None, client).await
            }
            outcome => outcome,
        }
    }

    async fn open(&self, policy: Policy, client: Option<&Client>) -> Result<Connection, Fault> {
        let host = self.options.host.trim_start_matches('[').trim_end_matches(']');
        let opening = Opening::new(&self.hostname, policy, self.login.clone());
        let client = self.announcer.for_opening(client);
        let opening = opening.announcing(client.clone());
        let connection = Connection::open((host, self.options.port), self.timeout, opening, self.tls.as_ref()).await?;
        Ok(connection.announcing(self.announcer.clone(), client))
    }
}
