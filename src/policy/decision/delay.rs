//! Delay of a reply, or the refusal of a command whose client would time out during the delay.

use crate::engine::Wait;
use crate::policy::limit::Delay;
use std::time::Duration;

/// Comparison of an event with the limit. Each function takes the level of a rung, as a multiple of the limit.
pub struct Overage<O, R> {
    pub is_over: O,
    /// Level of the budget if the event is refused at that rung, and the time after which the event would pass.
    pub refused: R,
    /// Level of the budget including the event, and the limit. Both numbers are in the units of the configuration.
    pub level: f64,
    pub most: f64,
}

/// Time that is available for a delay.
pub struct Room {
    pub command: Duration,
    /// Further delay that the client tolerates in this transaction or this run of pipelined commands.
    pub left: Duration,
    /// Sum of the delays of the replies so far to this run of pipelined commands.
    pub waits: Duration,
}

/// Error: the client would time out during the delay.
pub struct TooLate {
    /// Level of the budget from which the delay is too long. It is a multiple of the limit: 2.0 is twice the limit.
    pub at: f64,
    /// Level of the budget, and the wait until the delay would be short enough.
    pub refused: (f64, Wait),
    /// The delay is too long only because of the earlier delays.
    pub in_all: bool,
}

/// Returns the delay of a reply, in addition to the delays so far in this run of pipelined commands.
pub fn reply_delay<O, R>(delay: Delay, at: f64, over: &Overage<O, R>, room: &Room) -> Result<Duration, TooLate>
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
            // All events of a run wait at the same time. The delays of earlier events in the run are therefore part of
            // this wait.
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
