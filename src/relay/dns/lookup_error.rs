//! Errors of DNS lookups.

use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use std::fmt;

/// Reason why a lookup has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// The name does not exist (NXDOMAIN).
    NoSuchName(String),
    /// The name exists, but has no records of this type.
    NoRecord(String),
    /// The domain accepts no mail: it has a null MX record (RFC 7505).
    NullMx(String),
    /// No name server gave a usable answer, for this reason.
    Server(String),
}

impl LookupError {
    /// Describes the error of a name server, in words for the administrator.
    pub fn of(server: &str, error: &NetError) -> Self {
        let complaint = match error {
            NetError::Timeout => "does not answer".to_owned(),
            NetError::Dns(DnsError::ResponseCode(ResponseCode::ServFail)) => "has failed (SERVFAIL)".to_owned(),
            NetError::Dns(DnsError::ResponseCode(ResponseCode::Refused)) => "refuses to answer (REFUSED)".to_owned(),
            NetError::Io(error) => format!("does not answer: {error}"),
            NetError::NoConnections => "does not answer: it cannot be connected to".to_owned(),
            other => format!("gives no answer of use: {other}"),
        };
        Self::Server(format!("the name server {server} {complaint}"))
    }

    /// Returns whether the error is temporary. A temporary error does not say whether the name exists.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Server(_))
    }

    /// Replaces the name in the error by the configured name, because the lookup has perhaps added a search domain.
    pub fn with_name(self, name: &str) -> Self {
        match self {
            Self::NoSuchName(_) => Self::NoSuchName(name.to_owned()),
            Self::NoRecord(_) => Self::NoRecord(name.to_owned()),
            other => other,
        }
    }
}

/// Writes the error for a log line and a terminal. A name from DNS can contain any octet, so control characters become
/// `?`.
impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NoSuchName(name) => format!("there is no such name as {name}"),
            Self::NoRecord(name) => format!("{name} has no address"),
            Self::NullMx(name) => format!("{name} takes no mail: it has a null MX record"),
            Self::Server(why) => why.clone(),
        };
        f.write_str(&text.replace(|c: char| c.is_control(), "?"))
    }
}

impl std::error::Error for LookupError {}

/// Returns a name without its final dot, if it has one.
pub fn bare(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_a_name_do_not_reach_a_terminal() {
        for (failure, shown) in [
            (LookupError::NoSuchName("a\u{1b}[2J\n.example".to_owned()), "there is no such name as a?[2J?.example"),
            (LookupError::NoRecord("a\u{9b}2J".to_owned()), "a?2J has no address"),
            (LookupError::Server("a\rb: malformed".to_owned()), "a?b: malformed"),
        ] {
            assert_eq!(failure.to_string(), shown);
        }
    }
}
