//! Why an upstream is of no use.

use super::{login, tls};
use crate::smtp::reply::{Garbage, Reply};
use crate::smtp::scram;
use std::fmt;
use std::net::SocketAddr;

/// Why it is of no use.
#[derive(Debug)]
pub enum RelayError {
    Unreachable(std::io::Error),
    /// It did not answer in time.
    Silent,
    Closed,
    /// It is to get no mail, nor is any other.
    Disabled,
    /// All connections that it takes, or that one client network may have, are in use.
    Busy,
    /// It is at this address, where Weir itself listens.
    Itself(SocketAddr),
    Io(std::io::Error),
    Garbage(Garbage),
    /// It refused to go on, in these words.
    Refused(Reply),
    /// It said this where nothing, or something else, was expected.
    Unexpected(Reply),
    NoTls,
    /// It offers STARTTLS, and says this to it.
    StartTls(Reply),
    Tls(std::io::Error),
    /// Weir has nothing to log in with.
    Secret(login::SecretError),
    /// It has none of these mechanisms for the login that it should want.
    NoLogin(&'static str),
    /// It refused Weir's login, in these words and these details, which are none of the client's business.
    Login(Reply, String),
    /// It wants the client's login, which is not known any more.
    Forgotten,
    /// It refused the login of the client itself, who is told so.
    ClientLogin(Reply),
    /// It does not keep its side of a SCRAM login.
    Scram(scram::Error),
    /// It refused to be told who the client is, in these words, which are none of the client's business.
    Xclient(Reply),
}

impl RelayError {
    /// Whether the login is refused for good, so that it would be wherever and as often as it is tried. One that does not prove itself
    /// is another matter: another address may.
    pub fn is_refused_login(&self) -> bool {
        match self {
            Self::Login(reply, _) => reply.code() >= 500,
            Self::Scram(error) => matches!(error, scram::Error::Refused(_)),
            _ => false,
        }
    }

    /// Whether it refuses to serve, which may be for whom it is told of or logs in.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Xclient(_) | Self::Refused(_) | Self::Login(..) | Self::ClientLogin(_))
    }

    /// The same, where the login is the client's: whoever is refused for good is told so.
    pub fn of_client(self) -> Self {
        let words = match &self {
            fault if !fault.is_refused_login() => return self,
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
            Self::Silent => f.write_str("it does not answer"),
            Self::Itself(address) => write!(f, "{address} is Weir itself: mail would go round in a circle"),
            Self::Closed => f.write_str("it closed the connection"),
            Self::Busy => f.write_str("all connections that it takes, or the client's share of them, are in use"),
            Self::Disabled => f.write_str("no upstream is enabled"),
            Self::Io(error) => write!(f, "the connection broke: {}", tls::explain(error)),
            Self::Garbage(garbage) => garbage.fmt(f),
            Self::Refused(reply) => write!(f, "it refuses: {reply}"),
            Self::Unexpected(reply) => write!(f, "it is out of step: {reply}"),
            Self::NoTls => f.write_str("it offers no STARTTLS, which is required"),
            Self::StartTls(reply) => write!(f, "it refuses STARTTLS: {reply}"),
            Self::Secret(error) => write!(f, "Weir cannot log in: {error}"),
            Self::NoLogin(usable) => write!(f, "it offers no login that Weir may use: {usable}"),
            Self::Login(reply, detail) if detail.is_empty() => write!(f, "it refuses Weir's login: {reply}"),
            Self::Login(reply, detail) => write!(f, "it refuses Weir's login: {reply}; before that: {detail}"),
            Self::Forgotten => {
                f.write_str("it wants the client's login since this client logged in: it has to come again")
            }
            Self::ClientLogin(reply) => write!(f, "it refuses the client's login: {reply}"),
            Self::Scram(error) => write!(f, "Weir's login by SCRAM-SHA-256: {error}"),
            Self::Tls(error) => write!(f, "TLS: {}", tls::explain(error)),
            Self::Xclient(reply) => write!(f, "it refuses to be told who the client is: {reply}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_told_that_its_login_is_refused_by_whatever_mechanism() {
        let scram = |error| RelayError::Scram(error).of_client();
        let login = |code| RelayError::Login(Reply::new(code, "no"), String::new()).of_client();
        for (fault, words) in [
            (scram(scram::Error::Refused("invalid-proof".to_owned())), "your login: it reports \"invalid-proof\""),
            (login(535), "your login: 535 no"),
        ] {
            assert!(matches!(&fault, RelayError::ClientLogin(_)) && fault.to_string().ends_with(words), "{fault}");
        }
        // May be taken another time, or elsewhere.
        for fault in [scram(scram::Error::Signature), login(454), RelayError::Silent.of_client()] {
            assert!(!matches!(fault, RelayError::ClientLogin(_)), "{fault}");
        }
    }
}
