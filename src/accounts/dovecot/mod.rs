//! Dovecot as a source of accounts: logins through its socket `auth-client`.
//!
//! [`protocol`] has the lines, and [`connection`] reads and writes them. A connection has one request at a time; idle
//! connections are kept for a while.

mod connection;
mod protocol;

pub use connection::{Address, DovecotError};
pub use protocol::Peer;

use super::turns::{Turn, Turns};
use crate::log::LoggedState;
use crate::metrics::Metrics;
use crate::smtp::mechanism::{Mechanism, Mechanisms};
use crate::smtp::sasl::{Credentials, Response, Verified};
use connection::{Answer, Connection};
use protocol::Failure;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Connects to Dovecot, and returns its mechanisms.
pub async fn probe(address: &Address) -> Result<Mechanisms, DovecotError> {
    Ok(Connection::open(address).await?.mechanisms().clone())
}

/// Dovecot, with its idle connections.
pub struct Dovecot {
    address: Address,
    /// Connections without a request. The lock is confined to this file, and never held across `.await`.
    idle: Mutex<Vec<Idle>>,
    /// Turns of passwords.
    passwords: Arc<Turns>,
    /// Turns of exchanges. They are not those of passwords, because a client can hold a turn for as long as it may think:
    /// clients of a few networks could keep all users from logging in.
    exchanges: Arc<Turns>,
    /// The mechanisms of the last handshake; `None` before the first one. The lock is confined to this file, and never
    /// held across `.await`.
    mechanisms: Mutex<Option<Mechanisms>>,
    /// Time of the last attempt to learn the mechanisms. The lock is held during an attempt, so that there is only one at
    /// a time.
    attempted: tokio::sync::Mutex<Option<Instant>>,
    error: LoggedState<Option<String>>,
    metrics: Arc<Metrics>,
}

struct Idle {
    connection: Connection,
    opened: Instant,
}

/// A login in progress.
pub struct Exchange {
    dovecot: Arc<Dovecot>,
    turns: Arc<Turns>,
    mechanism: Mechanism,
    /// The connection whose challenge the client has to answer.
    request: Option<Request>,
    /// Result of the login, if the client has to confirm the last message of the server before.
    right: Option<Verified>,
}

struct Request {
    connection: Connection,
    opened: Instant,
    _turn: Turn,
}

/// Client that logs in, and its network, whose clients share their turns.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    pub peer: Peer<'a>,
    pub network: &'a str,
}

/// Maximum connections in use by passwords and by exchanges, and maximum of one network: a failed login occupies its
/// connection for the 2 seconds of Dovecot's delay, and a login with challenges as long as the client thinks.
const MAX_PASSWORDS: usize = 64;
const MAX_EXCHANGES: usize = 32;
const MAX_IN_USE_PER_NETWORK: usize = 16;

/// Maximum idle connections.
const MAX_IDLE: usize = 16;

/// Maximum open connections.
pub const MAX_CONNECTIONS: usize = MAX_PASSWORDS + MAX_EXCHANGES + MAX_IDLE;

/// Maximum age of a connection that is used again. After a reload, Dovecot's former process serves its connections with
/// the former configuration until they end.
const MAX_AGE: Duration = Duration::from_secs(60);

/// Maximum time for which a login waits for its turn. It is much shorter than the timeouts of clients.
const TURN_TIMEOUT: Duration = Duration::from_secs(20);

/// Time between two attempts to learn the mechanisms, and maximum time for which a client waits for one of them.
const LEARN_INTERVAL: Duration = Duration::from_secs(5);
const LEARN_TIMEOUT: Duration = Duration::from_secs(2);

impl Dovecot {
    pub fn new(address: Address, metrics: Arc<Metrics>) -> Self {
        let turns = |at_once| {
            let queue = metrics.password_checks.queue("dovecot");
            Turns::with_maximum_per_network(at_once, MAX_IN_USE_PER_NETWORK, queue)
        };
        Self {
            address,
            idle: Mutex::default(),
            passwords: turns(MAX_PASSWORDS),
            exchanges: turns(MAX_EXCHANGES),
            mechanisms: Mutex::default(),
            attempted: tokio::sync::Mutex::default(),
            error: LoggedState::default(),
            metrics,
        }
    }

    /// Returns the mechanisms that Dovecot offered last; `None` if it has not answered yet.
    pub fn mechanisms(&self) -> Option<Mechanisms> {
        self.lock_mechanisms().clone()
    }

    /// Connects to learn the mechanisms, unless they are known or there was an attempt a short time ago.
    pub async fn learn_mechanisms(&self) {
        if self.lock_mechanisms().is_some() {
            return;
        }
        let mut attempted = self.attempted.lock().await;
        if self.lock_mechanisms().is_some() || attempted.is_some_and(|last| last.elapsed() < LEARN_INTERVAL) {
            return;
        }
        match timeout(LEARN_TIMEOUT, self.open()).await.unwrap_or(Err(DovecotError::Timeout)) {
            Ok(connection) => self.keep(connection, Instant::now()),
            Err(error) => self.report(&error),
        }
        *attempted = Some(Instant::now());
    }

    /// Checks a password. `left` completes when the client no longer waits for its turn.
    pub async fn verify(
        self: &Arc<Self>,
        credentials: &Credentials,
        client: Client<'_>,
        left: impl Future<Output = ()>,
    ) -> Verified {
        let Some(plain) = Mechanism::new("PLAIN") else { return Verified::Unavailable };
        let message = Response(format!("\0{}\0{}", credentials.user, credentials.password).into_bytes());
        let mut exchange = Exchange { turns: self.passwords.clone(), ..self.exchange(plain) };
        match exchange.advance(Some(&message), client, left).await {
            // PLAIN has no challenge.
            Verified::Challenge(_) | Verified::Malformed => Verified::Unavailable,
            verified => verified,
        }
    }

    /// Begins a login by this mechanism.
    pub fn exchange(self: &Arc<Self>, mechanism: Mechanism) -> Exchange {
        Exchange { dovecot: self.clone(), turns: self.exchanges.clone(), mechanism, request: None, right: None }
    }

    /// Sends the first message of a login, over an idle connection if there is one.
    async fn begin(
        &self,
        mechanism: &Mechanism,
        peer: &Peer<'_>,
        response: Option<&Response>,
    ) -> Result<(Idle, Answer), DovecotError> {
        if let Some(mut idle) = self.take_idle() {
            match idle.connection.begin(mechanism, peer, response).await {
                Ok(answer) => return Ok((idle, answer)),
                // Dovecot has perhaps been restarted since: the other idle connections are of no use, either.
                Err(DovecotError::Closed | DovecotError::Mechanism) => self.lock_idle().clear(),
                Err(error) => return Err(error),
            }
        }
        let mut connection = self.open().await?;
        let answer = connection.begin(mechanism, peer, response).await?;
        Ok((Idle { connection, opened: Instant::now() }, answer))
    }

    async fn open(&self) -> Result<Connection, DovecotError> {
        let connection = Connection::open(&self.address).await?;
        let offered = connection.mechanisms();
        let former = self.lock_mechanisms().replace(offered.clone());
        if former.as_ref() != Some(offered) {
            tracing::info!(dovecot = %self.address, mechanisms = %offered, "Dovecot offers");
        }
        Ok(connection)
    }

    /// Logs the end of an error.
    fn report_success(&self) {
        if self.error.changes_to(None) {
            tracing::info!(dovecot = %self.address, "Dovecot answers logins again");
        }
    }

    /// Counts an error, and logs it unless it lasts.
    fn report(&self, error: &DovecotError) {
        self.metrics.connections.dovecot_errors.inc();
        if self.error.changes_to(Some(error.to_string())) {
            tracing::error!(dovecot = %self.address, %error, "Dovecot does not answer logins");
        }
    }

    fn take_idle(&self) -> Option<Idle> {
        let mut idle = self.lock_idle();
        idle.retain(|idle| idle.opened.elapsed() < MAX_AGE);
        idle.pop()
    }

    fn keep(&self, connection: Connection, opened: Instant) {
        let mut idle = self.lock_idle();
        if idle.len() < MAX_IDLE {
            idle.push(Idle { connection, opened });
        }
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_mechanisms(&self) -> MutexGuard<'_, Option<Mechanisms>> {
        self.mechanisms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exchange {
    /// Takes a message of the client, and returns Dovecot's answer. If the client breaks off the login, call
    /// [`Exchange::cancel`]; if the exchange is dropped instead, its connection ends.
    pub async fn advance(
        &mut self,
        response: Option<&Response>,
        client: Client<'_>,
        left: impl Future<Output = ()>,
    ) -> Verified {
        if let Some(right) = self.right.take() {
            return if response.is_some_and(|response| response.0.is_empty()) { right } else { Verified::Malformed };
        }
        let answered = match (self.request.take(), response) {
            (Some(mut request), Some(response)) => {
                request.connection.advance(response).await.map(|answer| (request, answer))
            }
            (Some(_), None) => return Verified::Malformed,
            (None, response) => {
                let turn = match wait(&self.turns, client.network, left).await {
                    Ok(turn) => turn,
                    Err(verified) => return verified,
                };
                // The client's leaving no longer counts: Dovecot checks the login, and its answer is counted.
                let begun = self.dovecot.begin(&self.mechanism, &client.peer, response).await;
                begun.map(|(Idle { connection, opened }, answer)| (Request { connection, opened, _turn: turn }, answer))
            }
        };
        match answered {
            Ok((request, answer)) => self.answered(request, answer),
            Err(error) => {
                self.dovecot.report(&error);
                Verified::Unavailable
            }
        }
    }

    /// Tells Dovecot that the login does not go on, so that the connection can be used again.
    pub async fn cancel(mut self) {
        if let Some(mut request) = self.request.take()
            && request.connection.cancel().await.is_ok()
        {
            self.dovecot.keep(request.connection, request.opened);
        }
    }

    fn answered(&mut self, request: Request, answer: Answer) -> Verified {
        if let Answer::Challenge(challenge) = answer {
            self.request = Some(request);
            return Verified::Challenge(challenge);
        }
        self.dovecot.keep(request.connection, request.opened);
        if !matches!(answer, Answer::Failed(Failure::Temporary)) {
            self.dovecot.report_success();
        }
        match answer {
            Answer::Right { user, groups, last } => {
                let right = Verified::Right { user, groups };
                let Some(last) = last else { return right };
                self.right = Some(right);
                Verified::Challenge(last)
            }
            Answer::Failed(Failure::Refused(reason)) => Verified::Wrong { reason: Some(reason) },
            Answer::Failed(Failure::Temporary) => {
                self.dovecot.report(&DovecotError::Temporary);
                Verified::Unavailable
            }
            Answer::Failed(Failure::Wrong) | Answer::Challenge(_) => Verified::Wrong { reason: None },
        }
    }
}

/// Waits for a turn of this network.
async fn wait(turns: &Arc<Turns>, network: &str, left: impl Future<Output = ()>) -> Result<Turn, Verified> {
    let turn = pin!(timeout(TURN_TIMEOUT, turns.acquire(network)));
    tokio::select! {
        biased;
        turn = turn => turn.ok().and_then(Result::ok).ok_or(Verified::Unavailable),
        () = left => Err(Verified::ClientLeft),
    }
}
