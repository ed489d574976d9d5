//! Slots of limits such as "3 at once". Each open session that such a limit counts occupies one slot until the session
//! ends.

use super::core::Core;
use super::hashed_key::HashedKey;
use crate::policy::budgets::Key;
use std::fmt;
use std::sync::Arc;

/// Slots that a session got in one decision. The volatile budgets of the limits count the slots until this value is
/// dropped. This happens whenever the session ends, even if the session's task panics.
pub struct SessionSlots {
    core: Arc<Core>,
    /// Keys of the volatile budgets, one for each slot.
    keys: Vec<Key>,
}

impl SessionSlots {
    pub(super) fn none(core: &Arc<Core>) -> Self {
        Self { core: core.clone(), keys: Vec::new() }
    }

    /// Adds slots that the volatile budgets of these keys have already counted.
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
