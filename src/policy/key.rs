//! Whose budget it is: the key of a limit's state in every store.

use super::field::Field;
use super::matcher::Subject;
use super::normalize::NULL;
use crate::time::Timestamp;
use std::borrow::{Borrow, Cow};
use std::fmt::{self, Write as _};
use std::sync::Arc;

/// Names one budget. The text begins with the limit's name, what it counts and its algorithm, so that a limit whose numbers change
/// keeps its history and one whose meaning changes begins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key<T = Arc<str>>(T);

/// A key that stands in another text.
pub type KeyRef<'a> = Key<&'a str>;

/// Keys one after the other, in one text.
#[derive(Debug, Default)]
pub(super) struct Keys {
    text: String,
    /// Where each key ends.
    ends: Vec<usize>,
}

/// Whose a budget is, without of which limit: one part for each of `per`, in its order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(Arc<str>);

/// Stands between the parts of a key. No value contains it: names with control characters are refused where they come in.
pub(super) const SEPARATOR: char = '\x1f';

/// So many parts of a key say what the limit means; the others say whose budget it is.
const MEANING: usize = 3;

/// Stands for all new values of a field, in the key of the budget that they share. No client has a name like this: see [`Owners::name`].
pub const NEW: &str = "<new>";

/// What the owner part of a granted budget begins with, which says since when it is granted.
const GRANT: &str = "grant=";

impl Owner {
    /// The text of those whom a part of a key names, as [`Owners::name`] has it.
    pub(super) fn text(owners: &str) -> &str {
        owners.strip_prefix(SEPARATOR).unwrap_or(owners)
    }

    /// From its parts, such as `user=alice`, in the order of `per`.
    pub fn from_parts<'a>(parts: impl Iterator<Item = (Cow<'a, str>, &'a str)>) -> Self {
        let parts: Vec<String> = parts.map(|(field, value)| format!("{field}={value}")).collect();
        Self(parts.join(SEPARATOR.encode_utf8(&mut [0; 4])).into())
    }

    /// As a store wrote it.
    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The words of `per`, each with its value.
    pub fn parts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.split(SEPARATOR).filter_map(|part| part.split_once('='))
    }

    /// What kinds of values it has: the words of `per`.
    pub fn fields(&self) -> impl Iterator<Item = Option<Field>> {
        self.parts().map(|(field, _)| Field::parse(field))
    }
}

/// For people: `user=alice`, `client=192.0.2.0/24, sender=bob@example.org`; `all`, where one budget is for all.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("all");
        }
        for (n, (field, value)) in self.parts().enumerate() {
            // How wide a network is says its value.
            let word = field.split('/').next().unwrap_or_default();
            write!(f, "{}{word}={value}", if n > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

impl Key {
    /// The budget of an owner.
    pub fn of_owner(prefix: &str, owner: &Owner) -> Self {
        let mut text = prefix.to_owned();
        if !owner.0.is_empty() {
            text.push(SEPARATOR);
            text.push_str(&owner.0);
        }
        Self(text.into())
    }

    /// A key as a store wrote it.
    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    /// A key from its parts: see [`Key::parts`]. `None` if they are none of a key.
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
    /// The budget that owners, as [`Owners::name`] has them, have by a limit; `since` is when the grant began that holds for it, if one
    /// does. `room` is where it is written.
    pub(super) fn of(prefix: &str, owners: &str, since: Option<Timestamp>, room: &'a mut String) -> Self {
        room.clear();
        room.push_str(prefix);
        room.push_str(owners);
        if let Some(since) = since {
            add_grant(room, since);
        }
        Key(room)
    }

    /// A copy that lives by itself.
    pub fn owned(self) -> Key {
        Key(self.0.into())
    }
}

/// Makes it the key of the budget that takes its place while a grant holds, which began then.
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

    /// Whose budget it is.
    pub fn owner(&self) -> Owner {
        Owner(self.as_str().splitn(MEANING + 1, SEPARATOR).nth(MEANING).unwrap_or_default().into())
    }

    /// The budget that takes its place while a grant holds, which began then.
    pub fn granted(&self, since: Timestamp) -> Key {
        let mut text = self.as_str().to_owned();
        add_grant(&mut text, since);
        Key(text.into())
    }

    /// Whether it is the one of the sender of bounces.
    pub fn is_of_bounces(&self) -> bool {
        let mut owners = self.owners();
        owners.next().and_then(|owner| owner.split_once('=')) == Some(("sender", NULL)) && owners.next().is_none()
    }

    /// Since when it is granted, if it is the budget of a grant; and what it takes the place of.
    pub fn ungranted(&self) -> Option<(KeyRef<'_>, Timestamp)> {
        let (own, last) = self.as_str().rsplit_once(SEPARATOR)?;
        let since = last.strip_prefix(GRANT)?.parse().ok()?;
        Some((Key(own), Timestamp::from_micros(since)))
    }

    /// The budget of all of which the limit of this one counts a part.
    pub(super) fn of_others(&self, prefix: &str) -> Key {
        let owners = self.as_str().get(prefix.len()..).unwrap_or_default();
        Key([prefix, OTHERS, owners].concat().into())
    }

    /// Whether it is of a counter that lives only as long as the process.
    pub fn is_volatile(&self) -> bool {
        self.parts().nth(MEANING - 1).is_some_and(|meaning| meaning.starts_with(AT_ONCE))
    }

    /// The limit's name, what it counts, how it measures; then each owner as `user=alice`.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.as_str().split(SEPARATOR)
    }

    /// Whose budget it is: `user=alice`, one part for each of `per`.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        self.parts().skip(MEANING)
    }

    /// Says which limit's budget it is, without whose: see [`Limit::kinds`]. That of a grant is of the limit, too.
    pub fn kind(&self) -> String {
        let parts = self.parts().enumerate().filter(|(n, part)| *n < MEANING || !part.starts_with(GRANT));
        let names = parts.map(|(n, part)| match part.split_once('=') {
            Some((owner, _)) if n >= MEANING => owner,
            _ => part,
        });
        names.collect::<Vec<_>>().join("/")
    }
}

/// For people: `user-recipients/recipients/ewma/user=alice`.
impl<T: AsRef<str>> fmt::Display for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.as_str().replace(SEPARATOR, "/"))
    }
}

/// What is kept by its key is found by the text of one.
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
    /// Adds one: its place.
    pub(super) fn push(&mut self, key: KeyRef<'_>) -> usize {
        self.text.push_str(key.0);
        self.ends.push(self.text.len());
        self.ends.len() - 1
    }

    /// With room for so many.
    pub(super) fn with_room(keys: usize) -> Self {
        Self { text: String::with_capacity(keys * USUAL), ends: Vec::with_capacity(keys) }
    }

    /// The one at this place; they are numbered from 0.
    pub(super) fn get(&self, place: usize) -> KeyRef<'_> {
        let begin = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        Key(&self.text[begin..self.ends[place]])
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = KeyRef<'_>> {
        (0..self.ends.len()).map(|place| self.get(place))
    }
}

/// About the octets of a key.
const USUAL: usize = 80;

/// Whose budgets are kept: fields, and what stands before the value of each in a key.
#[derive(Debug)]
pub(super) struct Owners(Box<[Field]>, Box<[Box<str>]>);

impl Owners {
    pub(super) fn new(per: &[Field]) -> Self {
        Self(per.into(), per.iter().map(|field| format!("{SEPARATOR}{}=", field.name()).into()).collect())
    }

    pub(super) fn fields(&self) -> &[Field] {
        &self.0
    }

    /// The part of a key that names them, after its meaning; the error is what is not known.
    pub(super) fn name(&self, Subject { view, recipient, .. }: Subject<'_, '_>) -> Result<String, Field> {
        let mut name = String::with_capacity(USUAL);
        for (field, label) in self.0.iter().zip(&self.1) {
            let value = field.value(view, recipient).ok_or(*field)?;
            name.push_str(label);
            match field {
                // What a client calls itself may hold anything.
                _ if value == NEW => name.push('?'),
                Field::Helo => name.push_str(&value.replace(SEPARATOR, "?")),
                _ => name.push_str(&value),
            }
        }
        Ok(name)
    }
}

/// Tells the budget of all from that of the part that is counted.
pub(super) const OTHERS: &str = " of";

/// How the keys of budgets are marked that no file keeps.
pub(super) const AT_ONCE: &str = "at once";
