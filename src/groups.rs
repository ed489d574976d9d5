//! Names of the groups of a user.

use std::ops::Deref;
use std::sync::Arc;

/// Names of the groups of a user, shared by the account and its sessions. All users without groups would share the one
/// reference counter of an empty `Arc`, and the processors would contend for it. So such a user has no `Arc`.
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
