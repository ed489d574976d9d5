//! One message's way to an upstream, from MAIL to what is said to the final dot.

use super::client::Client;
use super::connection::Connection;
use super::connection::dialogue::Answered;
use super::upstream::Upstream;
use crate::smtp::envelope::{Mail, Rcpt};
use std::sync::Arc;

/// A transaction that an upstream has accepted MAIL or recipients of; or has refused them, and may be asked for others.
pub struct Transaction {
    pub(super) upstream: Arc<Upstream>,
    pub(super) connection: Connection,
    /// What another upstream has to be told should this one go away before the message has begun.
    pub(super) client: Client,
    pub(super) mail: Mail,
    pub(super) accepted: Vec<Rcpt>,
    /// The upstream that is to have it, if it matters.
    pub(super) route: Option<Arc<str>>,
}

impl Transaction {
    pub(super) fn begun(
        upstream: &Arc<Upstream>,
        connection: Connection,
        client: &Client,
        mail: &Mail,
        recipients: &[&Rcpt],
        answers: Vec<Answered>,
        route: Option<&Arc<str>>,
    ) -> (Box<Self>, Vec<Answered>) {
        let mut begun = Box::new(Self {
            upstream: upstream.clone(),
            connection,
            client: client.clone(),
            mail: mail.clone(),
            accepted: Vec::new(),
            route: route.cloned(),
        });
        begun.heard(recipients, &answers);
        (begun, answers)
    }

    /// Takes the answers to recipients.
    pub(super) fn heard(&mut self, recipients: &[&Rcpt], answers: &[Answered]) {
        let heard = recipients.iter().zip(answers);
        let is_accepted = |answer: &Answered| matches!(answer, Answered::Reply(reply) if reply.is_positive());
        self.accepted.extend(heard.filter(|(_, answer)| is_accepted(answer)).map(|(rcpt, _)| (*rcpt).clone()));
    }

    /// Waits until its connection is wanted for clients of other networks: this one has lasted long, and its client has more than a share.
    pub fn revoked(transaction: Option<&Self>) -> impl Future<Output = ()> + Send + use<> {
        let revoked = transaction.and_then(|transaction| transaction.connection.revoked());
        async move {
            if let Some(mut revoked) = revoked
                && revoked.wait_for(|is_revoked| *is_revoked).await.is_ok()
            {
                return;
            }
            std::future::pending().await
        }
    }

    /// The upstream's name in logs.
    pub fn upstream(&self) -> &Arc<str> {
        self.upstream.name()
    }
}
