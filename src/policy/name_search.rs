//! Search for the names in an owner, to distinguish a typing error from a name that Weir has already seen.

use super::Policy;
use super::budgets::{KeyRef, Owner};
use super::limit::{Count, Limit};
use ipnet::IpNet;
use std::net::IpAddr;

/// Search for the names of an owner among accounts, keys of budgets, and owners of exceptions.
#[derive(Clone, Debug)]
pub struct NameSearch(Vec<Name>);

#[derive(Clone, Debug)]
struct Name {
    /// Field as in `per`, without the widths of networks.
    field: String,
    value: String,
    /// Field whose values contain this name: "user" for "user-domain".
    part_of: Option<&'static str>,
    /// True if accounts or budgets record the names of this field.
    is_recorded: bool,
    is_found: bool,
}

impl NameSearch {
    /// Begins a search. `has_accounts`: Weir knows the accounts of its users.
    pub fn new(owner: &Owner, policy: &Policy, has_accounts: bool) -> Self {
        let name = |(field, value): (&str, &str)| {
            let field = without_widths(field);
            let part_of = match field {
                "user-domain" => Some("user"),
                "sender-domain" => Some("sender"),
                "recipient-domain" => Some("recipient"),
                _ => None,
            };
            let is_of_account = has_accounts && [Some(field), part_of].contains(&Some("user"));
            let is_recorded = is_of_account || policy.limits.iter().any(|limit| records(limit, field, part_of));
            Name { field: field.to_owned(), value: value.to_owned(), part_of, is_recorded, is_found: false }
        };
        Self(owner.parts().map(name).collect())
    }

    /// Looks at the name of an account, in its normal form.
    pub fn see_account(&mut self, user: &str) {
        self.see("user", user);
    }

    /// Looks at the key of a budget.
    pub fn see_key(&mut self, key: KeyRef<'_>) {
        // An attacker who guesses passwords can invent users, so such a key does not prove that the user exists.
        let is_of_guesses = key.parts().nth(1) == Some(Count::LoginFailures.name());
        for part in key.owners() {
            if let Some((field, value)) = part.split_once('=')
                && !(is_of_guesses && field.starts_with("user"))
            {
                self.see(field, value);
            }
        }
    }

    /// Looks at the owner of an exception.
    pub fn see_owner(&mut self, owner: &Owner) {
        owner.parts().for_each(|(field, value)| self.see(field, value));
    }

    /// Returns whether every name that accounts or budgets would record was found.
    pub fn is_done(&self) -> bool {
        self.0.iter().all(|name| !name.is_unknown())
    }

    /// Returns the names, such as `user=alice`, that were not found although accounts or budgets would record them.
    pub fn unknown(&self) -> Vec<String> {
        self.0.iter().filter(|name| name.is_unknown()).map(Name::text).collect()
    }

    /// Returns the names that were not found, in fields that accounts and budgets do not record.
    pub fn unrecorded(&self) -> Vec<String> {
        self.0.iter().filter(|name| !name.is_recorded && !name.is_found).map(Name::text).collect()
    }

    /// Returns whether a user or a domain of users was not found.
    pub fn is_any_user_unknown(&self) -> bool {
        self.0.iter().any(|name| name.is_unknown() && name.field.starts_with("user"))
    }

    /// Returns the user that was not found.
    pub fn unknown_user(&self) -> Option<&str> {
        self.0.iter().find(|name| name.is_unknown() && name.field == "user").map(|name| &*name.value)
    }

    fn see(&mut self, field: &str, value: &str) {
        let field = without_widths(field);
        for name in self.0.iter_mut().filter(|name| !name.is_found) {
            name.is_found = name.is_in(field, value);
        }
    }
}

impl Name {
    fn is_in(&self, field: &str, value: &str) -> bool {
        let domain = || value.rsplit_once('@').map(|(_, domain)| domain);
        match (field == self.field, field) {
            (true, "client") => overlap(&self.value, value),
            (true, _) => self.value == value,
            (false, _) => self.part_of == Some(field) && domain() == Some(&*self.value),
        }
    }

    fn is_unknown(&self) -> bool {
        self.is_recorded && !self.is_found
    }

    fn text(&self) -> String {
        format!("{}={}", self.field, self.value)
    }
}

/// Returns whether one of these parts of an owner has this value. `field` is without the widths of networks. Two networks
/// of clients are the same if they have an address in common.
pub fn has_part<'o>(mut parts: impl Iterator<Item = (&'o str, &'o str)>, field: &str, value: &str) -> bool {
    let is_same = |own: &str| if field == "client" { overlap(own, value) } else { own == value };
    parts.any(|(name, own)| without_widths(name) == field && is_same(own))
}

/// Returns whether budgets of this limit outlive the session and record names of the field.
fn records(limit: &Limit, field: &str, part_of: Option<&str>) -> bool {
    let is_of_guesses = limit.count == Count::LoginFailures && field.starts_with("user");
    let is_kept = limit.is_stored() && !limit.is_of_present() && limit.rule().is_some();
    let has_field = |word: &str| word == field || Some(word) == part_of;
    is_kept && !is_of_guesses && limit.per.iter().any(|one| has_field(one.word()))
}

fn without_widths(field: &str) -> &str {
    field.split('/').next().unwrap_or_default()
}

/// Returns whether two networks of clients have an address in common.
fn overlap(one: &str, other: &str) -> bool {
    let network = |text: &str| text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    match (network(one), network(other)) {
        (Some(one), Some(other)) => one.contains(&other) || other.contains(&one),
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::address::AddressNormalizer;
    use crate::policy::budgets::Key;
    use crate::policy::limit::{Algorithm, Quota};
    use crate::policy::matching::{Field, Zone};
    use crate::time::Rate;
    use std::time::Duration;

    fn policy(limits: &[(Count, &[&str])]) -> Policy {
        let rate = Rate { amount: 9.0, period: Duration::from_secs(3_600) };
        let limit = |(count, per): &(Count, &[&str])| {
            let per = per.iter().map(|word| Field::parse(word).unwrap()).collect();
            Limit::new("l", *count, per, Quota::rate(Algorithm::Ewma, rate, None))
        };
        Policy::new(limits.iter().map(limit).collect(), AddressNormalizer::default(), Zone::default())
    }

    fn search(owner: &str, has_accounts: bool) -> NameSearch {
        let limits: [(Count, &[&str]); 3] = [
            (Count::Recipients, &["user", "client"]),
            (Count::Messages, &["recipient"]),
            (Count::LoginFailures, &["user-domain"]),
        ];
        NameSearch::new(&Owner::from_stored(owner), &policy(&limits), has_accounts)
    }

    fn key(count: &str, part: &str) -> Key {
        Key::from_parts("l", count, "ewma", std::iter::once(part.split_once('=').unwrap())).unwrap()
    }

    #[test]
    fn a_name_is_found_in_a_key_that_has_it() {
        for (wanted, part, is_found) in [
            ("user=alice", "user=alice", true),
            ("user=alice", "user=alicia", false),
            ("user=alice", "sender=alice", false),
            ("user-domain=d", "user=a@d", true),
            ("user-domain=d", "user=a@e", false),
            ("recipient-domain=d", "recipient=a@d", true),
            ("client=192.0.2.7", "client=192.0.2.7", true),
            ("client=192.0.2.7", "client/24/56=192.0.2.0/24", true),
            ("client/24/64=192.0.2.0/24", "client=192.0.2.7", true),
            ("client=192.0.2.7", "client=192.0.2.70", false),
            ("client=2001:db8::/64", "client=2001:db8::/64", true),
            ("client=2001:db8::/64", "client=2001:db8:0:1::/64", false),
        ] {
            let mut search = search(wanted, false);
            search.see_key(key("recipients", part).borrowed());
            assert_eq!(search.is_done(), is_found, "{wanted} in {part}");
        }
    }

    #[test]
    fn guessed_passwords_are_no_proof_of_a_user() {
        let mut search = search("user=alice", false);
        search.see_key(key("login-failures", "user=alice").borrowed());
        assert_eq!(search.unknown(), ["user=alice"]);
        search.see_owner(&Owner::from_stored("user=alice"));
        assert_eq!(search.unknown(), [""; 0]);
    }

    #[test]
    fn a_name_that_nothing_records_is_not_called_unknown() {
        for (owner, has_accounts, unknown, unrecorded) in [
            ("user=alice", false, &["user=alice"][..], &[][..]),
            ("sender=a@d", true, &[], &["sender=a@d"]),
            ("user-domain=d", true, &["user-domain=d"], &[]),
            ("", true, &[], &[]),
        ] {
            let search = search(owner, has_accounts);
            assert_eq!(search.unknown(), unknown, "{owner}");
            assert_eq!(search.unrecorded(), unrecorded, "{owner}");
        }
    }
}
