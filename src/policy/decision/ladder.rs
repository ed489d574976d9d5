//! Ladder: finds the rungs that an event reaches, and combines their actions into one response.

use super::delay::{Overage, Room, TooLate, reply_delay};
use crate::engine::Wait;
use crate::policy::Suspect;
use crate::policy::exception::Length;
use crate::policy::limit::{Action, ActionKind, Delay, Effect, Limit, Notification, Quota, Rung, Template, Verb};
use crate::policy::verdict::Refusal;
use crate::time::{format_amount, format_duration};
use std::sync::Arc;
use std::time::Duration;

/// Suspension or lock that begins.
#[derive(Clone, Copy)]
pub struct Begun {
    pub time: Length,
    pub is_strict: bool,
    pub is_lock: bool,
}

/// Combined response of a ladder. If several rungs have actions of the same kind, the action of the highest rung
/// counts.
#[derive(Default)]
pub struct Reached {
    pub refusal: Option<Box<Refusal>>,
    pub warns: bool,
    /// Delay of the reply.
    pub delay: Duration,
    pub route: Option<Arc<str>>,
    /// Suspension that begins.
    pub suspends: Option<Begun>,
    /// Notification, and the level of its rung.
    pub notice: Option<(Arc<Notification>, f64)>,
    /// Points for the suspicion score of the user.
    pub suspects: Option<Suspect>,
}

impl Reached {
    /// Combines the actions of the rungs that an event reaches. `room` is the time available for a delay, or `None` if
    /// the reply cannot be delayed. If `may_suspend` is false, `deny` replaces the action `suspend`.
    pub fn of<O, R>(limit: &Limit, quota: Quota, over: &Overage<O, R>, room: Option<Room>, may_suspend: bool) -> Self
    where
        O: Fn(f64) -> bool,
        R: Fn(f64) -> (f64, Wait),
    {
        let mut rungs = ReachedRungs::default();
        limit.ladder.reached(&over.is_over).for_each(|rung| rungs.add(rung, may_suspend));
        let ReachedRungs { mut reached, strongest, lowest, delay, denial } = rungs;
        let refusal = |verb, at, (level, wait), text| {
            let (name, thing, also, indices) = (limit.name.clone(), limit.thing(), Vec::new(), Vec::new());
            let (suspends, suspension, is_late) = (None, None, false);
            Refusal {
                limit: name,
                thing,
                quota,
                at,
                verb,
                level,
                wait,
                suspends,
                suspension,
                is_late,
                also,
                indices,
                text,
            }
        };
        if let (Some((at, delay)), Some(room)) = (delay, room) {
            match reply_delay(delay, at, over, &room) {
                Ok(time) => reached.delay = time,
                Err(TooLate { at, refused, in_all }) => {
                    let refusal = refusal(Verb::Defer, at, refused, None);
                    reached.refusal = Some(Box::new(Refusal { is_late: in_all, ..refusal }));
                }
            }
        }
        if let (Some((verb, text)), Some(at)) = (strongest, lowest) {
            let (level, wait) = (over.refused)(at);
            // A suspended sender has to wait until the suspension ends. The text is the text of the highest `deny` that
            // the event reaches, if the event reaches a `deny`.
            let suspends = reached.suspends.map(|begun| begun.time).filter(|_| verb.suspends());
            let (wait, text) = match suspends {
                Some(Length::For(time)) => (Wait::For(time), denial),
                Some(Length::UntilReleased) => (Wait::Never, denial),
                None => (wait, text),
            };
            reached.refusal = Some(Box::new(Refusal { suspends, ..refusal(verb, at, (level, wait), text) }));
        }
        reached
    }

    /// Keeps the actions of a limit on reported events that take effect now. Such an event suspends, notifies and makes
    /// suspicious at once. The other actions are about the mail that follows. If mail that follows is not refused, it
    /// is no new reason to notify, and it never makes its sender more suspicious: only reported events do.
    pub fn keep_part_of_reported(&mut self, effect: Effect) {
        if effect == Effect::Record {
            let Self { suspends, notice, suspects, .. } = std::mem::take(self);
            *self = Self { suspends, notice, suspects, ..Self::default() };
        } else {
            self.suspects = None;
            self.notice = self.notice.take().filter(|_| self.refusal.is_some());
        }
    }

    /// Returns the strongest action; `None` if there is no action. If the action can be the refusal, `verb` is the verb
    /// of the refusal.
    pub fn strongest(&self, verb: Option<Verb>) -> Option<ActionKind> {
        let others = [
            (self.warns, ActionKind::Warn),
            (self.suspects.is_some(), ActionKind::Suspect),
            (self.notice.is_some(), ActionKind::Notify),
            (self.route.is_some(), ActionKind::Route),
            (!self.delay.is_zero(), ActionKind::Delay),
        ];
        let others = others.into_iter().filter_map(|(is_reached, kind)| is_reached.then_some(kind));
        others.chain(verb.map(ActionKind::Refuse)).max()
    }

    /// Returns a text for each action. If the texts must include the refusal, `verb` is the verb of the refusal.
    pub fn actions(&self, verb: Option<Verb>) -> Vec<String> {
        let suspends = self.suspends.map(|begun| begun.time).filter(|_| verb.is_some_and(Verb::suspends));
        let verb = verb.map(|verb| match suspends {
            Some(time) => format!("{} {time}", verb.name()),
            None => verb.name().to_owned(),
        });
        let delay = (!self.delay.is_zero()).then(|| format!("delay {}", format_duration(self.delay)));
        let route = self.route.as_ref().map(|upstream| format!("route {upstream}"));
        let notice = self.notice.as_ref().map(|(notification, _)| format!("notify {}", notification.name));
        let warning = self.warns.then(|| "warn".to_owned());
        let suspects = self.suspects.map(|suspect| format!("suspect {}", format_amount(suspect.points)));
        [verb, warning, delay, route, notice, suspects].into_iter().flatten().collect()
    }
}

/// Actions of the rungs that an event reaches, added from the lowest rung to the highest.
#[derive(Default)]
struct ReachedRungs {
    reached: Reached,
    /// Strongest refusal, and its text.
    strongest: Option<(Verb, Option<Arc<Template>>)>,
    /// Lowest rung that refuses.
    lowest: Option<f64>,
    /// Highest rung that delays, and its delay.
    delay: Option<(f64, Delay)>,
    /// Text of the highest `deny`.
    denial: Option<Arc<Template>>,
}

impl ReachedRungs {
    fn add(&mut self, rung: &Rung, may_suspend: bool) {
        match &rung.action {
            Action::Refuse(verb, text) => {
                if *verb == Verb::Deny {
                    self.denial.clone_from(text);
                }
                self.refuse(rung.at, *verb, text.clone());
            }
            Action::Suspend { .. } | Action::Lock(_) if !may_suspend => {
                self.refuse(rung.at, Verb::Deny, self.denial.clone());
            }
            Action::Suspend { time, is_strict } => {
                self.reached.suspends = Some(Begun { time: *time, is_strict: *is_strict, is_lock: false });
                self.refuse(rung.at, Verb::Suspend, None);
            }
            Action::Lock(time) => {
                // A suspension of a lower rung is stronger than the lock.
                let lock = Begun { time: *time, is_strict: false, is_lock: true };
                self.reached.suspends = self.reached.suspends.filter(|former| !former.is_lock).or(Some(lock));
                self.refuse(rung.at, Verb::Lock, None);
            }
            Action::Warn => self.reached.warns = true,
            Action::Delay(delay) => self.delay = Some((rung.at, *delay)),
            Action::Route(upstream) => self.reached.route = Some(upstream.clone()),
            Action::Notify(notification) => self.reached.notice = Some((notification.clone(), rung.at)),
            Action::Suspect(suspect) => self.reached.suspects = Some(*suspect),
        }
    }

    fn refuse(&mut self, at: f64, verb: Verb, text: Option<Arc<Template>>) {
        self.lowest.get_or_insert(at);
        if self.strongest.as_ref().is_none_or(|(former, _)| *former <= verb) {
            self.strongest = Some((verb, text));
        }
    }
}
