//! Activity of one sender: its rates of the last minutes, and its sums since the sender became active.

use crate::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// Time in which the weight of an event decays to 1/e. A rate is thus an average over about the last ten minutes.
pub const TIME_CONSTANT: Duration = Duration::from_secs(600);

/// Pause after which a sender's next event begins a new activity: sums and rates start at 0.
const MAX_PAUSE: Duration = Duration::from_secs(3_600);

/// Shortest time to which a rate refers, so that a single message does not look like a flood.
const SHORTEST: Duration = Duration::from_secs(60);

/// Activity of a sender: in a batch of a session's records, or since the sender became active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Messages that the upstream accepted.
    pub messages: u64,
    /// Recipients of these messages.
    pub recipients: u64,
    /// Commands and messages that were refused.
    pub refusals: u64,
    /// Octets of the accepted messages.
    pub octets: u64,
}

/// Amounts per minute.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub messages: f64,
    pub recipients: f64,
    pub refusals: f64,
    pub octets: f64,
}

/// Last refusal of a sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRefusal {
    pub at: Timestamp,
    /// Name of the limit, or `suspended`, `sender-mismatch` or `upstream`.
    pub by: Arc<str>,
    /// Stage of the session, such as `rcpt`.
    pub stage: &'static str,
    /// Reference in the reply; none if the upstream refused.
    pub reference: Option<Arc<str>>,
}

/// Activity of one sender.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// Time of the first and of the last event; `None` before the first event.
    span: Option<(Timestamp, Timestamp)>,
    sums: Amounts,
    /// Decayed sums at the time of the last event.
    decayed: [f64; 4],
    last_refusal: Option<LastRefusal>,
}

impl Amounts {
    /// Returns the weight by which senders compete for a place in the bounded summary: each message, recipient, refusal
    /// and 100 kB has the same weight.
    pub fn weight(&self) -> f64 {
        (self.messages + self.recipients + self.refusals) as f64 + self.octets as f64 / 100_000.0
    }

    fn as_doubles(&self) -> [f64; 4] {
        [self.messages, self.recipients, self.refusals, self.octets].map(|amount| amount as f64)
    }

    fn add(&mut self, other: &Self) {
        self.messages = self.messages.saturating_add(other.messages);
        self.recipients = self.recipients.saturating_add(other.recipients);
        self.refusals = self.refusals.saturating_add(other.refusals);
        self.octets = self.octets.saturating_add(other.octets);
    }
}

impl Activity {
    /// Counts a batch of events at `now`.
    pub fn add(&mut self, now: Timestamp, amounts: &Amounts, last_refusal: Option<LastRefusal>) {
        if self.span.is_none_or(|(_, last)| now.since(last) > MAX_PAUSE) {
            *self = Self { span: Some((now, now)), last_refusal: self.last_refusal.take(), ..Self::default() };
        }
        let (since, last) = self.span.unwrap_or((now, now));
        let decay = decay(last, now);
        for (decayed, amount) in self.decayed.iter_mut().zip(amounts.as_doubles()) {
            *decayed = *decayed * decay + amount;
        }
        self.sums.add(amounts);
        // If the clock was set back, the activity cannot have begun later than now.
        self.span = Some((since.min(now), now));
        self.last_refusal = last_refusal.or(self.last_refusal.take());
    }

    /// Returns the times of the first and of the last event of the present activity; `None` if the sender is not
    /// active.
    pub fn span(&self, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
        self.span.filter(|(_, last)| now.since(*last) <= MAX_PAUSE)
    }

    pub fn sums(&self) -> Amounts {
        self.sums
    }

    pub fn last_refusal(&self) -> Option<&LastRefusal> {
        self.last_refusal.as_ref()
    }

    /// Returns the rates at `now`, as averages over about the last ten minutes, or over the time since the sender became
    /// active if that is shorter.
    pub fn rates(&self, now: Timestamp) -> Rates {
        let Some((since, last)) = self.span else { return Rates::default() };
        let constant = TIME_CONSTANT.as_secs_f64();
        let age = now.since(since).max(SHORTEST).as_secs_f64();
        // A constant rate r has the decayed sum r · constant · (1 − e^(−age/constant)).
        let minutes = constant / 60.0 * (1.0 - (-age / constant).exp());
        let scale = decay(last, now) / minutes;
        let [messages, recipients, refusals, octets] = self.decayed.map(|decayed| decayed * scale);
        Rates { messages, recipients, refusals, octets }
    }
}

/// Returns the factor by which an amount decays between two times.
fn decay(earlier: Timestamp, now: Timestamp) -> f64 {
    (-now.since(earlier).as_secs_f64() / TIME_CONSTANT.as_secs_f64()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros((1_700_000_000 + seconds) * 1_000_000)
    }

    fn mail(recipients: u64) -> Amounts {
        Amounts { messages: 1, recipients, refusals: 0, octets: 1_000 }
    }

    #[test]
    fn the_rate_of_a_steady_sender_is_right_from_the_first_minutes_on() {
        let mut activity = Activity::default();
        for second in 0..7_200 {
            activity.add(at(second), &mail(3), None);
            // After a minute the rate counts one event too many of at most 60, because the first event is at time 0.
            if [60, 600, 3_600, 7_199].contains(&second) {
                let rates = activity.rates(at(second));
                assert!((59.0..62.0).contains(&rates.messages), "{second}: {rates:?}");
                assert!((rates.recipients / rates.messages - 3.0).abs() < 1e-9);
            }
        }
        assert_eq!(activity.sums().messages, 7_200);
        let rates = activity.rates(at(7_199 + 600));
        assert!((21.0..23.0).contains(&rates.messages), "after ten minutes of silence: {rates:?}");
    }

    #[test]
    fn a_single_message_is_no_flood() {
        let mut activity = Activity::default();
        activity.add(at(0), &mail(1), None);
        assert!(activity.rates(at(0)).messages < 1.1);
    }

    #[test]
    fn a_long_pause_begins_a_new_activity_but_keeps_the_last_refusal() {
        let refusal = LastRefusal { at: at(0), by: "l".into(), stage: "rcpt", reference: None };
        let mut activity = Activity::default();
        activity.add(at(0), &Amounts { refusals: 1, ..mail(5) }, Some(refusal.clone()));
        assert_eq!(activity.span(at(3_600)), Some((at(0), at(0))));
        assert_eq!(activity.span(at(3_601)), None);
        activity.add(at(4_000), &mail(1), None);
        assert_eq!((activity.span(at(4_000)), activity.sums()), (Some((at(4_000), at(4_000))), mail(1)));
        assert_eq!(activity.last_refusal(), Some(&refusal));
    }
}
