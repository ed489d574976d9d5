//! Group of refusals whose records are coalesced: the same limit, stage and owner.

use crate::reference::{Refusee, Tag};
use std::hash::{BuildHasher, RandomState};

/// Group of a refusal.
#[derive(Clone, Copy, Debug)]
pub struct RefusalGroup<'a> {
    /// True if nothing was refused: the limit is in shadow or soft mode, and would have refused.
    pub is_shadow: bool,
    /// Name of the limit, [`SUSPENDED`](crate::reference::SUSPENDED) or
    /// [`SENDER_MISMATCH`](crate::reference::SENDER_MISMATCH).
    pub cause: &'a str,
    /// Name of the stage.
    pub stage: &'a str,
    pub owner: Refusee<'a>,
}

/// Hashes by which groups are told apart. The hashes have a secret, so that a client cannot choose the group of another
/// owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupKey {
    /// Hash of cause and stage.
    pub cause: u64,
    /// Hash of cause, stage and owner.
    pub group: u64,
}

impl RefusalGroup<'_> {
    /// Returns the tag in the references of the group.
    pub fn tag(&self) -> Tag {
        Tag::new(self.cause, self.stage, self.owner)
    }

    pub fn key(&self, hasher: &RandomState) -> GroupKey {
        let Self { cause, stage, owner, .. } = *self;
        let cause = hasher.hash_one((cause, stage));
        let group = match owner {
            Refusee::User(user) => hasher.hash_one((cause, "user", user)),
            Refusee::Client(client) => hasher.hash_one((cause, "client", Refusee::network(client))),
        };
        GroupKey { cause, group }
    }
}
