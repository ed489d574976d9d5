//! Relay: sends each message to an upstream while the client sends it to Weir. There is no queue.
//!
//! [`Relay`] tries the upstreams of the [`upstream_list`] in the order that [`selection`] computes from health,
//! priority and weight. If an upstream fails before the message begins, [`failover`] tries the next upstream. An
//! [`upstream`] keeps a pool of idle connections. It opens new connections to addresses from [`dns`], with [`tls`] and
//! [`login`]. [`connection_slots`] limits the number of connections in use. [`client_identity`] tells the upstream who
//! the [`client`] is, if configured. A [`transaction`] is one message; it uses one [`connection`], which sends the
//! commands. [`client_login`] checks a client's password at an upstream. [`error`] has the errors of an upstream, and [`config_error`] has the errors in its configuration.

mod client;
mod client_identity;
mod client_login;
mod config_error;
mod connection;
mod connection_slots;
pub mod dns;
mod error;
mod failover;
pub mod login;
mod login_secret;
mod options;
mod own_mail;
mod selection;
pub mod tls;
mod transaction;
mod upstream;
mod upstream_list;

pub use client::{Client, LoggedIn};
pub use client_identity::Announce;
pub use client_login::ClientLogin;
pub use config_error::ConfigError;
pub use connection::envelope;
pub use dns::Resolver;
pub use error::RelayError;
pub use options::{Options, PoolOptions, UpstreamOptions};
pub use transaction::Transaction;
pub use upstream::Upstream;
pub use upstream_list::UnusableError;

use crate::metrics::Metrics;
use crate::smtp::envelope::{Mail, Rcpt};
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::Reply;
use crate::smtp::upstream_answer::Answer;
use selection::Standing;
use smallvec::SmallVec;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use upstream_list::{UpstreamList, is_among};

/// The relay, with all upstreams.
pub struct Relay {
    upstreams: Arc<UpstreamList>,
}

/// Timeout for the answers to all commands of one call of [`Relay::envelope`] together. It is less than the 5 min for
/// which a client waits for the reply to RCPT (RFC 5321 §4.5.3.2.3).
const ENVELOPE_TIMEOUT: Duration = Duration::from_secs(240);

/// Timeout for the reply to DATA. It is less than the 2 min for which a client waits for this reply (RFC 5321
/// §4.5.3.2.4).
const DATA_TIMEOUT: Duration = Duration::from_secs(110);

/// Maximum time for which the reply to a client's EHLO waits until the upstreams' extensions are known.
const EHLO_WAIT: Duration = Duration::from_secs(1);

/// Timeout for the reply to the final dot. It is long because the upstream has perhaps already accepted the message. If
/// Weir gave up, the client would send the message again, and the recipients would get it twice (RFC 5321 §4.5.3.2.6).
const FINAL_DOT_TIMEOUT: Duration = Duration::from_secs(600);

/// List of upstreams, or with a value for each. Weir makes such lists for each command of a client, so a few items need no
/// memory of their own.
type Few<T> = SmallVec<[T; 4]>;

impl Relay {
    pub fn new(options: &Options, metrics: &Metrics) -> Result<Self, UnusableError> {
        Ok(Self { upstreams: Arc::new(UpstreamList::new(options, &metrics.upstreams)?) })
    }

    /// Returns all configured upstreams, enabled or not.
    pub fn upstreams(&self) -> Vec<Arc<Upstream>> {
        self.upstreams.snapshot().all.clone()
    }

    /// Replaces the upstreams and name servers by those of another configuration. Changes no other options.
    /// Transactions that have begun are finished. If there is an error, nothing is changed. Must be called within a
    /// Tokio runtime.
    pub fn set_upstreams(&self, options: &Options) -> Result<(), UnusableError> {
        self.upstreams.set(options)
    }

    /// Returns a future that runs the background tasks of all upstreams, also of upstreams that a reload adds.
    pub fn maintain(&self) -> impl Future<Output = ()> + Send + use<> {
        let upstreams = self.upstreams.clone();
        async move { upstreams.maintain().await }
    }

    /// Returns whether Weir logs in at any upstream with the password of each client.
    pub fn wants_credentials(&self) -> bool {
        self.upstreams.snapshot().all.iter().any(|upstream| upstream.options().wants_credentials())
    }

    /// Returns the extensions that all upstreams in use offer. Upstreams whose extensions are not known are ignored.
    pub fn offered(&self) -> Extensions {
        let in_use = self.in_use();
        let offers = in_use.iter().filter_map(|upstream| upstream.offered());
        offers.reduce(|one, other| one.common(&other)).unwrap_or_default()
    }

    /// Probes the upstreams in use whose known extensions are perhaps wrong. Waits for at most [`EHLO_WAIT`], because a
    /// client waits for the reply to its EHLO.
    pub async fn learn_extensions(&self) {
        let in_use = self.in_use();
        if !in_use.iter().any(|upstream| upstream.is_doubtful()) {
            return;
        }
        let mut probes = JoinSet::new();
        for upstream in in_use {
            probes.spawn(async move { upstream.learn_extensions().await });
        }
        let all = async { while probes.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(EHLO_WAIT, all).await;
        self.in_use().iter().for_each(|upstream| upstream.note_probe());
    }

    /// Sends MAIL, if given, and recipients to an upstream: begins a transaction, or continues the given transaction.
    /// Returns one answer for each recipient, in their order. `route` is the name of the upstream to which a limit
    /// routes the mail; `None` if no limit routes the mail.
    ///
    /// If an upstream fails, the commands are sent to another upstream. After an error, `transaction` is `None`.
    pub async fn envelope(
        &self,
        transaction: &mut Option<Box<Transaction>>,
        client: &Client,
        mail: Option<&Mail>,
        recipients: &[&Rcpt],
        route: Option<&Arc<str>>,
    ) -> Result<Vec<Answer>, RelayError> {
        let former = transaction.take();
        // The future is pinned, because `timeout` would move it, and it is large.
        let asked = pin!(async {
            match (former, mail) {
                (former, Some(mail)) => self.begin_after(former, client, mail, recipients, route).await,
                (Some(under_way), None) => self.add_recipients(under_way, recipients).await,
                (None, None) => Err(RelayError::Closed),
            }
        });
        let asked = tokio::time::timeout(ENVELOPE_TIMEOUT, asked).await;
        let (begun, answers) = asked.unwrap_or(Err(RelayError::Timeout))?;
        *transaction = Some(begun);
        Ok(answers)
    }

    /// Sends DATA and returns the upstream's reply. If the upstream fails, the whole envelope and DATA are sent to
    /// another upstream.
    pub async fn data(&self, transaction: &mut Option<Box<Transaction>>) -> Result<Reply, RelayError> {
        let mut under_way = transaction.take().ok_or(RelayError::Closed)?;
        let asked = pin!(async {
            match under_way.connection.data().await {
                Err(error) => {
                    let (mut other, _) = Box::pin(self.fail_over(under_way, &[], error)).await?;
                    let reply = other.connection.data().await;
                    let reply = reply.inspect_err(|error| other.upstream.session_failed(&other.client, error))?;
                    Ok((other, reply))
                }
                Ok(reply) => Ok((under_way, reply)),
            }
        });
        let asked = tokio::time::timeout(DATA_TIMEOUT, asked).await;
        let (under_way, reply) = asked.unwrap_or(Err(RelayError::Timeout))?;
        if reply.code() == 354 {
            under_way.upstream.message_accepted();
        }
        *transaction = Some(under_way);
        Ok(reply)
    }

    /// Sends a piece of the message. An error ends the transaction; if the upstream replied before the end of the
    /// message, the error contains that reply.
    pub async fn write(&self, transaction: &mut Option<Box<Transaction>>, bytes: &[u8]) -> Result<(), RelayError> {
        let mut under_way = transaction.take().ok_or(RelayError::Closed)?;
        under_way.connection.write(bytes).await.inspect_err(|_| under_way.upstream.count_failure())?;
        *transaction = Some(under_way);
        Ok(())
    }

    /// Sends the last octets of the message with the final dot, and returns the upstream's reply to the message. This ends
    /// the transaction.
    pub async fn end(&self, transaction: &mut Option<Box<Transaction>>, last: Vec<u8>) -> Result<Reply, RelayError> {
        let mut under_way = transaction.take().ok_or(RelayError::Closed)?;
        let ended = under_way.connection.end(last, FINAL_DOT_TIMEOUT).await;
        let reply = ended.inspect_err(|_| under_way.upstream.count_failure())?;
        self.release(Some(under_way));
        Ok(reply)
    }

    /// Ends a transaction. If its message has begun, the connection is closed without QUIT, so that the upstream does
    /// not accept an incomplete message. Otherwise the connection is kept for the next transaction.
    pub fn release(&self, transaction: Option<Box<Transaction>>) {
        if let Some(transaction) = transaction {
            transaction.upstream.release(transaction.connection);
        }
    }

    /// Closes the idle connections to all upstreams.
    pub async fn close(&self) {
        for upstream in self.upstreams() {
            upstream.close().await;
        }
    }

    /// Returns the upstreams that get mail at present, and the upstreams to which limits route mail. The latter are
    /// included because the extensions in Weir's reply to EHLO must be right for routed mail, too.
    fn in_use(&self) -> Few<Arc<Upstream>> {
        let list = self.upstreams.snapshot();
        let open: Few<_> = list.enabled.iter().filter(|upstream| upstream.takes_route(None)).collect();
        let standings: Few<Standing> = open.iter().map(|upstream| upstream.standing()).collect();
        let mut in_use: Few<_> = list.routed.iter().cloned().collect();
        let usual = selection::in_use(&standings).filter_map(|index| open.get(index).copied());
        in_use.extend(usual.filter(|upstream| !is_among(&list.routed, upstream)).cloned());
        in_use
    }
}
