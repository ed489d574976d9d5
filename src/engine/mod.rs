//! The arithmetic of limits: numbers in, numbers out. Pure: whoever calls says what time it is.

pub mod ewma;

use std::time::Duration;

/// What an event did, or would do, to a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// How full the budget is, in units of what is counted, this event included.
    pub level: f64,
    /// The event is more than the limit allows.
    pub over: bool,
}

/// How long until the same event, alone, is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// After this long, to the millisecond, and not one millisecond earlier.
    For(Duration),
    /// However long: the event by itself is more than the limit.
    Never,
}
