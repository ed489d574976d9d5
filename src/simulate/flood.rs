//! Flood: simulated spam from a compromised account, which the simulation adds to the history. The administrator
//! describes a flood as `alice 1/s 100rcpt from 2026-03-01T10:00`.

use super::history_csv::Message;
use super::replay::Outcome;
use crate::time::{Timestamp, Units, format_duration, parse_amount, parse_duration, parse_time};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

/// Flood of one account, and counts of its mail that was delivered.
#[derive(Clone, Debug)]
pub struct Flood {
    pub user: Arc<str>,
    interval: Duration,
    recipients: u64,
    pub from: Timestamp,
    /// Messages sent so far.
    sent: u64,
    /// Number of recipients to whom mail was delivered.
    delivered: u64,
    before_refusal: Option<(u64, Timestamp)>,
}

/// Maximum number of recipients of the flood in a day: no real account sends to so many recipients.
const MAX_RECIPIENTS: f64 = 1e9;

/// Client address of the flood. It is reserved for documentation (RFC 5737), so the history has no mail from it.
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// Duration of a flood. The simulation assumes that an administrator notices the flood within a day.
const DURATION: Duration = Duration::from_secs(86_400);

impl std::str::FromStr for Flood {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "write it as in \"alice 1/s 100rcpt from 2026-03-01T10:00\"";
        let words: Vec<&str> = text.split_whitespace().collect();
        let [user, speed, recipients, "from", from] = words[..] else { return Err(form.to_owned()) };
        let count = recipients
            .strip_suffix("rcpt")
            .and_then(|count| count.parse().ok())
            .filter(|count| (1..=100_000).contains(count));
        let recipients = count.ok_or_else(|| format!("\"{recipients}\" is not 1rcpt to 100000rcpt; {form}"))?;
        let from = parse_time(from).map_err(|error| error.to_string())?;
        let bad = || format!("\"{speed}\" is not a speed such as 1/s, 30/m or 500/h; {form}");
        let (amount, unit) = speed.split_once('/').ok_or_else(bad)?;
        let amount = parse_amount(amount, Units::Things).map_err(|_| bad())?;
        // The period after the slash is a unit such as `s`, which means `1s`, or a duration such as `10s`.
        let one = if ["s", "m", "h", "d"].contains(&unit) { "1" } else { "" };
        let unit = parse_duration(&format!("{one}{unit}")).map_err(|_| bad())?;
        let interval = Duration::try_from_secs_f64(unit.as_secs_f64() / amount).map_err(|_| bad())?;
        if interval < Duration::from_micros(1) || DURATION < interval {
            return Err(format!("\"{speed}\" is not between a million a second and one a day"));
        }
        if DURATION.as_secs_f64() / interval.as_secs_f64() * recipients as f64 > MAX_RECIPIENTS {
            return Err(format!("\"{speed}\" with {recipients} recipients is more than {MAX_RECIPIENTS} in a day"));
        }
        let user = user.to_lowercase().into();
        Ok(Self { user, interval, recipients, from, sent: 0, delivered: 0, before_refusal: None })
    }
}

impl Flood {
    /// Returns the time of the flood's next message; `None` after the last one.
    pub fn next_at(&self) -> Option<Timestamp> {
        let after = Duration::try_from_secs_f64(self.interval.as_secs_f64() * self.sent as f64).ok()?;
        (after < DURATION).then(|| self.from.after(after))
    }

    /// Returns whether a message of the history is of the attacked account, after the flood began.
    pub fn attacks(&self, message: &Message) -> bool {
        message.user.as_ref() == Some(&self.user) && message.at >= self.from
    }

    /// Returns the flood's next message, sent at `at`. All its recipients are new: no earlier message has them.
    pub fn next(&mut self, at: Timestamp) -> Message {
        let first = self.sent * self.recipients;
        self.sent += 1;
        let stranger = |n: u64| format!("stranger-{}@flood.invalid", first + n).into();
        Message::new(at, &self.user, CLIENT, (0..self.recipients).map(stranger).collect())
    }

    /// Counts the outcome of a message of the flood.
    pub fn note(&mut self, at: Timestamp, outcome: &Outcome) {
        if outcome.is_refused() && self.before_refusal.is_none() {
            // If the whole message is not refused, the recipients before the first refused recipient are delivered
            // before the refusal.
            let passed = match outcome.message {
                None => outcome.recipients.iter().take_while(|refusal| refusal.is_none()).count(),
                Some(_) => 0,
            };
            self.before_refusal = Some((self.delivered + passed as u64, at));
        }
        self.delivered += outcome.delivered() as u64;
    }

    pub fn summary(&self) -> String {
        let tried = self.sent * self.recipients;
        let first = match self.before_refusal {
            Some((count, at)) => {
                format!("{count} got mail before the first refusal, after {}", format_duration(at.since(self.from)))
            }
            None => "nothing was ever refused".to_owned(),
        };
        format!(
            "flood by {}, {} recipients every {}, from {}: {first}; {} strangers of {tried} got mail in {}",
            self.user,
            self.recipients,
            format_duration(self.interval),
            self.from.rfc3339(),
            self.delivered,
            format_duration(DURATION)
        )
    }

    /// Returns a summary for programs: number of recipients who got mail before the first refusal (null if there was no
    /// refusal), seconds until that refusal, number of recipients who got mail in total, and number of recipients
    /// tried.
    pub fn json(&self) -> serde_json::Value {
        let before = self.before_refusal.map(|(count, _)| count);
        let after = self.before_refusal.map(|(_, at)| at.since(self.from).as_secs_f64());
        serde_json::json!({ "flood": &*self.user, "before-first-refusal": before, "seconds-to-first-refusal": after,
            "delivered": self.delivered, "tried": self.sent * self.recipients })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floods_are_read_and_last_a_day() {
        let mut flood: Flood = "alice 1/s 100rcpt from 2026-03-01T10:00".parse().unwrap();
        assert_eq!((&*flood.user, flood.interval, flood.recipients), ("alice", Duration::from_secs(1), 100));
        let mut messages = 0;
        let mut last = flood.from;
        while let Some(at) = flood.next_at() {
            assert_eq!(flood.next(at).recipients.len(), 100);
            messages += 1;
            last = at;
        }
        assert_eq!((messages, last.since(flood.from)), (86_400, Duration::from_secs(86_399)));
        for (speed, seconds) in [("1/s", 1.0), ("1/10s", 10.0), ("6/30m", 300.0), ("0.5/s", 2.0), ("1/1h", 3600.0)] {
            let flood: Flood = format!("a {speed} 1rcpt from 0").parse().unwrap();
            assert_eq!(flood.interval, Duration::from_secs_f64(seconds), "{speed}");
        }
        for text in [
            "",
            "a 1/.5s 1rcpt from 0",
            "a 1/0s 1rcpt from 0",
            "a 1M/s 100000rcpt from 0",
            "alice",
            "alice 1 1rcpt from 0",
            "alice 0/s 1rcpt from 0",
            "alice 1/s 0rcpt from 0",
            "a 1/s 1 from 0",
            "a 1/s 1rcpt from noon",
            "a 1/s 1rcpt until 0",
            "a 1/x 1rcpt from 0",
            "a 1G/s 1rcpt from 0",
        ] {
            assert!(text.parse::<Flood>().is_err(), "{text}");
        }
    }
}
