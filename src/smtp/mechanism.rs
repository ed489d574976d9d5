//! SASL mechanisms (RFC 4422): their names, the party that begins the exchange, and the user that a client claims to be.

use super::claimed_user::{self, Malformed};
use std::fmt;
use std::sync::Arc;

/// Name of a mechanism, in upper case. It has 1 to 20 letters, digits, hyphens and underscores (RFC 4422 §3.1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mechanism(Arc<str>);

/// The party that sends the first message of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstMessage {
    Client,
    Server,
    /// Weir does not know the mechanism. The accounts know it.
    Unknown,
}

/// The mechanisms that a client can use, in the order of the reply to EHLO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mechanisms(Arc<[Mechanism]>);

/// Maximum octets of a mechanism's name (RFC 4422 §3.1).
const MAX_NAME: usize = 20;

/// Maximum number of offered mechanisms, so that the line of the reply to EHLO has at most 512 octets.
const MAX_OFFERED: usize = 20;

impl Mechanism {
    /// Returns `None` if this is not the name of a mechanism.
    pub fn new(name: &str) -> Option<Self> {
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        let is_valid = (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_name);
        is_valid.then(|| Self(name.to_ascii_uppercase().into()))
    }

    pub fn name(&self) -> &Arc<str> {
        &self.0
    }

    pub fn first_message(&self) -> FirstMessage {
        match &*self.0 {
            "PLAIN" | "EXTERNAL" | "XOAUTH2" | "OAUTHBEARER" => FirstMessage::Client,
            "LOGIN" | "CRAM-MD5" | "DIGEST-MD5" => FirstMessage::Server,
            name if name.starts_with("SCRAM-") => FirstMessage::Client,
            _ => FirstMessage::Unknown,
        }
    }

    /// Returns the user that the client's first message names. Returns `Ok(None)` if the message of this mechanism does
    /// not name a user.
    pub fn claimed_user(&self, message: &[u8]) -> Result<Option<String>, Malformed> {
        match &*self.0 {
            "XOAUTH2" => claimed_user::xoauth2(message).map(Some),
            "OAUTHBEARER" => claimed_user::oauth_bearer(message),
            "CRAM-MD5" => claimed_user::cram_md5(message).map(Some),
            "EXTERNAL" => claimed_user::external(message),
            name if name.starts_with("SCRAM-") => claimed_user::scram(message).map(Some),
            _ => Ok(None),
        }
    }
}

impl Mechanisms {
    /// Returns at most [`MAX_OFFERED`] of these mechanisms, each of them once.
    pub fn new(mechanisms: impl IntoIterator<Item = Mechanism>) -> Self {
        let mut offered: Vec<Mechanism> = Vec::new();
        for mechanism in mechanisms {
            if offered.len() < MAX_OFFERED && !offered.contains(&mechanism) {
                offered.push(mechanism);
            }
        }
        Self(offered.into())
    }

    /// Returns PLAIN and LOGIN, the mechanisms by which a client sends its password.
    pub fn of_passwords() -> Self {
        Self::new(["PLAIN", "LOGIN"].map(|name| Mechanism(name.into())))
    }

    /// Returns the offered mechanism of this name.
    pub fn find(&self, name: &str) -> Option<&Mechanism> {
        self.iter().find(|mechanism| mechanism.0.eq_ignore_ascii_case(name))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Mechanism> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the names for a sentence: `PLAIN, LOGIN and SCRAM-SHA-256`.
    pub fn listed(&self) -> String {
        let names: Vec<&str> = self.iter().map(|mechanism| &*mechanism.0).collect();
        match names.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
            None => "none".to_owned(),
        }
    }
}

/// Writes the names with spaces between them, as in the reply to EHLO.
impl fmt::Display for Mechanisms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().map(|mechanism| &*mechanism.0).collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_letters_digits_hyphens_and_underscores() {
        for (name, valid) in [
            ("scram-sha-256", true),
            ("X_1", true),
            (&"A".repeat(20), true),
            (&"A".repeat(21), false),
            ("", false),
            ("A B", false),
            ("A\r", false),
            ("\u{e9}", false),
        ] {
            assert_eq!(Mechanism::new(name).is_some(), valid, "{name:?}");
        }
    }

    #[test]
    fn offered_mechanisms_are_written_for_machines_and_for_people() {
        let offered = |names: &[&str]| Mechanisms::new(names.iter().filter_map(|name| Mechanism::new(name)));
        let three = offered(&["plain", "LOGIN", "Plain", "CRAM-MD5"]);
        assert_eq!(
            (three.to_string(), three.listed()),
            ("PLAIN LOGIN CRAM-MD5".into(), "PLAIN, LOGIN and CRAM-MD5".into())
        );
        assert_eq!(Mechanisms::of_passwords().listed(), "PLAIN and LOGIN");
        assert_eq!(offered(&["plain"]).listed(), "PLAIN");
        assert!(three.find("cram-md5").is_some() && three.find("CRAM-MD").is_none());
        let many: Vec<String> = (0..100).map(|n| format!("M{n:0>19}")).collect();
        let line = format!("250 AUTH {}\r\n", Mechanisms::new(many.iter().filter_map(|name| Mechanism::new(name))));
        assert!(line.len() <= 512, "{}", line.len());
    }
}
