//! The client that sends the mail, and the XCLIENT and XFORWARD lines that tell an upstream who the client is. This
//! file does no input or output.

use crate::smtp::attributes::{Attributes, address, commands};
use crate::smtp::sasl::Credentials;
use std::net::IpAddr;
use std::sync::Arc;

/// The client that sends a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    pub address: IpAddr,
    /// The name that the client gave in EHLO or HELO.
    pub helo: Option<Arc<str>>,
    /// True if the client used EHLO, not HELO.
    pub extended: bool,
    /// Name of the user who has logged in, or the user name that a proxy in front of Weir has sent.
    pub user: Option<Arc<str>>,
    pub logged_in: LoggedIn,
    /// The session's id in the log.
    pub session: Arc<str>,
}

/// Login state of a client, with its password if the client has logged in to Weir.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoggedIn {
    /// The client has not logged in to Weir. (But a proxy in front of Weir has perhaps sent the user name.)
    #[default]
    No,
    With(Arc<Credentials>),
    /// The client has logged in, but Weir did not keep its password, because no upstream needed it at that time.
    PasswordUnknown,
}

impl Client {
    /// Returns the XCLIENT lines, with those attributes that the upstream accepts (`taken`). The attribute LOGIN is
    /// sent only if `names_user`.
    pub fn xclient(&self, taken: Attributes, names_user: bool) -> Vec<String> {
        let mut values = self.common().to_vec();
        if names_user {
            values.push(("LOGIN", self.user.as_ref().map(|user| user.to_string())));
        }
        commands("XCLIENT", taken, &values)
    }

    /// Returns the XFORWARD lines for one message, with those attributes that the upstream accepts (`taken`).
    pub fn xforward(&self, taken: Attributes) -> Vec<String> {
        let more = [("SOURCE", Some("REMOTE".to_owned())), ("IDENT", Some(self.session.to_string()))];
        commands("XFORWARD", taken, &[&self.common()[..], &more].concat())
    }

    /// Returns whether two clients are equal except for the ids of their sessions, so that an upstream would see no
    /// difference.
    pub fn is_like(&self, other: &Self) -> bool {
        let told = |client: &Self| Self { session: other.session.clone(), ..client.clone() };
        told(self) == told(other)
    }

    /// Returns the attributes that both commands have. `None` is sent as `[UNAVAILABLE]`, because the upstream would
    /// otherwise use the value of Weir's own connection.
    fn common(&self) -> [(&'static str, Option<String>); 5] {
        let protocol = if self.extended { "ESMTP" } else { "SMTP" };
        [
            ("NAME", None),
            ("ADDR", address(self.address)),
            ("PORT", None),
            ("PROTO", Some(protocol.to_owned())),
            ("HELO", self.helo.as_deref().map(str::to_owned)),
        ]
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns a client with a user name.
    pub fn alice() -> Client {
        Client {
            address: "192.0.2.7".parse().unwrap(),
            helo: Some("pc.example".into()),
            extended: true,
            user: Some("alice".into()),
            logged_in: LoggedIn::No,
            session: "abc123".into(),
        }
    }

    #[test]
    fn known_attributes_are_sent_and_unknown_ones_marked() {
        let taken = Attributes::named("NAME ADDR PORT PROTO HELO LOGIN SOURCE IDENT".split(' '));
        let known = "NAME=[UNAVAILABLE] ADDR=192.0.2.7 PORT=[UNAVAILABLE] PROTO=ESMTP HELO=pc.example";
        assert_eq!(alice().xclient(taken, true), [format!("XCLIENT {known} LOGIN=alice\r\n")]);
        assert_eq!(alice().xclient(taken, false), [format!("XCLIENT {known}\r\n")]);
        assert_eq!(alice().xforward(taken), [format!("XFORWARD {known} SOURCE=REMOTE IDENT=abc123\r\n")]);
        let unknown =
            Client { address: "0.0.0.0".parse().unwrap(), helo: None, extended: false, user: None, ..alice() };
        let words = Attributes::named("ADDR HELO PROTO LOGIN".split(' '));
        let line = "XCLIENT ADDR=[UNAVAILABLE] PROTO=SMTP HELO=[UNAVAILABLE] LOGIN=[UNAVAILABLE]\r\n";
        assert_eq!(unknown.xclient(words, true), [line]);
    }

    #[test]
    fn an_upstream_sees_no_difference_between_sessions_of_one_client() {
        assert!(alice().is_like(&Client { session: "other".into(), ..alice() }));
        for other in [
            Client { user: Some("bob".into()), ..alice() },
            Client { user: None, ..alice() },
            Client { logged_in: LoggedIn::PasswordUnknown, ..alice() },
            Client { logged_in: LoggedIn::With(Credentials::new("alice", "sesame").unwrap().into()), ..alice() },
            Client { helo: None, ..alice() },
            Client { address: "192.0.2.8".parse().unwrap(), ..alice() },
        ] {
            assert!(!alice().is_like(&other), "{other:?}");
        }
    }
}
