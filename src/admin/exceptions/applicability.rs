//! Check whether a limit can apply to the owner of a grant. If the limit never applies to the owner, the grant has no
//! effect.

use super::names::{Account, Accounts, Checked};
use crate::policy::address::AddressNormalizer;
use crate::policy::budgets::Owner;
use crate::policy::limit::Limit;
use crate::policy::matching::{AllOf, Condition, Field};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Whether a limit applies to an owner, as far as the owner's names decide it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applicability {
    Applies,
    /// The limit never applies to the owner.
    Never {
        /// `"except" holds` or `"match" does not hold`.
        why: &'static str,
        /// Keys of the conditions that decide it.
        keys: String,
    },
    /// The conditions with these keys decide, and the owner's names do not tell whether they hold.
    Depends(String),
}

/// Owner of a grant, with the client address and the groups that follow from the owner's names.
struct Subject<'a> {
    owner: &'a Owner,
    client: Option<IpAddr>,
    /// Groups of the owner's account; `None` if the owner has no account.
    groups: Option<&'a [Box<str>]>,
}

/// Checks the conditions in `match` and `except` of the limit. The owner's names decide some of the conditions; the
/// other conditions stay undecided.
pub fn check(limit: &Limit, owner: &Owner, accounts: &Accounts, normalizer: &AddressNormalizer) -> Checked {
    let user = owner.parts().find(|(name, _)| *name == "user").map(|(_, value)| value);
    let is_user = |account: &&Account| user.is_some_and(|user| normalizer.user(&account.name) == user);
    let account = accounts.iter().flatten().find(is_user);
    let name = &limit.name;
    match applicability(limit, owner, account.map(|account| &*account.groups)) {
        Applicability::Applies => Checked::Fine(String::new()),
        Applicability::Never { why, keys } => {
            Checked::Doubtful(format!("limit \"{name}\" does not apply to {owner}: its {why} ({keys})"))
        }
        Applicability::Depends(undecided) => Checked::Fine(format!(
            "limit \"{name}\" applies only under its conditions ({undecided}), and so does the grant\n"
        )),
    }
}

/// Returns whether a limit applies to an owner. `groups` are the groups of the owner's account; `None` if the owner has
/// no account.
pub fn applicability(limit: &Limit, owner: &Owner, groups: Option<&[Box<str>]>) -> Applicability {
    let subject = Subject::new(owner, groups);
    let inert = |why, keys| Applicability::Never { why, keys };
    let (matches, except) = (&limit.matcher.matches, &limit.matcher.except);
    if let Some(excepted) = except.iter().find(|table| subject.meets(table) == Some(true)) {
        return inert("\"except\" holds", keys(excepted.0.iter()));
    }
    let is_missed = |table: &AllOf| subject.meets(table) == Some(false);
    if !matches.is_empty() && matches.iter().all(is_missed) {
        let of_all = matches.iter().flat_map(|table| &table.0);
        return inert("\"match\" does not hold", keys(of_all.filter(|one| subject.holds(one) == Some(false))));
    }
    // The tables of `match` are alternatives. So if one table is met, the other tables do not matter.
    let is_met = matches.iter().any(|table| subject.meets(table) == Some(true));
    let open = matches.iter().filter(|_| !is_met).chain(except).filter(|table| subject.meets(table).is_none());
    let undecided = keys(open.flat_map(|table| &table.0).filter(|one| subject.holds(one).is_none()));
    if undecided.is_empty() { Applicability::Applies } else { Applicability::Depends(undecided) }
}

impl<'a> Subject<'a> {
    fn new(owner: &'a Owner, groups: Option<&'a [Box<str>]>) -> Self {
        let client = owner.parts().find(|(name, _)| *name == "client").map(|(_, value)| value);
        // If the client is a network and not one address, a condition may match only a part of the network. So conditions
        // on the client stay undecided.
        Self { owner, client: client.and_then(|client| client.parse().ok()), groups }
    }

    /// Returns whether all conditions of a table are true. Returns `None` if the owner's names do not decide this.
    fn meets(&self, table: &AllOf) -> Option<bool> {
        let held: Vec<Option<bool>> = table.0.iter().map(|condition| self.holds(condition)).collect();
        match held.contains(&Some(false)) {
            true => Some(false),
            false => held.iter().all(Option::is_some).then_some(true),
        }
    }

    fn holds(&self, condition: &Condition) -> Option<bool> {
        match condition {
            Condition::Field(field, tables) => {
                let value = self.value(*field)?;
                Some(value.is_some_and(|value| tables.iter().any(|table| table.find(value).is_some())))
            }
            Condition::Client(tables) => {
                self.client.map(|client| tables.iter().any(|table| table.find(client).is_some()))
            }
            Condition::Group(tables) => {
                let is_in = |group: &str| tables.iter().any(|table| table.find(group).is_some());
                self.groups.map(|groups| groups.iter().any(|group| is_in(group)))
            }
            // Budgets of users are charged only for users who have logged in. Limits on login failures cannot have this
            // condition.
            Condition::Authenticated(wanted) => self.value(Field::UserDomain).map(|_| *wanted),
            _ => None,
        }
    }

    /// Returns the owner's value of a field. Returns `None` if the owner's names do not tell the value. Returns
    /// `Some(None)` if they tell that there is no value: for example, a user name without `@` has no domain.
    fn value(&self, field: Field) -> Option<Option<&'a str>> {
        let whole = match field {
            Field::UserDomain => Some(Field::User),
            Field::SenderDomain => Some(Field::Sender),
            Field::RecipientDomain => Some(Field::Recipient),
            _ => None,
        };
        let found = |field: Field| self.owner.parts().find(|(name, _)| *name == field.word()).map(|(_, value)| value);
        let domain = |address: &'a str| address.rsplit_once('@').map(|(_, domain)| domain);
        found(field).map(Some).or_else(|| whole.and_then(found).map(domain))
    }
}

/// Lists the keys of conditions, as they are written in the configuration. A key that occurs several times is listed
/// once.
fn keys<'c>(conditions: impl Iterator<Item = &'c Condition>) -> String {
    let keys: BTreeSet<_> = conditions.map(Condition::name).collect();
    keys.into_iter().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::limit::{Count, Quota};
    use crate::policy::matching::{Comparison, Matcher, Networks, PatternTable, Shape};
    use std::sync::Arc;

    fn patterns(shape: Shape, pattern: &str) -> Vec<Arc<PatternTable<()>>> {
        let mut table = PatternTable::new(shape);
        table.insert(pattern, ()).unwrap();
        vec![Arc::new(table)]
    }

    fn condition(text: &str) -> Condition {
        let (key, value) = text.split_once('=').unwrap();
        match key {
            "user" => Condition::Field(Field::User, patterns(Shape::Address, value)),
            "user-domain" => Condition::Field(Field::UserDomain, patterns(Shape::Domain, value)),
            "listener" => Condition::Field(Field::Listener, patterns(Shape::Name, value)),
            "authenticated" => Condition::Authenticated(value == "true"),
            "group" => Condition::Group(patterns(Shape::Name, value)),
            "client" => {
                let mut networks = Networks::default();
                networks.insert(value.parse().unwrap(), ()).unwrap();
                Condition::Client(vec![Arc::new(networks)])
            }
            _ => Condition::MessageRecipients(vec![Comparison::parse(value).unwrap()]),
        }
    }

    /// Parses tables: `;` separates tables, and a space separates the conditions of a table.
    fn tables(text: &str) -> Vec<AllOf> {
        let table = |table: &str| AllOf(table.split(' ').map(condition).collect());
        text.split(';').filter(|text| !text.is_empty()).map(table).collect()
    }

    #[test]
    fn a_limit_that_cannot_apply_to_an_owner_is_told_from_one_that_may() {
        let account =
            |name: &str, group: &str| Account { name: name.into(), groups: [group.into()].into_iter().collect() };
        let accounts = Some(vec![account("alice", "staff"), account("bob@d", "students")]);
        for (owner, matches, except, inert, open) in [
            ("user=alice", "", "", None, ""),
            ("user=alice", "user=alice", "", None, ""),
            ("user=alice", "user=b*", "", Some("\"match\" does not hold (user)"), ""),
            ("user=alice", "user=b*;group=staff", "", None, ""),
            ("user=alice", "group=students", "", Some("\"match\" does not hold (group)"), ""),
            ("user=bob@d", "group=students", "", None, ""),
            ("user=carol", "group=students", "", None, "group"),
            ("user=alice", "", "group=staff", Some("\"except\" holds (group)"), ""),
            ("user=alice", "listener=a user=b", "", Some("\"match\" does not hold (user)"), ""),
            ("user=alice", "listener=a user=alice", "", None, "listener"),
            ("user=alice", "user=alice;listener=a", "recipients=5", None, "message-recipients"),
            ("user=alice", "user-domain=d", "", Some("\"match\" does not hold (user-domain)"), ""),
            ("user=bob@d", "", "user-domain=d", Some("\"except\" holds (user-domain)"), ""),
            ("user=alice", "authenticated=true", "", None, ""),
            ("user=alice", "", "authenticated=true", Some("\"except\" holds (authenticated)"), ""),
            ("sender=a@d", "", "authenticated=true", None, "authenticated"),
            ("client=192.0.2.7", "client=192.0.2.0/24", "", None, ""),
            ("client=192.0.3.7", "client=192.0.2.0/24", "", Some("\"match\" does not hold (client)"), ""),
            ("client=2001:db8::/64", "client=2001:db8::1/128", "", None, "client"),
            ("", "user=b", "", None, "user"),
        ] {
            let mut limit = Limit::new("l", Count::Recipients, Vec::new(), Quota::Unlimited);
            limit.matcher = Matcher { matches: tables(matches), except: tables(except) };
            let owner = Owner::from_stored(owner);
            match (check(&limit, &owner, &accounts, &AddressNormalizer::default()), inert) {
                (Checked::Doubtful(said), Some(words)) => assert!(said.contains(words), "{owner}: {said}"),
                (Checked::Fine(said), None) if open.is_empty() => assert_eq!(said, "", "{owner} {matches} {except}"),
                (Checked::Fine(said), None) => assert!(said.contains(&format!("({open})")), "{owner}: {said}"),
                (got, _) => panic!("{owner} {matches} {except}: {got:?}"),
            }
        }
    }
}
