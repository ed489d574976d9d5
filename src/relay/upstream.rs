//! One upstream: opens connections to it, and knows what it offers.

use super::connection::Connection;
use super::knowledge::{Knowledge, REFRESH};
use super::opening::Opening;
use super::options::{ConfigError, Options, UpstreamOptions};
use super::resolve::{Failure, Resolver};
use super::tls::{Policy, Tls};
use super::{Fault, login};
use crate::smtp::extensions::Extensions;
use crate::smtp::sasl::Credentials;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// An upstream that is configured.
pub struct Upstream {
    pub options: UpstreamOptions,
    /// What Weir calls itself.
    hostname: String,
    timeout: Duration,
    resolver: Arc<Resolver>,
    tls: Option<Tls>,
    login: Option<Credentials>,
    known: Knowledge,
    /// Addresses that failed last, so that each is complained of once. The lock is held to look one up.
    failing: Mutex<HashSet<SocketAddr>>,
    /// Held while what it offers is learnt for clients that wait to be told.
    probing: tokio::sync::Mutex<()>,
}

/// How soon to try again after it could not be learnt what it offers; a little later each time.
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// Addresses that are complained of: more are no news.
const MOST_FAILING: usize = 64;

impl Upstream {
    pub fn new(options: &Options, upstream: &UpstreamOptions, resolver: Arc<Resolver>) -> Result<Self, ConfigError> {
        Ok(Self {
            hostname: options.hostname.clone(),
            timeout: options.timeout,
            resolver,
            tls: Tls::new(&upstream.tls, &upstream.host)?,
            login: upstream.login.as_ref().map(login::credentials).transpose()?,
            known: Knowledge::default(),
            failing: Mutex::default(),
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
        let connection = self.connect().await?;
        let offered = connection.offered();
        connection.quit().await;
        Ok(offered)
    }

    /// A new connection, past its opening.
    pub async fn connect(&self) -> Result<Connection, Fault> {
        let opened = tokio::time::timeout(self.timeout, self.try_connect()).await;
        let connection = opened.unwrap_or(Err(Fault::Silent))?;
        let offered = connection.offered();
        if self.known.learn(offered, Instant::now()) {
            tracing::info!(upstream = self.options.name, offers = offered.names(), "upstream offers");
        }
        Ok(connection)
    }

    /// Where it is: its addresses in the order in which they are tried, and why an exchanger has none.
    pub async fn addresses(&self) -> Vec<Result<IpAddr, Failure>> {
        let mut route = match self.resolver.route(&self.options.host, self.options.mx).await {
            Ok(route) => route,
            Err(failure) => return vec![Err(failure)],
        };
        let mut addresses = Vec::new();
        while let Some(next) = route.next().await {
            addresses.push(next);
        }
        addresses
    }

    /// Tries one address after the other, and tells the fault of the last.
    async fn try_connect(&self) -> Result<Connection, Fault> {
        let unreachable = |failure: Failure| Fault::Unreachable(std::io::Error::other(failure));
        let deadline = Instant::now() + self.timeout;
        let mut route = self.resolver.route(&self.options.host, self.options.mx).await.map_err(unreachable)?;
        let mut outcome = Err(Fault::Closed);
        while let Some(next) = route.next().await {
            // One that is silent must leave some time to those after it.
            let left = deadline.saturating_duration_since(Instant::now());
            let share = if route.is_at_end() { left } else { left / 2 };
            outcome = match next.map(|address| SocketAddr::new(address, self.options.port)) {
                Err(failure) => Err(unreachable(failure)),
                Ok(address) => {
                    let tried = tokio::time::timeout(share, self.try_address(address)).await;
                    let tried = tried.unwrap_or(Err(Fault::Silent));
                    if tried.is_ok() || !route.is_at_end() {
                        self.note(address, tried.as_ref().err());
                    }
                    tried
                }
            };
            match &outcome {
                // A password that is wrong is wrong everywhere, and an account may be locked that is tried too often.
                Ok(_) => break,
                Err(Fault::Login(reply)) if reply.code() >= 500 => break,
                Err(_) => {}
            }
        }
        outcome
    }

    /// Tells the administrator of an address that fails while others may serve: the mail does not show it.
    fn note(&self, address: SocketAddr, fault: Option<&Fault>) {
        let upstream = &*self.options.name;
        let is_news = {
            let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
            match fault {
                Some(_) => failing.len() < MOST_FAILING && failing.insert(address),
                None => failing.remove(&address),
            }
        };
        match fault {
            Some(reason) if is_news => tracing::warn!(upstream, %address, %reason, "address fails; trying the next"),
            None if is_news => tracing::info!(upstream, %address, "address is well again"),
            _ => {}
        }
    }

    async fn try_address(&self, address: SocketAddr) -> Result<Connection, Fault> {
        let policy = self.options.tls.policy;
        match self.open(address, policy).await {
            // Where TLS is only welcome, a handshake that fails costs no mail.
            Err(Fault::Tls(error)) if policy == Policy::Opportunistic && self.login.is_none() => {
                tracing::warn!(upstream = self.options.name, %error, "TLS failed; going on without");
                self.open(address, Policy::None).await
            }
            outcome => outcome,
        }
    }

    async fn open(&self, address: SocketAddr, policy: Policy) -> Result<Connection, Fault> {
        let opening = Opening::new(&self.hostname, policy, self.login.clone());
        let connect_timeout = self.options.connect_timeout;
        Connection::open(address, connect_timeout, self.timeout, opening, self.tls.as_ref()).await
    }
}
