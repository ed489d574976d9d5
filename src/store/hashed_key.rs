//! Where a budget is: its key, and the number by which the file and the memory sort it.

use crate::policy::key::Key;
use siphasher::sip::SipHasher13;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A budget's key and its order. Budgets lie in the file by this order, and each shard of the memory holds a stretch of it: what is
/// written together lies together, and nothing has to be sorted but numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HashedKey<T = Arc<str>> {
    pub order: i64,
    pub key: Key<T>,
}

/// What is a hash already need not be hashed as a text once more.
impl<T> Hash for HashedKey<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.order.hash(state);
    }
}

/// The place of a key that stands in another text.
pub type HashedKeyRef<'a> = HashedKey<&'a str>;

impl<T: AsRef<str>> HashedKey<T> {
    /// The order is a hash that is the same for ever. Whoever chooses keys that share one only puts them side by side.
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
    /// For whoever keeps it.
    pub fn owned(self) -> HashedKey {
        HashedKey { order: self.order, key: self.key.owned() }
    }
}
