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
    /// Returns the slots that the volatile budgets of these keys have already counted; `None` if there are no keys.
    pub(super) fn of(core: &Arc<Core>, keys: Vec<Key>) -> Option<Self> {
        (!keys.is_empty()).then(|| Self { core: core.clone(), keys })
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
