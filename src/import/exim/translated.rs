//! Conditions of Exim, translated into conditions of limits.

use super::super::limit::{Condition, MatchValue};
use super::list::List;

/// Translation of one or several conditions of Exim.
#[derive(Debug, Default, PartialEq)]
pub struct Translated {
    /// Conditions that the mail must meet.
    pub holds: Vec<Condition>,
    /// Conditions that the mail must not meet, not even one of them.
    pub fails: Vec<Condition>,
    /// No mail from the network can meet the condition: only mail of local programs can.
    pub is_never: bool,
    /// Difference between the condition and its translation.
    pub difference: Option<&'static str>,
}

impl Translated {
    /// Returns the translation of a condition that only a part of the mail with this flag meets.
    pub fn part_of(key: &'static str, difference: &'static str) -> Self {
        Self { difference: Some(difference), ..Self::flag(key, true) }
    }

    /// Returns the translation of a condition that equals a key of `match` with the value true or false.
    pub fn flag(key: &'static str, flag: bool) -> Self {
        let condition = Condition { key, value: MatchValue::Flag(flag) };
        Self { holds: vec![condition], ..Self::default() }
    }

    /// Adds another translation: the mail must meet both translations.
    pub fn join(&mut self, other: Self) {
        self.holds.extend(other.holds);
        self.fails.extend(other.fails);
        self.is_never |= other.is_never;
        self.difference = self.difference.or(other.difference);
    }

    /// Returns the keys of `match` and `except` that the condition becomes.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.holds.iter().chain(&self.fails).map(|condition| condition.key)
    }
}

/// Translates a list: the value of a field must be in the list, or, if `negated`, must not be in the list.
pub fn of_list(key: &'static str, list: List, negated: bool) -> Result<Translated, String> {
    let texts = |values| Condition { key, value: MatchValue::Texts(values) };
    let one = |values: Vec<String>| if values.is_empty() { Vec::new() } else { vec![texts(values)] };
    let is_empty = list.among.as_ref().is_some_and(Vec::is_empty);
    match (negated, list.among, list.but) {
        (false, among, but) => Ok(Translated {
            holds: one(among.unwrap_or_default()),
            fails: one(but),
            is_never: is_empty,
            difference: None,
        }),
        (true, Some(among), but) if but.is_empty() => Ok(Translated { fails: one(among), ..Translated::default() }),
        (true, None, but) => Ok(Translated { is_never: but.is_empty(), holds: one(but), ..Translated::default() }),
        (true, Some(_), _) => Err("a list with exceptions cannot be negated".to_owned()),
    }
}
