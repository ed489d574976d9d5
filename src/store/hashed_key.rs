//! Budget keys with their hash, by which the file and the cache sort budgets.

use crate::policy::budgets::Key;
use siphasher::sip::SipHasher13;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Key of a budget with its hash, the order. The file sorts budgets by this order, and each shard of the cache holds a
/// range of it: budgets written together lie together, and only numbers have to be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HashedKey<T = Arc<str>> {
    pub order: i64,
    pub key: Key<T>,
}

/// Uses the order, which is a hash already.
impl<T> Hash for HashedKey<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.order.hash(state);
    }
}

/// Hashed key that borrows its text.
pub type HashedKeyRef<'a> = HashedKey<&'a str>;

impl<T: AsRef<str>> HashedKey<T> {
    /// Hashes a key. The hash is the same for ever, and has no secret: a client that chooses colliding keys only puts
    /// them side by side.
    pub fn of(key: Key<T>) -> Self {
        let mut hasher = SipHasher13::new();
        hasher.write(key.as_str().as_bytes());
        Self { order: hasher.finish().cast_signed(), key }
    }

    pub fn borrowed(&self) -> HashedKeyRef<'_> {
        HashedKey { order: self.order, key: self.key.borrowed() }
    }
}

impl HashedKeyRef<'_> {
    /// Returns a copy that owns its text.
    pub fn owned(self) -> HashedKey {
        HashedKey { order: self.order, key: self.key.owned() }
    }
}
