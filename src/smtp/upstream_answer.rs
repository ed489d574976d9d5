//! Answer of the upstream to one command of a client. The relay passes it to the client's session.

use super::reply::Reply;

/// The upstream's answer to one command of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Reply(Reply),
    /// The command is RCPT. The upstream refused the MAIL command before it with this reply, so the recipient is
    /// refused, too.
    MailRefused(Reply),
    /// The upstream cannot be used: it cannot be reached, does not answer in time, sends an invalid reply, or closes
    /// the connection. `words` is the upstream's reply if it closed the connection with a reply.
    Away {
        reason: String,
        words: Option<Reply>,
    },
}
