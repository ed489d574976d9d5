//! What a listener asks of its clients.

use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;

/// What a listener asks of its clients.
#[derive(Clone, Debug)]
pub struct Options {
    /// The listener's name.
    pub name: Arc<str>,
    /// What this server calls itself.
    pub hostname: String,
    pub tls: Security,
    pub auth: Requirement,
    /// Networks that may send without AUTH.
    pub trusted: Vec<IpNet>,
    /// Networks of proxies that may say who the client is.
    pub xclient: Vec<IpNet>,
    /// Octets (RFC 1870).
    pub max_message_size: u64,
    /// Recipients of one message.
    pub max_recipients: usize,
}

impl Options {
    /// Whether this client may send only once it has logged in.
    pub fn must_log_in(&self, client: IpAddr) -> bool {
        self.auth == Requirement::Required && !self.trusts(client)
    }

    /// Returns whether this address is that of a proxy that may name its clients with XCLIENT.
    pub fn may_name_clients(&self, peer: IpAddr) -> bool {
        self.xclient.iter().any(|network| network.contains(&peer))
    }

    /// Returns whether this client may send without a login by its address.
    pub fn trusts(&self, client: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&client))
    }
}

/// How a listener is secured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// Plain text only.
    None,
    /// Plain text, until the client says STARTTLS (RFC 3207).
    StartTls,
    /// TLS from the first octet (RFC 8314).
    Implicit,
}

/// Whether clients must log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    Required,
    Optional,
    None,
}

/// The TLS of a connection, as the `Received:` line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    pub version: String,
    pub cipher: String,
}
