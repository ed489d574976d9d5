//! The way out: to the upstream, in step with the client. There is no queue.
//!
//! [`resolve`] knows where an upstream is, [`opening`] and [`dialogue`] know what to say, [`connection`] carries it, [`knowledge`] keeps
//! what an upstream offers; [`Relay`] asks the upstreams.

mod connection;
pub mod dialogue;
mod failure;
mod knowledge;
pub mod login;
mod opening;
mod options;
pub mod resolve;
mod servers;
mod stale;
pub mod tls;
mod upstream;

pub use connection::Connection;
pub use dialogue::Answered;
pub use options::{ConfigError, Options, UpstreamOptions};
pub use resolve::Resolver;
pub use upstream::Upstream;

use crate::metrics::Metrics;
use crate::smtp::envelope::{Mail, Rcpt};
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::{Garbage, Reply};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

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

/// Opens connections to the upstreams and asks them.
pub struct Relay {
    upstreams: Vec<Arc<Upstream>>,
    metrics: Arc<Metrics>,
}

/// How long a client waits for the answers to a whole run of commands, though they keep coming: less than the 5 min that RFC 5321
/// §4.5.3.2.3 has it wait for one.
const ENVELOPE_PATIENCE: Duration = Duration::from_secs(240);

/// How long a client waits to be told what the upstreams offer.
const ACQUAINTANCE: Duration = Duration::from_secs(1);

/// RFC 5321 §4.5.3.2.6: after the final dot the upstream may have the message already, and giving up makes duplicates.
const FINAL_PATIENCE: Duration = Duration::from_secs(600);

impl Relay {
    pub fn new(options: &Options, metrics: Arc<Metrics>) -> Result<Self, ConfigError> {
        let resolver = Arc::new(Resolver::new(&options.dns));
        let mut upstreams = Vec::new();
        for upstream in &options.upstreams {
            upstreams.push(Arc::new(Upstream::new(options, upstream, resolver.clone())?));
        }
        Ok(Self { upstreams, metrics })
    }

    pub fn upstreams(&self) -> &[Arc<Upstream>] {
        &self.upstreams
    }

    /// What the upstreams offer; nothing, if that is not known.
    pub fn offered(&self) -> Extensions {
        self.upstreams.iter().find_map(|upstream| upstream.offered()).unwrap_or_default()
    }

    /// Makes sure that it is known what the upstreams offer, if that can be learnt soon: before a client is told.
    pub async fn acquaint(&self) {
        for upstream in &self.upstreams {
            upstream.acquaint(ACQUAINTANCE).await;
        }
    }

    /// Passes MAIL (unless it has been) and recipients on, over the connection at hand or a new one. One answer a recipient.
    ///
    /// After a fault there is no connection.
    pub async fn envelope(
        &self,
        connection: &mut Option<Box<Connection>>,
        mail: Option<&Mail>,
        recipients: &[&Rcpt],
    ) -> Result<Vec<Answered>, Fault> {
        let asked = tokio::time::timeout(ENVELOPE_PATIENCE, self.try_envelope(connection, mail, recipients)).await;
        self.settle(connection, asked.unwrap_or(Err(Fault::Silent)))
    }

    /// Asks to begin the message.
    pub async fn data(&self, connection: &mut Option<Box<Connection>>) -> Result<Reply, Fault> {
        let asked = match connection {
            None => Err(Fault::Closed),
            Some(upstream) => upstream.data().await,
        };
        self.settle(connection, asked)
    }

    /// Passes a piece of the message on. The error ends the message: with the upstream's own words, if it had some.
    pub async fn write(&self, connection: &mut Option<Box<Connection>>, bytes: &[u8]) -> Result<(), Fault> {
        let written = match connection {
            None => Err(Fault::Closed),
            Some(upstream) => upstream.write(bytes).await,
        };
        self.settle(connection, written)
    }

    /// Sends the final dot and waits for what the upstream says to the message.
    pub async fn end(&self, connection: &mut Option<Box<Connection>>) -> Result<Reply, Fault> {
        let ended = match connection {
            None => Err(Fault::Closed),
            Some(upstream) => upstream.end(FINAL_PATIENCE).await,
        };
        self.settle(connection, ended)
    }

    /// Takes leave of the upstream. In mid-message the connection is cut instead, so that no half message counts.
    pub async fn quit(&self, connection: Option<Box<Connection>>) {
        if let Some(connection) = connection {
            connection.quit().await;
        }
    }

    async fn try_envelope(
        &self,
        connection: &mut Option<Box<Connection>>,
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

    async fn connect(&self) -> Result<Connection, Fault> {
        let mut outcome = Err(Fault::Closed);
        for upstream in &self.upstreams {
            outcome = upstream.connect().await;
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    fn settle<T>(&self, connection: &mut Option<Box<Connection>>, outcome: Result<T, Fault>) -> Result<T, Fault> {
        if outcome.is_err() {
            *connection = None;
            self.metrics.upstream_failures.inc();
        }
        outcome
    }
}
