//! Opens new connections to an upstream.

use super::admin_state::AdminState;
use super::bad_addresses::BadAddresses;
use crate::metrics::{Counted, UpstreamMetrics};
use crate::relay::client::{Client, LoggedIn};
use crate::relay::client_identity::{Announce, Announcer};
use crate::relay::config_error::ConfigError;
use crate::relay::connection::{Connection, Established, Handshake, Next, Wire};
use crate::relay::dns::{LookupError, Resolver, Route};
use crate::relay::error::RelayError;
use crate::relay::login::{self, KeyRing, Login, Refusals, Secret};
use crate::relay::options::{Options, UpstreamOptions};
use crate::relay::tls::{DowngradeLog, NoTlsReason, Policy, Tls};
use crate::smtp::extensions::Extensions;
use crate::time::format_duration;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Settings and state that all new connections to one upstream share.
pub struct Connector {
    options: UpstreamOptions,
    /// Host name that Weir gives in EHLO.
    hostname: String,
    listening: Vec<SocketAddr>,
    timeout: Duration,
    data_timeout: Duration,
    resolver: Arc<Resolver>,
    tls: Option<Tls>,
    keys: KeyRing,
    refusals: Refusals,
    announcer: Arc<Announcer>,
    bad_addresses: BadAddresses,
    downgrade_log: DowngradeLog,
    admin_state: AdminState,
    metrics: Arc<UpstreamMetrics>,
}

impl Connector {
    /// Creates a connector. Reads the files that the upstream's configuration names, and returns an error if a file
    /// cannot be used.
    pub fn new(
        options: &Options,
        upstream: &UpstreamOptions,
        resolver: Arc<Resolver>,
        metrics: Arc<UpstreamMetrics>,
    ) -> Result<Self, ConfigError> {
        if let Some(login::Options::Fixed(login)) = &upstream.login {
            login.read().map_err(ConfigError::Secret)?;
        }
        Ok(Self {
            hostname: options.hostname.clone(),
            listening: options.listening.clone(),
            timeout: options.timeout,
            data_timeout: options.data_timeout,
            resolver,
            tls: Tls::new(&upstream.tls, &upstream.host)?,
            keys: KeyRing::default(),
            refusals: Refusals::default(),
            announcer: Arc::new(Announcer::new(upstream.name.clone(), upstream.announce)),
            bad_addresses: BadAddresses::new(upstream.name.clone()),
            downgrade_log: DowngradeLog::new(upstream.name.clone()),
            admin_state: AdminState::new(upstream.enabled, metrics.clone()),
            metrics,
            options: upstream.clone(),
        })
    }

    pub fn options(&self) -> &UpstreamOptions {
        &self.options
    }

    pub fn announcer(&self) -> &Arc<Announcer> {
        &self.announcer
    }

    pub fn admin_state(&self) -> &AdminState {
        &self.admin_state
    }

    pub fn metrics(&self) -> &UpstreamMetrics {
        &self.metrics
    }

    /// Returns whether the configuration of the upstream restricts each connection to the mail of one client. It does
    /// so if clients log in at the upstream with their own passwords, or if Weir announces them by XCLIENT.
    pub fn is_for_one(&self) -> bool {
        self.options.wants_credentials() || self.options.announce == Announce::Xclient
    }

    /// Returns those addresses of the upstream to which the last connection failed, each with the error.
    pub fn bad_addresses(&self) -> Vec<(SocketAddr, String)> {
        self.bad_addresses.all()
    }

    pub fn downgrade_log(&self) -> &DowngradeLog {
        &self.downgrade_log
    }

    /// Looks up the upstream's addresses and returns them in the order in which Weir tries them. For a mail exchanger
    /// without an address, the list has the error of its lookup.
    pub async fn addresses(&self) -> Vec<Result<IpAddr, LookupError>> {
        let mut route = match self.resolver.route(&self.options.host, self.options.mx, self.timeout).await {
            Ok(route) => route,
            Err(failure) => return vec![Err(failure)],
        };
        let mut addresses = Vec::new();
        while let Some(next) = route.next(self.timeout).await {
            addresses.push(next);
        }
        addresses
    }

    /// Opens a connection for mail of this client.
    pub async fn connect(&self, client: Option<&Client>) -> Result<Connection, RelayError> {
        self.try_connect(client).await.map_err(|error| match self.options.wants_credentials() {
            true => error.into_client_login(),
            false => error,
        })
    }

    /// Tries the upstream's addresses one after the other until a connection succeeds. Addresses that failed a short
    /// time ago are tried last. If all addresses fail, returns the error of the last address.
    async fn try_connect(&self, client: Option<&Client>) -> Result<Connection, RelayError> {
        let unreachable = |failure: LookupError| RelayError::Unreachable(std::io::Error::other(failure));
        let deadline = Instant::now() + self.timeout;
        let UpstreamOptions { host, mx, .. } = &self.options;
        let mut route = self.resolver.route(host, *mx, share_until(deadline)).await.map_err(unreachable)?;
        let mut paused = VecDeque::new();
        let mut outcome = Err(RelayError::Closed);
        while let Some(next) = self.next_address(&mut route, &mut paused, deadline).await {
            let address = match next {
                Ok(address) => address,
                Err(failure) => {
                    outcome = Err(unreachable(failure));
                    continue;
                }
            };
            let is_last = route.is_at_end() && paused.is_empty();
            let timeout = if is_last { left_until(deadline) } else { share_until(deadline) };
            let tried = tokio::time::timeout(timeout, self.try_address(address, client)).await;
            match tried.unwrap_or(Err(RelayError::Timeout)) {
                Ok(connection) => {
                    self.bad_addresses.works(address);
                    return Ok(connection);
                }
                Err(error) if error.is_same_everywhere() => return Err(error),
                Err(error) => {
                    // The upstream has perhaps refused only this client, so do not mark the address as bad for other
                    // clients.
                    if !(error.is_refusal() && self.is_for_one() && client.is_some()) {
                        self.bad_addresses.failed(address, &error, !is_last, Instant::now());
                    }
                    outcome = Err(error);
                }
            }
        }
        outcome
    }

    /// Returns the next address to try, or the error of the lookup of an exchanger's addresses; `None` if all addresses
    /// were tried. Addresses that failed a short time ago are collected in `paused` and returned last.
    async fn next_address(
        &self,
        route: &mut Route<'_>,
        paused: &mut VecDeque<SocketAddr>,
        deadline: Instant,
    ) -> Option<Result<SocketAddr, LookupError>> {
        while let Some(next) = route.next(share_until(deadline)).await {
            match next.map(|address| SocketAddr::new(address, self.options.port)) {
                Ok(address) if self.bad_addresses.is_paused(address, Instant::now()) => paused.push_back(address),
                next => return Some(next),
            }
        }
        paused.pop_front().map(Ok)
    }

    async fn try_address(&self, address: SocketAddr, client: Option<&Client>) -> Result<Connection, RelayError> {
        let policy = self.options.tls.policy;
        let (opened, failed) = match self.open(address, policy, client).await {
            // If TLS is optional (opportunistic) and the TLS handshake fails, connect again without TLS, so that mail
            // is not stopped.
            Err(error @ RelayError::Tls(_)) if policy == Policy::Opportunistic && self.options.login.is_none() => {
                (self.open(address, Policy::None, client).await, Some(NoTlsReason::Failed(error.to_string())))
            }
            outcome => (outcome, None),
        };
        opened.inspect(|connection| self.downgrade_log.learn(address, failed.or_else(|| connection.no_tls().cloned())))
    }

    async fn open(
        &self,
        address: SocketAddr,
        policy: Policy,
        client: Option<&Client>,
    ) -> Result<Connection, RelayError> {
        let login = self.login(client).await?;
        let own = login.as_ref().map(|login| login.secret.clone()).filter(|_| !self.options.wants_credentials());
        if let Some(error) = own.as_ref().and_then(|secret| self.refusals.known(secret, Instant::now())) {
            return Err(error);
        }
        let announced = self.announcer.for_handshake(client);
        // If the client was announced by XCLIENT, a refusal perhaps concerns the client and not Weir's login. So do not
        // record the refusal.
        let own = own.filter(|_| announced.is_none());
        let handshake = Handshake::new(&self.hostname, policy, login).announcing(announced);
        let opened = self.shake_hands(address, handshake, client.filter(|_| self.is_for_one())).await;
        if let Some(secret) = own {
            self.note_login(&secret, opened.as_ref().err());
        }
        opened
    }

    /// Connects to an address and performs the handshake, with TLS and login. `client` is the client that the handshake
    /// announces or logs in, if there is such a client.
    async fn shake_hands(
        &self,
        address: SocketAddr,
        mut handshake: Handshake,
        client: Option<&Client>,
    ) -> Result<Connection, RelayError> {
        let (tcp, counted) = self.connect_tcp(address).await?;
        let (wire, offered) = self.converse(Wire::new(tcp, self.timeout), &mut handshake).await?;
        Ok(Connection::new(Established {
            wire,
            data_timeout: self.data_timeout,
            offered,
            no_tls: handshake.no_tls(),
            announcer: self.announcer.clone(),
            client: client.cloned(),
            is_of_login: self.options.wants_credentials(),
            counted,
        }))
    }

    /// Carries out the steps of a handshake. Returns the extensions that the upstream offers in its last reply to EHLO.
    async fn converse(&self, mut wire: Wire, handshake: &mut Handshake) -> Result<(Wire, Extensions), RelayError> {
        if handshake.is_within_tls() {
            wire = wire.secure(self.tls.as_ref()).await?;
        }
        let mut next = handshake.reply(wire.reply().await?);
        loop {
            match next {
                Next::Send(line) => {
                    wire.expect_extensions();
                    wire.send(line.as_bytes()).await?;
                    next = handshake.reply(wire.reply().await?);
                }
                Next::StartTls => {
                    // Octets that arrive in plain text between the reply to STARTTLS and the TLS handshake are an
                    // attempt to forge replies of the upstream (CVE-2011-0411).
                    wire.check_quiet().await?;
                    wire = wire.secure(self.tls.as_ref()).await?;
                    next = handshake.secured();
                }
                Next::Derive(salting) => next = handshake.keys(&self.keys.derive(salting).await?),
                Next::Ready(offered) => return Ok((wire, offered)),
                Next::Failed(error) => return Err(error),
            }
        }
    }

    /// Records the result of a login with Weir's own secret; `None` means that the login succeeded.
    fn note_login(&self, secret: &Secret, error: Option<&RelayError>) {
        let Some(reason) = error else { return self.refusals.forget() };
        if let Some(pause) = self.refusals.learn(secret, reason, Instant::now()) {
            let (upstream, pause) = (&*self.options.name, format_duration(pause));
            tracing::warn!(upstream, %reason, pause, "login refused by the upstream; the same login is not tried again for a while");
        }
    }

    /// Connects to an address. Counts the connection until the returned guard is dropped.
    async fn connect_tcp(&self, address: SocketAddr) -> Result<(TcpStream, Counted), RelayError> {
        if self.is_own_address(address) {
            return Err(RelayError::Loop(address));
        }
        let counted = self.metrics.count_connection();
        // Check this after the connection is counted. So when the upstream is disabled and the count is zero, no
        // further connection can begin, and the administrator can safely shut the upstream down.
        if !self.admin_state.is_enabled() {
            return Err(RelayError::Disabled);
        }
        let connected = tokio::time::timeout(self.options.connect_timeout, TcpStream::connect(address)).await;
        let tcp = connected.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        // Put the address into the error, because the upstream can have several addresses.
        let away = |error: std::io::Error| std::io::Error::new(error.kind(), format!("{address}: {error}"));
        let tcp = tcp.map_err(|error| RelayError::Unreachable(away(error)))?;
        // Send small packets (commands, the final dot) at once, because clients wait for the replies.
        tcp.set_nodelay(true).map_err(RelayError::Io)?;
        Ok((tcp, counted))
    }

    /// Returns whether Weir itself listens on this address. If so, mail would go in a loop, and the number of
    /// `Received:` lines would show the loop only after many rounds.
    fn is_own_address(&self, address: SocketAddr) -> bool {
        // The operating system lets a process bind only addresses of its own machine.
        let is_here = || std::net::UdpSocket::bind((address.ip(), 0)).is_ok();
        let is_there = |listening: &SocketAddr| {
            listening.port() == address.port()
                && if listening.ip().is_unspecified() { is_here() } else { listening.ip() == address.ip() }
        };
        self.listening.iter().any(is_there)
    }

    /// Returns the login to use for a new connection.
    async fn login(&self, client: Option<&Client>) -> Result<Option<Login>, RelayError> {
        match self.options.login.clone() {
            None => Ok(None),
            Some(login::Options::Fixed(login)) => {
                let read = tokio::task::spawn_blocking(move || login.read()).await;
                read.map_err(|error| RelayError::Io(error.into()))?.map(Some).map_err(RelayError::Secret)
            }
            Some(login::Options::Client(mechanism)) => {
                let credentials = match client.map(|client| &client.logged_in) {
                    // For a client that has not logged in to Weir, there is no login at the upstream.
                    None | Some(LoggedIn::No) => return Ok(None),
                    // Fail here, because without a login the upstream would perhaps refuse the mail permanently.
                    Some(LoggedIn::PasswordUnknown) => return Err(RelayError::PasswordUnknown),
                    Some(LoggedIn::With(credentials)) => &**credentials,
                };
                let nonce = login::nonce().map_err(|error| RelayError::Io(std::io::Error::other(error)))?;
                Ok(Some(Login { secret: Secret::Password(credentials.clone(), mechanism), nonce }))
            }
        }
    }
}

fn left_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Returns the timeout of one lookup, or of one address: half of the remaining time, so that some time remains for the
/// next lookups and addresses.
fn share_until(deadline: Instant) -> Duration {
    left_until(deadline) / 2
}
