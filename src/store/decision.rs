//! Transaction that decides on the events of a request.

use super::core::Core;
use super::new_budgets::Excess;
use super::session_slots::SessionSlots;
use super::transaction::Transaction;
use crate::policy::budgets::{Loaded, SessionCounters};
use crate::policy::request::PolicyRequest;
use crate::policy::verdict::Verdict;
use crate::policy::{self, NewBudget, Plan, Policy};
use crate::time::Timestamp;
use std::sync::Arc;

/// Decision on the events of a request. It answers with the verdicts, or with the new keys that have to share a budget.
pub struct Decision<'a> {
    pub core: &'a Arc<Core>,
    pub policy: &'a Policy,
    pub asked: &'a PolicyRequest,
    pub plan: &'a Plan<'a>,
    counters: &'a mut SessionCounters,
    /// The counters before the decision, if it may have to run again.
    saved: Option<SessionCounters>,
    /// New budgets that the last run has created.
    created: Vec<NewBudget<'a>>,
    /// Slots that the session got. The transaction must not drop them, because dropping slots takes locks that are held
    /// while it runs.
    pub slots: Option<SessionSlots>,
}

impl<'a> Decision<'a> {
    pub fn new(
        core: &'a Arc<Core>,
        policy: &'a Policy,
        asked: &'a PolicyRequest,
        plan: &'a Plan<'a>,
        counters: &'a mut SessionCounters,
    ) -> Self {
        let saved = core.shared.is_some().then(|| counters.clone());
        Self { core, policy, asked, plan, counters, saved, created: Vec::new(), slots: None }
    }
}

impl Transaction for Decision<'_> {
    type Answer = Result<Vec<Verdict>, Vec<Excess>>;

    fn run(&mut self, now: Timestamp, loaded: &mut Loaded) -> Self::Answer {
        let Self { core, policy, asked, plan, .. } = *self;
        let mut unknown = plan.new_budgets(policy, loaded);
        core.new_budgets.reserve(&unknown, policy.max_new_budgets, now)?;
        let mut verdicts = policy::decide(policy, now, asked, plan, loaded, self.counters);
        core.new_budgets.give_back(unknown.iter().filter(|unknown| !loaded.has(unknown.index)));
        unknown.retain(|unknown| loaded.has(unknown.index));
        self.created = unknown;
        debug_assert!(self.slots.is_none(), "dropping slots here would take locks that are held");
        let held = verdicts.iter_mut().flat_map(|verdict| verdict.held.drain(..)).collect();
        self.slots = SessionSlots::of(core, held);
        Ok(verdicts)
    }

    fn undo(&mut self) {
        if let Some(saved) = &self.saved {
            self.counters.clone_from(saved);
        }
        self.core.new_budgets.give_back(self.created.iter());
        self.created.clear();
        self.slots = None;
    }

    fn can_be_refused(&self) -> bool {
        self.asked.events.iter().any(|event| event.stage().is_some())
    }
}
