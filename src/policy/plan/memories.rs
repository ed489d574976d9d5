//! Memories in a plan: the keys of the memories that a limit asks, and the recipients that memories learn.

use super::planner::Planner;
use super::{IsKnown, MemoryEntry, Plan, Values};
use crate::engine::distinct::Value;
use crate::policy::Memory;
use crate::policy::limit::Limit;
use crate::policy::matching::{NormalizedRecipient, SkipReason};

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
    pub(super) fn add_memory_entries(&mut self, planner: &Planner<'a, '_>, is_known: Option<&IsKnown<'_>>) {
        let events = planner.request.events.len();
        self.memory_entries.reserve(events * planner.policy.memories().len());
        for event in 0..events {
            let Some(value) = planner.recipient(event).map(NormalizedRecipient::value) else { continue };
            for memory in planner.policy.memories() {
                if let Ok(key) = self.memory_key(planner, *memory, value) {
                    let is_known = is_known.is_some_and(|is_known| is_known(self.keys.get(key), memory, value));
                    self.memory_entries.push(MemoryEntry { event, memory: *memory, key, value, is_known });
                }
            }
        }
    }

    /// Returns whether the limit's memory knows the recipient of an event, as far as the entries say so.
    pub(super) fn knows(&self, limit: &Limit, event: usize) -> bool {
        let memory = limit.distinct.and_then(|distinct| distinct.known_to);
        let first = self.memory_entries.partition_point(|entry| entry.event < event);
        let mut of_event = self.memory_entries[first..].iter().take_while(|entry| entry.event == event);
        of_event.any(|entry| entry.is_known && Some(entry.memory) == memory)
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
