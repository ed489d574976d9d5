//! Logins by other mechanisms than PLAIN and LOGIN, in several steps or without a password.

use super::certificate_users::ClientCertificate;
use super::dovecot;
use super::file_source::FileSource;
use super::scram::ScramLogin;
use std::sync::Arc;

/// A login in progress.
pub enum Exchange {
    /// By SCRAM-SHA-256 with the keys of the users file. At the beginning there is no state.
    Scram(Arc<FileSource>, Option<ScramLogin>),
    /// By a TLS client certificate (EXTERNAL).
    Certificate(Box<ClientCertificate>),
    Dovecot(dovecot::Exchange),
}

/// The mechanism for which the users file can have keys.
pub const SCRAM: &str = "SCRAM-SHA-256";

/// The mechanism of a login with a TLS client certificate.
pub const EXTERNAL: &str = "EXTERNAL";

impl Exchange {
    /// Ends a login that the client has broken off.
    pub async fn cancel(self) {
        match self {
            Self::Dovecot(exchange) => exchange.cancel().await,
            Self::Scram(..) | Self::Certificate(_) => {}
        }
    }
}
