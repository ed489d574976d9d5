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
    pub refusal: Option<Box<Refusal>>,
    /// There was a refusal, which somebody has taken to act upon it.
    pub refuses: bool,
    pub warns: bool,
    /// How late the answer is.
    pub delay: Duration,
    pub route: Option<Arc<str>>,
    pub suspends: Option<Duration>,
    pub notice: Option<Arc<Notification>>,
}

/// How far over an event is. All take a rung: so many times the limit.
pub struct Over<O, R, A> {
    pub is_over: O,
    /// How full a budget is whose event is refused there, and how long that lasts.
    pub refused: R,
    /// How much more it is, in units of what is counted.
    pub above: A,
}

impl Reached {
    /// `room` is how late the answer may be; `None`: it cannot be late.
    pub fn of<O, R, A>(limit: &Limit, quota: Quota, over: &Over<O, R, A>, room: Option<Duration>) -> Self
    where
        O: Fn(f64) -> bool,
        R: Fn(f64) -> (f64, Wait),
        A: Fn(f64) -> f64,
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
        if let (Some((at, delay)), Some(room)) = (delay, room) {
            match time(delay, at, over).filter(|time| *time <= room) {
                Some(time) => reached.delay = time,
                // What does not fit is refused.
                None if strongest.is_none() => (strongest, lowest) = (Some((Verb::Defer, None)), Some(at)),
                None => {}
            }
        }
        if let (Some((verb, text)), Some(at)) = (strongest, lowest) {
            let (level, wait) = (over.refused)(at);
            // Whoever is suspended waits for that, and hears the words of the denial beside it, if there is one.
            let suspends = reached.suspends.filter(|_| verb == Verb::Suspend);
            let (wait, text) = suspends.map_or((wait, text), |time| (Wait::For(time), denial));
            let (name, count, also, places) = (limit.name.clone(), limit.count, Vec::new(), Vec::new());
            let refusal = Refusal { limit: name, count, quota, verb, level, wait, also, places, text };
            reached.refusal = Some(Box::new(refusal));
        }
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

/// How late an answer is to be; `None`: for ever.
fn time<O, R, A>(delay: Delay, at: f64, over: &Over<O, R, A>) -> Option<Duration>
where
    R: Fn(f64) -> (f64, Wait),
    A: Fn(f64) -> f64,
{
    match delay {
        Delay::For(time) => Some(time),
        Delay::Per { time, units } => {
            Duration::try_from_secs_f64(time.as_secs_f64() * (over.above)(at).max(0.0) / units).ok()
        }
        Delay::UntilFree => match (over.refused)(at).1 {
            Wait::For(wait) => Some(wait),
            Wait::Never => None,
        },
    }
}
