//! Options of a listener's sessions: TLS, login, trust and maximum sizes.

use super::report::ReportAddress;
use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;

/// Options of a listener's sessions.
#[derive(Clone, Debug)]
pub struct Options {
    /// The listener's name.
    pub name: Arc<str>,
    /// This server's name in the greeting and other replies.
    pub hostname: String,
    pub tls: Security,
    pub auth: Requirement,
    /// Networks whose clients are permitted to send without AUTH.
    pub trusted: Vec<IpNet>,
    /// Networks of proxies that are permitted to name the client with XCLIENT.
    pub xclient: Vec<IpNet>,
    pub sender_mismatch: SenderMismatch,
    /// Recipient whose mail Weir itself takes, also from clients that have not logged in.
    pub report_address: Option<ReportAddress>,
    /// Maximum size of a message, in octets (RFC 1870).
    pub max_message_size: u64,
    /// Maximum recipients of one message.
    pub max_recipients: usize,
}

impl Options {
    /// Returns whether this client must log in before it sends.
    pub fn must_log_in(&self, client: IpAddr) -> bool {
        self.auth == Requirement::Required && !self.trusts(client)
    }

    /// Returns whether this is the address of a proxy that is permitted to name its clients with XCLIENT.
    pub fn may_name_clients(&self, peer: IpAddr) -> bool {
        self.xclient.iter().any(|network| network.contains(&peer))
    }

    /// Returns whether the address of this client permits the client to send without a login.
    pub fn trusts(&self, client: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&client))
    }
}

/// TLS of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// Plain text only.
    None,
    /// Plain text, until the client says STARTTLS (RFC 3207).
    StartTls,
    /// TLS from the first octet (RFC 8314).
    Implicit,
}

/// Login of a listener: whether clients must log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    Required,
    Optional,
    None,
}

/// Consequence if a user sends as an address that belongs to another user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderMismatch {
    /// None; senders are not checked.
    Allow,
    /// The log and the metrics tell it.
    Warn,
    /// Weir refuses MAIL, or the message.
    Refuse,
}

/// TLS version and cipher suite of a connection, as the `Received:` line shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    pub version: Arc<str>,
    pub cipher: String,
}
