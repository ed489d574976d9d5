//! Why an upstream is of no use.

use super::{login, verify};
use crate::smtp::reply::{Garbage, Reply};
use crate::smtp::scram;
use std::fmt;
use std::net::SocketAddr;

/// Why it is of no use.
#[derive(Debug)]
pub enum Fault {
    Unreachable(std::io::Error),
    /// It did not answer in time.
    Silent,
    Closed,
    /// It is at this address, where Weir itself listens.
    Itself(SocketAddr),
    Io(std::io::Error),
    Garbage(Garbage),
    /// It refused to go on, in these words.
    Refused(Reply),
    /// It said this where nothing, or something else, was expected.
    Unexpected(Reply),
    NoTls,
    Tls(std::io::Error),
    /// Weir has nothing to log in with.
    Secret(login::SecretError),
    /// It has none of these mechanisms for the login that it should want.
    NoLogin(&'static str),
    /// It refused Weir's login, in these words and these details, which are none of the client's business.
    Login(Reply, String),
    /// It refused the login of the client itself, who is told so.
    ClientLogin(Reply),
    /// It does not keep its side of a SCRAM login.
    Scram(scram::Error),
    /// It refused to be told who the client is, in these words, which are none of the client's business.
    Xclient(Reply),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "it cannot be reached: {error}"),
            Self::Silent => f.write_str("it does not answer"),
            Self::Itself(address) => write!(f, "{address} is Weir itself: mail would go round in a circle"),
            Self::Closed => f.write_str("it closed the connection"),
            Self::Io(error) => write!(f, "the connection broke: {}", verify::explain(error)),
            Self::Garbage(garbage) => garbage.fmt(f),
            Self::Refused(reply) => write!(f, "it refuses: {reply}"),
            Self::Unexpected(reply) => write!(f, "it is out of step: {reply}"),
            Self::NoTls => f.write_str("it offers no STARTTLS, which is required"),
            Self::Secret(error) => write!(f, "Weir cannot log in: {error}"),
            Self::NoLogin(usable) => write!(f, "it offers no login that Weir may use: {usable}"),
            Self::Login(reply, detail) if detail.is_empty() => write!(f, "it refuses Weir's login: {reply}"),
            Self::Login(reply, detail) => write!(f, "it refuses Weir's login: {reply}; before that: {detail}"),
            Self::ClientLogin(reply) => write!(f, "it refuses the client's login: {reply}"),
            Self::Scram(error) => write!(f, "Weir's login by SCRAM-SHA-256: {error}"),
            Self::Tls(error) => write!(f, "TLS: {}", verify::explain(error)),
            Self::Xclient(reply) => write!(f, "it refuses to be told who the client is: {reply}"),
        }
    }
}
