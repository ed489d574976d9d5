//! Errors in an upstream's configuration, or in the files that it names.

use super::login_secret::SecretError;
use std::fmt;
use std::path::PathBuf;

/// Reason why an upstream cannot be used as it is configured.
#[derive(Debug)]
pub enum ConfigError {
    Ca(PathBuf, String),
    NoRoots,
    Secret(SecretError),
    /// Error of Weir's client certificate or its key.
    ClientCertificate(PathBuf, String),
    Name(String),
    Tls(rustls::Error),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ca(path, why) => write!(f, "certificates in {}: {why}", path.display()),
            Self::NoRoots => f.write_str("the system has no certificate authorities to check the upstream by; set ca"),
            Self::Secret(error) => error.fmt(f),
            Self::ClientCertificate(path, why) => write!(f, "client certificate or key {}: {why}", path.display()),
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
