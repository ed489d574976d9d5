//! Budget keys with their hash. The table of the file is sorted by the hash, and the hash decides in which part of the
//! cache a budget is.

use crate::policy::budgets::Key;
use siphasher::sip::SipHasher13;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Key of a budget with its hash (`order`). The table of the file is sorted by the hash, and each shard of the cache
/// holds a range of hashes. So budgets that are written together are neighbours in the file, and sorting keys only
/// compares numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HashedKey<T = Arc<str>> {
    pub order: i64,
    pub key: Key<T>,
}

/// Hashes only `order`, which is a hash already.
impl<T> Hash for HashedKey<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.order.hash(state);
    }
}

/// Hashed key that borrows its text.
pub type HashedKeyRef<'a> = HashedKey<&'a str>;

impl<T: AsRef<str>> HashedKey<T> {
    /// Hashes a key. The hash is stored in the file, so the hash function must never change. The hash function has no
    /// secret. A client that chooses keys with the same hash gains nothing: the rows of these keys are only neighbours.
    pub fn of(key: Key<T>) -> Self {
        Self { order: order([key.as_str()]), key }
    }

    pub fn borrowed(&self) -> HashedKeyRef<'_> {
        HashedKey { order: self.order, key: self.key.borrowed() }
    }
}

/// Hashes a key whose text consists of these parts: see [`HashedKey::of`].
pub fn order<const N: usize>(parts: [&str; N]) -> i64 {
    let mut hasher = SipHasher13::new();
    parts.iter().for_each(|part| hasher.write(part.as_bytes()));
    hasher.finish().cast_signed()
}

impl HashedKeyRef<'_> {
    /// Returns a copy that owns its text.
    pub fn owned(self) -> HashedKey {
        HashedKey { order: self.order, key: self.key.owned() }
    }
}
