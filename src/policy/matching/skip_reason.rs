//! Reasons why a limit does not apply to an event, with a text for people.

use super::field::Field;
use super::matcher::{AllOf, Condition, Matcher, Subject};
use std::borrow::Cow;
use std::fmt;

/// Reason why a limit does not apply to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// The limit neither counts nor checks events of this stage.
    Elsewhere,
    /// The limit needs this field for the owner of the budget or for its distinct value, and the field is unknown.
    Unknown(Field),
    /// The size of the message is unknown.
    UnknownSize,
    /// No table of `match` holds.
    NoMatch,
    /// The table of `except` at this index holds.
    Except(usize),
    /// No accepted recipient matches.
    NoRecipient,
    /// The only tables of `match` that hold, hold while another limit is exceeded, and it is not exceeded.
    NotExceeded,
    /// The only tables of `match` that hold, hold for users in a class of `[suspicion]`, and the user is not in it.
    NotSuspicious,
    /// The budget has counted this message already.
    Counted,
    /// The quota is unlimited.
    Unlimited,
}

/// Key of a condition, and the value found; `None` if the value is unknown.
pub type Found = (Cow<'static, str>, Option<String>);

/// Skip reason with the values found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkipExplanation {
    pub why: SkipReason,
    /// If no table of `match` holds: for each table, the conditions that fail. If a table of `except` holds: the
    /// conditions of that table. If a condition `exceeded` does not hold: the limits that it names, with their levels.
    pub tables: Vec<Vec<Found>>,
}

impl SkipReason {
    /// Returns the word in output for machines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Elsewhere => "stage",
            Self::Unknown(_) | Self::UnknownSize => "unknown",
            Self::NoMatch | Self::NoRecipient | Self::NotExceeded | Self::NotSuspicious => "match",
            Self::Except(_) => "except",
            Self::Counted => "counted",
            Self::Unlimited => "unlimited",
        }
    }
}

impl SkipExplanation {
    pub(in crate::policy) fn new(why: SkipReason, matcher: &Matcher, subject: Subject<'_, '_>) -> Self {
        let named = |condition: &Condition| (condition.name(), condition.found(subject));
        let unmet = |table: &AllOf| table.0.iter().filter(|one| !one.holds(subject)).map(named).collect();
        let tables = match why {
            SkipReason::NoMatch => matcher.matches.iter().map(unmet).collect(),
            SkipReason::Except(index) => vec![matcher.except[index].0.iter().map(named).collect()],
            _ => Vec::new(),
        };
        Self { why, tables }
    }

    /// Returns a reason without values.
    pub(in crate::policy) fn plain(why: SkipReason) -> Self {
        Self { why, tables: Vec::new() }
    }

    /// Returns the unknown facts that are perhaps the reason why the limit does not apply.
    pub fn unknown(&self) -> impl Iterator<Item = Cow<'static, str>> {
        let own = match self.why {
            SkipReason::Unknown(field) => Some(field.name()),
            SkipReason::UnknownSize => Some("size".into()),
            _ => None,
        };
        let keys = self.tables.iter().flatten().filter(|(_, value)| value.is_none() && self.why == SkipReason::NoMatch);
        own.into_iter().chain(keys.map(|(name, _)| name.clone()))
    }
}

impl fmt::Display for SkipExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = |(name, value): &Found| match value {
            Some(value) => format!("{name} is {value}"),
            None => format!("{name} is not known"),
        };
        let table = |table: &Vec<Found>| table.iter().map(key).collect::<Vec<_>>().join(", ");
        let tables = || self.tables.iter().map(table).collect::<Vec<_>>().join("; ");
        match self.why {
            SkipReason::Elsewhere => f.write_str("not at this stage"),
            SkipReason::Unknown(field) => write!(f, "{} is not known", field.name()),
            SkipReason::UnknownSize => f.write_str("the size is not known"),
            SkipReason::NoMatch => write!(f, "no match: {}", tables()),
            SkipReason::Except(_) => write!(f, "excepted: {}", tables()),
            SkipReason::NoRecipient => f.write_str("no match: none of the accepted recipients"),
            SkipReason::NotExceeded if self.tables.iter().all(Vec::is_empty) => f.write_str("not exceeded"),
            SkipReason::NotExceeded => write!(f, "not exceeded: {}", tables()),
            SkipReason::NotSuspicious if self.tables.is_empty() => f.write_str("no match: suspicion"),
            SkipReason::NotSuspicious => write!(f, "no match: {}", tables()),
            SkipReason::Counted => f.write_str("the message is counted already"),
            SkipReason::Unlimited => f.write_str("unlimited"),
        }
    }
}

impl Condition {
    /// Returns the key in the configuration.
    pub fn name(&self) -> Cow<'static, str> {
        match self {
            Self::Field(field, _) => field.name(),
            Self::Client(_) => "client".into(),
            Self::Group(_) => "group".into(),
            Self::Tls(_) => "tls".into(),
            Self::Authenticated(_) => "authenticated".into(),
            Self::New(property, _) => property.key().into(),
            Self::OwnSender(_) => "own-sender".into(),
            Self::RegisteredNetwork(_) => "registered-network".into(),
            Self::MessageRecipients(_) => "message-recipients".into(),
            Self::Exceeded(_) => "exceeded".into(),
            Self::Suspicion(_) => "suspicion".into(),
            Self::Time(_) => "time".into(),
        }
    }

    /// Returns the value that the condition checks; `None` if the value is unknown.
    fn found(&self, Subject { facts, recipient, recipients }: Subject<'_, '_>) -> Option<String> {
        match self {
            Self::Field(field, _) => field.value(facts, recipient).map(Cow::into_owned),
            Self::Client(_) => facts.client().map(|client| client.to_string()),
            Self::Group(_) => Some(facts.groups().collect::<Vec<_>>().join(", ")).filter(|groups| !groups.is_empty()),
            Self::Tls(_) => facts.tls().map(|tls| tls.to_string()),
            Self::Authenticated(_) => Some(facts.authenticated().to_string()),
            Self::New(property, _) => facts.is_new(*property).map(|new| new.to_string()),
            Self::OwnSender(_) => facts.own_sender().map(|own| own.to_string()),
            Self::RegisteredNetwork(_) => facts.registered_network().map(|is| is.to_string()),
            Self::MessageRecipients(_) => recipients.map(|count| count.to_string()),
            // The decision finds the levels.
            Self::Exceeded(_) | Self::Suspicion(_) => None,
            Self::Time(_) => {
                let (day, minute) = facts.civil();
                Some(format!("{day:?} {:02}:{:02}", minute / 60, minute % 60))
            }
        }
    }
}
