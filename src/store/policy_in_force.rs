//! The policy in force. Each decision reads it. Reading takes no lock and counts no reference, because the processors
//! would then contend for the lock and the counter.

use crate::policy::Policy;
use arc_swap::{ArcSwap, Guard};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The policy in force.
pub struct PolicyInForce {
    current: ArcSwap<Policy>,
    /// The lock is held from the beginning of a replacement to its end, never across an `.await`.
    replacing: Mutex<()>,
}

/// A policy that was in force when it was read. It stays the same, even if the policy in force is replaced meanwhile. A
/// thread can read eight policies without counting references: a guard is therefore not kept longer than needed.
pub type PolicyGuard = Guard<Arc<Policy>>;

/// Right to replace the policy in force. There is one at a time.
pub struct Replacement<'a> {
    in_force: &'a PolicyInForce,
    former: Arc<Policy>,
    _replacing: MutexGuard<'a, ()>,
}

impl PolicyInForce {
    pub fn new(policy: Policy) -> Self {
        Self { current: ArcSwap::from_pointee(policy), replacing: Mutex::default() }
    }

    pub fn read(&self) -> PolicyGuard {
        self.current.load()
    }

    /// Begins to replace the policy. The new policy can be made from the former one.
    pub fn begin_replacement(&self) -> Replacement<'_> {
        let replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        Replacement { in_force: self, former: self.current.load_full(), _replacing: replacing }
    }
}

impl Deref for Replacement<'_> {
    type Target = Policy;

    /// Returns the former policy.
    fn deref(&self) -> &Policy {
        &self.former
    }
}

impl Replacement<'_> {
    /// Puts the new policy in force, and returns the former one.
    pub fn put_in_force(self, policy: Arc<Policy>) -> Arc<Policy> {
        self.in_force.current.store(policy);
        self.former
    }
}
