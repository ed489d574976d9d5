//! Side effects of a decision other than charges: delays, suspensions, notifications.

use super::delay::{Overage, Room};
use super::ladder::{Begun, Reached};
use super::{Decision, Step};
use crate::engine::Wait;
use crate::engine::distinct::Seen;
use crate::policy::KnownTo;
use crate::policy::exception::{By, Suspension, Term};
use crate::policy::limit::{Count, Effect, Limit, Mode};
use crate::policy::plan::{MemoryEntry, PlannedBudget};
use crate::policy::request::Event;
use crate::policy::verdict::{Consequence, Notice, Suspended, SuspensionNotice, Verdict};
use crate::policy::{Lateness, Policy, SuspicionScore};
use std::sync::Arc;

impl Decision<'_> {
    /// Returns the suspension that refuses this event, if there is one. A suspension refuses only events that send
    /// mail: MAIL, RCPT, DATA and the end of the message. It lets mail to the recipients that `[suspensions]` allows
    /// pass.
    pub(super) fn suspended(&self, at: usize, event: &Event) -> Option<Suspended> {
        let suspension = self.suspension.as_ref()?;
        let sends = matches!(event, Event::Mail | Event::Recipient(_) | Event::Message | Event::End { .. });
        if !sends || self.is_allowed(suspension, at, event) {
            return None;
        }
        Some(Suspended {
            suspension: suspension.clone(),
            left: suspension.term.left(self.now),
            notice: self.notice_of(suspension),
            help_url: self.policy.help_url.clone(),
        })
    }

    /// Returns whether the owner of this budget was suspended earlier in this run. The plan does not have the new budget
    /// for the mail that the suspension allows. So this mail is not counted until the run ends.
    pub(super) fn is_of_begun(&self, limit: &Limit, planned: &PlannedBudget<'_>) -> bool {
        let Some(key) = self.plan.key(planned.slot).filter(|_| limit.count.is_of_mail()) else { return false };
        let owner = key.ungranted().map_or(key, |(own, _)| own).owner();
        self.begun.iter().any(|suspension| suspension.owner == owner)
    }

    fn is_allowed(&self, suspension: &Suspension, at: usize, event: &Event) -> bool {
        if let Some(known_to) = suspension.known_to {
            return match event {
                Event::Recipient(_) if self.knows(at, known_to) => true,
                Event::Recipient(_) => self.allows(suspension, event),
                // A lock refuses strangers at RCPT. Recipients that were accepted before the lock began get the message.
                _ => true,
            };
        }
        self.allows(suspension, event)
    }

    /// Returns whether a memory knows the recipient of the event at this index. While the store cannot read the memory,
    /// the lock refuses nothing, and the limits decide: a refusal for good would be wrong about known recipients.
    fn knows(&self, at: usize, known_to: KnownTo) -> bool {
        let mut of_event = self.plan.memory_entries.iter().filter(|entry| entry.event == at);
        of_event.any(|entry| {
            let is_known = || self.loaded.0[entry.key].is_unread || self.has_seen(entry) != Seen::Never;
            entry.memory.known_to == known_to && is_known()
        })
    }

    /// Returns whether a memory has seen the recipient of its entry.
    pub(super) fn has_seen(&self, entry: &MemoryEntry) -> Seen {
        let seen = self.loaded.0[entry.key].budget.as_ref().and_then(|budget| budget.seen.as_deref());
        entry.memory.rule().look(seen, self.now, entry.value)
    }

    fn allows(&self, suspension: &Suspension, event: &Event) -> bool {
        let Policy { suspensions, normalizer, .. } = self.policy;
        suspensions.allow(suspension, event, &self.request.facts.recipients, normalizer)
    }

    /// Returns what the reply says about a suspension.
    fn notice_of(&self, suspension: &Suspension) -> SuspensionNotice {
        let until = suspension.term.left(self.now).map(|_| self.policy.zone.minute(suspension.term.until).into());
        SuspensionNotice { until, contact: self.policy.suspensions.contact.clone() }
    }

    /// Evaluates the limit's ladder for a step.
    pub(super) fn reached(
        &self,
        step: &Step<'_>,
        effect: Effect,
        event: &Event,
        over: Overage<impl Fn(f64) -> bool, impl Fn(f64) -> (f64, Wait)>,
    ) -> Option<Box<Reached>> {
        if !(over.is_over)(step.limit.ladder.lowest()) {
            return None;
        }
        // An event that is only checked now (a peek) is charged later. All rungs take effect at that later charge. At
        // the peek, only a refusal takes effect.
        let is_look = effect == Effect::Peek && !step.limit.count.is_of_past_events();
        let room = if is_look { None } else { self.room(event) };
        let mut reached = Reached::of(step.limit, *step.planned.quota, &over, room, self.may_suspend(step));
        if step.limit.count.is_reported() {
            reached.keep_part_of_reported(effect);
        }
        // The route of a message is chosen at MAIL, so a route takes effect already at the peek at MAIL.
        let is_way = *event == Event::Mail && reached.route.is_some();
        match is_look && reached.refusal.is_none() {
            true if !is_way => None,
            true => Some(Box::new(Reached { route: reached.route, ..Reached::default() })),
            false => Some(Box::new(reached)),
        }
    }

    /// Suspends the owner of the budget, if a rung that suspends is reached.
    pub(super) fn suspend(&mut self, step: &mut Step<'_>, verdict: &mut Verdict) {
        let suspends = step.reached.as_ref().and_then(|reached| reached.suspends);
        let (Some(Begun { time, is_strict, is_lock }), Some(key)) = (suspends, self.plan.key(step.planned.slot)) else {
            return;
        };
        let owner = key.ungranted().map_or(key, |(own, _)| own).owner();
        let by = By::Limit(step.limit.name.clone());
        let reason = format!("{} of {}", step.planned.quota.level(step.level), step.planned.quota.most());
        let term = Term { since: self.now, until: time.end(self.now), by, reason: reason.into() };
        let rules = &self.policy.suspensions;
        let known_to = step.limit.distinct.and_then(|distinct| distinct.known_to).map(|memory| memory.known_to);
        let suspension = Arc::new(match known_to.filter(|_| is_lock) {
            Some(known_to) => rules.lock(owner, term, known_to),
            None => rules.suspension(owner, term, is_strict, false),
        });
        if self.suspension.as_ref().is_none_or(|former| former.rank() < suspension.rank()) {
            self.suspension = Some(suspension.clone());
        }
        self.begun.push(suspension.clone());
        let notice = self.notice_of(&suspension);
        let refusal = step.reached.as_mut().and_then(|reached| reached.refusal.as_mut());
        if let Some(refusal) = refusal.filter(|refusal| refusal.verb.suspends()) {
            refusal.suspension = Some(notice);
        }
        verdict.suspensions.push(suspension);
    }

    /// Adds a notice to the verdict, if a rung that notifies is reached. `score`: the score of the user before the event,
    /// if a limit of the event matches on suspicion.
    pub(super) fn notify(&self, step: &Step<'_>, score: Option<&SuspicionScore>, verdict: &mut Verdict) {
        let notification = step.reached.as_ref().and_then(|reached| reached.notice.as_ref());
        if let Some((notification, at)) = notification.filter(|_| step.limit.mode != Mode::Shadow) {
            verdict.notices.push(Notice {
                notification: notification.clone(),
                key: self.plan.key(step.planned.slot).map(|key| key.owned()),
                limit: step.limit.name.clone(),
                thing: step.limit.thing(),
                at: *at,
                mode: step.limit.mode,
                level: step.level,
                quota: *step.planned.quota,
                consequence: self.consequence(step),
                suspicion: score.filter(|_| step.limit.derived.has_suspicion).cloned(),
            });
        }
    }

    fn consequence(&self, step: &Step<'_>) -> Consequence {
        if step.limit.mode != Mode::Enforce {
            return Consequence::default();
        }
        let reached = step.reached.as_ref();
        Consequence {
            refuses: reached.is_some_and(|reached| reached.refusal.is_some()),
            suspends: reached.and_then(|reached| reached.suspends).map(|begun| begun.time),
            is_lock: reached.and_then(|reached| reached.suspends).is_some_and(|begun| begun.is_lock),
            may_suspend: step.limit.ladder.longest_suspension().filter(|_| self.may_suspend(step)),
        }
    }

    /// Returns the time available for a delay of the reply to this event; `None` if the reply cannot be delayed.
    fn room(&self, event: &Event) -> Option<Room> {
        let (Lateness { command, transaction }, waits) = (self.policy.lateness, self.waits);
        let before = match event {
            // After the final dot, a client that times out sends the message a second time, so this reply is not
            // delayed. A rejection by the upstream or a reported event has no reply that could be delayed.
            Event::End { .. } | Event::Rejected(_) | Event::Bounced(_) | Event::Complained(_) | Event::Blocked(_) => {
                return None;
            }
            event if is_of_transaction(event) => self.counters.delayed().max(waits),
            _ => waits,
        };
        Some(Room { command, left: transaction.saturating_sub(before), waits })
    }

    /// Returns whether the owner of a step's budget can be suspended. The null sender cannot be suspended, because
    /// everybody uses it. Neither can a suspended owner for mail that the suspension allows: each new suspension would
    /// begin with empty budgets. A blocked connection does not suspend a suspended owner again: a bot makes many a
    /// second.
    fn may_suspend(&self, step: &Step<'_>) -> bool {
        let Some(key) = self.plan.key(step.planned.slot) else { return false };
        let exceptions = &self.policy.exceptions;
        let is_suspended =
            || exceptions.suspension_of(&key.owner()).is_some_and(|suspension| suspension.term.holds(self.now));
        if step.limit.count == Count::BlockedConnections && is_suspended() {
            return false;
        }
        !key.is_of_bounces() && !exceptions.is_of_suspension(key, self.now) && exceptions.has_room()
    }
}

/// Returns whether a delay of this event adds to the transaction's delay.
pub(super) fn is_of_transaction(event: &Event) -> bool {
    matches!(event, Event::Mail | Event::Recipient(_) | Event::Message)
}
