//! Keys of `match` and columns of override tables: the field that each of them compares, and the normalization of their
//! patterns.

use crate::config::values::any_network;
use crate::policy::address::{AddressNormalizer, domain};
use crate::policy::limit::{OverrideRow, OverrideRows};
use crate::policy::matching::{BadPattern, Field, PatternTable, Shape};
use std::borrow::Cow;

/// The field of a key in `match`, or of a column in an override table.
#[derive(Clone, Copy)]
pub(super) enum Key {
    Field(Field, &'static str),
    Client,
    Group,
}

impl Key {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Field(_, name) => name,
            Self::Client => "client",
            Self::Group => "group",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        KEYS.into_iter().find(|key| key.name() == name)
    }

    pub(super) fn shape(self) -> Shape {
        match self {
            Self::Field(Field::User | Field::Sender | Field::Recipient, _) => Shape::Address,
            Self::Field(Field::UserDomain | Field::SenderDomain | Field::RecipientDomain, _) => Shape::Domain,
            Self::Field(Field::Country, _) => Shape::Country,
            Self::Field(Field::Asn, _) => Shape::Asn,
            Self::Field(..) | Self::Client | Self::Group => Shape::Name,
        }
    }

    /// Adds a pattern for this key to a table; an error quotes the pattern as written.
    pub(super) fn insert<T>(
        self,
        table: &mut PatternTable<T>,
        normalizer: &AddressNormalizer,
        text: &str,
        value: T,
    ) -> Result<(), String> {
        table.insert(&self.normalize(normalizer, text), value).map_err(|bad| match bad {
            BadPattern::Twice(_) => BadPattern::Twice(text.into()).to_string(),
            bad => bad.to_string(),
        })
    }

    /// Normalizes a pattern in the same way as the values of the field. The pattern is compared with these values.
    fn normalize<'t>(self, normalizer: &AddressNormalizer, text: &'t str) -> Cow<'t, str> {
        match self {
            Self::Field(Field::Helo, _) => domain::pattern(text),
            // These patterns are not normalized, because they are not single addresses. A pattern without a domain
            // matches in any domain. A pattern with `*` matches several addresses. A pattern that begins with `@` is a
            // domain.
            _ if !text.contains('@') || text.contains('*') || text.starts_with('@') => text.into(),
            Self::Field(Field::User, _) => normalizer.user(text),
            Self::Field(Field::Sender | Field::Recipient, _) => normalizer.address(text),
            _ => text.into(),
        }
    }
}

pub(super) const KEYS: [Key; 12] = [
    Key::Field(Field::Listener, "listener"),
    Key::Client,
    Key::Field(Field::User, "user"),
    Key::Field(Field::UserDomain, "user-domain"),
    Key::Group,
    Key::Field(Field::Sender, "sender"),
    Key::Field(Field::SenderDomain, "sender-domain"),
    Key::Field(Field::Recipient, "recipient"),
    Key::Field(Field::RecipientDomain, "recipient-domain"),
    Key::Field(Field::Helo, "helo"),
    Key::Field(Field::Country, "country"),
    Key::Field(Field::Asn, "asn"),
];

/// Adds the pattern of one row of an override table to the matchers.
pub(super) fn put(
    rows: &mut OverrideRows,
    key: Key,
    pattern: &str,
    row: OverrideRow,
    normalizer: &AddressNormalizer,
) -> Result<(), String> {
    match rows {
        OverrideRows::Client(networks) => {
            networks.insert(any_network(pattern)?, row).map_err(|error| error.to_string())
        }
        OverrideRows::Field(_, table) | OverrideRows::Group(table) => key.insert(table, normalizer, pattern, row),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_pattern_keeps_its_sub_address_and_a_sender_pattern_does_not() {
        let normalizer = AddressNormalizer::new(Some('+'), None);
        for (key, pattern, value, expected) in [
            ("user", "Bob+x@Example.org", "bob+x@example.org", true),
            ("user", "bob+x@example.org", "bob@example.org", false),
            ("sender", "Bob+x@Example.org", "bob@example.org", true),
            ("sender", "bob+*@example.org", "bob@example.org", false),
        ] {
            let key = Key::named(key).unwrap();
            let mut table = PatternTable::new(key.shape());
            key.insert(&mut table, &normalizer, pattern, ()).unwrap();
            assert_eq!(table.find(value).is_some(), expected, "{} {pattern}", key.name());
        }
    }
}
