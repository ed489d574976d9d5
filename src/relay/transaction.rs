//! One message's transaction with an upstream, from MAIL to the reply to the final dot.

use super::client::Client;
use super::connection::Connection;
use super::upstream::Upstream;
use crate::smtp::envelope::{Mail, Rcpt};
use crate::smtp::upstream_answer::Answer;
use std::sync::Arc;

/// A transaction at an upstream, which has answered MAIL and some recipients; more recipients may follow.
pub struct Transaction {
    pub(super) upstream: Arc<Upstream>,
    pub(super) connection: Connection,
    /// The client, to send the transaction to another upstream if this one fails before the message begins.
    pub(super) client: Client,
    pub(super) mail: Mail,
    pub(super) accepted: Vec<Rcpt>,
    /// The only upstream that may have the mail; `None`: any.
    pub(super) route: Option<Arc<str>>,
}

impl Transaction {
    pub(super) fn begun(
        upstream: &Arc<Upstream>,
        connection: Connection,
        client: &Client,
        mail: &Mail,
        recipients: &[&Rcpt],
        answers: Vec<Answer>,
        route: Option<&Arc<str>>,
    ) -> (Box<Self>, Vec<Answer>) {
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
    pub(super) fn heard(&mut self, recipients: &[&Rcpt], answers: &[Answer]) {
        let heard = recipients.iter().zip(answers);
        let is_accepted = |answer: &Answer| matches!(answer, Answer::Reply(reply) if reply.is_positive());
        self.accepted.extend(heard.filter(|(_, answer)| is_accepted(answer)).map(|(rcpt, _)| (*rcpt).clone()));
    }

    /// Waits until clients of other networks need the transaction's connection: the transaction has lasted long, and
    /// its client's network uses more than its share.
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

    /// Returns the upstream's name in logs.
    pub fn upstream(&self) -> &Arc<str> {
        self.upstream.name()
    }
}
