//! Keys of a limit's budgets: their prefix, their kind, and the keys that a client can choose freely.

use super::Limit;
use super::count::Count;
use super::quota::{Quota, Scope};
use crate::policy::budgets::{AT_ONCE, NEW, Owner, SEPARATOR, TOTAL};
use crate::policy::matching::{Field, Subject};
use std::borrow::Cow;

impl Limit {
    /// Builds the prefix of the limit's keys: its name, its count, and its algorithm, from `meaning`.
    pub(in crate::policy) fn key_prefix(&self) -> Box<str> {
        [&*self.name, self.count.name(), &*self.meaning()].join(SEPARATOR.encode_utf8(&mut [0; 4])).into()
    }

    /// Returns the prefix of the keys of all budgets of the limit.
    pub fn prefix(&self) -> &str {
        &self.derived.prefix
    }

    /// Returns the third part of the limit's keys: the algorithm or the kind of counter, with the number of the rate
    /// and the distinct field. A limit keeps its budgets if only its rate changes. The limit gets new budgets if this
    /// part changes.
    fn meaning(&self) -> Cow<'static, str> {
        let way: Cow<'static, str> = match self.quota {
            Quota::Counter { scope: Scope::AtOnce, .. } => AT_ONCE.into(),
            Quota::Counter { .. } => "counter".into(),
            Quota::Share(_) => "share".into(),
            Quota::Regularity(_) => "regularity".into(),
            Quota::Likelihood(_) => "likelihood".into(),
            Quota::Never | Quota::Unlimited | Quota::Rate { .. } => self.algorithm.name().into(),
        };
        let way = match self.ordinal {
            0 => way,
            n => format!("{way} {}", n + 1).into(),
        };
        match self.distinct {
            None => way,
            Some(distinct) => format!("{way} distinct {}", distinct.what.name()).into(),
        }
    }

    /// Returns the kinds of the limit's keys, which are keys without the owner's values:
    /// `user-recipients/recipients/ewma/user`. A limit keeps its kind, and so its budgets, if only its rate changes. A
    /// limit on a share has two kinds: one kind for the rejected part and one kind for the total.
    pub fn kinds(&self) -> impl Iterator<Item = String> {
        let kind = |prefix: &str| {
            let owners = self.per.iter().map(|field| field.name().into_owned());
            prefix.split(SEPARATOR).map(str::to_owned).chain(owners).collect::<Vec<_>>().join("/")
        };
        let own = self.is_stored().then(|| kind(&self.derived.prefix));
        let others = matches!(self.quota, Quota::Share(_)).then(|| kind(&format!("{}{TOTAL}", self.derived.prefix)));
        own.into_iter().chain(others).collect::<Vec<_>>().into_iter()
    }
}

impl Limit {
    /// Returns whether a client can send any number of different values of this field. `has_account`: the user has an
    /// account.
    fn is_chosen(&self, field: Field, has_account: bool) -> bool {
        match field {
            // The location follows from the address of the client, and there are not many locations.
            Field::Listener | Field::Country | Field::Asn | Field::Destination => false,
            // A client that fails to log in may have invented the user.
            Field::User | Field::UserDomain => self.count == Count::LoginFailures && !has_account,
            Field::Client(_)
            | Field::Helo
            | Field::Sender
            | Field::SenderDomain
            | Field::Recipient
            | Field::RecipientDomain => true,
        }
    }

    /// Returns whether a client can cause any number of different keys. `has_account`: the user has an account.
    pub(in crate::policy) fn has_chosen_key(&self, has_account: bool) -> bool {
        self.per.iter().any(|field| self.is_chosen(*field, has_account))
    }

    /// Returns the owner part of the key of the budget that new keys share. `owners` is the owner part of a new key. In
    /// the result, [`NEW`] replaces each value that clients can choose.
    pub(in crate::policy) fn shared_owners(&self, owners: &str, has_account: bool) -> String {
        let mut shared = String::with_capacity(owners.len());
        for (field, part) in self.per.iter().zip(Owner::text(owners).split(SEPARATOR)) {
            shared.push(SEPARATOR);
            match part.split_once('=').filter(|_| self.is_chosen(*field, has_account)) {
                Some((name, _)) => shared.extend([name, "=", NEW]),
                None => shared.push_str(part),
            }
        }
        shared
    }
}

/// Typical length of the owner part of a key in octets, for which memory is reserved.
const USUAL_OWNER: usize = 80;

/// Fields of an owner, each with the text before its value in a key.
#[derive(Debug)]
pub struct OwnerFields(Box<[Field]>, Box<[Box<str>]>);

impl OwnerFields {
    pub(in crate::policy) fn new(per: &[Field]) -> Self {
        Self(per.into(), per.iter().map(|field| format!("{SEPARATOR}{}=", field.name()).into()).collect())
    }

    pub(in crate::policy) fn fields(&self) -> &[Field] {
        &self.0
    }

    /// Returns the owner part of a key, or an error that names the field whose value is unknown.
    pub(in crate::policy) fn name(&self, Subject { facts, recipient, .. }: Subject<'_, '_>) -> Result<String, Field> {
        let mut name = String::with_capacity(USUAL_OWNER);
        for (field, label) in self.0.iter().zip(&self.1) {
            let value = field.value(facts, recipient).ok_or(*field)?;
            name.push_str(label);
            match field {
                // A client can send any text in EHLO, including `<new>` and the separator. A `?` replaces `<new>` and
                // each separator.
                _ if value == NEW => name.push('?'),
                Field::Helo => name.push_str(&value.replace(SEPARATOR, "?")),
                _ => name.push_str(&value),
            }
        }
        Ok(name)
    }
}
