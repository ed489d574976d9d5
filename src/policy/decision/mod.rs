//! Decision: checks each event against the budgets of all limits that apply, and charges these budgets.

mod charge;
mod delay;
mod exceeded;
mod explain;
mod ladder;
mod likelihood;
mod measure;
mod side_effects;
mod suspicion;

pub use explain::{Explained, explain};

use crate::engine::State;
use crate::engine::distinct::Value;
use crate::policy::budgets::{Loaded, RefundableCharge, SessionCounters, Slot};
use crate::policy::exception::Suspension;
use crate::policy::limit::{Charge, Count, Effect, Limit, Mode, Quota};
use crate::policy::plan::{BudgetRef, Check, Plan, PlannedBudget, Values};
use crate::policy::request::{Event, PolicyRequest};
use crate::policy::verdict::{LimitHit, Refusal, Ruling, Verdict};
use crate::policy::{Policy, SuspicionScore};
use crate::time::Timestamp;
use ladder::Reached;
use side_effects::is_of_transaction;
use std::sync::Arc;
use std::time::Duration;

/// Decides on a run of events, in order. Each event that passes is charged to the loaded budgets and to the session's
/// own counters.
///
/// If an enforced limit refuses an event, no enforced limit charges this event, except limits with
/// `charge = "attempts"`. After a refused MAIL, its recipients are skipped.
pub fn decide(
    policy: &Policy,
    now: Timestamp,
    request: &PolicyRequest,
    plan: &Plan<'_>,
    loaded: &mut Loaded,
    counters: &mut SessionCounters,
) -> Vec<Verdict> {
    let mut decision = Decision::new(policy, now, request, plan, loaded, counters);
    let mut checks = &plan.checks[..];
    let (mut mail_refused, mut is_over) = (false, false);
    let mut verdicts = Vec::with_capacity(request.events.len());
    let mut steps = Vec::new();
    for (at, event) in request.events.iter().enumerate() {
        let count = checks.iter().take_while(|check| check.event == at).count();
        let (these, rest) = checks.split_at(count);
        checks = rest;
        let verdict = match event {
            // After a refusal that ends the session, all further events of the run are skipped.
            _ if is_over => Verdict { ruling: Ruling::Skipped, ..Verdict::default() },
            Event::Delivered(_) => {
                decision.learn(at);
                Verdict::default()
            }
            Event::Recipient(_) | Event::Message if mail_refused => {
                Verdict { ruling: Ruling::Skipped, ..Verdict::default() }
            }
            _ => match decision.suspended(at, event) {
                Some(suspended) => Verdict { ruling: Ruling::Suspended(Box::new(suspended)), ..Verdict::default() },
                None => decision.decide(event, these, &mut steps),
            },
        };
        if *event == Event::Mail {
            mail_refused = matches!(verdict.ruling, Ruling::Refuse(_) | Ruling::Suspended(_));
        }
        is_over |= matches!(&verdict.ruling, Ruling::Refuse(refusal) if refusal.ends_session(event.stage()));
        verdicts.push(verdict);
    }
    decision.store_counters();
    verdicts
}

/// Decision in progress.
struct Decision<'a> {
    policy: &'a Policy,
    now: Timestamp,
    request: &'a PolicyRequest,
    plan: &'a Plan<'a>,
    loaded: &'a mut Loaded,
    own: Loaded,
    counters: &'a mut SessionCounters,
    /// Suspension that applies to this session. An earlier event of this run may have started it.
    suspension: Option<Arc<Suspension>>,
    /// Suspensions that earlier events of this run have started.
    begun: Vec<Arc<Suspension>>,
    /// Sum of the delays of the replies so far to this run of pipelined commands.
    waits: Duration,
}

/// Effect of one event on one budget.
struct Step<'a> {
    limit: &'a Limit,
    planned: &'a PlannedBudget<'a>,
    /// `None`: the limit neither checks nor charges this event.
    effect: Option<Effect>,
    /// State before the event. If the true size replaces the declared size, this state does not include the charge for
    /// the declared size.
    before: Option<State>,
    state: State,
    /// The budget has already counted the message of this event, at an earlier recipient.
    is_counted: bool,
    /// The memory of the limit knows all recipients of this event, so the event does not touch the budget.
    is_remembered: bool,
    /// Values of the event that the filter of known values checks (`values`), and the values that the filter has to
    /// learn (`learnt`).
    values: &'a Values,
    learnt: Vec<Value>,
    /// Amount of the event, and level of the budget including this amount. Before [`Decision::measure`], the amount
    /// counts all values as new.
    amount: f64,
    level: f64,
    /// Response of the limit's ladder, if a rung is reached.
    reached: Option<Box<Reached>>,
}

impl<'a> Decision<'a> {
    fn new(
        policy: &'a Policy,
        now: Timestamp,
        request: &'a PolicyRequest,
        plan: &'a Plan<'a>,
        loaded: &'a mut Loaded,
        counters: &'a mut SessionCounters,
    ) -> Self {
        loaded.0.iter_mut().for_each(|slot| slot.heal(now));
        let mut own: Loaded = plan.own.iter().map(|key| counters.budget(key)).collect();
        own.0.iter_mut().for_each(|slot| slot.heal(now));
        let suspension = plan.suspension.clone();
        Self { policy, now, request, plan, loaded, own, counters, suspension, begun: Vec::new(), waits: Duration::ZERO }
    }

    /// Decides on one event. `steps` is memory that the events of a run share: what it holds is discarded first.
    fn decide(&mut self, event: &Event, checks: &'a [Check], steps: &mut Vec<Step<'a>>) -> Verdict {
        let mut refusal: Option<Box<Refusal>> = None;
        let mut verdict = Verdict::default();
        steps.clear();
        // Add all steps at once: pushing them one by one, as behind a filter, took a fifth of the decision's time.
        steps.extend(checks.iter().map(|check| self.begin(check)));
        let is_conditional = self.plan.is_conditional;
        if is_conditional {
            verdict.not_exceeded = self.leave_out(checks, steps);
        }
        let score = if is_conditional { self.score_of(steps.iter()) } else { None };
        let mut has_limit_on_refusals = false;
        for step in steps.iter_mut() {
            match step.limit.count {
                Count::Refusals => has_limit_on_refusals = true,
                _ => self.take_effect(step, event, score.as_ref(), &mut verdict, &mut refusal),
            }
        }
        if has_limit_on_refusals {
            self.count_refusals(steps, event, score.as_ref(), &mut verdict, &mut refusal);
        }
        for step in steps.iter() {
            self.charge_step(step, event, refusal.is_some(), &mut verdict);
        }
        if refusal.is_some() || self.request.wants_evaluations {
            verdict.evaluations = steps.drain(..).filter_map(|step| self.evaluation(step, score.as_ref())).collect();
        }
        if let Some(refusal) = refusal {
            verdict.ruling = Ruling::Refuse(refusal);
        }
        self.waits += verdict.delay;
        // A refused MAIL begins no transaction.
        if is_of_transaction(event) && !(*event == Event::Mail && matches!(verdict.ruling, Ruling::Refuse(_))) {
            self.counters.delay(verdict.delay);
        }
        verdict
    }

    /// Leaves out the steps whose preconditions do not hold. Returns their limits, as indices in the policy.
    fn leave_out(&self, checks: &[Check], steps: &mut Vec<Step<'_>>) -> Vec<usize> {
        let made: Vec<bool> = checks.iter().map(|check| self.is_made(check)).collect();
        let mut is_made = made.iter().copied();
        steps.retain(|_| is_made.next() == Some(true));
        let not_made = checks.iter().zip(&made).filter(|(_, is_made)| !**is_made);
        not_made.map(|(check, _)| self.plan.budgets[check.budget].limit).collect()
    }

    /// Measures the steps of limits on refusals, after the other steps.
    fn count_refusals(
        &mut self,
        steps: &mut [Step<'_>],
        event: &Event,
        score: Option<&SuspicionScore>,
        verdict: &mut Verdict,
        refusal: &mut Option<Box<Refusal>>,
    ) {
        let refuses = |step: &Step<'_>| step.reached.as_ref().is_some_and(|reached| reached.refusal.is_some());
        // A limit on refusals in shadow mode also counts the refusals that limits in shadow mode would make.
        let would_refuse = refusal.is_some() || steps.iter().any(refuses);
        for step in steps.iter_mut().filter(|step| step.limit.count == Count::Refusals) {
            let is_refused = if step.limit.mode == Mode::Enforce { refusal.is_some() } else { would_refuse };
            match is_refused {
                true => self.take_effect(step, event, score, verdict, refusal),
                false => step.effect = None,
            }
        }
    }

    /// Measures a step, and takes the actions of its limit, if a rung of its ladder is reached. Merges a refusal by the
    /// limit into `refusal`.
    fn take_effect(
        &mut self,
        step: &mut Step<'_>,
        event: &Event,
        score: Option<&SuspicionScore>,
        verdict: &mut Verdict,
        refusal: &mut Option<Box<Refusal>>,
    ) {
        self.measure(step, event);
        if step.reached.is_none() {
            return;
        }
        verdict.limit_hits.extend(step.limit_hit());
        self.notify(step, score, verdict);
        self.suspect(step, verdict);
        if step.limit.mode != Mode::Enforce {
            return;
        }
        self.suspend(step, verdict);
        let Some(reached) = &mut step.reached else { return };
        // The step keeps its refusal for its evaluation.
        if let Some(mut over) = reached.refusal.clone() {
            over.indices.push(step.planned.limit);
            *refusal = Some(match refusal.take() {
                None => over,
                Some(former) => Box::new(former.and(*over)),
            });
        }
        verdict.delay = verdict.delay.max(reached.delay);
        verdict.route = reached.route.take().or(verdict.route.take());
    }

    /// Prepares a step, which [`Decision::measure`] completes.
    fn begin(&self, check: &'a Check) -> Step<'a> {
        let planned = &self.plan.budgets[check.budget];
        let limit = &self.policy.limits[planned.limit];
        let is_counted = self.has_counted(limit, planned, check.effect);
        let effect = self.effect(limit, planned, check.effect, is_counted);
        // An event adds nothing if the budget has already counted the message of this event.
        let (values, amount) = match effect == Some(check.effect) {
            true => (&check.values, check.amount),
            false => (&Values::All, 0.0),
        };
        let before = self.slot(planned.slot).and_then(Slot::state);
        let state = before.unwrap_or(State { at: self.now, level: 0.0 });
        let (learnt, is_remembered) = (Vec::new(), false);
        Step {
            limit,
            planned,
            effect,
            before,
            state,
            is_counted,
            is_remembered,
            values,
            learnt,
            amount,
            level: 0.0,
            reached: None,
        }
    }

    /// Returns whether the budget of a limit that counts messages has already counted the message of this event.
    fn has_counted(&self, limit: &Limit, planned: &PlannedBudget<'_>, effect: Effect) -> bool {
        let has_counted = || self.plan.key(planned.slot).is_some_and(|key| self.counters.has_counted(key));
        limit.counts_once() && effect == Effect::Charge && has_counted()
    }

    /// Returns the effect of an event on a budget at this moment; `None` if the event has no effect.
    fn effect(&self, limit: &Limit, planned: &PlannedBudget<'_>, effect: Effect, is_counted: bool) -> Option<Effect> {
        match *planned.quota {
            // The filter learns all new recipients of the message, although the message counts once.
            _ if is_counted && limit.is_of_new_recipients() && planned.filter.is_some() => Some(effect),
            _ if is_counted && limit.charge != Charge::Attempts => None,
            _ if !self.begun.is_empty() && self.is_of_begun(limit, planned) => None,
            Quota::Unlimited => None,
            // A past event cannot be refused. A reported event has other consequences.
            Quota::Never if effect == Effect::Record && !limit.count.is_reported() => None,
            // A repeated attempt is refused again if it exceeds the limit, but not charged again.
            _ if is_counted => Some(Effect::Peek),
            _ => Some(effect),
        }
    }

    /// Returns the charge to this budget for the size that the client declared.
    fn declared(&self, planned: &PlannedBudget<'_>) -> Option<&RefundableCharge> {
        let key = self.plan.key(planned.slot)?;
        self.request.declared.iter().find(|charged| charged.key.borrowed() == key)
    }

    fn slot(&self, budget: BudgetRef) -> Option<&Slot> {
        match budget {
            BudgetRef::Stored(index) => self.loaded.0.get(index),
            BudgetRef::Message(index) | BudgetRef::Connection(index) => self.own.0.get(index),
            BudgetRef::None => None,
        }
    }

    fn slot_mut(&mut self, budget: BudgetRef) -> Option<&mut Slot> {
        match budget {
            BudgetRef::Stored(index) => self.loaded.0.get_mut(index),
            BudgetRef::Message(index) | BudgetRef::Connection(index) => self.own.0.get_mut(index),
            BudgetRef::None => None,
        }
    }
}

impl Step<'_> {
    /// Returns the limit hit to log. A limit hit does not include the refusal by an enforced limit, because the client
    /// receives that refusal.
    fn limit_hit(&self) -> Option<LimitHit> {
        let (limit, mode, reached) = (self.limit, self.limit.mode, self.reached.as_ref()?);
        let refusal = reached.refusal.as_ref().filter(|_| mode != Mode::Enforce);
        let verb = refusal.map(|refusal| refusal.verb);
        let (strongest, actions) = (reached.strongest(verb)?, reached.actions(verb));
        let (name, index, quota) = (limit.name.clone(), self.planned.limit, *self.planned.quota);
        Some(LimitHit {
            limit: name,
            index,
            mode,
            level: self.level,
            quota,
            actions: actions.join(", "),
            refuses: refusal.is_some(),
            strongest,
        })
    }
}

#[cfg(test)]
mod blocked_tests;
#[cfg(test)]
mod evaluation_tests;
#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod rhythm_tests;
#[cfg(test)]
mod suspension_tests;
#[cfg(test)]
mod suspicion_tests;
#[cfg(test)]
mod tests;
