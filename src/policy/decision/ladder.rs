//! Ladder: finds the rungs that an event reaches, and their combined response.

use crate::engine::Wait;
use crate::policy::limit::{Action, Delay, Limit, Notification, Quota, Rung, Template, Verb};
use crate::policy::verdict::Refusal;
use crate::time::format_duration;
use std::sync::Arc;
use std::time::Duration;

/// Combined response; of actions of one kind the highest rung counts.
#[derive(Default)]
pub struct Reached {
    /// Taken when it is merged into the verdict.
    pub refusal: Option<Box<Refusal>>,
    /// Whether there is a refusal, or was one before it was taken.
    pub refuses: bool,
    pub warns: bool,
    /// Delay of the reply.
    pub delay: Duration,
    pub route: Option<Arc<str>>,
    pub suspends: Option<Duration>,
    pub notice: Option<Arc<Notification>>,
}

/// Excess of an event over the limit. The functions take a rung, as a multiple of the limit.
pub struct Overage<O, R> {
    pub is_over: O,
    /// Level of a budget that refuses there, and the wait.
    pub refused: R,
    /// Level with the event, and the limit, in the units of the configuration.
    pub level: f64,
    pub most: f64,
}

/// Room for a delay.
pub struct Room {
    pub command: Duration,
    /// Remaining patience of the client, with this transaction or this run of commands.
    pub left: Duration,
    /// Delay of the run so far.
    pub waits: Duration,
}

impl Reached {
    /// Collects the response of a limit. `room`: the room for a delay; `None`: no delay is possible. Without
    /// `may_suspend`, `suspend` becomes `deny`.
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
            let (suspends, is_late) = (None, false);
            Refusal { limit: name, thing, quota, at, verb, level, wait, suspends, is_late, also, indices, text }
        };
        if let (Some((at, delay)), Some(room)) = (delay, room) {
            match late(delay, at, over, &room) {
                Ok(time) => reached.delay = time,
                Err(TooLate { at, refused, in_all }) => {
                    let refusal = refusal(Verb::Defer, at, refused, None);
                    reached.refusal = Some(Box::new(Refusal { is_late: in_all, ..refusal }));
                }
            }
        }
        if let (Some((verb, text)), Some(at)) = (strongest, lowest) {
            let (level, wait) = (over.refused)(at);
            // The wait of a suspended sender is the suspension. The text is that of a `deny` beside it, if there is
            // one.
            let suspends = reached.suspends.filter(|_| verb == Verb::Suspend);
            let (wait, text) = suspends.map_or((wait, text), |time| (Wait::For(time), denial));
            reached.refusal = Some(Box::new(Refusal { suspends, ..refusal(verb, at, (level, wait), text) }));
        }
        reached.refuses = reached.refusal.is_some();
        reached
    }

    /// Describes all actions; `verb` is that of the refusal, if the text is to include it.
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

/// Actions of the rungs that an event reaches, from the lowest rung on.
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
            Action::Suspend(_) if !may_suspend => self.refuse(rung.at, Verb::Deny, self.denial.clone()),
            Action::Suspend(time) => {
                self.reached.suspends = Some(*time);
                self.refuse(rung.at, Verb::Suspend, None);
            }
            Action::Warn => self.reached.warns = true,
            Action::Delay(delay) => self.delay = Some((rung.at, *delay)),
            Action::Route(upstream) => self.reached.route = Some(upstream.clone()),
            Action::Notify(notification) => self.reached.notice = Some(notification.clone()),
        }
    }

    fn refuse(&mut self, at: f64, verb: Verb, text: Option<Arc<Template>>) {
        self.lowest.get_or_insert(at);
        if self.strongest.as_ref().is_none_or(|(former, _)| *former <= verb) {
            self.strongest = Some((verb, text));
        }
    }
}

/// The delay would exceed the client's patience.
struct TooLate {
    /// Rung from which the delay is too long, as a multiple of the limit.
    at: f64,
    /// Level of the budget, and the wait until the delay is short enough.
    refused: (f64, Wait),
    /// The delay is too long only together with those before it.
    in_all: bool,
}

/// Returns the delay of a reply, beyond the delay of the run so far.
fn late<O, R>(delay: Delay, at: f64, over: &Overage<O, R>, room: &Room) -> Result<Duration, TooLate>
where
    R: Fn(f64) -> (f64, Wait),
{
    let too_late = |at, refused| TooLate { at, refused, in_all: false };
    let time = match delay {
        Delay::For(time) if time > room.command => return Err(too_late(at, (over.refused)(at))),
        Delay::For(time) => time,
        Delay::Per { time, units } => {
            let above = (over.level - at * over.most).max(0.0);
            let late = Duration::try_from_secs_f64(time.as_secs_f64() * above / units).unwrap_or(Duration::MAX);
            if late > room.command {
                let patience = room.command.as_secs_f64() / time.as_secs_f64() * units;
                let at = at + patience / over.most;
                return Err(too_late(at, (over.refused)(at)));
            }
            late
        }
        Delay::UntilFree => match (over.refused)(at) {
            (level, Wait::Never) => return Err(too_late(at, (level, Wait::Never))),
            // The waits of a run's events overlap: they are not added up.
            (level, Wait::For(wait)) => match wait.saturating_sub(room.waits) {
                late if late > room.command => {
                    return Err(too_late(at, (level, Wait::For(wait.saturating_sub(room.command)))));
                }
                late => late,
            },
        },
    };
    match time <= room.left {
        true => Ok(time),
        false => Err(TooLate { at, refused: (over.refused)(at), in_all: true }),
    }
}
