//! Keys of budgets. A budget has the same key in every store.

use crate::policy::address::NULL_SENDER;
use crate::time::Timestamp;
use std::borrow::{Borrow, Cow};
use std::fmt::{self, Write as _};
use std::sync::Arc;

/// Key of one budget. Its text begins with the limit's name, its count and its algorithm. So a limit keeps its budgets
/// when its rate changes, and starts with new budgets when its count or algorithm changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key<T = Arc<str>>(T);

/// Key that borrows its text.
pub type KeyRef<'a> = Key<&'a str>;

/// List of keys. One text contains all keys, one after the other.
#[derive(Debug, Default)]
pub(in crate::policy) struct Keys {
    text: String,
    /// For each key, the offset in `text` at which the key ends.
    ends: Vec<usize>,
}

/// Owner of a budget, such as `user=alice`: one part for each field of `per`, in the order of `per`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(Arc<str>);

/// Separates the parts of a key. No value contains the separator, because names with control characters are refused on
/// input.
pub(in crate::policy) const SEPARATOR: char = '\x1f';

/// Number of parts of a key before the owner: the limit's name, its count, and its algorithm with variants.
const MEANING: usize = 3;

/// Value in the key of a shared budget. After clients have created too many budgets, all new values of a field share
/// this budget. No client can send this value: see `OwnerFields::name`.
pub const NEW: &str = "<new>";

/// Prefix of the last part in the key of a grant's own budget. After the prefix, this part contains the time when the
/// grant began, in microseconds.
const GRANT: &str = "grant=";

/// First part of the key of a sign's points. No limit has this name, because a limit's name has no space.
const SIGN: &str = " sign";

/// Third part of the key of a sign's points.
const POINTS: &str = "points";

impl Owner {
    /// Returns the text of an [`Owner`]. `owners` is the owner part of a key, as `OwnerFields::name` returns it.
    pub(in crate::policy) fn text(owners: &str) -> &str {
        owners.strip_prefix(SEPARATOR).unwrap_or(owners)
    }

    /// Builds an owner from its parts, such as `user=alice`. The parts must be in the order of `per`.
    pub fn from_parts<'a>(parts: impl Iterator<Item = (Cow<'a, str>, &'a str)>) -> Self {
        let parts: Vec<String> = parts.map(|(field, value)| format!("{field}={value}")).collect();
        Self(parts.join(SEPARATOR.encode_utf8(&mut [0; 4])).into())
    }

    /// Parses an owner in the form in which a store wrote it.
    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the fields of `per`, each with its value.
    pub fn parts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.split(SEPARATOR).filter_map(|part| part.split_once('='))
    }
}

/// Text for people: `user=alice`, `client=192.0.2.0/24, sender=bob@example.org`. If a limit has one budget for
/// everybody, the text of the owner is `all`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("all");
        }
        for (n, (field, value)) in self.parts().enumerate() {
            // Leave out the widths in the field's name (`client/24/56`), because the value shows the prefix length.
            let word = field.split('/').next().unwrap_or_default();
            write!(f, "{}{word}={value}", if n > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

impl Key {
    /// Returns the key of an owner's budget. `prefix` is the part of the key that names the limit.
    pub fn of_owner(prefix: &str, owner: &Owner) -> Self {
        let mut text = prefix.to_owned();
        if !owner.0.is_empty() {
            text.push(SEPARATOR);
            text.push_str(&owner.0);
        }
        Self(text.into())
    }

    /// Parses a key in the form in which a store wrote it.
    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    /// Builds a key from its parts, in the form that [`Key::parts`] returns. `None` if a part contains the separator,
    /// or if the limit has no name.
    pub fn from_parts<'a>(
        limit: &str,
        count: &str,
        meaning: &str,
        owners: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Option<Self> {
        let mut text = [limit, count, meaning].join(SEPARATOR.encode_utf8(&mut [0; 4]));
        let mut parts = MEANING;
        for (owner, value) in owners {
            text.extend([SEPARATOR.encode_utf8(&mut [0; 4]), owner, "=", value]);
            parts += 1;
        }
        let is_whole = text.split(SEPARATOR).count() == parts && !limit.is_empty();
        is_whole.then(|| Self(text.into()))
    }
}

impl<'a> KeyRef<'a> {
    /// Writes the key of a budget to `buffer`. `prefix` is the part of the key that names the limit. `owners` is the
    /// result of `OwnerFields::name`. `since` is the time when the owner's valid grant began, if the owner has a grant.
    pub(in crate::policy) fn of(prefix: &str, owners: &str, since: Option<Timestamp>, buffer: &'a mut String) -> Self {
        buffer.clear();
        buffer.push_str(prefix);
        buffer.push_str(owners);
        if let Some(since) = since {
            add_grant(buffer, since);
        }
        Key(buffer)
    }

    /// Writes the key of the points that a sign has for a user to `buffer`. `limit` is the name of the sign's limit, and
    /// `user` is normalized.
    pub(in crate::policy) fn of_sign(limit: &str, user: &str, buffer: &'a mut String) -> Self {
        let mark = SEPARATOR.encode_utf8(&mut [0; 4]).to_owned();
        let user = if user == NEW { "?" } else { user };
        buffer.clear();
        buffer.extend([SIGN, &mark, limit, &mark, POINTS, &mark, "user=", user]);
        Key(buffer)
    }

    /// Returns the name of the limit and the user, if the budget has the points of a sign.
    pub(in crate::policy) fn sign(self) -> Option<(&'a str, &'a str)> {
        let mut parts = self.0.strip_prefix(SIGN)?.strip_prefix(SEPARATOR)?.split(SEPARATOR);
        Some((parts.next()?, parts.nth(1)?.strip_prefix("user=")?))
    }

    /// Returns a key with this text, which has the form that [`Key::parts`] describes.
    pub fn of_text(text: &'a str) -> Self {
        Key(text)
    }

    /// Returns the text of the key, for as long as the key borrows it.
    pub fn text(self) -> &'a str {
        self.0
    }

    /// Returns the part of the owner that decides with which other budgets this budget is stored: the user, or else the
    /// first field, or else the whole key.
    pub fn neighbourhood(self) -> &'a str {
        let mut owners = self.0.split(SEPARATOR).skip(MEANING);
        let first = owners.clone().next();
        owners.find(|part| part.starts_with("user=")).or(first).unwrap_or(self.0)
    }

    /// Returns a copy that owns its text.
    pub fn owned(self) -> Key {
        Key(self.0.into())
    }
}

/// Changes the key of a budget into the key of the budget of a grant. `since` is the time when the grant began.
fn add_grant(key: &mut String, since: Timestamp) {
    // Writing to a text never fails.
    let _ = write!(key, "{SEPARATOR}{GRANT}{}", since.micros());
}

impl<T: AsRef<str>> Key<T> {
    pub fn as_str(&self) -> &str {
        self.0.as_ref()
    }

    pub fn borrowed(&self) -> KeyRef<'_> {
        Key(self.as_str())
    }

    /// Returns the owner of the budget.
    pub fn owner(&self) -> Owner {
        Owner(self.as_str().splitn(MEANING + 1, SEPARATOR).nth(MEANING).unwrap_or_default().into())
    }

    /// Returns the prefix, which is the same for all budgets of a limit, and the rest: the parts of the owner, each after
    /// a separator.
    pub fn split_prefix(&self) -> (&str, &str) {
        let text = self.as_str();
        let end = text.match_indices(SEPARATOR).nth(MEANING - 1).map_or(text.len(), |(at, _)| at);
        text.split_at(end)
    }

    /// Returns the key of the budget that replaces this budget during a grant. `since` is the time when the grant
    /// began.
    pub fn granted(&self, since: Timestamp) -> Key {
        let mut text = self.as_str().to_owned();
        add_grant(&mut text, since);
        Key(text.into())
    }

    /// Returns whether the owner is the null sender.
    pub fn is_of_bounces(&self) -> bool {
        let mut owners = self.owners();
        owners.next().and_then(|owner| owner.split_once('=')) == Some(("sender", NULL_SENDER))
            && owners.next().is_none()
    }

    /// Returns, for the budget of a grant, the key of the budget that the grant's budget replaces, and the time when
    /// the grant began. Returns `None` if this is not the budget of a grant.
    pub fn ungranted(&self) -> Option<(KeyRef<'_>, Timestamp)> {
        let (own, last) = self.as_str().rsplit_once(SEPARATOR)?;
        let since = last.strip_prefix(GRANT)?.parse().ok()?;
        Some((Key(own), Timestamp::from_micros(since)))
    }

    /// Returns the key of the total (of recipients or messages). `self` must be the key of the rejected part of that
    /// total. `prefix` is the part of the key that names the limit.
    pub(in crate::policy) fn of_total(&self, prefix: &str) -> Key {
        let owners = self.as_str().get(prefix.len()..).unwrap_or_default();
        Key([prefix, TOTAL, owners].concat().into())
    }

    /// Returns whether the budget is a counter that no store writes to a file. Such a counter starts at 0 when the
    /// process starts.
    pub fn is_volatile(&self) -> bool {
        self.parts().nth(MEANING - 1).is_some_and(|meaning| meaning.starts_with(AT_ONCE))
    }

    /// Returns the parts: the limit's name, the count and the algorithm, followed by each part of the owner, such as
    /// `user=alice`.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.as_str().split(SEPARATOR)
    }

    /// Returns the parts of the owner, such as `user=alice`: one part for each field of `per`.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        self.parts().skip(MEANING)
    }

    /// Returns the kind: the key without the owner's values, such as `user-recipients/recipients/ewma/user`. The kind
    /// is one of the limit's [`kinds`](crate::policy::limit::Limit::kinds), also for the budget of a grant.
    pub fn kind(&self) -> String {
        let parts = self.parts().enumerate().filter(|(n, part)| *n < MEANING || !part.starts_with(GRANT));
        let names = parts.map(|(n, part)| match part.split_once('=') {
            Some((owner, _)) if n >= MEANING => owner,
            _ => part,
        });
        names.collect::<Vec<_>>().join("/")
    }
}

/// Text for people: `user-recipients/recipients/ewma/user=alice`.
impl<T: AsRef<str>> fmt::Display for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.as_str().replace(SEPARATOR, "/"))
    }
}

/// Allows a look-up by text in a map with keys of this type.
impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Owner {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl Keys {
    /// Adds a key, and returns its index.
    pub(in crate::policy) fn push(&mut self, key: KeyRef<'_>) -> usize {
        self.text.push_str(key.0);
        self.ends.push(self.text.len());
        self.ends.len() - 1
    }

    /// Reserves memory for this many keys.
    pub(in crate::policy) fn with_capacity(keys: usize) -> Self {
        Self { text: String::with_capacity(keys * USUAL), ends: Vec::with_capacity(keys) }
    }

    /// Returns the key at this index.
    pub(in crate::policy) fn get(&self, index: usize) -> KeyRef<'_> {
        let begin = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Key(&self.text[begin..self.ends[index]])
    }

    pub(in crate::policy) fn iter(&self) -> impl ExactSizeIterator<Item = KeyRef<'_>> {
        (0..self.ends.len()).map(|index| self.get(index))
    }
}

/// Typical length of a key in octets, for which memory is reserved.
const USUAL: usize = 80;

/// Part in the key of the total of a share. The rejected part of that total has a budget of its own.
pub(in crate::policy) const TOTAL: &str = " of";

/// Part in the keys of counters of concurrent sessions. These counters are never written to a file.
pub(in crate::policy) const AT_ONCE: &str = "at once";
