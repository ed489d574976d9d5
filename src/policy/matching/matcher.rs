//! Matcher: the conditions of `match` and `except` that decide to which events a limit applies.

use super::field::Field;
use super::hours::Hours;
use super::networks::Networks;
use super::normalized_facts::{NormalizedFacts, NormalizedRecipient};
use super::pattern::PatternTable;
use crate::policy::request::LoginTrait;
use crate::policy::suspicion::SuspicionClass;
use std::sync::Arc;

/// Matcher of a limit. It matches if no table of `except` holds and at least one table of `match` holds. If `match` has
/// no table, only `except` decides.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    pub matches: Vec<AllOf>,
    pub except: Vec<AllOf>,
}

/// Conditions of one table. The table holds if all its conditions hold.
#[derive(Clone, Debug, Default)]
pub struct AllOf(pub Vec<Condition>);

/// Condition: one key of a table. The condition holds if at least one of the key's values matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Patterns for a field. Each pattern table contains the patterns of one list file, or the patterns that are
    /// written in the configuration itself.
    Field(Field, Vec<Arc<PatternTable<()>>>),
    Client(Vec<Arc<Networks<()>>>),
    Group(Vec<Arc<PatternTable<()>>>),
    Tls(bool),
    Authenticated(bool),
    /// Compares whether this property of the login is new for the user.
    New(LoginTrait, bool),
    /// Compares whether the user may send as the sender.
    OwnSender(bool),
    /// Compares whether the client is in a login network of the user.
    RegisteredNetwork(bool),
    MessageRecipients(Vec<Comparison>),
    /// Compares the budgets of these limits with their quotas. The limits are indices in the policy.
    Exceeded(Vec<usize>),
    /// Compares the suspicion score of the user with this class.
    Suspicion(SuspicionClass),
    Time(Vec<Hours>),
}

/// Comparison with a number, such as `> 5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    pub how: Operator,
    pub number: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Less,
    AtMost,
    Equal,
    AtLeast,
    More,
}

impl Comparison {
    /// Parses `> 5`, `<= 5`, `5`.
    pub fn parse(text: &str) -> Option<Self> {
        let signs = [
            ("<=", Operator::AtMost),
            (">=", Operator::AtLeast),
            ("<", Operator::Less),
            (">", Operator::More),
            ("=", Operator::Equal),
        ];
        let (how, rest) = signs
            .into_iter()
            .find_map(|(sign, how)| text.strip_prefix(sign).map(|rest| (how, rest)))
            .unwrap_or((Operator::Equal, text));
        let digits = rest.trim();
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| digits.parse().ok()).flatten().map(|number| Self { how, number })
    }

    fn holds(self, count: usize) -> bool {
        match self.how {
            Operator::Less => count < self.number,
            Operator::AtMost => count <= self.number,
            Operator::Equal => count == self.number,
            Operator::AtLeast => count >= self.number,
            Operator::More => count > self.number,
        }
    }
}

/// Facts of an event that conditions compare.
#[derive(Clone, Copy)]
pub struct Subject<'a, 'b> {
    pub facts: &'a NormalizedFacts<'b>,
    /// Recipient, if the event has one.
    pub recipient: Option<&'a NormalizedRecipient<'b>>,
    /// Number of the message's recipients, if this number is already known.
    pub recipients: Option<usize>,
}

impl Matcher {
    pub fn needs_recipient(&self) -> bool {
        self.any(Condition::is_of_recipient)
    }

    /// Returns whether a condition needs the number of recipients.
    pub fn needs_recipients(&self) -> bool {
        self.any(|condition| matches!(condition, Condition::MessageRecipients(_)))
    }

    /// Returns whether a condition needs to know the logged-in user.
    pub fn needs_login(&self) -> bool {
        self.any(|condition| {
            matches!(condition, Condition::Group(_) | Condition::Authenticated(_) | Condition::Suspicion(_))
        })
    }

    /// Returns whether a condition depends on the budget of another limit.
    pub fn has_exceeded(&self) -> bool {
        self.any(|condition| condition.exceeded().is_some())
    }

    /// Returns whether a condition depends on the suspicion score of the user.
    pub fn has_suspicion(&self) -> bool {
        self.any(|condition| condition.suspicion().is_some())
    }

    /// Returns whether a condition needs the novelty of the login.
    pub fn needs_novelty(&self) -> bool {
        self.any(|condition| matches!(condition, Condition::New(..)))
    }

    fn any(&self, is: impl Fn(&Condition) -> bool) -> bool {
        self.matches.iter().chain(&self.except).flat_map(|conditions| &conditions.0).any(is)
    }
}

impl Condition {
    /// Returns whether the result can differ between the events of a run.
    pub(in crate::policy) fn is_of_event(&self) -> bool {
        self.is_of_recipient() || matches!(self, Self::MessageRecipients(_))
    }

    fn is_of_recipient(&self) -> bool {
        matches!(self, Self::Field(field, _) if field.is_of_recipient())
    }

    /// Returns the limits of a condition `exceeded`.
    pub fn exceeded(&self) -> Option<&[usize]> {
        if let Self::Exceeded(limits) = self { Some(limits) } else { None }
    }

    /// Returns the class of a condition `suspicion`.
    pub fn suspicion(&self) -> Option<SuspicionClass> {
        if let Self::Suspicion(class) = self { Some(*class) } else { None }
    }

    /// Returns whether the condition holds. A condition on an unknown field does not hold.
    pub(in crate::policy) fn holds(&self, subject: Subject<'_, '_>) -> bool {
        let Subject { facts, recipient, recipients } = subject;
        let is_in =
            |tables: &[Arc<PatternTable<()>>], value: &str| tables.iter().any(|table| table.find(value).is_some());
        match self {
            Self::Field(field, tables) => field.value(facts, recipient).is_some_and(|value| is_in(tables, &value)),
            Self::Client(tables) => {
                facts.client().is_some_and(|client| tables.iter().any(|table| table.find(client).is_some()))
            }
            Self::Group(tables) => facts.groups().any(|group| is_in(tables, group)),
            Self::Tls(wanted) => facts.tls() == Some(*wanted),
            Self::Authenticated(wanted) => facts.authenticated() == *wanted,
            Self::New(property, wanted) => facts.is_new(*property) == Some(*wanted),
            Self::OwnSender(wanted) => facts.own_sender() == Some(*wanted),
            Self::RegisteredNetwork(wanted) => facts.registered_network() == Some(*wanted),
            Self::MessageRecipients(comparisons) => {
                recipients.is_some_and(|count| comparisons.iter().any(|comparison| comparison.holds(count)))
            }
            // Budgets are not loaded yet: see `policy/plan/exceeded.rs`.
            Self::Exceeded(_) | Self::Suspicion(_) => true,
            Self::Time(hours) => {
                let (day, minute) = facts.civil();
                hours.iter().any(|hours| hours.contains(day, minute))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_as_written() {
        for (text, number, holds) in [
            ("> 5", 5, false),
            (">5", 6, true),
            (">= 5", 5, true),
            ("< 5", 4, true),
            ("<5", 5, false),
            ("<= 5", 5, true),
            ("= 5", 5, true),
            ("5", 6, false),
        ] {
            assert_eq!(Comparison::parse(text).map(|comparison| comparison.holds(number)), Some(holds), "{text}");
        }
        for text in ["", ">", "five", "> -1", "5 <", "=> 5"] {
            assert_eq!(Comparison::parse(text), None, "{text}");
        }
    }
}
