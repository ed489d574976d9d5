//! The way out: to the upstream, in step with the client. There is no queue.
//!
//! [`opening`] and [`dialogue`] know what to say, [`connection`] carries it, [`knowledge`] keeps what the upstream offers; [`Relay`]
//! opens connections and asks.

mod connection;
pub mod dialogue;
mod knowledge;
mod opening;
mod tls;

pub use connection::Upstream;
pub use dialogue::Answered;

use crate::metrics::Metrics;
use crate::smtp::envelope::{Mail, Rcpt};
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::{Garbage, Reply};
use crate::smtp::sasl::Credentials;
use knowledge::{Knowledge, REFRESH};
use rustls::pki_types::ServerName;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

/// Where the upstream is and how to speak to it.
#[derive(Clone, Debug)]
pub struct Options {
    /// What Weir calls itself.
    pub hostname: String,
    /// The upstream's name in logs.
    pub name: String,
    /// Host name or address, and port.
    pub host: String,
    pub port: u16,
    pub tls: TlsPolicy,
    /// What Weir logs in with there: the user, and a file whose first line is the password.
    pub login: Option<(String, PathBuf)>,
    /// Authorities that may vouch for its certificate, instead of the system's.
    pub ca: Option<PathBuf>,
    /// How long the upstream may take to be connected to, and for any one answer but that to the final dot.
    pub timeout: Duration,
}

/// Whether to use STARTTLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPolicy {
    None,
    /// If it is offered; the certificate is not checked.
    Opportunistic,
    /// Always; the certificate is checked.
    Required,
}

/// Why a configured upstream cannot be used at all.
#[derive(Debug)]
pub enum ConfigError {
    Ca(PathBuf, String),
    NoRoots,
    Password(PathBuf, String),
    Name(String),
    Tls(rustls::Error),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ca(path, why) => write!(f, "certificates in {}: {why}", path.display()),
            Self::NoRoots => f.write_str("the system has no certificate authorities to check the upstream by; set ca"),
            Self::Password(path, why) => write!(f, "password file {}: {why}", path.display()),
            Self::Name(name) => write!(f, "\"{name}\" is no name a certificate could have"),
            Self::Tls(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConfigError {}

impl From<rustls::Error> for ConfigError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

/// Why the upstream is of no use.
#[derive(Debug)]
pub enum Fault {
    Unreachable(std::io::Error),
    /// It did not answer in time.
    Silent,
    Closed,
    Io(std::io::Error),
    Garbage(Garbage),
    /// It refused to go on, in these words.
    Refused(Reply),
    /// It said this where nothing, or something else, was expected.
    Unexpected(Reply),
    NoTls,
    Tls(std::io::Error),
    /// It has none of the mechanisms for the login that it should want.
    NoLogin,
    /// It refused Weir's login, in these words, which are none of the client's business.
    Login(Reply),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "it cannot be reached: {error}"),
            Self::Silent => f.write_str("it does not answer"),
            Self::Closed => f.write_str("it closed the connection"),
            Self::Io(error) => write!(f, "the connection broke: {error}"),
            Self::Garbage(garbage) => garbage.fmt(f),
            Self::Refused(reply) => write!(f, "it refuses: {reply}"),
            Self::Unexpected(reply) => write!(f, "it is out of step: {reply}"),
            Self::NoTls => f.write_str("it offers no STARTTLS, which is required"),
            Self::NoLogin => f.write_str("it offers no login that Weir knows: AUTH PLAIN or LOGIN"),
            Self::Login(reply) => write!(f, "it refuses Weir's login: {reply}"),
            Self::Tls(error) => write!(f, "TLS: {error}"),
        }
    }
}

/// Opens connections to the upstream and asks it.
pub struct Relay {
    options: Options,
    connector: Option<(TlsConnector, ServerName<'static>)>,
    login: Option<Credentials>,
    known: Knowledge,
    /// Held while what the upstream offers is learnt for clients that wait to be told.
    probing: tokio::sync::Mutex<()>,
    metrics: Arc<Metrics>,
}

/// How long a client waits for the answers to a whole run of commands, though they keep coming: less than the 5 min that RFC 5321
/// §4.5.3.2.3 has it wait for one.
const ENVELOPE_PATIENCE: Duration = Duration::from_secs(240);

/// How soon to try again after it could not be learnt what the upstream offers; a little later each time.
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// How long a client waits for that.
const ACQUAINTANCE: Duration = Duration::from_secs(1);

/// RFC 5321 §4.5.3.2.6: after the final dot the upstream may have the message already, and giving up makes duplicates.
const FINAL_PATIENCE: Duration = Duration::from_secs(600);

impl Relay {
    pub fn new(options: Options, metrics: Arc<Metrics>) -> Result<Self, ConfigError> {
        let connector = match tls::connector(&options)? {
            None => None,
            Some(connector) => {
                let host = options.host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(host).map_err(|_| ConfigError::Name(options.host.clone()))?;
                Some((connector, name))
            }
        };
        let login = options.login.as_ref().map(|(user, path)| credentials(user, path)).transpose()?;
        Ok(Self {
            options,
            connector,
            login,
            known: Knowledge::default(),
            probing: tokio::sync::Mutex::default(),
            metrics,
        })
    }

    /// What the upstream offered when it was last connected to; nothing, if it never was.
    pub fn offered(&self) -> Extensions {
        self.known.get().map_or(Extensions::default(), |known| known.offered)
    }

    /// Makes sure that it is known what the upstream offers, if that can be learnt soon: before a client is told.
    pub async fn acquaint(&self) {
        if !self.known.is_doubtful(Instant::now()) {
            return;
        }
        // Boxed, since every session has room for what it awaits here, and hardly one ever needs it.
        let look = Box::pin(async {
            let _one_at_a_time = self.probing.lock().await;
            if self.known.is_doubtful(Instant::now()) {
                let _ = self.probe().await;
            }
        });
        let _ = tokio::time::timeout(ACQUAINTANCE, look).await;
        self.known.tried(Instant::now());
    }

    /// Learns what the upstream offers again and again, where clients do not have it connected to anyway.
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

    /// Connects to the upstream to learn what it offers, and says good-bye.
    pub async fn probe(&self) -> Result<Extensions, Fault> {
        let upstream = self.connect().await?;
        let offered = upstream.offered();
        self.quit(Some(Box::new(upstream))).await;
        Ok(offered)
    }

    /// Passes MAIL (unless it has been) and recipients on, over the connection at hand or a new one. One answer a recipient.
    ///
    /// After a fault there is no connection.
    pub async fn envelope(
        &self,
        connection: &mut Option<Box<Upstream>>,
        mail: Option<&Mail>,
        recipients: &[&Rcpt],
    ) -> Result<Vec<Answered>, Fault> {
        let asked = tokio::time::timeout(ENVELOPE_PATIENCE, self.try_envelope(connection, mail, recipients)).await;
        self.settle(connection, asked.unwrap_or(Err(Fault::Silent)))
    }

    /// Asks to begin the message.
    pub async fn data(&self, connection: &mut Option<Box<Upstream>>) -> Result<Reply, Fault> {
        let asked = match connection {
            None => Err(Fault::Closed),
            Some(upstream) => upstream.data().await,
        };
        self.settle(connection, asked)
    }

    /// Passes a piece of the message on. The error ends the message: with the upstream's own words, if it had some.
    pub async fn write(&self, connection: &mut Option<Box<Upstream>>, bytes: &[u8]) -> Result<(), Fault> {
        let written = match connection {
            None => Err(Fault::Closed),
            Some(upstream) => upstream.write(bytes).await,
        };
        self.settle(connection, written)
    }

    /// Sends the final dot and waits for what the upstream says to the message.
    pub async fn end(&self, connection: &mut Option<Box<Upstream>>) -> Result<Reply, Fault> {
        let ended = match connection {
            None => Err(Fault::Closed),
            Some(upstream) => upstream.end(FINAL_PATIENCE).await,
        };
        self.settle(connection, ended)
    }

    /// Takes leave of the upstream. In mid-message the connection is cut instead, so that no half message counts.
    pub async fn quit(&self, connection: Option<Box<Upstream>>) {
        if let Some(mut upstream) = connection {
            let _ = tokio::time::timeout(Duration::from_secs(2), upstream.quit()).await;
        }
    }

    async fn try_envelope(
        &self,
        connection: &mut Option<Box<Upstream>>,
        mail: Option<&Mail>,
        recipients: &[&Rcpt],
    ) -> Result<Vec<Answered>, Fault> {
        if let Some(upstream) = connection {
            match upstream.envelope(mail, recipients).await {
                Ok(answers) => return Ok(answers),
                // A transaction under way is lost with its connection, and an upstream that fails in mid-dialogue may do so again.
                Err((fault, replied)) if mail.is_none() || replied > 0 => return Err(fault),
                // One that has closed an idle connection costs the client nothing.
                Err(_) => *connection = None,
            }
        } else if mail.is_none() {
            return Err(Fault::Closed);
        }
        let upstream = connection.insert(Box::new(self.connect().await?));
        upstream.envelope(mail, recipients).await.map_err(|(fault, _)| fault)
    }

    async fn connect(&self) -> Result<Upstream, Fault> {
        let upstream = self.try_connect().await?;
        let offered = upstream.offered();
        if self.known.learn(offered, Instant::now()) {
            tracing::info!(upstream = self.options.name, offers = offered.names(), "upstream offers");
        }
        Ok(upstream)
    }

    async fn try_connect(&self) -> Result<Upstream, Fault> {
        let (tls, login) = (self.connector.as_ref(), self.login.as_ref());
        match Upstream::connect(&self.options, tls, login).await {
            // Where TLS is only welcome, a handshake that fails costs no mail.
            Err(Fault::Tls(error)) if self.options.tls == TlsPolicy::Opportunistic && login.is_none() => {
                tracing::warn!(upstream = self.options.name, %error, "TLS failed; going on without");
                let plain = Options { tls: TlsPolicy::None, ..self.options.clone() };
                Upstream::connect(&plain, None, None).await
            }
            outcome => outcome,
        }
    }

    fn settle<T>(&self, connection: &mut Option<Box<Upstream>>, outcome: Result<T, Fault>) -> Result<T, Fault> {
        if outcome.is_err() {
            *connection = None;
            self.metrics.upstream_failures.inc();
        }
        outcome
    }
}

/// What Weir logs in with, the password being the first line of a file.
fn credentials(user: &str, path: &Path) -> Result<Credentials, ConfigError> {
    let bad = |why: String| ConfigError::Password(path.to_owned(), why);
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let password = text.lines().next().unwrap_or_default();
    Credentials::new(user, password)
        .ok_or_else(|| bad("its first line is no password, or the user has no such name".to_owned()))
}
