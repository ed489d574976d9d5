//! Delay of a reply, and its refusal where the client would lose patience.

use crate::engine::Wait;
use crate::policy::limit::Delay;
use std::time::Duration;

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

/// The delay would exceed the client's patience.
pub struct TooLate {
    /// Level of the budget, and the wait until the delay is short enough.
    pub refused: (f64, Wait),
    /// The delay is too long only together with those before it.
    pub in_all: bool,
}

/// Returns the delay of a reply, beyond the delay of the run so far.
pub fn reply_delay<O, R>(delay: Delay, at: f64, over: &Overage<O, R>, room: &Room) -> Result<Duration, TooLate>
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
            // The waits of a run's events overlap: they are not added up.
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
