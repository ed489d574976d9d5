//! Fields of an event, as the configuration names them in `per`, `distinct`, `match` and the header of an override
//! file.

use super::client_network::Widths;
use super::normalized_facts::{NormalizedFacts, NormalizedRecipient};
use crate::policy::address::domain_of;
use std::borrow::Cow;

/// Field of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    Listener,
    /// Network of the client: by default one IPv4 address or one IPv6 /64.
    Client(Widths),
    Helo,
    User,
    UserDomain,
    Sender,
    SenderDomain,
    Recipient,
    RecipientDomain,
    /// Country of the client's address.
    Country,
    /// Autonomous system of the client's address.
    Asn,
    /// Destination of a blocked connection. Only `distinct` can name it.
    Destination,
}

impl Field {
    /// All fields that `per` can name; the client with its usual widths.
    pub const ALL: [Self; 11] = [
        Self::User,
        Self::UserDomain,
        Self::Client(Widths::USUAL),
        Self::Sender,
        Self::SenderDomain,
        Self::Recipient,
        Self::RecipientDomain,
        Self::Helo,
        Self::Listener,
        Self::Country,
        Self::Asn,
    ];

    /// Returns the name in the configuration: `user`, `client`, `client/24/56`.
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Self::Client(widths) if widths != Widths::default() => format!("client/{widths}").into(),
            field => field.word().into(),
        }
    }

    /// Returns the name without the widths of networks.
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
            Self::Country => "country",
            Self::Asn => "asn",
            Self::Destination => "destination",
        }
    }

    /// Parses the name of a field in the configuration.
    pub fn parse(word: &str) -> Option<Self> {
        match word.strip_prefix("client/") {
            Some(widths) => Widths::parse(widths).map(Self::Client),
            None => Self::ALL.into_iter().find(|field| field.name() == word),
        }
    }

    /// Returns whether the value differs between the recipients of a message.
    pub fn is_of_recipient(self) -> bool {
        matches!(self, Self::Recipient | Self::RecipientDomain)
    }

    /// Returns whether the field names the logged-in user.
    pub fn is_of_user(self) -> bool {
        matches!(self, Self::User | Self::UserDomain)
    }

    /// Returns the normalized value; `None` if the value is unknown.
    pub fn value<'a>(
        self,
        facts: &'a NormalizedFacts<'_>,
        recipient: Option<&'a NormalizedRecipient<'_>>,
    ) -> Option<Cow<'a, str>> {
        let address = || recipient.map(NormalizedRecipient::address);
        let text = match self {
            Self::Client(widths) => return facts.network(widths),
            Self::Asn => return facts.asn().map(|asn| asn.to_string().into()),
            // The event has the destination, and not the facts.
            Self::Destination => return None,
            Self::Listener => facts.listener(),
            Self::Helo => facts.helo(),
            Self::User => facts.user(),
            Self::UserDomain => facts.user().and_then(domain_of),
            Self::Sender => facts.sender(),
            Self::SenderDomain => facts.sender().and_then(domain_of),
            Self::Recipient => address(),
            Self::RecipientDomain => address().and_then(domain_of),
            Self::Country => facts.country(),
        };
        text.map(Cow::Borrowed)
    }

    /// Returns whether the value is known.
    pub fn is_known(self, facts: &NormalizedFacts<'_>, recipient: Option<&NormalizedRecipient<'_>>) -> bool {
        match self {
            Self::Client(_) => facts.client().is_some(),
            // The usual field of `distinct`, asked for each limit and event.
            Self::Recipient => recipient.is_some(),
            _ => self.value(facts, recipient).is_some(),
        }
    }
}
