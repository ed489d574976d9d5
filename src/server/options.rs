//! Options of the listeners and of all connections.

use crate::accounts::Source;
use crate::delegation;
use crate::session;
use ipnet::IpNet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Options of a listener.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Its name in logs and metrics.
    pub name: Arc<str>,
    pub address: ListenerAddress,
    pub protocol: Protocol,
    /// Networks whose connections begin with a PROXY header. Weir does not accept a header from other addresses.
    pub proxies: Arc<[IpNet]>,
    /// File of the authorities that issue the certificates of clients; `None`: clients are not asked for a certificate.
    pub client_certificates: Option<Arc<Path>>,
    pub session: Arc<session::Options>,
    /// Sources of accounts, in the order in which they are asked.
    pub accounts: Arc<[Source]>,
}

impl ListenerOptions {
    /// Returns whether the listener speaks the policy delegation protocol of Postfix.
    pub fn is_policy(&self) -> bool {
        matches!(self.protocol, Protocol::PostfixPolicy(_))
    }

    /// Returns whether connections from this address begin with a PROXY header.
    pub(super) fn is_of_proxy(&self, peer: IpAddr) -> bool {
        self.proxies.iter().any(|network| network.contains(&peer))
    }
}

/// Protocol of a listener.
#[derive(Clone, Debug)]
pub enum Protocol {
    Smtp,
    /// Policy delegation protocol of Postfix.
    PostfixPolicy(Arc<delegation::Options>),
}

/// Address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerAddress {
    Tcp(SocketAddr),
    /// Unix socket, with the permissions of its file. Only for the policy delegation protocol.
    Unix {
        path: Arc<Path>,
        mode: u32,
    },
}

impl ListenerAddress {
    /// Returns whether only one of two listeners can have these addresses.
    pub fn is_same_place(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unix { path, .. }, Self::Unix { path: other, .. }) => path == other,
            _ => self.tcp().is_some() && self.tcp() == other.tcp(),
        }
    }

    /// Returns the address and port; `None` for a Unix socket.
    pub fn tcp(&self) -> Option<SocketAddr> {
        if let Self::Tcp(address) = self { Some(*address) } else { None }
    }
}

impl fmt::Display for ListenerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix { path, .. } => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Options that all listeners share.
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum connections at once, over all listeners.
    pub max_connections: usize,
    /// Maximum connections at once of one client's network.
    pub max_connections_per_client: usize,
    /// Maximum connections at once of the network of a client whose address permits it to send without a login.
    pub max_connections_per_trusted_client: usize,
    /// Maximum time from connecting to the login, for clients that must log in.
    pub login_timeout: Duration,
    /// Maximum silence between commands.
    pub idle_timeout: Duration,
    /// Maximum time of a command from its first octet to its last.
    pub command_timeout: Duration,
    /// Maximum silence within a message.
    pub data_timeout: Duration,
    /// Minimum rate of a message in octets per second: an average that begins after the first `data_timeout`.
    pub min_data_rate: u64,
    /// Maximum time that a message occupies an upstream connection, from its first recipient to its last octet.
    pub message_timeout: Duration,
    /// Maximum time that sessions have to end their transactions when the server stops.
    pub drain_timeout: Duration,
    /// Time between two checks of the certificate files for changes.
    pub certificate_pace: Duration,
}
