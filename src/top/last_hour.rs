//! Sums over the last hour, in slots of a minute.

use crate::time::Timestamp;

/// Messages, recipients, refusals and delays of a time: of the last hour, or of one of its minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HourSums {
    /// Messages that the upstream accepted.
    pub messages: u64,
    /// Recipients of these messages.
    pub recipients: u64,
    /// Commands and messages that a limit, a suspension, a sender check or the upstream refused.
    pub refusals: u64,
    /// Replies that limits delayed.
    pub delays: u64,
}

impl HourSums {
    fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.recipients += other.recipients;
        self.refusals += other.refusals;
        self.delays += other.delays;
    }
}

/// Sums for each of the last 60 minutes.
pub struct LastHour([(i64, HourSums); MINUTES]);

/// Number of minutes that are kept.
pub const MINUTES: usize = 60;

impl Default for LastHour {
    fn default() -> Self {
        Self([(i64::MIN, HourSums::default()); MINUTES])
    }
}

impl LastHour {
    pub fn add(&mut self, now: Timestamp, counted: HourSums) {
        let minute = minute(now);
        let slot = &mut self.0[minute.rem_euclid(MINUTES as i64) as usize];
        if slot.0 != minute {
            *slot = (minute, HourSums::default());
        }
        slot.1.add(&counted);
    }

    /// Returns the sums of the present minute and of the 59 minutes before.
    pub fn sums(&self, now: Timestamp) -> HourSums {
        let mut sums = HourSums::default();
        self.minutes(now, MINUTES).for_each(|(_, minute)| sums.add(&minute));
        sums
    }

    /// Returns the last `count` minutes, at most [`MINUTES`], with their begin: the oldest first, and the present minute
    /// last.
    pub fn minutes(&self, now: Timestamp, count: usize) -> impl Iterator<Item = (Timestamp, HourSums)> {
        let present = minute(now);
        let minutes = (0..count.min(MINUTES) as i64).rev().map(move |ago| present - ago);
        minutes.map(|minute| {
            let (slot_minute, sums) = self.0[minute.rem_euclid(MINUTES as i64) as usize];
            let sums = if slot_minute == minute { sums } else { HourSums::default() };
            (Timestamp::from_micros(minute * 60_000_000), sums)
        })
    }
}

fn minute(now: Timestamp) -> i64 {
    now.whole_seconds().div_euclid(60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_hour_counts() {
        let at = |minutes: i64| Timestamp::from_micros((1_700_000_000 + minutes * 60) * 1_000_000);
        let one = |refusals| HourSums { messages: 1, recipients: 2, refusals, delays: 1 };
        let mut hour = LastHour::default();
        for minute in 0..100 {
            hour.add(at(minute), one(3));
        }
        assert_eq!(hour.sums(at(99)), HourSums { messages: 60, recipients: 120, refusals: 180, delays: 60 });
        assert_eq!(hour.sums(at(129)), HourSums { messages: 30, recipients: 60, refusals: 90, delays: 30 });
        assert_eq!(hour.sums(at(159)), HourSums::default());
        assert_eq!(hour.sums(at(10)).refusals, 0, "a clock that was set back");
        let minutes: Vec<_> = hour.minutes(at(101), 4).map(|(begin, sums)| (begin.whole_seconds(), sums)).collect();
        let begin = at(101).whole_seconds() / 60 * 60;
        let (some, none) = (one(3), HourSums::default());
        assert_eq!(minutes, [(begin - 180, some), (begin - 120, some), (begin - 60, none), (begin, none)]);
        assert_eq!(hour.minutes(at(101), 1_000).count(), MINUTES);
    }
}
