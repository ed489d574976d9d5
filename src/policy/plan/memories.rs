//! Memories in a plan: the keys of the memories that a limit asks, and the recipients that memories learn.

use super::planner::Planner;
use super::{Lesson, Plan, Values};
use crate::engine::distinct::Value;
use crate::policy::Memory;
use crate::policy::limit::Limit;
use crate::policy::matching::SkipReason;
use crate::policy::request::Event;

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

    /// Adds the recipients that memories learn from deliveries. A memory whose owner is unknown learns nothing.
    pub(super) fn add_lessons(&mut self, planner: &Planner<'a, '_>) {
        for (at, event) in planner.request.events.iter().enumerate() {
            let Some(value) = planner.recipient_value(at).filter(|_| matches!(event, Event::Delivered(_))) else {
                continue;
            };
            for memory in planner.policy.memories() {
                if let Ok(key) = self.memory_key(planner, *memory, value) {
                    self.lessons.push(Lesson { event: at, rule: memory.rule(), key, value });
                }
            }
        }
    }

    /// Returns the index in [`Plan::keys`] of the memory's key for a value.
    fn memory_key(&mut self, planner: &Planner<'a, '_>, memory: Memory, value: Value) -> Result<usize, SkipReason> {
        let mut buffer = planner.buffer.borrow_mut();
        let key = memory.key(&planner.facts, value, &mut buffer).map_err(SkipReason::Unknown)?;
        let known = self.memory_keys.iter().copied().find(|known| self.keys.get(*known) == key);
        Ok(known.unwrap_or_else(|| {
            let index = self.keys.push(key);
            self.memory_keys.push(index);
            index
        }))
    }
}
