//! Options of the relay, from the configuration.

use super::{Announce, dns, login, tls};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The upstreams, and the settings that they share.
#[derive(Clone, Debug)]
pub struct Options {
    /// Host name that Weir gives in EHLO.
    pub hostname: String,
    /// The upstreams, at least one.
    pub upstreams: Vec<UpstreamOptions>,
    /// Names of the upstreams to which limits route mail.
    pub routed: Vec<Arc<str>>,
    /// Timeout of opening a connection (lookup, greeting, TLS and login together), and of each later reply except the
    /// reply to the final dot.
    pub timeout: Duration,
    /// Timeout of sending a message: within this time an upstream must accept at least one further octet (RFC 5321
    /// §4.5.3.2.5 gives a client 3 min).
    pub data_timeout: Duration,
    pub dns: dns::Options,
    /// Addresses on which Weir itself listens. Weir does not connect to them, because mail in a loop would use up all
    /// connections.
    pub listening: Vec<SocketAddr>,
}

/// The configuration of one upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamOptions {
    /// Unique name of the upstream, which is shown in logs and metrics.
    pub name: Arc<str>,
    /// True if the upstream gets mail.
    pub enabled: bool,
    /// True if the upstream gets only mail that a limit routes to it.
    pub only_routed: bool,
    /// Host name or IP address of the upstream.
    pub host: String,
    /// TCP port of the upstream.
    pub port: u16,
    /// True if mail goes to the mail exchangers of the domain `host`, false if it goes to the addresses of `host`
    /// itself (RFC 5321 §5.1).
    pub mx: bool,
    /// Timeout of establishing a TCP connection to one address. After this timeout Weir tries the next address.
    pub connect_timeout: Duration,
    /// Priority of the upstream. The healthy upstreams with the lowest number share the mail. The other upstreams get
    /// mail only if all of these fail.
    pub priority: u16,
    /// Weight by which the upstreams of the same priority share the mail.
    pub weight: u16,
    pub tls: tls::Options,
    /// Login at the upstream; `None` if Weir sends mail without a login.
    pub login: Option<login::Options>,
    /// Maximum number of connections that carry mail at the same time; 0 means as many as the upstream accepts.
    pub max_connections: usize,
    pub pool: PoolOptions,
    /// Way in which Weir tells the upstream who the client is, if at all.
    pub announce: Announce,
}

/// Bounds of an upstream's pool of idle connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Maximum number of idle connections; with 0 no connection is reused.
    pub max_idle: usize,
    /// Maximum time for which a connection is kept idle.
    pub idle_timeout: Duration,
    /// Maximum age of a connection that is reused.
    pub max_age: Duration,
    /// Maximum number of messages on one connection.
    pub max_messages: u32,
}

impl UpstreamOptions {
    /// Returns the path of the file with the secret of Weir's own login, if there is one.
    pub fn secret_file(&self) -> Option<&PathBuf> {
        match self.login.as_ref()? {
            login::Options::Fixed(login) => login.file(),
            login::Options::Client(_) => None,
        }
    }

    /// Returns whether two configurations are equal, apart from `enabled`.
    pub fn is_like(&self, other: &Self) -> bool {
        *self == Self { enabled: self.enabled, ..other.clone() }
    }

    /// Returns whether Weir logs in at the upstream with the password of each client.
    pub fn wants_credentials(&self) -> bool {
        matches!(self.login, Some(login::Options::Client(_)))
    }
}
