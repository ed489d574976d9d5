//! Mail of Weir's own, such as a notice: sent through the upstreams with the null sender.

use super::client::{Client, LoggedIn};
use super::error::RelayError;
use super::{Relay, Transaction};
use crate::smtp::envelope::{Mail, Rcpt};
use crate::smtp::reply::Reply;
use crate::smtp::upstream_answer::Answer;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

impl Relay {
    /// Sends a message of Weir's own to one recipient. The lines of the message end with CRLF and do not begin with a
    /// dot. Returns the upstream's reply to the message, or the reply that refuses the sender, the recipient or DATA.
    pub async fn send_own(&self, recipient: &Rcpt, message: &str, id: Arc<str>) -> Result<Reply, RelayError> {
        let mail = Mail::parse("FROM:<>").map_err(RelayError::Unexpected)?;
        let client = Client {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            helo: None,
            extended: true,
            user: None,
            logged_in: LoggedIn::No,
            session: id,
        };
        let mut transaction = None;
        let sent = self.send(&mut transaction, &client, &mail, recipient, message).await;
        self.release(transaction);
        sent
    }

    async fn send(
        &self,
        transaction: &mut Option<Box<Transaction>>,
        client: &Client,
        mail: &Mail,
        recipient: &Rcpt,
        message: &str,
    ) -> Result<Reply, RelayError> {
        let answers = self.envelope(transaction, client, Some(mail), &[recipient], None).await?;
        match answers.into_iter().next() {
            Some(Answer::Reply(reply)) if reply.is_positive() => {}
            Some(Answer::Reply(reply) | Answer::MailRefused(reply)) => return Ok(reply),
            Some(Answer::Away { .. }) | None => return Err(RelayError::Closed),
        }
        let reply = self.data(transaction).await?;
        if reply.code() != 354 {
            return Ok(reply);
        }
        self.end(transaction, message.as_bytes().to_vec()).await
    }
}
