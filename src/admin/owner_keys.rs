//! Owner that an administrator asks about, and the keys of its budgets.

use crate::policy::budgets::{Key, KeyRef, Owner};
use crate::policy::limit::Limit;
use crate::policy::matching::Field;
use crate::policy::{BudgetViews, Policy, has_part};
use crate::time::Timestamp;

/// Owner as a search finds it: one field with its value.
#[derive(Clone)]
pub struct Wanted {
    pub owner: Owner,
    /// Name of the field, without the widths of networks.
    pub field: String,
    pub value: String,
    /// Domain of the wanted user or sender, with the field whose budgets the domain shares: `user-domain`.
    pub domain: Option<(&'static str, String)>,
}

impl Wanted {
    pub fn new(owner: &Owner) -> Option<Self> {
        let (field, value) = owner.parts().next()?;
        let field = field.split('/').next().unwrap_or_default().to_owned();
        let domain_field = match &*field {
            "user" => Some("user-domain"),
            "sender" => Some("sender-domain"),
            _ => None,
        };
        let domain = value.rsplit_once('@').map(|(_, domain)| domain.to_owned());
        Some(Self { owner: owner.clone(), field, value: value.to_owned(), domain: domain_field.zip(domain) })
    }

    /// Returns whether the budget of a key counts mail of the wanted owner: its own budget, or one that it shares with its
    /// domain.
    pub fn is_counted_in(&self, key: KeyRef<'_>) -> bool {
        let parts = || key.owners().filter_map(|part| part.split_once('='));
        let has_field = parts().any(|(name, _)| name.split('/').next() == Some(&*self.field));
        match &self.domain {
            _ if has_field => has_part(parts(), &self.field, &self.value),
            Some((field, domain)) => has_part(parts(), field, domain),
            None => false,
        }
    }

    /// Returns the names that decide whether a limit applies to the budget of an owner.
    pub fn subject<'a>(&'a self, owner: &Owner) -> Option<&'a Owner> {
        let has_field = owner.parts().any(|(name, _)| name.split('/').next() == Some(&*self.field));
        (!has_field).then_some(&self.owner)
    }

    pub fn is_part_of(&self, owner: &Owner) -> bool {
        has_part(owner.parts(), &self.field, &self.value)
    }

    /// Returns whether a suspension of this owner refuses the wanted owner's mail. The suspension of a domain refuses the
    /// mail of all its users.
    pub fn is_refused_by(&self, owner: &Owner) -> bool {
        let domain = self.domain.as_ref().filter(|(field, _)| *field == "user-domain");
        self.is_part_of(owner) || domain.is_some_and(|(field, domain)| has_part(owner.parts(), field, domain))
    }

    /// Returns whether budgets of a limit have the wanted field, or the field of its domain, in their owner.
    pub fn is_counted_by(&self, limit: &Limit) -> bool {
        let is_of = |word: &str| word == self.field || self.domain.as_ref().is_some_and(|(field, _)| word == *field);
        limit.watch.is_none() && limit.per.iter().any(|field| is_of(field.word()))
    }

    /// Returns the owner as text, such as `user=alice`.
    pub fn text(&self) -> String {
        format!("{}={}", self.field, self.value)
    }

    /// Returns the keys of the budgets whose owner is the wanted field alone, or its domain, or all, charged or not: also
    /// those of grants.
    pub fn own_keys(&self, policy: &Policy, now: Timestamp) -> Vec<Key> {
        let mut keys = Vec::new();
        for limit in policy.limits.iter().filter(|limit| limit.is_stored() && limit.per.len() <= 1) {
            // A network that is wider than the networks which the limit counts has many budgets: the search finds them.
            let Some(owner) = self.own_owner(policy, limit) else { continue };
            let own = Key::of_owner(limit.prefix(), &owner);
            let grant = policy
                .exceptions
                .grant_of(&limit.name, &owner)
                .filter(|grant| grant.term.holds(now) && grant.quota(limit).is_some());
            let key = grant.map_or_else(|| own.clone(), |grant| own.granted(grant.term.since));
            keys.extend(BudgetViews::new(policy, now).of(key.borrowed(), None).and_then(|view| view.total_key(&key)));
            keys.push(key);
        }
        keys
    }

    /// Returns the owner of the budget that a limit with at most one field has for the wanted owner.
    pub fn own_owner(&self, policy: &Policy, limit: &Limit) -> Option<Owner> {
        let text = match (&limit.per[..], &self.domain) {
            _ if limit.watch.is_some() => return None,
            ([], _) => "all".to_owned(),
            ([Field::Client(_)], _) if self.field == "client" => self.value.split('/').next()?.to_owned(),
            ([field], _) if field.word() == self.field => format!("{}={}", self.field, self.value),
            ([one], Some((field, domain))) if one.word() == *field => format!("{field}={domain}"),
            _ => return None,
        };
        limit.owner(&text, &policy.normalizer).ok()
    }
}
