//! What is known of an event, by the words of the configuration: whose budget it is, what must be new, whom a limit is for.

use super::networks::Widths;
use super::normalize::domain;
use super::normalized_facts::NormalizedFacts;
use std::borrow::Cow;

/// Something about an event that has a value: a word of `per`, `distinct`, `match` and of the header of overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    Listener,
    /// One IPv4 address or one IPv6 /64, or networks of other widths.
    Client(Widths),
    Helo,
    User,
    UserDomain,
    Sender,
    SenderDomain,
    Recipient,
    RecipientDomain,
}

impl Field {
    /// All of them, clients with their usual widths.
    pub const ALL: [Self; 9] = [
        Self::User,
        Self::UserDomain,
        Self::Client(Widths::USUAL),
        Self::Sender,
        Self::SenderDomain,
        Self::Recipient,
        Self::RecipientDomain,
        Self::Helo,
        Self::Listener,
    ];

    /// The word in the configuration: `user`, `client`, `client/24/56`.
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Self::Client(widths) if widths != Widths::default() => format!("client/{widths}").into(),
            field => field.word().into(),
        }
    }

    /// Its word, whatever the widths of networks.
    pub fn word(self) -> &'static str {
        match self {
            Self::Listener => "listener",
            Self::Client(_) => "client",
            Self::Helo => "helo",
            Self::User => "user",
            Self::UserDomain => "user-domain",
            Self::Sender => "sender",
            Self::SenderDomain => "sender-domain",
            Self::Recipient => "recipient",
            Self::RecipientDomain => "recipient-domain",
        }
    }

    /// Reads its word.
    pub fn parse(word: &str) -> Option<Self> {
        match word.strip_prefix("client/") {
            Some(widths) => Widths::parse(widths).map(Self::Client),
            None => Self::ALL.into_iter().find(|field| field.name() == word),
        }
    }

    /// Whether it is another one for each recipient.
    pub fn is_of_recipient(self) -> bool {
        matches!(self, Self::Recipient | Self::RecipientDomain)
    }

    /// Whether it says who has logged in.
    pub fn is_of_user(self) -> bool {
        matches!(self, Self::User | Self::UserDomain)
    }

    /// Its value, as it is compared; `None` if there is none.
    pub fn value<'a>(self, view: &'a NormalizedFacts<'_>, recipient: Option<&'a str>) -> Option<Cow<'a, str>> {
        let text = match self {
            Self::Client(widths) => return view.network(widths),
            Self::Listener => view.listener(),
            Self::Helo => view.helo(),
            Self::User => view.user(),
            Self::UserDomain => view.user().and_then(domain),
            Self::Sender => view.sender(),
            Self::SenderDomain => view.sender().and_then(domain),
            Self::Recipient => recipient,
            Self::RecipientDomain => recipient.and_then(domain),
        };
        text.map(Cow::Borrowed)
    }

    /// Whether there is a value.
    pub fn is_known(self, view: &NormalizedFacts<'_>, recipient: Option<&str>) -> bool {
        match self {
            Self::Client(_) => view.client().is_some(),
            _ => self.value(view, recipient).is_some(),
        }
    }
}
