//! Bounds: the maximum traffic that a limit lets through, as lines of text.

use super::amounts::{amount, things};
use crate::engine::Rule;
use crate::policy::Lateness;
use crate::policy::limit::{Action, Count, Delay, Likelihood, Limit, Mode, Quota, Rung, Scope};
use crate::policy::request::Stage;
use crate::time::{format_amount, format_duration, format_wait};
use std::time::Duration;

/// Bounds of one limit.
pub struct Bounds<'a> {
    /// One entry for each rate of the limit.
    pub rates: &'a [Limit],
    /// Maximum delays of `[delay]`.
    pub lateness: Lateness,
}

impl Bounds<'_> {
    pub fn lines(&self) -> Vec<String> {
        let limit = &self.rates[0];
        if limit.watch.is_some() {
            return Vec::new();
        }
        let (delays, _) = self.delays();
        let mut lines = match self.refuses_from() {
            None if delays.is_empty() => return vec!["It refuses nothing.".to_owned()],
            None => Vec::new(),
            Some(at) => self.bounds(at),
        };
        lines.extend(delays);
        if limit.overrides.is_some() {
            lines.insert(0, "Without an override row:".to_owned());
        }
        if limit.mode != Mode::Enforce {
            lines.insert(0, "If it were enforced:".to_owned());
        }
        lines
    }

    /// Returns the lowest level from which the limit refuses events, as a multiple of the limit's rate. Returns `None`
    /// if the limit refuses at no level. Refusals because of the sum of all delays in a message are not considered.
    pub fn refuses_from(&self) -> Option<f64> {
        [self.refusing_rung(), self.delays().1].into_iter().flatten().min_by(f64::total_cmp)
    }

    fn refusing_rung(&self) -> Option<f64> {
        self.rates[0].ladder.rungs().iter().find(|rung| rung.action.refuses()).map(|rung| rung.at)
    }

    /// Returns the lines about refusals because a delay is longer than the maximum. Also returns the lowest level from
    /// which the delay of a single reply exceeds the maximum.
    fn delays(&self) -> (Vec<String>, Option<f64>) {
        let (mut lines, mut lowest) = (Vec::new(), None);
        let rungs = self.delay_rungs();
        for (index, (at, delay)) in rungs.iter().enumerate() {
            // A delay applies only below the next rung with a delay, and below the rung that refuses.
            let ends = [rungs.get(index + 1).map(|(at, _)| *at), self.refusing_rung()];
            let end = ends.into_iter().flatten().fold(f64::INFINITY, f64::min);
            if let Some((from, line)) = self.too_late(*at, *delay).filter(|(from, _)| *from < end) {
                lines.push(line);
                // With `until-free`, the level from which the delay is too long is not a fixed multiple of the rate.
                lowest = lowest.or(Some(from).filter(|_| *delay != Delay::UntilFree));
            }
        }
        if rungs.first().is_some_and(|(first, _)| lowest != Some(*first)) {
            lines.extend(self.too_late_in_all());
            if lines.is_empty() && self.refusing_rung().is_none() {
                lines.push("It only delays, and refuses nothing.".to_owned());
            }
        }
        (lines, lowest)
    }

    /// Returns the level and the delay of each rung that delays and is below the rung that refuses.
    fn delay_rungs(&self) -> Vec<(f64, Delay)> {
        let limit = &self.rates[0];
        let end = self.refusing_rung().unwrap_or(f64::INFINITY);
        limit.ladder.rungs().iter().filter_map(delay).filter(|(at, _)| *at < end).collect()
    }

    /// Returns the line about the maximum sum of all delays in one message, if the limit delays commands of a message.
    fn too_late_in_all(&self) -> Option<String> {
        let code = match self.rates[0].stage {
            Stage::Rcpt => 452,
            Stage::Mail | Stage::Data => 450,
            _ => return None,
        };
        Some(format!(
            "The delays of a message add up to {} at most (per-transaction); beyond that it refuses with {code} until \
             the next message.",
            format_duration(self.lateness.transaction)
        ))
    }

    /// Returns the level from which the delay of one reply exceeds the maximum, and the line about it.
    fn too_late(&self, at: f64, delay: Delay) -> Option<(f64, String)> {
        let command = self.lateness.command;
        let longest = format_duration(command);
        match delay {
            Delay::For(time) if time > command => Some((
                at,
                format!("A delay of {} exceeds {longest} (per-command): it refuses instead.", format_duration(time)),
            )),
            Delay::For(_) => None,
            Delay::Per { time, units } => {
                let limit = &self.rates[0];
                // The quota of a share is a fraction; levels are printed in percent.
                let (most, share) = match limit.quota {
                    Quota::Share(share) => (share.most * 100.0, true),
                    Quota::Regularity(rule) => (rule.most() * 100.0, true),
                    Quota::Likelihood(_) => (100.0, true),
                    quota => (quota.rule().map_or(1.0, |rule| rule.burst()), false),
                };
                let from = at + command.as_secs_f64() / time.as_secs_f64() * units / most;
                let level = if share { format!("{}%", format_amount(most * from)) } else { self.things(most * from) };
                Some((from, format!("The delay is {longest} at {level}; beyond that (per-command) it refuses.")))
            }
            Delay::UntilFree => Some((
                at,
                format!(
                    "It delays until there is room, and refuses if that takes longer than {longest} (per-command)."
                ),
            )),
        }
    }

    /// Returns the lines about the bounds of a limit. `from` is the level from which the limit refuses, as a multiple
    /// of its rate.
    fn bounds(&self, from: f64) -> Vec<String> {
        let limit = &self.rates[0];
        let line = match limit.quota {
            Quota::Never => "It refuses everything.".to_owned(),
            Quota::Unlimited => "It refuses nothing.".to_owned(),
            Quota::Counter { scope, most } => {
                let most = self.things((most * from).floor());
                let (within, why) = match scope {
                    Scope::Message => ("in a message", "each message counts alone"),
                    Scope::Connection => ("in a connection", "each connection counts alone"),
                    Scope::AtOnce => ("at any moment", "one that ends makes room for another"),
                };
                // If the limit refuses from its own rate on, the sentence above already states this number.
                let most = if from == 1.0 { String::new() } else { format!("At the very most {most} {within}. ") };
                format!("{most}In an hour or a day any number: {why}.")
            }
            Quota::Share(share) => format!(
                "It bounds no number: beyond that share MAIL and RCPT are refused until fewer than {} are remembered.",
                format_amount(share.at_least)
            ),
            Quota::Regularity(rule) if rule.most() * from >= 1.0 => {
                "It refuses nothing: no gaps are more than 100% regular.".to_owned()
            }
            Quota::Regularity(rule) => format!(
                "It bounds no number: it refuses when the last {} vary by less than {}% of their mean.",
                limit.quota.period(),
                format_amount((1.0 / (rule.most() * from) - 1.0) * 100.0)
            ),
            Quota::Likelihood(Likelihood { rule, .. }) => format!(
                "It bounds no number: of recipients that are all rejected it refuses after {}, and it stays exceeded until \
                 the budget is reset or mail is not rejected.",
                (rule.limit() * from / (rule.bad() / rule.good()).ln()).ceil()
            ),
            Quota::Rate { .. } => {
                let rules = self.rates.iter().filter_map(|limit| limit.quota.rule());
                return self.bursts(&rules.map(|rule| rule.at(from)).collect::<Vec<_>>());
            }
        };
        vec![line]
    }

    /// Returns the table of bursts that all rules together let through (Finch's table). Then returns the maximum in an
    /// hour and in a day (the envelope of the Vienna paper).
    fn bursts(&self, rules: &[Rule]) -> Vec<String> {
        let (count, size) = (self.rates[0].count, self.event_size(rules));
        let least = |numbers: &dyn Fn(&Rule) -> f64| rules.iter().map(numbers).fold(f64::INFINITY, f64::min);
        let passed = |interval| {
            let firsts = rules.iter().filter_map(|rule| rule.first_over(interval, size));
            firsts.min().map(|first| first - 1)
        };
        if passed(Duration::ZERO) == Some(0) {
            return vec!["It refuses everything: one event alone exceeds it.".to_owned()];
        }
        let first =
            if count == Count::Bytes { format!("of {} each", amount(count, size)) } else { "after silence".to_owned() };
        let (mut intervals, mut numbers) = (format!("{first:15}"), format!("{:15}", "get through"));
        for interval in BURST_INTERVALS {
            let every = if interval.is_zero() {
                "same instant".to_owned()
            } else {
                format!("every {}", format_duration(interval))
            };
            let width = every.len().max(11);
            intervals.push_str(&format!("{every:>width$}"));
            numbers.push_str(&format!(
                "{:>width$}",
                passed(interval).map_or("any".to_owned(), |number| number.to_string())
            ));
        }
        let mut lines = vec![intervals, numbers];
        if let Ok(interval) = Duration::try_from_secs_f64(size / least(&Rule::sustained)) {
            lines.push(format!("For ever: one every {}.", format_wait(interval)));
        }
        // Rejections and reported events are counted after they have happened: the limit cannot bound their number.
        if !count.is_of_past_events() {
            // Rounding can leave a product just below a whole number; the small addend corrects it before `floor`.
            let most = |window| (least(&|rule: &Rule| rule.envelope(window)) + 1e-6).floor();
            let (hour, day) = (self.things(most(HOUR)), amount(count, most(DAY)));
            lines.push(format!("At the very most {hour} in an hour, {day} in a day."));
        }
        lines
    }

    /// Formats an amount with the noun of the count. With `distinct` the noun says "new": repeated values are not
    /// counted.
    fn things(&self, number: f64) -> String {
        things(self.rates[0].thing(), number)
    }

    /// Returns the size of one event in the table: 1, or, for a limit on bytes, a message size that fits into the burst
    /// at least four times.
    fn event_size(&self, rules: &[Rule]) -> f64 {
        if self.rates[0].count != Count::Bytes {
            return 1.0;
        }
        let burst = rules.iter().map(Rule::burst).fold(f64::INFINITY, f64::min);
        let sizes = [1024.0 * 1024.0, 100.0 * 1024.0, 10.0 * 1024.0, 1024.0];
        sizes.into_iter().find(|size| *size * 4.0 <= burst).unwrap_or(1.0)
    }
}

/// Intervals between messages in the table of bursts; zero means that all messages are sent at the same instant.
const BURST_INTERVALS: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(300),
    Duration::from_secs(600),
];

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// Returns the level and the delay of a rung that delays.
fn delay(rung: &Rung) -> Option<(f64, Delay)> {
    if let Action::Delay(delay) = rung.action { Some((rung.at, delay)) } else { None }
}
