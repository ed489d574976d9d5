//! Configuration of the relay.

use super::{Announce, dns, login, tls};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The upstreams, and the settings that they share.
#[derive(Clone, Debug)]
pub struct Options {
    /// Weir's host name, for EHLO.
    pub hostname: String,
    /// At least one.
    pub upstreams: Vec<UpstreamOptions>,
    /// Names of the upstreams that limits route mail to.
    pub routed: Vec<Arc<str>>,
    /// Timeout of the greeting, TLS and login together, and of each reply except the one to the final dot.
    pub timeout: Duration,
    /// How long an upstream may go without accepting any octet of a message (RFC 5321 §4.5.3.2.5 gives its client 3
    /// min).
    pub data_timeout: Duration,
    pub dns: dns::Options,
    /// Addresses on which Weir itself listens: mail that looped back would use up all connections.
    pub listening: Vec<SocketAddr>,
}

/// The configuration of one upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamOptions {
    /// Unique name, in logs and metrics.
    pub name: Arc<str>,
    /// Whether the upstream gets mail.
    pub enabled: bool,
    /// Whether the upstream gets only mail that a limit routes to it.
    pub only_routed: bool,
    /// Host name or address, and port.
    pub host: String,
    pub port: u16,
    /// Whether `host` is a domain whose mail exchangers are used, instead of its own addresses (RFC 5321 §5.1).
    pub mx: bool,
    /// Timeout of a TCP connection to one address, before the next is tried.
    pub connect_timeout: Duration,
    /// Healthy upstreams of the lowest number share the mail; the others are reserves.
    pub priority: u16,
    /// Share of the mail among upstreams of the same priority.
    pub weight: u16,
    pub tls: tls::Options,
    /// The login at the upstream.
    pub login: Option<login::Options>,
    /// Maximum connections in use for mail; 0: as many as the upstream accepts.
    pub max_connections: usize,
    pub pool: PoolOptions,
    /// Whether and how the upstream is told who the client is.
    pub announce: Announce,
}

/// Bounds of an upstream's pool of idle connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Maximum idle connections; 0 keeps none.
    pub max_idle: usize,
    /// How long a connection may be idle.
    pub idle_timeout: Duration,
    /// Maximum age of a connection that is used again.
    pub max_age: Duration,
    /// Maximum messages over one connection.
    pub max_messages: u32,
}

impl UpstreamOptions {
    /// Returns the file with Weir's secret.
    pub fn secret_file(&self) -> Option<&PathBuf> {
        match self.login.as_ref()? {
            login::Options::Fixed(login) => login.file(),
            login::Options::Client(_) => None,
        }
    }

    /// Returns whether two configurations differ at most in `enabled`.
    pub fn is_like(&self, other: &Self) -> bool {
        *self == Self { enabled: self.enabled, ..other.clone() }
    }

    /// Returns whether the upstream needs the clients' own passwords.
    pub fn wants_credentials(&self) -> bool {
        matches!(self.login, Some(login::Options::Client(_)))
    }
}
