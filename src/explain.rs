//! Explanation of limits, for `weir check --explain`: each limit as a sentence, with the traffic that it lets through.

use crate::config::{Config, Setting};
use crate::engine::Rule;
use crate::policy::limit::{Algorithm, Charge, Count, Limit, Mode, Quota, Scope};
use crate::policy::request::Stage;
use crate::time::{format_amount, format_duration, format_wait};
use std::time::Duration;
use toml::de::DeValue;

/// Explains all limits. A limit with several rates is explained once.
pub fn explain(config: &Config) -> String {
    let limits = config.policy.limits.chunk_by(|one, next| one.name == next.name);
    let explained = limits.map(|rates| Explained { rates, written: written(&config.settings, &rates[0]), config });
    explained.map(|limit| limit.text()).collect::<Vec<_>>().join("\n")
}

/// Settings of a limit in the configuration: its own keys, and the keys of its tables.
fn written<'a>(settings: &'a [Setting], limit: &Limit) -> Vec<&'a Setting> {
    let is_name = |setting: &&Setting| setting.section == LIMIT && setting.key == "name";
    let names = settings.iter().filter(is_name);
    let place = names.into_iter().find(|setting| values(setting) == [&*limit.name]).map(|setting| setting.place);
    let mut current = None;
    let mut of_limit = |setting: &&Setting| {
        // Settings are in the order of reading: a limit with all its tables comes before the next limit.
        current = if setting.section == LIMIT { Some(setting.place) } else { current };
        setting.section.contains("[limit") && current == place
    };
    settings.iter().filter(|setting| of_limit(setting) && setting.value.is_some()).collect()
}

const LIMIT: &str = "[[limit]]";

/// Returns the value as written: the items of a list, or the single value.
fn values(setting: &Setting) -> Vec<String> {
    let text = setting.value.as_deref().unwrap_or_default();
    let plain = |value: &DeValue<'_>| value.as_str().map(str::to_owned);
    match DeValue::parse(text) {
        Ok(value) => match value.get_ref().as_array() {
            Some(items) => items.iter().filter_map(|item| plain(item.get_ref())).collect(),
            None => vec![plain(value.get_ref()).unwrap_or_else(|| text.to_owned())],
        },
        Err(_) => vec![text.to_owned()],
    }
}

struct Explained<'a> {
    /// One entry for each rate of the limit.
    rates: &'a [Limit],
    written: Vec<&'a Setting>,
    config: &'a Config,
}

impl Explained<'_> {
    fn text(&self) -> String {
        let limit = &self.rates[0];
        let parts = match limit.watch {
            Some(watched) => {
                let watched = &self.config.policy.limits[watched].name;
                vec![format!("looks at {} at the budget of {watched}, and charges nothing", limit.stage.name())]
            }
            None => [Some(self.allowance()), self.distinct(), self.charging(), self.others()]
                .into_iter()
                .flatten()
                .collect(),
        };
        let more =
            [self.conditions("match", "for"), self.conditions("except", "but not for"), self.ladder(), self.mode()];
        let sentence = parts.into_iter().chain(more.into_iter().flatten()).collect::<Vec<_>>().join("; ");
        let numbers: String = self.numbers().iter().map(|line| format!("  {line}\n")).collect();
        format!("{}: {sentence}.\n{numbers}", limit.name)
    }

    /// Says how much each key may send: `each user: at most 100 recipients in 1d`.
    fn allowance(&self) -> String {
        let limit = &self.rates[0];
        let names: Vec<_> = limit.per.iter().map(|field| field.name()).collect();
        let is_of_session = matches!(limit.quota, Quota::Counter { scope: Scope::Message | Scope::Connection, .. });
        let who = match names.is_empty() {
            // A budget per message or connection has no key field to name.
            true if is_of_session => String::new(),
            true => "all together: ".to_owned(),
            false => format!("each {}: ", names.join(" with each ")),
        };
        let how_much = match limit.quota {
            Quota::Never => format!("no {} at all", limit.count.name()),
            Quota::Unlimited => format!("any number of {}", limit.count.name()),
            Quota::Counter { scope, most } => {
                let within = match scope {
                    Scope::Message => "in a message",
                    Scope::Connection => "in a connection",
                    Scope::AtOnce => "at once",
                };
                format!("at most {} {within}", things(limit.count, most))
            }
            Quota::Share(share) => format!(
                "at most {} of {} rejected over {}, where there are {} or more",
                limit.quota.amount(),
                share.of.name(),
                limit.quota.period(),
                format_amount(share.at_least)
            ),
            Quota::Rate { .. } => {
                let rates = self.rates.iter().map(|limit| rate(limit.count, &limit.quota));
                let rates = rates.collect::<Vec<_>>().join(", and ");
                let way = match limit.algorithm {
                    Algorithm::Ewma => "as a moving average (ewma)".to_owned(),
                    algorithm => format!("from a bucket ({})", algorithm.name()),
                };
                format!("at most {rates}, {way}")
            }
        };
        format!("{who}{how_much}")
    }

    fn distinct(&self) -> Option<String> {
        let distinct = self.rates[0].distinct?;
        let what = distinct.what.name();
        Some(match distinct.remember {
            Some(time) => {
                format!("a {what} counts only if it is new, or has not been seen for {}", format_duration(time))
            }
            None if matches!(self.rates[0].quota, Quota::Rate { .. }) => {
                format!("each {what} counts once in that time")
            }
            None => format!("each {what} counts once"),
        })
    }

    fn charging(&self) -> Option<String> {
        let limit = &self.rates[0];
        let what = match (limit.count, limit.charge) {
            (Count::Rejections, _) => return Some("charged when the upstream rejects".to_owned()),
            (Count::LoginFailures, Charge::Accepted) => "before the password is tried, and refunded if it is right",
            (Count::Messages | Count::Recipients | Count::Bytes, Charge::Accepted) => {
                "with what Weir lets through, and kept if the smart host refuses it or the client gives up"
            }
            (_, Charge::Accepted) => "with what Weir lets through",
            (_, Charge::Sent) => {
                "with what Weir lets through, and refunded if the smart host refuses it or the client gives up"
            }
            (_, Charge::Attempts) => "with every attempt, also what is refused",
        };
        let at = if limit.stage == Stage::Command { "each command" } else { limit.stage.name() };
        Some(match limit.quota {
            Quota::Never | Quota::Unlimited => format!("judged at {at}"),
            _ => format!("charged at {at} {what}"),
        })
    }

    /// Says how many override rows the limit has.
    fn others(&self) -> Option<String> {
        let overrides = self.rates[0].overrides.as_ref()?;
        let file = self.written.iter().find(|setting| setting.key == "overrides").map(|file| values(file).concat());
        let rows = overrides.quotas(0).count();
        let plural = if rows == 1 { "" } else { "s" };
        Some(format!("{rows} row{plural} of {} with other numbers", file.unwrap_or_default()))
    }

    /// Says the tables of `match` or `except`.
    fn conditions(&self, key: &str, word: &str) -> Option<String> {
        let conditions =
            |table: &[&Setting]| table.iter().map(|setting| condition(setting)).collect::<Vec<_>>().join(" and ");
        let tables: Vec<String> = self.tables(key).iter().map(|table| conditions(table)).collect();
        (!tables.is_empty()).then(|| format!("{word} {}", tables.join(", or ")))
    }

    fn ladder(&self) -> Option<String> {
        let over = match self.rates[0].quota {
            Quota::Unlimited if self.rates[0].overrides.is_none() => return None,
            Quota::Never => "everything is",
            _ => "the excess is",
        };
        let mut rungs: Vec<(f64, String)> = self.tables("action").iter().map(|table| rung(table)).collect();
        rungs.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let rung = |(at, actions): &(f64, String)| match *at {
            1.0 => format!("{over} {actions}"),
            at => format!("from {at} times that on it is {actions}"),
        };
        Some(match rungs.is_empty() {
            true => format!("{over} deferred"),
            false => rungs.iter().map(rung).collect::<Vec<_>>().join("; "),
        })
    }

    fn mode(&self) -> Option<String> {
        match self.rates[0].mode {
            Mode::Enforce => None,
            Mode::Soft => Some("soft: it warns, and refuses nothing".to_owned()),
            Mode::Shadow => Some("in shadow: it only logs, and refuses nothing".to_owned()),
        }
    }

    /// Returns the limit's tables with this name, such as `match`.
    fn tables(&self, key: &str) -> Vec<Vec<&Setting>> {
        let title = format!("limit.{key}");
        let within = self.written.iter().filter(|setting| setting.section.trim_matches(['[', ']']) == title);
        let within: Vec<&Setting> = within.copied().collect();
        within.chunk_by(|one, next| one.place == next.place).map(<[_]>::to_vec).collect()
    }

    /// Returns lines of numbers: the traffic that the limit lets through.
    fn numbers(&self) -> Vec<String> {
        let limit = &self.rates[0];
        let refusing = limit.ladder.rungs().iter().find(|rung| rung.action.refuses());
        let mut lines = match (refusing, limit.watch) {
            (_, Some(_)) => return Vec::new(),
            (None, None) => return vec!["It refuses nothing.".to_owned()],
            (Some(rung), None) => self.bounds(rung.at),
        };
        if limit.overrides.is_some() {
            lines.insert(0, "Without an override row:".to_owned());
        }
        if limit.mode != Mode::Enforce {
            lines.insert(0, "If it were enforced:".to_owned());
        }
        lines
    }

    /// Returns the bounds for a limit that refuses from `from` times its rate on.
    fn bounds(&self, from: f64) -> Vec<String> {
        let limit = &self.rates[0];
        let line = match limit.quota {
            Quota::Never => "It refuses everything.".to_owned(),
            Quota::Unlimited => "It refuses nothing.".to_owned(),
            Quota::Counter { scope, most } => {
                let most = self.things((most * from).floor());
                let (within, of_hours) = match scope {
                    Scope::Message => ("in a message", "as many as there are messages for"),
                    Scope::Connection => ("in a connection", "as many as there are connections for"),
                    Scope::AtOnce => ("at any moment", "as many as come to an end"),
                };
                format!("At the very most {most} {within}; in an hour or a day {of_hours}.")
            }
            Quota::Share(share) => format!(
                "It bounds no number: beyond that share MAIL and RCPT are refused until fewer than {} are remembered.",
                format_amount(share.at_least)
            ),
            Quota::Rate { .. } => {
                let rules = self.rates.iter().filter_map(|limit| limit.quota.rule());
                return self.bursts(&rules.map(|rule| rule.at(from)).collect::<Vec<_>>());
            }
        };
        vec![line]
    }

    /// Returns Finch's table of bursts for all rules together, then the envelope of the Vienna paper.
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
        let (mut intervals, mut numbers) = (format!("{first:13}"), format!("{:13}", "get through"));
        for interval in BURST_INTERVALS {
            let every =
                if interval.is_zero() { "at once".to_owned() } else { format!("every {}", format_duration(interval)) };
            intervals.push_str(&format!("{every:>11}"));
            numbers
                .push_str(&format!("{:>11}", passed(interval).map_or("any".to_owned(), |number| number.to_string())));
        }
        let mut lines = vec![intervals, numbers];
        if let Ok(interval) = Duration::try_from_secs_f64(size / least(&Rule::sustained)) {
            lines.push(format!("For ever: one every {}.", format_wait(interval)));
        }
        // Rejections are counted after they happened: the limit cannot bound their number.
        if count != Count::Rejections {
            // Rounding can leave a product just below a whole number; the small addend corrects it before `floor`.
            let most = |window| (least(&|rule: &Rule| rule.envelope(window)) + 1e-6).floor();
            let (hour, day) = (self.things(most(HOUR)), amount(count, most(DAY)));
            lines.push(format!("At the very most {hour} in an hour, {day} in a day."));
        }
        lines
    }

    /// Amount in the limit's unit. With `distinct`, only new values count; repeated ones are free.
    fn things(&self, number: f64) -> String {
        let limit = &self.rates[0];
        match limit.distinct {
            None => things(limit.count, number),
            Some(distinct) => {
                let plural = if number == 1.0 { "" } else { "s" };
                format!("{} new {}{plural}", amount(limit.count, number), distinct.what.name())
            }
        }
    }

    /// Size of one event in the table: 1, or a size in bytes of which a few messages fit into the burst.
    fn event_size(&self, rules: &[Rule]) -> f64 {
        if self.rates[0].count != Count::Bytes {
            return 1.0;
        }
        let burst = rules.iter().map(Rule::burst).fold(f64::INFINITY, f64::min);
        let sizes = [1024.0 * 1024.0, 100.0 * 1024.0, 10.0 * 1024.0, 1024.0];
        sizes.into_iter().find(|size| *size * 4.0 <= burst).unwrap_or(1.0)
    }
}

/// Intervals between messages in Finch's table; zero is all at once.
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

/// `100 recipients in 1d`; of a bucket also its burst, if that differs.
fn rate(count: Count, quota: &Quota) -> String {
    let Quota::Rate { rate, rule } = quota else { return String::new() };
    let text = format!("{} in {}", things(count, rate.amount), format_duration(rate.period));
    match rule {
        Rule::Bucket(bucket) if bucket.burst() != rate.amount => {
            format!("{text} and {} at once", amount(count, bucket.burst()))
        }
        _ => text,
    }
}

/// Amount with its unit: `1 message`, `2 messages`.
fn things(count: Count, number: f64) -> String {
    let name = if number == 1.0 { count.name().trim_end_matches('s') } else { count.name() };
    format!("{} {name}", amount(count, number))
}

/// Amount as a number; bytes get the units of the configuration (K, M, G).
fn amount(count: Count, amount: f64) -> String {
    let units = [("G", 1024.0 * 1024.0 * 1024.0), ("M", 1024.0 * 1024.0), ("K", 1024.0)];
    match units.into_iter().find(|(_, size)| count == Count::Bytes && amount >= *size) {
        Some((unit, size)) => format!("{}{unit}", format_amount((amount / size * 10.0).round() / 10.0)),
        None => format_amount(amount),
    }
}

/// Says one key of `match` or `except`.
fn condition(setting: &Setting) -> String {
    match (setting.key, setting.value.as_deref()) {
        (key, Some("true")) => key.to_owned(),
        (key, Some("false")) => format!("not {key}"),
        (key, _) => format!("{key} {}", values(setting).join(" or ")),
    }
}

/// Returns a ladder step: its threshold (1 is the limit itself) and its actions.
fn rung(table: &[&Setting]) -> (f64, String) {
    let (at, actions): (Vec<&Setting>, Vec<&Setting>) = table.iter().partition(|setting| setting.key == "at");
    let at = at.first().and_then(|at| values(at).concat().replace('_', "").parse().ok());
    (at.unwrap_or(1.0), actions.into_iter().map(action).collect::<Vec<_>>().join(" and "))
}

/// Says one action of a ladder step.
fn action(setting: &Setting) -> String {
    let value = values(setting).concat();
    let text = if value == "true" { String::new() } else { format!(" with \"{value}\"") };
    match setting.key {
        "warn" => "warned of".to_owned(),
        "delay" => format!("delayed by {value}"),
        "defer" => format!("deferred{text}"),
        "deny" => format!("denied{text}"),
        "drop" => format!("dropped{text}"),
        "route" => format!("routed by {value}"),
        "suspend" => format!("suspended for {value}"),
        key => format!("told to {value} ({key})"),
    }
}
