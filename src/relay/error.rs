//! Errors of sending mail to an upstream.

use super::login_secret::SecretError;
use super::tls::explain;
use crate::smtp::reply::{Garbage, Reply};
use crate::smtp::scram;
use std::fmt;
use std::net::SocketAddr;

/// Reason why an upstream could not be used.
#[derive(Debug)]
pub enum RelayError {
    Unreachable(std::io::Error),
    /// The upstream did not answer in time.
    Timeout,
    Closed,
    /// No upstream that is allowed for this mail is enabled.
    Disabled,
    /// All connections that the upstream accepts are in use, or all connections that the client's network is allowed to
    /// have.
    Busy,
    /// The upstream's address is an address on which Weir itself listens.
    Loop(SocketAddr),
    Io(std::io::Error),
    Garbage(Garbage),
    /// The upstream refused to continue, with this reply.
    Refused(Reply),
    /// The upstream sent this reply although another reply, or no reply, was expected.
    Unexpected(Reply),
    NoTls,
    /// The upstream offered STARTTLS, but refused it with this reply.
    StartTls(Reply),
    Tls(std::io::Error),
    /// The secret of Weir's login at the upstream cannot be read.
    Secret(SecretError),
    /// The upstream offers none of the mechanisms that the configured login allows; they are named here.
    NoLogin(&'static str),
    /// The upstream refused Weir's login with this reply. The text is an earlier message of the upstream, such as the
    /// reason why a token is wrong. Clients must see neither the reply nor the text.
    Login(Reply, String),
    /// The upstream needs the client's own login, but Weir did not keep the client's password.
    PasswordUnknown,
    /// The upstream refused the client's own login.
    ClientLogin {
        /// The reply that the client gets to its mail.
        reply: Reply,
        /// True if the cause is the user name or the password, as far as the upstream tells.
        is_wrong: bool,
    },
    /// The upstream refused or violated the SCRAM exchange.
    Scram(scram::Error),
    /// The upstream refused XCLIENT with this reply; clients must not see it.
    Xclient(Reply),
}

impl RelayError {
    /// Returns the reply with which the upstream refused a new connection.
    pub fn reply_to_connecting(&self) -> Option<&Reply> {
        match self {
            Self::Refused(reply) | Self::StartTls(reply) | Self::Login(reply, _) | Self::Xclient(reply) => Some(reply),
            _ => None,
        }
    }

    /// Returns whether the upstream refused the login permanently. Returns false if the upstream failed to prove that
    /// it knows the password, because the login can still succeed at another address of the upstream.
    pub fn is_refused_login(&self) -> bool {
        match self {
            Self::Login(reply, _) => reply.code() >= 500,
            Self::Scram(error) => matches!(error, scram::Error::Refused(_)),
            _ => false,
        }
    }

    /// Returns whether every other address of the upstream would fail in the same way.
    pub fn is_same_everywhere(&self) -> bool {
        // A wrong password is wrong at every address, and repeated attempts can lock the account. The other errors here
        // occur before Weir tries an address.
        self.is_refused_login() || matches!(self, Self::Secret(_) | Self::PasswordUnknown | Self::Disabled)
    }

    /// Returns whether the error is a refusal by the upstream that perhaps concerns only the client that was announced
    /// or logged in.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Xclient(_) | Self::Refused(_) | Self::Login(..) | Self::ClientLogin { .. })
    }

    /// Turns a permanent refusal of a login into [`RelayError::ClientLogin`], whose reply is sent to the client.
    /// Returns other errors unchanged.
    pub fn into_client_login(self) -> Self {
        let (words, is_wrong) = match &self {
            error if !error.is_refused_login() => return self,
            Self::Login(reply, _) => (reply.to_string(), !NOT_WRONG.contains(&reply.code())),
            Self::Scram(error) => (error.to_string(), true),
            _ => return self,
        };
        let text = format!("5.7.8 The mail server behind this one does not take your login: {words}");
        Self::ClientLogin { reply: Reply::new(550, text), is_wrong }
    }
}

/// Codes of replies to AUTH by which an upstream refuses the command or the mechanism, whatever the password (RFC 4954
/// §4, §6, RFC 5248).
const NOT_WRONG: [u16; 7] = [500, 502, 503, 504, 530, 534, 538];

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
            Self::ClientLogin { reply, .. } => write!(f, "it refuses the client's login: {reply}"),
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
        let refused = scram::Error::Refused("invalid-proof".to_owned());
        for (error, words, is_wrong) in [
            (scram(refused), "your login: it reports \"invalid-proof\"", true),
            (login(535), "your login: 535 no", true),
            (login(538), "your login: 538 no", false),
        ] {
            assert!(error.to_string().ends_with(words), "{error}");
            assert!(
                matches!(&error, RelayError::ClientLogin { is_wrong: wrong, .. } if *wrong == is_wrong),
                "{error:?}"
            );
        }
        // After these errors the login can still succeed later, or at another address.
        for error in [scram(scram::Error::Signature), login(454), RelayError::Timeout.into_client_login()] {
            assert!(!matches!(error, RelayError::ClientLogin { .. }), "{error}");
        }
    }
}
