//! Slots of limits such as "3 at once", which a session holds until it ends.

use super::core::Core;
use super::hashed_key::HashedKey;
use crate::policy::budgets::Key;
use std::fmt;
use std::sync::Arc;

/// Slots that one decision gave a session, with this as their only owner. The gauges count them until this is dropped,
/// however the session ends (a panic of its task included).
pub struct SessionSlots {
    core: Arc<Core>,
    /// Keys of the gauges, one for each slot.
    keys: Vec<Key>,
}

impl SessionSlots {
    pub(super) fn none(core: &Arc<Core>) -> Self {
        Self { core: core.clone(), keys: Vec::new() }
    }

    /// Takes over slots that the gauges of these keys have counted.
    pub(super) fn own(&mut self, keys: impl Iterator<Item = Key>) {
        self.keys.extend(keys);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl Drop for SessionSlots {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.core.cache.release(HashedKey::of(key.borrowed())));
    }
}

impl fmt::Debug for SessionSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SessionSlots").field(&self.keys).finish()
    }
}
