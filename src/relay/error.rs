//! Errors of an upstream.

use super::login_secret::SecretError;
use super::tls::explain;
use crate::smtp::reply::{Garbage, Reply};
use crate::smtp::scram;
use std::fmt;
use std::net::SocketAddr;

/// Why an upstream could not be used.
#[derive(Debug)]
pub enum RelayError {
    Unreachable(std::io::Error),
    /// The upstream did not answer in time.
    Timeout,
    Closed,
    /// No upstream that may have the mail is enabled.
    Disabled,
    /// All connections that the upstream accepts, or that one client network may have, are in use.
    Busy,
    /// The upstream's address is one where Weir itself listens.
    Loop(SocketAddr),
    Io(std::io::Error),
    Garbage(Garbage),
    /// The upstream refused to go on, with this reply.
    Refused(Reply),
    /// The upstream sent this reply where another, or none, was expected.
    Unexpected(Reply),
    NoTls,
    /// The upstream offers STARTTLS, and refused it with this reply.
    StartTls(Reply),
    Tls(std::io::Error),
    /// Weir has no usable secret to log in with.
    Secret(SecretError),
    /// The upstream offers none of these mechanisms, which the configured login allows.
    NoLogin(&'static str),
    /// The upstream refused Weir's login with this reply and these details; clients must not see them.
    Login(Reply, String),
    /// The upstream needs the client's login, and Weir no longer has the password.
    PasswordUnknown,
    /// The upstream refused the client's own login; the client gets this reply.
    ClientLogin(Reply),
    /// The upstream violated the SCRAM exchange.
    Scram(scram::Error),
    /// The upstream refused XCLIENT with this reply; clients must not see it.
    Xclient(Reply),
}

impl RelayError {
    /// Returns whether the login is refused for good: at every address and at every try. A failed proof by the upstream
    /// is not: another address may succeed.
    pub fn is_refused_login(&self) -> bool {
        match self {
            Self::Login(reply, _) => reply.code() >= 500,
            Self::Scram(error) => matches!(error, scram::Error::Refused(_)),
            _ => false,
        }
    }

    /// Returns whether every address would fail in the same way.
    pub fn is_same_everywhere(&self) -> bool {
        // A wrong password is wrong everywhere, and repeated attempts may lock the account. After the other errors no
        // address was tried.
        self.is_refused_login() || matches!(self, Self::Secret(_) | Self::PasswordUnknown | Self::Disabled)
    }

    /// Returns whether the upstream refused to serve, perhaps because of the client that was announced or logged in.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Xclient(_) | Self::Refused(_) | Self::Login(..) | Self::ClientLogin(_))
    }

    /// Turns a permanent refusal of a login into one of the client's login, which the client is told.
    pub fn into_client_login(self) -> Self {
        let words = match &self {
            error if !error.is_refused_login() => return self,
            Self::Login(reply, _) => reply.to_string(),
            Self::Scram(error) => error.to_string(),
            _ => return self,
        };
        let text = format!("5.7.8 The mail server behind this one does not take your login: {words}");
        Self::ClientLogin(Reply::new(550, text))
    }
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "it cannot be reached: {error}"),
            Self::Timeout => f.write_str("it does not answer"),
            Self::Loop(address) => write!(f, "{address} is Weir itself: mail would go round in a circle"),
            Self::Closed => f.write_str("it closed the connection"),
            Self::Busy => f.write_str("all connections that it takes, or the client's share of them, are in use"),
            Self::Disabled => f.write_str("no upstream is enabled"),
            Self::Io(error) => write!(f, "the connection broke: {}", explain(error)),
            Self::Garbage(garbage) => garbage.fmt(f),
            Self::Refused(reply) => write!(f, "it refuses: {reply}"),
            Self::Unexpected(reply) => write!(f, "it is out of step: {reply}"),
            Self::NoTls => f.write_str("it offers no STARTTLS, which is required"),
            Self::StartTls(reply) => write!(f, "it refuses STARTTLS: {reply}"),
            Self::Secret(error) => write!(f, "Weir cannot log in: {error}"),
            Self::NoLogin(usable) => write!(f, "it offers no login that Weir may use: {usable}"),
            Self::Login(reply, detail) if detail.is_empty() => write!(f, "it refuses Weir's login: {reply}"),
            Self::Login(reply, detail) => write!(f, "it refuses Weir's login: {reply}; before that: {detail}"),
            Self::PasswordUnknown => {
                f.write_str("it wants the client's login since this client logged in: it has to come again")
            }
            Self::ClientLogin(reply) => write!(f, "it refuses the client's login: {reply}"),
            Self::Scram(error) => write!(f, "Weir's login by SCRAM-SHA-256: {error}"),
            Self::Tls(error) => write!(f, "TLS: {}", explain(error)),
            Self::Xclient(reply) => write!(f, "it refuses to be told who the client is: {reply}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_told_that_its_login_is_refused_by_any_mechanism() {
        let scram = |error| RelayError::Scram(error).into_client_login();
        let login = |code| RelayError::Login(Reply::new(code, "no"), String::new()).into_client_login();
        for (error, words) in [
            (scram(scram::Error::Refused("invalid-proof".to_owned())), "your login: it reports \"invalid-proof\""),
            (login(535), "your login: 535 no"),
        ] {
            assert!(matches!(&error, RelayError::ClientLogin(_)) && error.to_string().ends_with(words), "{error}");
        }
        // May be accepted at another time, or at another address.
        for error in [scram(scram::Error::Signature), login(454), RelayError::Timeout.into_client_login()] {
            assert!(!matches!(error, RelayError::ClientLogin(_)), "{error}");
        }
    }
}
