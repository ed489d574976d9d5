//! What a limit's ladder does about an event.

use crate::engine::Wait;
use crate::policy::action::{Action, Delay, Notification, Verb};
use crate::policy::limit::Limit;
use crate::policy::quota::Quota;
use crate::policy::verdict::Refusal;
use crate::time::format_duration;
use std::sync::Arc;
use std::time::Duration;

/// All that happens; of the same verb the highest rung holds.
#[derive(Default)]
pub struct Reached {
    /// Taken by whoever acts upon it.
    pub refusal: Option<Box<Refusal>>,
    /// Whether there is, or was, one.
    pub refuses: bool,
    pub warns: bool,
    /// How late the answer is.
    pub delay: Duration,
    pub route: Option<Arc<str>>,
    pub suspends: Option<Duration>,
    pub notice: Option<Arc<Notification>>,
}

/// How far over an event is. The functions take a rung: so many times the limit.
pub struct Overage<O, R> {
    pub is_over: O,
    /// How full a budget is whose event is refused there, and how long that lasts.
    pub refused: R,
    /// How full it is with the event, and how much the limit is, in the units in which it is written.
    pub level: f64,
    pub most: f64,
}

/// How late an answer may be.
pub struct Room {
    pub command: Duration,
    /// What is left of the client's patience with this transaction, or with this run of commands.
    pub left: Duration,
    /// For so long the run waits already.
    pub waits: Duration,
}

impl Reached {
    /// `room` is how late the answer may be; `None`: it cannot be late. Without `may_suspend` a suspension is a denial.
    pub fn of<O, R>(limit: &Limit, quota: Quota, over: &Overage<O, R>, room: Option<Room>, may_suspend: bool) -> Self
    where
        O: Fn(f64) -> bool,
        R: Fn(f64) -> (f64, Wait),
    {
        let mut reached = Self::default();
        let mut strongest: Option<(Verb, _)> = None;
        let (mut lowest, mut delay, mut denial) = (None, None, None);
        for rung in limit.ladder.reached(&over.is_over) {
            let refused = match &rung.action {
                Action::Refuse(verb, text) => {
                    if *verb == Verb::Deny {
                        denial.clone_from(text);
                    }
                    Some((*verb, text.clone()))
                }
                Action::Suspend(_) if !may_suspend => Some((Verb::Deny, denial.clone())),
                Action::Suspend(time) => {
                    reached.suspends = Some(*time);
                    Some((Verb::Suspend, None))
                }
                Action::Warn => {
                    reached.warns = true;
                    None
                }
                Action::Delay(rung_delay) => {
                    delay = Some((rung.at, *rung_delay));
                    None
                }
                Action::Route(upstream) => {
                    reached.route = Some(upstream.clone());
                    None
                }
                Action::Notify(notification) => {
                    reached.notice = Some(notification.clone());
                    None
                }
            };
            if let Some((verb, text)) = refused {
                lowest.get_or_insert(rung.at);
                if strongest.as_ref().is_none_or(|(former, _)| *former <= verb) {
                    strongest = Some((verb, text));
                }
            }
        }
        let refusal = |verb, (level, wait), text, is_late| {
            let (name, count, also, places) = (limit.name.clone(), limit.count, Vec::new(), Vec::new());
            Some(Box::new(Refusal { limit: name, count, quota, verb, level, wait, is_late, also, places, text }))
        };
        if let (Some((at, delay)), Some(room)) = (delay, room) {
            match late(delay, at, over, &room) {
                Ok(time) => reached.delay = time,
                Err(too_late) => reached.refusal = refusal(Verb::Defer, too_late.refused, None, too_late.in_all),
            }
        }
        if let (Some((verb, text)), Some(at)) = (strongest, lowest) {
            let (level, wait) = (over.refused)(at);
            // Whoever is suspended waits for that, and hears the words of the denial beside it, if there is one.
            let suspends = reached.suspends.filter(|_| verb == Verb::Suspend);
            let (wait, text) = suspends.map_or((wait, text), |time| (Wait::For(time), denial));
            reached.refusal = refusal(verb, (level, wait), text, false);
        }
        reached.refuses = reached.refusal.is_some();
        reached
    }

    /// All that happens, in words; `verb` is that of the refusal, if it is to be among them.
    pub fn actions(&self, verb: Option<Verb>) -> Vec<String> {
        let suspends = self.suspends.filter(|_| verb == Some(Verb::Suspend));
        let verb = verb.map(|verb| match suspends {
            Some(time) => format!("{} {}", verb.name(), format_duration(time)),
            None => verb.name().to_owned(),
        });
        let delay = (!self.delay.is_zero()).then(|| format!("delay {}", format_duration(self.delay)));
        let route = self.route.as_ref().map(|upstream| format!("route {upstream}"));
        let notice = self.notice.as_ref().map(|notification| format!("notify {}", notification.name));
        let warning = self.warns.then(|| "warn".to_owned());
        [verb, warning, delay, route, notice].into_iter().flatten().collect()
    }
}

/// An answer would be later than a client waits.
struct TooLate {
    /// How full the budget is, and when the answer would no longer be so late.
    refused: (f64, Wait),
    /// Not by itself, but with others before it.
    in_all: bool,
}

/// How late an answer is to be, beyond what the run waits already.
fn late<O, R>(delay: Delay, at: f64, over: &Overage<O, R>, room: &Room) -> Result<Duration, TooLate>
where
    R: Fn(f64) -> (f64, Wait),
{
    let too_late = |refused| TooLate { refused, in_all: false };
    let time = match delay {
        Delay::For(time) if time > room.command => return Err(too_late((over.refused)(at))),
        Delay::For(time) => time,
        Delay::Per { time, units } => {
            let above = (over.level - at * over.most).max(0.0);
            let late = Duration::try_from_secs_f64(time.as_secs_f64() * above / units).unwrap_or(Duration::MAX);
            if late > room.command {
                let patience = room.command.as_secs_f64() / time.as_secs_f64() * units;
                return Err(too_late((over.refused)(at + patience / over.most)));
            }
            late
        }
        Delay::UntilFree => match (over.refused)(at) {
            (level, Wait::Never) => return Err(too_late((level, Wait::Never))),
            // All events of a run are free at a time of their own, and not one after the other.
            (level, Wait::For(wait)) => match wait.saturating_sub(room.waits) {
                late if late > room.command => {
                    return Err(too_late((level, Wait::For(wait.saturating_sub(room.command)))));
                }
                late => late,
            },
        },
    };
    match time <= room.left {
        true => Ok(time),
        false => Err(TooLate { refused: (over.refused)(at), in_all: true }),
    }
}
