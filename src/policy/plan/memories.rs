//! Memories in a plan: the keys of the memories that a limit asks, and the recipients that memories learn.

use super::planner::Planner;
use super::{MemoryEntry, Plan, Values};
use crate::engine::distinct::Value;
use crate::policy::Memory;
use crate::policy::limit::Limit;
use crate::policy::matching::SkipReason;

impl<'a> Plan<'a> {
    /// Returns the values of an event, each with the memory to ask, and adds the keys of these memories to the plan.
    /// Returns an error that names a missing fact.
    pub(super) fn values(&mut self, planner: &Planner<'a, '_>, limit: &Limit, at: usize) -> Result<Values, SkipReason> {
        let mut values = planner.values(limit, at)?;
        if let Some(memory) = limit.distinct.and_then(|distinct| distinct.known_to) {
            for candidate in values.as_mut_slice() {
                candidate.memory = Some(self.memory_key(planner, memory, candidate.value)?);
            }
        }
        Ok(values)
    }

    /// Adds an entry for each memory and each recipient that is asked for, or to whom mail was delivered. A memory whose
    /// owner is unknown has no entry.
    pub(super) fn add_memory_entries(&mut self, planner: &Planner<'a, '_>) {
        for (event, _) in planner.recipients.iter().enumerate() {
            let Some(value) = planner.recipient_value(event) else { continue };
            for memory in planner.policy.memories() {
                if let Ok(key) = self.memory_key(planner, *memory, value) {
                    self.memory_entries.push(MemoryEntry { event, memory: *memory, key, value });
                }
            }
        }
    }

    /// Returns the index in [`Plan::keys`] of the memory's key for a value.
    fn memory_key(&mut self, planner: &Planner<'a, '_>, memory: Memory, value: Value) -> Result<usize, SkipReason> {
        let (known_to, shard) = (memory.known_to, memory.shard(value));
        let known = self.memory_keys.iter().find(|(other, number, _)| (*other, *number) == (known_to, shard));
        if let Some((_, _, index)) = known {
            return Ok(*index);
        }
        let mut buffer = planner.buffer.borrow_mut();
        let key = memory.key(&planner.facts, value, &mut buffer).map_err(SkipReason::Unknown)?;
        let index = self.keys.push(key);
        self.memory_keys.push((known_to, shard, index));
        Ok(index)
    }
}
