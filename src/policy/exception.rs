//! Temporary exceptions from the limits. A grant replaces a limit's rate for one owner. A suspension refuses the mail of
//! one owner. The register of direct ways is kept with them, because its entries begin, end and are stored as they do.

use super::Policy;
pub use super::suspension::{AllowedRecipients, NewPassword, PasswordFingerprint, Suspension, SuspensionRules};
pub use super::term::{By, Length, Term, UNTIL_RELEASED};
use crate::policy::budgets::{Key, KeyRef, Owner};
use crate::policy::egress::{EgressEntry, EgressKey, EgressRule, Register, parse_network};
use crate::policy::limit::{Limit, Quota, RateTerms};
use crate::policy::matching::{Field, NormalizedFacts};
use crate::time::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;

/// All exceptions. An expired exception has no effect, even before it is removed.
#[derive(Clone, Debug, Default)]
pub struct Exceptions {
    /// Grants, first by the limit's name, then by the owner.
    grants: HashMap<Arc<str>, HashMap<Owner, Arc<Grant>>>,
    suspensions: HashMap<Owner, Arc<Suspension>>,
    /// Fields of the owners of suspensions, such as `user`.
    suspended: Vec<Field>,
    egress: Arc<Register>,
    /// Number of changes of suspensions and of the register, so that a reader of them notices a change.
    egress_changes: u64,
}

/// Exceptions that have been removed because they had ended.
#[derive(Default)]
pub struct Ended {
    pub grants: Vec<Arc<Grant>>,
    pub suspensions: Vec<Arc<Suspension>>,
    pub entries: Vec<Arc<EgressEntry>>,
}

/// Grant: gives one owner a rate that is higher or lower than the limit's rate. While the grant is valid, the owner's
/// mail is charged to a budget of the grant itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Name of the limit.
    pub limit: Arc<str>,
    pub owner: Owner,
    /// Rate that replaces all rates of the limit, in the syntax of the configuration: `500 / 1d`, `unlimited`.
    pub rate: Arc<str>,
    pub term: Term,
}

/// Maximum number of suspensions. When this number is reached, Weir refuses senders who exceed a limit, but does not
/// suspend them.
pub const MAX_SUSPENSIONS: usize = 10_000;

impl Grant {
    /// Returns the quota of the grant, which replaces the limit's quota. Returns `None` if the configuration has since
    /// given the limit another kind of rate.
    pub fn quota(&self, limit: &Limit) -> Option<Quota> {
        if limit.ordinal > 0 {
            return Some(Quota::Unlimited);
        }
        let quota = RateTerms::of(limit).quota(&self.rate).ok()?;
        quota.is_like(&limit.quota).then_some(quota)
    }
}

impl Policy {
    /// Returns the reason why a valid grant has no effect; `None` if it has an effect.
    pub fn why_inert(&self, grant: &Grant) -> Option<&'static str> {
        let of_name = |limit: &&Limit| limit.name == grant.limit && limit.watch.is_none();
        let Some(limit) = self.limits.iter().find(of_name) else { return Some("there is no such limit any more") };
        if !grant.owner.fields().eq(limit.per.iter().map(|field| Some(*field))) {
            return Some("the limit counts per something else by now");
        }
        grant.quota(limit).is_none().then_some("the limit has another kind of rate by now")
    }
}

impl Exceptions {
    /// Adds a grant. It replaces an earlier grant of the same limit and owner.
    pub fn grant(&mut self, grant: Grant) {
        self.grants.entry(grant.limit.clone()).or_default().insert(grant.owner.clone(), Arc::new(grant));
    }

    /// Adds a suspension. It replaces an earlier suspension of the same owner.
    pub fn suspend(&mut self, suspension: Arc<Suspension>) {
        for field in suspension.owner.fields().flatten() {
            if !self.suspended.contains(&field) {
                self.suspended.push(field);
            }
        }
        self.suspensions.insert(suspension.owner.clone(), suspension);
        self.egress_changes += 1;
    }

    /// Adds an entry to the register. It replaces an earlier entry of the same key.
    pub fn register(&mut self, entry: Arc<EgressEntry>) {
        Arc::make_mut(&mut self.egress).insert(entry);
        self.egress_changes += 1;
    }

    /// Removes an entry of the register, and returns it.
    pub fn unregister(&mut self, key: EgressKey) -> Option<Arc<EgressEntry>> {
        self.egress.get(key)?;
        self.egress_changes += 1;
        Arc::make_mut(&mut self.egress).remove(key)
    }

    pub fn egress(&self) -> &Arc<Register> {
        &self.egress
    }

    /// Returns a quarantine for each suspension of a client: a suspended client has no direct way either. Suspensions
    /// of users and senders close none, because no address follows from them.
    pub fn quarantines_of_suspensions(&self) -> impl Iterator<Item = EgressEntry> {
        self.suspensions().filter_map(|suspension| {
            let mut parts = suspension.owner.parts();
            let (Some((field, value)), None) = (parts.next(), parts.next()) else { return None };
            let is_client = matches!(Field::parse(field), Some(Field::Client(_)));
            let network = parse_network(value).ok().filter(|_| is_client)?;
            let (rule, term) = (EgressRule::Quarantine, suspension.term.clone());
            Some(EgressEntry { network, rule, owner: "".into(), term })
        })
    }

    pub fn egress_changes(&self) -> u64 {
        self.egress_changes
    }

    /// Removes a grant, and returns it.
    pub fn revoke(&mut self, limit: &str, owner: &Owner) -> Option<Arc<Grant>> {
        let grants = self.grants.get_mut(limit)?;
        let revoked = grants.remove(owner);
        self.grants.retain(|_, grants| !grants.is_empty());
        revoked
    }

    /// Removes a suspension, and returns it.
    pub fn release(&mut self, owner: &Owner) -> Option<Arc<Suspension>> {
        self.egress_changes += 1;
        self.suspensions.remove(owner)
    }

    /// Removes all exceptions that have certainly ended (see [`Term::has_ended`]), and returns them.
    pub fn forget(&mut self, now: Timestamp, doubt: Option<Timestamp>) -> Ended {
        let is_over = |term: &Term| term.has_ended(now, doubt);
        let of_limits = self.grants.values_mut();
        let grants = of_limits.flat_map(|grants| grants.extract_if(|_, grant| is_over(&grant.term)));
        let grants = grants.map(|(_, grant)| grant).collect();
        self.grants.retain(|_, grants| !grants.is_empty());
        let suspensions = self.suspensions.extract_if(|_, suspension| is_over(&suspension.term));
        let suspensions = suspensions.map(|(_, suspension)| suspension).collect();
        // The register is cloned only if there is something to remove.
        let any_is_over = self.egress.entries().any(|entry| is_over(&entry.term));
        let entries = if any_is_over { Arc::make_mut(&mut self.egress).extract(is_over) } else { Vec::new() };
        self.egress_changes += 1;
        let suspended =
            |field: &Field| self.suspensions.keys().any(|owner| owner.fields().any(|one| one == Some(*field)));
        self.suspended.retain(suspended);
        Ended { grants, suspensions, entries }
    }

    /// Returns whether [`Exceptions::forget`] would remove any exception.
    pub fn any_ended(&self, now: Timestamp, doubt: Option<Timestamp>) -> bool {
        let terms = self.suspensions().map(|suspension| &suspension.term);
        let terms = terms.chain(self.grants().map(|grant| &grant.term));
        terms.chain(self.egress.entries().map(|entry| &entry.term)).any(|term| term.has_ended(now, doubt))
    }

    /// Returns the grant of an owner for a limit, expired or not.
    pub fn grant_of(&self, limit: &str, owner: &Owner) -> Option<&Arc<Grant>> {
        self.grants.get(limit)?.get(owner)
    }

    pub fn suspension_of(&self, owner: &Owner) -> Option<&Arc<Suspension>> {
        self.suspensions.get(owner)
    }

    pub fn grants(&self) -> impl Iterator<Item = &Arc<Grant>> {
        self.grants.values().flat_map(HashMap::values)
    }

    pub fn suspensions(&self) -> impl Iterator<Item = &Arc<Suspension>> {
        self.suspensions.values()
    }

    /// Returns whether there are fewer suspensions than [`MAX_SUSPENSIONS`].
    pub fn has_room(&self) -> bool {
        self.suspensions.len() < MAX_SUSPENSIONS
    }

    /// Returns the valid grant of an owner for a limit.
    pub(super) fn granted(&self, limit: &Limit, owner: &str, now: Timestamp) -> Option<&Arc<Grant>> {
        let grants = self.grants.get(&limit.name)?;
        grants.get(owner).filter(|grant| grant.term.holds(now))
    }

    /// Returns the valid suspension that applies to these facts. If several suspensions apply, returns the strongest:
    /// see [`Suspension::rank`].
    pub(super) fn suspended(&self, facts: &NormalizedFacts<'_>, now: Timestamp) -> Option<&Arc<Suspension>> {
        let owner = |field: &Field| {
            let value = field.value(facts, None)?;
            Some(Owner::from_parts([(field.name(), &*value)].into_iter()))
        };
        let found = self.suspended.iter().filter_map(owner).filter_map(|owner| self.suspensions.get(&owner));
        found.filter(|suspension| suspension.term.holds(now)).max_by_key(|suspension| suspension.rank())
    }

    /// Returns the valid suspension of an owner, unless the suspension is strict.
    pub(super) fn lenient(&self, owner: &str, now: Timestamp) -> Option<&Arc<Suspension>> {
        self.suspensions.get(owner).filter(|one| !one.is_strict && one.term.holds(now))
    }

    /// Returns whether this is the key of a budget of a grant or a suspension, and the exception is valid at `now`.
    pub fn needs(&self, key: &Key, now: Timestamp) -> bool {
        let Some((own, since)) = key.ungranted() else { return false };
        let owner = own.owner();
        let grant = own.parts().next().and_then(|limit| self.grant_of(limit, &owner)).map(|grant| &grant.term);
        let suspension = self.suspension_of(&owner).map(|suspension| &suspension.term);
        grant.into_iter().chain(suspension).any(|term| term.since == since && term.holds(now))
    }

    /// Returns whether this is the key of a budget that a valid suspension has for the mail that it allows.
    pub(super) fn is_of_suspension(&self, key: KeyRef<'_>, now: Timestamp) -> bool {
        let Some((own, since)) = key.ungranted() else { return false };
        self.lenient(own.owner().as_str(), now).is_some_and(|suspension| suspension.term.since == since)
    }

    pub(super) fn has_suspensions(&self) -> bool {
        !self.suspensions.is_empty()
    }
}
