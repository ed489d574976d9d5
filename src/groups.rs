//! Names of the groups of a user.

use std::ops::Deref;
use std::sync::Arc;

/// Names of the groups of a user, shared by the account and its sessions. A user without groups has no shared memory:
/// else, the processors would contend for the one counter of references to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups(Option<Arc<[Box<str>]>>);

impl Deref for Groups {
    type Target = [Box<str>];

    fn deref(&self) -> &[Box<str>] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl FromIterator<Box<str>> for Groups {
    fn from_iter<I: IntoIterator<Item = Box<str>>>(names: I) -> Self {
        let names: Arc<[Box<str>]> = names.into_iter().collect();
        Self(Some(names).filter(|names| !names.is_empty()))
    }
}
