//! What is configured about the way out.

use super::{Announce, dns, login, pool, tls};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Where mail goes and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// What Weir calls itself.
    pub hostname: String,
    /// At least one.
    pub upstreams: Vec<UpstreamOptions>,
    /// The names of those to which limits route mail.
    pub routed: Vec<Arc<str>>,
    /// How long an upstream may take for its greeting, TLS and login, and for any one answer but that to the final dot.
    pub timeout: Duration,
    /// How long one may go without taking anything of a message (RFC 5321 §4.5.3.2.5 gives its client 3 min).
    pub data_timeout: Duration,
    pub dns: dns::Options,
    /// Where Weir itself listens: mail that came round would take all places there are.
    pub listening: Vec<SocketAddr>,
}

/// One upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamOptions {
    /// Its name in logs and metrics, like no other's.
    pub name: Arc<str>,
    /// Whether it gets mail.
    pub enabled: bool,
    /// Whether it gets only mail that a limit routes to it.
    pub only_routed: bool,
    /// Host name or address, and port.
    pub host: String,
    pub port: u16,
    /// Whether the host is a domain whose mail exchangers are meant, instead of its own addresses (RFC 5321 §5.1).
    pub mx: bool,
    /// How long one of its addresses may take to be connected to, before the next is tried.
    pub connect_timeout: Duration,
    /// Those of the lowest number that are well share the mail; the others wait.
    pub priority: u16,
    /// Its share among those of its priority.
    pub weight: u16,
    pub tls: tls::Options,
    /// What is logged in with there.
    pub login: Option<login::Options>,
    /// How many connections may be open to it at once for mail; 0: as many as it takes.
    pub max_connections: usize,
    pub pool: pool::Options,
    /// Whether it is told who the client is.
    pub announce: Announce,
}

impl UpstreamOptions {
    /// The file of Weir's secret.
    pub fn secret_file(&self) -> Option<&PathBuf> {
        match self.login.as_ref()? {
            login::Options::Fixed(login) => login.file(),
            login::Options::Client(_) => None,
        }
    }

    /// Whether it is the same upstream, but for whether it gets mail.
    pub fn is_like(&self, other: &Self) -> bool {
        *self == Self { enabled: self.enabled, ..other.clone() }
    }

    /// Whether clients are logged in with what they logged in with here.
    pub fn wants_credentials(&self) -> bool {
        matches!(self.login, Some(login::Options::Client(_)))
    }
}

/// Why a configured upstream cannot be used at all.
#[derive(Debug)]
pub enum ConfigError {
    Ca(PathBuf, String),
    NoRoots,
    Secret(login::SecretError),
    /// Of Weir's own certificate or its key.
    Identity(PathBuf, String),
    Name(String),
    Tls(rustls::Error),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ca(path, why) => write!(f, "certificates in {}: {why}", path.display()),
            Self::NoRoots => f.write_str("the system has no certificate authorities to check the upstream by; set ca"),
            Self::Secret(error) => error.fmt(f),
            Self::Identity(path, why) => write!(f, "client certificate or key {}: {why}", path.display()),
            Self::Name(name) => write!(f, "\"{name}\" is no name a certificate could have"),
            Self::Tls(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConfigError {}

impl From<rustls::Error> for ConfigError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}
