//! Relay: sends mail to an upstream, in step with the client. There is no queue.
//!
//! [`Relay`] tries the upstreams in the order of [`selection`]: by priority, weight and health. An [`upstream`] has a
//! [`pool`] of idle connections. It opens new ones with addresses from [`dns`], with [`tls`] and [`login`], and
//! announces the [`client`] as [`client_identity`] is configured. A [`transaction`] uses one [`connection`], which
//! speaks the [`dialogue`]. [`error`] has the errors.

mod client;
mod client_identity;
mod config_error;
mod connection;
pub mod dns;
mod error;
pub mod login;
mod options;
mod selection;
pub mod tls;
mod transaction;
mod upstream;
mod upstreams;

pub use client::{Client, LoggedIn};
pub use client_identity::Announce;
pub use config_error::ConfigError;
pub use connection::dialogue::{self, Answered};
pub use dns::Resolver;
pub use error::RelayError;
pub use options::{Options, UpstreamOptions};
pub use transaction::Transaction;
use upstream::WAIT;
pub use upstream::{Upstream, pool};
pub use upstreams::Unusable;

use crate::metrics::Metrics;
use crate::smtp::envelope::{Mail, Rcpt};
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::Reply;
use connection::Connection;
use selection::Standing;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use upstream::Slot;
use upstreams::{Upstreams, is_among};

/// The relay to all upstreams.
pub struct Relay {
    upstreams: Arc<Upstreams>,
}

/// Timeout for the answers to all commands of one envelope, even if they keep coming: less than the 5 min for which a
/// client waits for one reply (RFC 5321 §4.5.3.2.3).
const ENVELOPE_TIMEOUT: Duration = Duration::from_secs(240);

/// Timeout for DATA: less than the 2 min for which a client waits (RFC 5321 §4.5.3.2.4).
const DATA_TIMEOUT: Duration = Duration::from_secs(110);

/// How long EHLO may wait until the upstreams' extensions are known.
const EHLO_WAIT: Duration = Duration::from_secs(1);

/// Timeout for the reply to the final dot. The upstream may have the message already: giving up early makes duplicates
/// (RFC 5321 §4.5.3.2.6).
const FINAL_DOT_TIMEOUT: Duration = Duration::from_secs(600);

impl Relay {
    pub fn new(options: &Options, metrics: &Metrics) -> Result<Self, Unusable> {
        Ok(Self { upstreams: Arc::new(Upstreams::new(options, &metrics.upstreams)?) })
    }

    /// Returns all configured upstreams, enabled or not.
    pub fn upstreams(&self) -> Vec<Arc<Upstream>> {
        self.upstreams.list().all.clone()
    }

    /// Replaces the upstreams and name servers, and nothing else, by those of another configuration. Mail in progress
    /// goes on. An error changes nothing. Needs a runtime.
    pub fn set_upstreams(&self, options: &Options) -> Result<(), Unusable> {
        self.upstreams.set(options)
    }

    /// Maintains the upstreams for as long as the future is polled, also those that a reload adds.
    pub fn maintain(&self) -> impl Future<Output = ()> + Send + use<> {
        let upstreams = self.upstreams.clone();
        async move { upstreams.maintain().await }
    }

    /// Returns whether an upstream needs the clients' own passwords.
    pub fn wants_credentials(&self) -> bool {
        self.upstreams.list().all.iter().any(|upstream| upstream.options().wants_credentials())
    }

    /// Returns the extensions that are common to all upstreams in use, as far as known.
    pub fn offered(&self) -> Extensions {
        let in_use = self.in_use();
        let offers = in_use.iter().filter_map(|upstream| upstream.offered());
        offers.reduce(|one, other| one.common(&other)).unwrap_or_default()
    }

    /// Learns the extensions of the upstreams in use, if it can be done soon, before EHLO is answered.
    pub async fn learn_extensions(&self) {
        let in_use = self.in_use();
        if !in_use.iter().any(|upstream| upstream.is_doubtful()) {
            return;
        }
        let mut looking = JoinSet::new();
        for upstream in in_use {
            looking.spawn(async move { upstream.learn_extensions().await });
        }
        let all = async { while looking.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(EHLO_WAIT, all).await;
        self.in_use().iter().for_each(|upstream| upstream.note_probe());
    }

    /// Begins a transaction of this client with MAIL, or continues the current one; sends recipients. Returns one
    /// answer for each recipient. `route` names the only upstream that may have the mail.
    ///
    /// If an upstream fails before it has any of the message, another is sent the same commands. After an error there
    /// is no transaction.
    pub async fn envelope(
        &self,
        transaction: &mut Option<Box<Transaction>>,
        client: &Client,
        mail: Option<&Mail>,
        recipients: &[&Rcpt],
        route: Option<&Arc<str>>,
    ) -> Result<Vec<Answered>, RelayError> {
        let asked = async {
            match (transaction.take(), mail) {
                (former, Some(mail)) => self.begin_after(former, client, mail, recipients, route).await,
                (Some(under_way), None) => self.go_on(under_way, recipients).await,
                (None, None) => Err(RelayError::Closed),
            }
        };
        let asked = tokio::time::timeout(ENVELOPE_TIMEOUT, asked).await;
        let (begun, answers) = asked.unwrap_or(Err(RelayError::Timeout))?;
        *transaction = Some(begun);
        Ok(answers)
    }

    /// Sends DATA. If the upstream fails, another is sent the transaction.
    pub async fn data(&self, transaction: &mut Option<Box<Transaction>>) -> Result<Reply, RelayError> {
        let mut under_way = transaction.take().ok_or(RelayError::Closed)?;
        let asked = async {
            match under_way.connection.data().await {
                Err(error) => {
                    let (mut other, _) = self.replace(under_way, &[], error).await?;
                    let reply = other.connection.data().await;
                    let reply = reply.inspect_err(|error| other.upstream.session_failed(&other.client, error))?;
                    Ok((other, reply))
                }
                Ok(reply) => Ok((under_way, reply)),
            }
        };
        let asked = tokio::time::timeout(DATA_TIMEOUT, asked).await;
        let (under_way, reply) = asked.unwrap_or(Err(RelayError::Timeout))?;
        if reply.code() == 354 {
            under_way.upstream.message_accepted();
        }
        *transaction = Some(under_way);
        Ok(reply)
    }

    /// Sends a piece of the message. An error ends the message; it contains the upstream's reply, if there was one.
    pub async fn write(&self, transaction: &mut Option<Box<Transaction>>, bytes: &[u8]) -> Result<(), RelayError> {
        let mut under_way = transaction.take().ok_or(RelayError::Closed)?;
        under_way.connection.write(bytes).await.inspect_err(|_| under_way.upstream.count_failure())?;
        *transaction = Some(under_way);
        Ok(())
    }

    /// Sends the final dot and returns the upstream's reply to the message. The transaction has then ended.
    pub async fn end(&self, transaction: &mut Option<Box<Transaction>>) -> Result<Reply, RelayError> {
        let mut under_way = transaction.take().ok_or(RelayError::Closed)?;
        let ended = under_way.connection.end(FINAL_DOT_TIMEOUT).await;
        let reply = ended.inspect_err(|_| under_way.upstream.count_failure())?;
        self.release(Some(under_way));
        Ok(reply)
    }

    /// Ends a transaction. In mid-message the connection is cut, so that no half message counts; otherwise it is kept
    /// for the next transaction.
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

    /// Returns the upstreams that get mail at present, and those that limits route mail to: the extensions in the reply
    /// to EHLO must hold for routed mail, too.
    fn in_use(&self) -> Vec<Arc<Upstream>> {
        let list = self.upstreams.list();
        let open: Vec<_> = list.enabled.iter().filter(|upstream| upstream.takes_route(None)).collect();
        let standings: Vec<Standing> = open.iter().map(|upstream| upstream.standing()).collect();
        let mut in_use = list.routed.clone();
        let usual = selection::in_use(&standings).filter_map(|index| open.get(index).copied());
        in_use.extend(usual.filter(|upstream| !is_among(&list.routed, upstream)).cloned());
        in_use
    }

    /// Returns the next upstream to try, from the current list; the `left` one, which failed, comes last.
    fn next(
        &self,
        mail: &Mail,
        asked: &[Arc<Upstream>],
        left: Option<(&Arc<Upstream>, &RelayError)>,
        route: Option<&Arc<str>>,
    ) -> Option<Arc<Upstream>> {
        let mut candidates = self.candidates(mail, route);
        candidates.retain(|upstream| !is_among(asked, upstream));
        let Some((left, error)) = left else { return candidates.into_iter().next() };
        let is_left = |upstream: &Arc<Upstream>| Arc::ptr_eq(upstream, left);
        let other = candidates.iter().find(|upstream| !is_left(upstream));
        // A silent upstream would be waited for again.
        let again = || candidates.iter().find(|upstream| is_left(upstream) && !matches!(error, RelayError::Timeout));
        other.or_else(again).cloned()
    }

    /// Returns the upstreams in the order in which a message tries them.
    fn candidates(&self, mail: &Mail, route: Option<&Arc<str>>) -> Vec<Arc<Upstream>> {
        let enabled = self.upstreams.list().enabled.clone();
        let enabled: Vec<_> = enabled.into_iter().filter(|upstream| upstream.takes_route(route)).collect();
        let standing = |upstream: &Arc<Upstream>| {
            let is_able = upstream.offered().is_none_or(|offered| mail.is_within(&offered));
            Standing { is_able, ..upstream.standing() }
        };
        let standings: Vec<Standing> = enabled.iter().map(standing).collect();
        let draw = |total: u32| getrandom::u32().unwrap_or(0) % total.max(1);
        // An upstream whose SIZE is too small would refuse for good a message that another accepts, once that is back.
        let is_too_large =
            |upstream: &Arc<Upstream>| upstream.offered().is_some_and(|offered| mail.is_too_large_for(&offered));
        let is_of_use = !enabled.iter().all(is_too_large);
        let order = selection::order(&standings, draw).into_iter().filter_map(|index| enabled.get(index));
        order.filter(|upstream| !(is_of_use && is_too_large(upstream))).cloned().collect()
    }

    /// Begins a transaction over the connection of the former one, if possible: a client that abandons one transaction
    /// after the other needs no connection for each.
    async fn begin_after(
        &self,
        former: Option<Box<Transaction>>,
        client: &Client,
        mail: &Mail,
        recipients: &[&Rcpt],
        route: Option<&Arc<str>>,
    ) -> Result<(Box<Transaction>, Vec<Answered>), RelayError> {
        if let Some(former) = former {
            let Transaction { upstream, mut connection, .. } = *former;
            let will_do = upstream.takes_route(route)
                && upstream.may_reuse(&connection)
                && connection.speaks_for(client)
                && mail.is_within(&connection.offered());
            if !will_do {
                upstream.release(connection);
            } else if let Ok(answers) = connection.envelope(client, Some(mail), recipients).await {
                return Ok(Transaction::begun(&upstream, connection, client, mail, recipients, answers, route));
            }
        }
        self.begin(client, mail, recipients, None, route).await
    }

    /// Tries one upstream after the other until one accepts the commands; the `left` one, which failed, comes last. The
    /// list is read anew each time: an upstream may be disabled, and another added, meanwhile.
    async fn begin(
        &self,
        client: &Client,
        mail: &Mail,
        recipients: &[&Rcpt],
        left: Option<(&Arc<Upstream>, &RelayError)>,
        route: Option<&Arc<str>>,
    ) -> Result<(Box<Transaction>, Vec<Answered>), RelayError> {
        let mut last = RelayError::Disabled;
        let mut asked = Vec::new();
        let begun = |upstream: &Arc<Upstream>, (connection, answers)| {
            Transaction::begun(upstream, connection, client, mail, recipients, answers, route)
        };
        let mut busy = None;
        while let Some(upstream) = self.next(mail, &asked, left, route) {
            match tell(&upstream, client, mail, recipients, Duration::ZERO).await {
                Ok(told) => return Ok(begun(&upstream, told)),
                Err(RelayError::Busy) if busy.is_none() => busy = Some(upstream.clone()),
                Err(error) => last = error,
            }
            asked.push(upstream);
        }
        // Wait for a busy upstream only if no other accepted the commands at once.
        match busy {
            Some(upstream) => {
                let told = tell(&upstream, client, mail, recipients, WAIT).await?;
                Ok(begun(&upstream, told))
            }
            None => Err(last),
        }
    }

    async fn go_on(
        &self,
        mut under_way: Box<Transaction>,
        recipients: &[&Rcpt],
    ) -> Result<(Box<Transaction>, Vec<Answered>), RelayError> {
        let Transaction { connection, client, .. } = &mut *under_way;
        match connection.envelope(client, None, recipients).await {
            Ok(answers) => {
                under_way.heard(recipients, &answers);
                Ok((under_way, answers))
            }
            Err(error) => self.replace(under_way, recipients, error).await,
        }
    }

    /// Sends the transaction of a failed upstream to another one, or to the same again. No recipient that the client
    /// believes accepted may be lost: if one is, the original error stands.
    async fn replace(
        &self,
        lost: Box<Transaction>,
        recipients: &[&Rcpt],
        error: RelayError,
    ) -> Result<(Box<Transaction>, Vec<Answered>), RelayError> {
        let Transaction { upstream, connection, client, mail, accepted, route } = *lost;
        // The new connection may use the slot of this one.
        drop(connection);
        upstream.session_failed(&client, &error);
        let all: Vec<&Rcpt> = accepted.iter().chain(recipients.iter().copied()).collect();
        let Ok((other, mut answers)) =
            self.begin(&client, &mail, &all, Some((&upstream, &error)), route.as_ref()).await
        else {
            return Err(error);
        };
        if other.accepted.get(..accepted.len()) != Some(&accepted[..]) {
            self.release(Some(other));
            return Err(error);
        }
        Ok((other, answers.split_off(accepted.len())))
    }
}

/// Sends an envelope to an upstream, as soon as there is a connection within `timeout`.
async fn tell(
    upstream: &Upstream,
    client: &Client,
    mail: &Mail,
    recipients: &[&Rcpt],
    patience: Duration,
) -> Result<(Connection, Vec<Answered>), RelayError> {
    let until = Instant::now() + patience;
    loop {
        match tell_in(upstream.slot(client, until).await?, upstream, client, mail, recipients, until).await {
            Err(RelayError::Busy) if Instant::now() < until => {}
            outcome => return outcome,
        }
    }
}

/// Sends an envelope in this slot: first over an idle connection, which may prove to be dead, then over a new one.
async fn tell_in(
    slot: Slot,
    upstream: &Upstream,
    client: &Client,
    mail: &Mail,
    recipients: &[&Rcpt],
    until: Instant,
) -> Result<(Connection, Vec<Answered>), RelayError> {
    let mut slot = slot;
    if let Some(mut connection) = upstream.idle_connection(client).await {
        slot.opened();
        match connection.envelope(client, Some(mail), recipients).await {
            Ok(answers) => {
                connection.occupy(slot);
                return Ok((connection, answers));
            }
            // The upstream is there, and would be silent again.
            Err(error @ RelayError::Timeout) if connection.is_proven() => {
                upstream.session_failed(client, &error);
                return Err(error);
            }
            Err(RelayError::Timeout) => upstream.drop_idle(),
            Err(_) => {}
        }
        slot.closed();
    }
    let mut connection = upstream.connect_in(slot, client, until).await?;
    let answers = connection.envelope(client, Some(mail), recipients).await;
    answers.inspect_err(|error| upstream.session_failed(client, error)).map(|answers| (connection, answers))
}
