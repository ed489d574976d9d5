//! Fail-over: if an upstream fails before the message begins, the same envelope is sent to the next upstream.

use super::Relay;
use super::client::Client;
use super::connection::Connection;
use super::connection_slots::{Slot, WAIT};
use super::error::RelayError;
use super::selection::{self, Standing};
use super::transaction::Transaction;
use super::upstream::Upstream;
use super::upstream_list::is_among;
use crate::smtp::envelope::{Mail, Rcpt};
use crate::smtp::upstream_answer::Answer;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

impl Relay {
    /// Begins a transaction, if possible on the connection of the client's former transaction. So a client that
    /// abandons many transactions does not need a new connection for each transaction.
    pub(super) async fn begin_after(
        &self,
        former: Option<Box<Transaction>>,
        client: &Client,
        mail: &Mail,
        recipients: &[&Rcpt],
        route: Option<&Arc<str>>,
    ) -> Result<(Box<Transaction>, Vec<Answer>), RelayError> {
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

    /// Sends more recipients in a transaction that has begun.
    pub(super) async fn add_recipients(
        &self,
        mut under_way: Box<Transaction>,
        recipients: &[&Rcpt],
    ) -> Result<(Box<Transaction>, Vec<Answer>), RelayError> {
        let Transaction { connection, client, .. } = &mut *under_way;
        match connection.envelope(client, None, recipients).await {
            Ok(answers) => {
                under_way.heard(recipients, &answers);
                Ok((under_way, answers))
            }
            Err(error) => Box::pin(self.fail_over(under_way, recipients, error)).await,
        }
    }

    /// Sends the envelope again after the upstream of a transaction has failed: to another upstream, or once more to
    /// the same upstream. Returns the original error unless that upstream accepts every recipient that the failed
    /// upstream had accepted: the client already knows that these recipients are accepted, and Weir must not lose any
    /// of them.
    pub(super) async fn fail_over(
        &self,
        lost: Box<Transaction>,
        recipients: &[&Rcpt],
        error: RelayError,
    ) -> Result<(Box<Transaction>, Vec<Answer>), RelayError> {
        let Transaction { upstream, connection, client, mail, accepted, route } = *lost;
        // Free the connection's slot, because the new connection perhaps needs it.
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

    /// Tries one upstream after the other until an upstream accepts the commands. The upstream in `failed` is tried
    /// last. The list of upstreams is read before each try, because a reload can change it.
    async fn begin(
        &self,
        client: &Client,
        mail: &Mail,
        recipients: &[&Rcpt],
        failed: Option<(&Arc<Upstream>, &RelayError)>,
        route: Option<&Arc<str>>,
    ) -> Result<(Box<Transaction>, Vec<Answer>), RelayError> {
        let mut last = RelayError::Disabled;
        let mut tried = Vec::new();
        let begun = |upstream: &Arc<Upstream>, (connection, answers)| {
            Transaction::begun(upstream, connection, client, mail, recipients, answers, route)
        };
        let mut busy = None;
        while let Some(upstream) = self.next_upstream(mail, &tried, failed, route) {
            match send_envelope(&upstream, client, mail, recipients, Duration::ZERO).await {
                Ok(sent) => return Ok(begun(&upstream, sent)),
                Err(RelayError::Busy) if busy.is_none() => busy = Some(upstream.clone()),
                Err(error) => last = error,
            }
            tried.push(upstream);
        }
        // Wait for a connection to a busy upstream only if no other upstream could be used at once.
        match busy {
            Some(upstream) => {
                let sent = send_envelope(&upstream, client, mail, recipients, WAIT).await?;
                Ok(begun(&upstream, sent))
            }
            None => Err(last),
        }
    }

    /// Returns the next upstream to try, from the present list. The upstream in `failed` comes last.
    fn next_upstream(
        &self,
        mail: &Mail,
        tried: &[Arc<Upstream>],
        failed: Option<(&Arc<Upstream>, &RelayError)>,
        route: Option<&Arc<str>>,
    ) -> Option<Arc<Upstream>> {
        let mut candidates = self.candidates(mail, route);
        candidates.retain(|upstream| !is_among(tried, upstream));
        let Some((failed, error)) = failed else { return candidates.into_iter().next() };
        let is_failed = |upstream: &Arc<Upstream>| Arc::ptr_eq(upstream, failed);
        let other = candidates.iter().find(|upstream| !is_failed(upstream));
        // Do not try an upstream again that did not answer in time, because the second try would take the same time
        // again.
        let again = || candidates.iter().find(|upstream| is_failed(upstream) && !matches!(error, RelayError::Timeout));
        other.or_else(again).cloned()
    }

    /// Returns the upstreams that are allowed for this mail, in the order in which Weir tries them.
    fn candidates(&self, mail: &Mail, route: Option<&Arc<str>>) -> Vec<Arc<Upstream>> {
        let enabled = self.upstreams.snapshot().enabled.clone();
        let enabled: Vec<_> = enabled.into_iter().filter(|upstream| upstream.takes_route(route)).collect();
        let standing = |upstream: &Arc<Upstream>| {
            let is_able = upstream.offered().is_none_or(|offered| mail.is_within(&offered));
            Standing { is_able, ..upstream.standing() }
        };
        let standings: Vec<Standing> = enabled.iter().map(standing).collect();
        let draw = |total: u32| getrandom::u32().unwrap_or(0) % total.max(1);
        // Leave out upstreams whose SIZE is too small, if another upstream accepts the size. They would refuse the
        // message permanently, while the other upstream is perhaps only down for a short time.
        let is_too_large =
            |upstream: &Arc<Upstream>| upstream.offered().is_some_and(|offered| mail.is_too_large_for(&offered));
        let one_may_fit = !enabled.iter().all(is_too_large);
        let order = selection::order(&standings, draw).into_iter().filter_map(|index| enabled.get(index));
        order.filter(|upstream| !(one_may_fit && is_too_large(upstream))).cloned().collect()
    }
}

/// Sends an envelope to an upstream. Waits for a connection for at most `timeout`.
async fn send_envelope(
    upstream: &Upstream,
    client: &Client,
    mail: &Mail,
    recipients: &[&Rcpt],
    timeout: Duration,
) -> Result<(Connection, Vec<Answer>), RelayError> {
    let until = Instant::now() + timeout;
    loop {
        match send_envelope_in(upstream.slot(client, until).await?, upstream, client, mail, recipients, until).await {
            Err(RelayError::Busy) if Instant::now() < until => {}
            outcome => return outcome,
        }
    }
}

/// Sends an envelope in this connection slot: first on an idle connection and, if that connection turns out to be dead,
/// on a new connection.
async fn send_envelope_in(
    slot: Slot,
    upstream: &Upstream,
    client: &Client,
    mail: &Mail,
    recipients: &[&Rcpt],
    until: Instant,
) -> Result<(Connection, Vec<Answer>), RelayError> {
    let mut slot = slot;
    if let Some(mut connection) = upstream.idle_connection(client).await {
        slot.opened();
        match connection.envelope(client, Some(mail), recipients).await {
            Ok(answers) => {
                connection.occupy(slot);
                return Ok((connection, answers));
            }
            // The upstream has answered on this connection before it became silent, so the connection is not dead. Do
            // not try a new connection.
            Err(error @ RelayError::Timeout) if connection.is_proven() => {
                upstream.session_failed(client, &error);
                return Err(error);
            }
            Err(RelayError::Timeout) => upstream.drop_idle(),
            Err(_) => {}
        }
        slot.closed();
    }
    // The future is boxed, because it is large, and a part of the future of every command that is relayed.
    let mut connection = Box::pin(upstream.connect_in(slot, client, until)).await?;
    let answers = connection.envelope(client, Some(mail), recipients).await;
    answers.inspect_err(|error| upstream.session_failed(client, error)).map(|answers| (connection, answers))
}
