//! Options of the listeners and of all connections.

use crate::accounts::Source;
use crate::session;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Options of a listener.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Its name in logs and metrics.
    pub name: Arc<str>,
    pub address: SocketAddr,
    /// Networks whose connections begin with a PROXY header. Weir does not accept a header from other addresses.
    pub proxies: Arc<[IpNet]>,
    /// File of the authorities that issue the certificates of clients; `None`: clients are not asked for a certificate.
    pub client_certificates: Option<Arc<Path>>,
    pub session: Arc<session::Options>,
    /// Sources of accounts, in the order in which they are asked.
    pub accounts: Arc<[Source]>,
}

impl ListenerOptions {
    /// Returns whether connections from this address begin with a PROXY header.
    pub(super) fn is_of_proxy(&self, peer: IpAddr) -> bool {
        self.proxies.iter().any(|network| network.contains(&peer))
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
