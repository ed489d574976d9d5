//! Permit: some users may send as some addresses.

use crate::policy::address::domain_of;
use crate::policy::matching::pattern::PatternTable;
use std::sync::Arc;

/// Pattern tables of one key. The key matches if one of them matches.
pub type Tables = Vec<Arc<PatternTable<()>>>;

/// Users and addresses. The permit holds if all its keys match; a key that is `None` always matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permit {
    pub user: Option<Tables>,
    pub user_domain: Option<Tables>,
    pub group: Option<Tables>,
    pub sender: Option<Tables>,
    pub sender_domain: Option<Tables>,
}

impl Permit {
    /// Returns whether the permit allows a user to send as an address, which are normalized.
    pub(super) fn holds(&self, user: &str, groups: &[Box<str>], address: &str) -> bool {
        matches(&self.user, Some(user))
            && matches(&self.user_domain, domain_of(user))
            && matches(&self.group, groups.iter().map(|group| &**group))
            && matches(&self.sender, Some(address))
            && matches(&self.sender_domain, domain_of(address))
    }
}

fn matches<'a>(tables: &Option<Tables>, values: impl IntoIterator<Item = &'a str>) -> bool {
    let is_in = |value: &str, tables: &Tables| tables.iter().any(|table| table.find(value).is_some());
    tables.as_ref().is_none_or(|tables| values.into_iter().any(|value| is_in(value, tables)))
}
