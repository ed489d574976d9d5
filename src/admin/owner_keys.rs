//! Owner that an administrator asks about, and the keys of its budgets.

use crate::policy::budgets::{Key, Owner};
use crate::policy::limit::Limit;
use crate::policy::matching::Field;
use crate::policy::{BudgetViews, Policy, has_part};
use crate::time::Timestamp;

/// Owner as a search finds it: one field with its value.
#[derive(Clone)]
pub struct Wanted {
    /// Name of the field, without the widths of networks.
    pub field: String,
    pub value: String,
}

impl Wanted {
    pub fn new(owner: &Owner) -> Option<Self> {
        let (field, value) = owner.parts().next()?;
        let field = field.split('/').next().unwrap_or_default().to_owned();
        Some(Self { field, value: value.to_owned() })
    }

    /// Returns the owner as text, such as `user=alice`.
    pub fn text(&self) -> String {
        format!("{}={}", self.field, self.value)
    }

    pub fn is_part_of(&self, owner: &Owner) -> bool {
        has_part(owner.parts(), &self.field, &self.value)
    }

    /// Returns whether a suspension of this owner refuses the wanted owner's mail. The suspension of a domain refuses the
    /// mail of all its users.
    pub fn is_refused_by(&self, owner: &Owner) -> bool {
        let domain = || self.value.rsplit_once('@').map(|(_, domain)| domain).filter(|_| self.field == "user");
        self.is_part_of(owner) || domain().is_some_and(|domain| has_part(owner.parts(), "user-domain", domain))
    }

    /// Returns whether budgets of a limit have the wanted field in their owner.
    pub fn is_counted_by(&self, limit: &Limit) -> bool {
        limit.watch.is_none() && limit.per.iter().any(|field| field.word() == self.field)
    }

    /// Returns the keys of the budgets whose owner is the wanted field alone, charged or not: also those of grants.
    pub fn own_keys(&self, policy: &Policy, now: Timestamp) -> Vec<Key> {
        let mut keys = Vec::new();
        for limit in policy.limits.iter().filter(|limit| limit.is_stored() && limit.per.len() == 1) {
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

    pub fn own_owner(&self, policy: &Policy, limit: &Limit) -> Option<Owner> {
        if !self.is_counted_by(limit) || limit.per.len() != 1 {
            return None;
        }
        let text = match limit.per[0] {
            Field::Client(_) => self.value.split('/').next()?.to_owned(),
            _ => format!("{}={}", self.field, self.value),
        };
        limit.owner(&text, &policy.normalizer).ok()
    }
}
