//! Contradiction of `match` and `except`: if `except` has everything that `match` names, the limit never applies.

use super::key::Key;
use crate::config::list::Lists;
use crate::config::section::Section;
use crate::config::values::any_network;
use crate::policy::matching::PatternTable;
use ipnet::IpNet;
use std::ops::Range;

/// Table of `match` or `except` as written.
#[derive(Default)]
pub struct Written {
    pub keys: Vec<WrittenKey>,
}

/// Key of a table with its values as written.
pub struct WrittenKey {
    pub name: &'static str,
    pub values: Vec<String>,
    pub span: Range<usize>,
}

/// Maximum number of pairs of networks to compare.
const MAX_PAIRS: usize = 1_000_000;

/// Warns if, for each table of `match`, a table of `except` matches everything that the table of `match` matches.
pub fn check(s: &Section<'_>, matches: &[Written], except: &[Written], lists: &Lists) {
    let outer = |inner: &Written| except.iter().find(|outer| is_within(inner, outer, lists));
    let outers: Option<Vec<&Written>> = matches.iter().map(outer).collect();
    let Some(first) = outers.as_ref().and_then(|outers| outers.first()?.keys.first()) else { return };
    let message = format!("this limit never applies: except has every {} that match names", first.name);
    s.warn(&first.span, message, Some("except is for a part of what match names: leave one of them out"));
}

/// Returns whether the table `outer` matches everything that the table `inner` matches.
fn is_within(inner: &Written, outer: &Written, lists: &Lists) -> bool {
    let is_wider = |outer: &WrittenKey| {
        inner.keys.iter().find(|key| key.name == outer.name).is_some_and(|inner| is_in(inner, outer, lists))
    };
    !outer.keys.is_empty() && outer.keys.iter().all(is_wider)
}

/// Returns whether the values of the key `outer` include all values of the key `inner`.
fn is_in(inner: &WrittenKey, outer: &WrittenKey, lists: &Lists) -> bool {
    match Key::named(outer.name) {
        Some(Key::Client) => {
            let parsed = |key| values(key, lists).into_iter().map(|value| any_network(value).ok()).collect();
            let (Some(inner), Some(outer)): (Option<Vec<IpNet>>, Option<Vec<IpNet>>) = (parsed(inner), parsed(outer))
            else {
                return false;
            };
            let is_few = inner.len().saturating_mul(outer.len()) <= MAX_PAIRS;
            is_few && !inner.is_empty() && inner.iter().all(|one| outer.iter().any(|network| network.contains(one)))
        }
        Some(key) => {
            let mut table = PatternTable::new(key.shape());
            // A pattern that occurs twice is reported elsewhere.
            values(outer, lists).into_iter().for_each(|pattern| drop(table.insert(pattern, ())));
            // If one pattern matches the text of another pattern, it matches everything that the other pattern matches.
            let inner = values(inner, lists);
            !inner.is_empty() && inner.into_iter().all(|pattern| table.find(&pattern.to_lowercase()).is_some())
        }
        None => inner.values == outer.values,
    }
}

/// Returns the values of a key. A reference to a list is replaced by the items of the list.
fn values<'v>(key: &'v WrittenKey, lists: &'v Lists) -> Vec<&'v str> {
    let items = |value: &'v str| match value.strip_prefix("list:").map(|name| lists.get(name)) {
        Some(list) => list.into_iter().flat_map(|list| &list.items).map(|item| &*item.text).collect(),
        None => vec![value],
    };
    key.values.iter().flat_map(|value| items(value)).collect()
}
