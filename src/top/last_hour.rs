//! Sums over the last hour, in slots of a minute.

use crate::time::Timestamp;

/// Messages, recipients and refusals of the last hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HourSums {
    /// Messages that the upstream accepted.
    pub messages: u64,
    /// Recipients of these messages.
    pub recipients: u64,
    /// Commands and messages that a limit, a suspension, a sender check or the upstream refused.
    pub refusals: u64,
}

/// Sums for each of the last 60 minutes.
pub struct LastHour([(i64, HourSums); MINUTES]);

const MINUTES: usize = 60;

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
        slot.1.messages += counted.messages;
        slot.1.recipients += counted.recipients;
        slot.1.refusals += counted.refusals;
    }

    /// Returns the sums of the present minute and of the 59 minutes before.
    pub fn sums(&self, now: Timestamp) -> HourSums {
        let present = minute(now);
        let is_of_hour = |slot: &&(i64, HourSums)| slot.0 <= present && present.saturating_sub(slot.0) < MINUTES as i64;
        self.0.iter().filter(is_of_hour).fold(HourSums::default(), |sums, (_, one)| HourSums {
            messages: sums.messages + one.messages,
            recipients: sums.recipients + one.recipients,
            refusals: sums.refusals + one.refusals,
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
        let one = |refusals| HourSums { messages: 1, recipients: 2, refusals };
        let mut hour = LastHour::default();
        for minute in 0..100 {
            hour.add(at(minute), one(3));
        }
        assert_eq!(hour.sums(at(99)), HourSums { messages: 60, recipients: 120, refusals: 180 });
        assert_eq!(hour.sums(at(129)), HourSums { messages: 30, recipients: 60, refusals: 90 });
        assert_eq!(hour.sums(at(159)), HourSums::default());
        assert_eq!(hour.sums(at(10)).refusals, 0, "a clock that was set back");
    }
}
