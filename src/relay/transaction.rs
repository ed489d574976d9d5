//! Transaction with an upstream: one message, from MAIL to the reply to the final dot.

use super::client::Client;
use super::connection::Connection;
use super::upstream::Upstream;
use crate::smtp::envelope::{Mail, Rcpt};
use crate::smtp::upstream_answer::Answer;
use std::sync::Arc;

/// A transaction in which the upstream has answered MAIL and some recipients. The client can still send more
/// recipients.
pub struct Transaction {
    pub(super) upstream: Arc<Upstream>,
    pub(super) connection: Connection,
    /// The client. It is needed to send the envelope to another upstream if this upstream fails before the message
    /// begins.
    pub(super) client: Client,
    pub(super) mail: Mail,
    pub(super) accepted: Vec<Rcpt>,
    /// Name of the upstream to which a limit routes the mail; `None` if no limit routes the mail.
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

    /// Records which of these recipients the upstream has accepted.
    pub(super) fn heard(&mut self, recipients: &[&Rcpt], answers: &[Answer]) {
        let heard = recipients.iter().zip(answers);
        let is_accepted = |answer: &Answer| matches!(answer, Answer::Reply(reply) if reply.is_positive());
        self.accepted.extend(heard.filter(|(_, answer)| is_accepted(answer)).map(|(rcpt, _)| (*rcpt).clone()));
    }

    /// Waits until the transaction must give up its connection. This happens if three conditions are true: clients of
    /// other networks wait for a connection; the transaction has lasted long; the network of its client uses more than
    /// its share of the connections.
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
