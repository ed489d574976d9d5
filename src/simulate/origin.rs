//! Origin of messages in a report: the user who logged in, or, without a login, the sender.

use std::fmt;
use std::sync::Arc;

/// Origin of a message. Users and senders are kept apart, because one address can be both a user name and a sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    User(Arc<str>),
    /// Sender of a session without a login.
    Sender(Arc<str>),
}

impl Origin {
    /// Adds the name to a line of JSON, as `user` or `sender`.
    pub fn put(&self, line: &mut serde_json::Value) {
        match self {
            Self::User(user) => line["user"] = (**user).into(),
            Self::Sender(sender) => line["sender"] = (**sender).into(),
        }
    }

    /// Counts users and senders for people: `4 users and 2 senders without login`.
    pub fn counted<'a>(origins: impl Iterator<Item = &'a Self>) -> String {
        let (users, senders): (Vec<_>, Vec<_>) = origins.partition(|origin| matches!(origin, Self::User(_)));
        let number = |number: usize, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
        let senders = (!senders.is_empty()).then(|| format!("{} without login", number(senders.len(), "sender")));
        match (users.len(), senders) {
            (0, Some(senders)) => senders,
            (users, None) => number(users, "user"),
            (users, Some(senders)) => format!("{} and {senders}", number(users, "user")),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => f.write_str(user),
            Self::Sender(sender) => write!(f, "sender {sender}, without login"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_senders_are_counted_apart() {
        let (user, sender) = (Origin::User("a@example.org".into()), Origin::Sender("a@example.org".into()));
        for (origins, text) in [
            (vec![], "0 users"),
            (vec![&user], "1 user"),
            (vec![&sender, &sender], "2 senders without login"),
            (vec![&user, &sender, &user], "2 users and 1 sender without login"),
        ] {
            assert_eq!(Origin::counted(origins.into_iter()), text);
        }
        assert_ne!(user, sender);
    }
}
