//! Explanation of limits for `weir check --explain`: each limit as a sentence, with the maximum traffic that the limit
//! lets through.

mod amounts;
mod bounds;
mod hours;

use crate::config::{Config, Setting};
use crate::engine::Rule;
use crate::policy::limit::{Action, Algorithm, Charge, Count, Effect, Limit, Mode, Quota, Scope};
use crate::policy::request::{Event, Stage};
use crate::policy::{KnownTo, Suspect};
use crate::time::{format_amount, format_duration};
use amounts::{amount, things};
use bounds::Bounds;
use std::collections::HashMap;
use toml::de::DeValue;

/// Explains all limits. A limit with several rates is explained once.
pub fn explain(config: &Config) -> String {
    all(config).map(|limit| limit.text()).collect::<Vec<_>>().join("\n")
}

/// Returns the explanation of each limit, by the limit's name.
pub fn explain_each(config: &Config) -> HashMap<String, String> {
    all(config).map(|limit| (limit.rates[0].name.to_string(), limit.text())).collect()
}

/// Explanation of one limit, in parts.
pub struct Explanation {
    pub limit: String,
    /// Sentence with a full stop, without the name of the limit.
    pub sentence: String,
    /// The maximum traffic that the limit lets through, and the hours of its conditions.
    pub lines: Vec<String>,
}

/// Returns the explanations of all limits in parts.
pub fn explanations(config: &Config) -> Vec<Explanation> {
    all(config).map(|limit| limit.explanation()).collect()
}

fn all(config: &Config) -> impl Iterator<Item = Explained<'_>> {
    let limits = config.policy.limits.chunk_by(|one, next| one.name == next.name);
    limits.map(|rates| Explained { rates, written: written(&config.settings, &rates[0]), config })
}

/// Returns the settings of a limit as written in the file: its own keys, and the keys of its sub-tables.
fn written<'a>(settings: &'a [Setting], limit: &Limit) -> Vec<&'a Setting> {
    let is_name = |setting: &&Setting| setting.section == LIMIT && setting.key == "name";
    let names = settings.iter().filter(is_name);
    let place = names.into_iter().find(|setting| values(setting) == [&*limit.name]).map(|setting| setting.place);
    let mut current = None;
    let mut of_limit = |setting: &&Setting| {
        // Settings are in the order of the file: the keys of a limit and of its sub-tables come before the keys of the
        // next limit.
        current = if setting.section == LIMIT { Some(setting.place) } else { current };
        setting.section.contains("[limit") && current == place
    };
    settings.iter().filter(|setting| of_limit(setting) && setting.value.is_some()).collect()
}

const LIMIT: &str = "[[limit]]";

/// Maximum number of patterns of allowed recipients in a sentence.
const MAX_PATTERNS: usize = 5;

/// Returns the values of a setting as written in the file: the items of a list, or a single value.
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
        let Explanation { limit, sentence, lines } = self.explanation();
        let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
        format!("{limit}: {sentence}\n{lines}")
    }

    fn explanation(&self) -> Explanation {
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
        let tables = hours::tables(&limit.matcher, &self.config.policy.zone);
        let lines = self.bounds().lines().into_iter().chain(tables).collect();
        Explanation { limit: limit.name.to_string(), sentence: sentence + ".", lines }
    }

    fn bounds(&self) -> Bounds<'_> {
        Bounds { rates: self.rates, lateness: self.config.policy.lateness }
    }

    /// Describes the quota of each budget: `each user: at most 100 recipients in 1d`.
    fn allowance(&self) -> String {
        let limit = &self.rates[0];
        let names: Vec<_> = limit.per.iter().map(|field| field.name()).collect();
        let is_of_session = matches!(limit.quota, Quota::Counter { scope: Scope::Message | Scope::Connection, .. });
        let who = match names.is_empty() {
            // A counter per message or connection has no field in `per` to name.
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
                format!("at most {} {within}", things(limit.thing(), most))
            }
            Quota::Share(share) => format!(
                "at most {} of {} rejected over {}, where there are {} or more",
                limit.quota.amount(),
                share.of.name(),
                limit.quota.period(),
                format_amount(share.at_least)
            ),
            Quota::Regularity(_) => format!(
                "{} only at times that are up to {} regular over {}",
                limit.thing().noun(2.0),
                limit.quota.amount(),
                limit.quota.period()
            ),
            Quota::Likelihood(_) => limit.quota_text(&limit.quota),
            Quota::Rate { .. } => {
                // If the limit does not refuse from its own rate on, its actions decide how much passes. The lines of
                // [`Bounds`] then state the amount.
                let is_refused = self.bounds().refuses_from() == Some(1.0);
                let rates = self.rates.iter().map(|limit| rate(limit, is_refused));
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
        if let Some(memory) = distinct.known_to {
            let by = match memory.known_to {
                KnownTo::All => "anyone here has".to_owned(),
                KnownTo::Each(field) => format!("this {} has", field.word()),
            };
            let what = if self.rates[0].count == Count::Messages { "a message counts once, if a" } else { "a" };
            let counts = if self.rates[0].count == Count::Messages { "is one" } else { "counts only if it is one" };
            let time = format_duration(memory.remember());
            return Some(format!("{what} recipient {counts} to which {by} not written for {time}"));
        }
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
            (Count::Refusals, _) => return Some("charged when another limit refuses the recipient".to_owned()),
            (Count::Rejections, _) => return Some("charged when the upstream rejects".to_owned()),
            (Count::Bounces, _) => return Some("charged when an outcome says that the smart host bounced".to_owned()),
            (Count::Complaints, _) => {
                return Some("charged when an outcome says that a recipient complained".to_owned());
            }
            (Count::BlockedConnections, _) => {
                return Some("charged when the network blocks a connection of the client".to_owned());
            }
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
        let looks_at_mail = limit.effect(&Event::Mail) == Some(Effect::Peek);
        Some(match limit.quota {
            Quota::Never | Quota::Unlimited if looks_at_mail => format!("judged at mail and {at}"),
            Quota::Never | Quota::Unlimited => format!("judged at {at}"),
            _ => format!("charged at {at} {what}"),
        })
    }

    /// Says how many rows the limit's override table has.
    fn others(&self) -> Option<String> {
        let overrides = self.rates[0].overrides.as_ref()?;
        let file = self.written.iter().find(|setting| setting.key == "overrides").map(|file| values(file).concat());
        let rows = overrides.quotas(0).count();
        let plural = if rows == 1 { "" } else { "s" };
        Some(format!("{rows} row{plural} of {} with other numbers", file.unwrap_or_default()))
    }

    /// Describes the tables of `match` or `except` in words.
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
        let owner = self.rates[0].per.first().map_or_else(|| "sender".into(), |field| field.name());
        let mut rungs: Vec<(f64, String)> =
            self.tables("action").iter().map(|table| rung(table, &owner, &self.allowed())).collect();
        rungs.iter_mut().for_each(|(at, actions)| self.add_suspect(*at, actions));
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

    /// Describes the recipients to which suspended owners may write; empty if there are none.
    fn allowed(&self) -> String {
        let all: Vec<&str> = self.config.policy.suspensions.allowed.patterns().collect();
        match all.len() {
            0 => String::new(),
            1..=MAX_PATTERNS => format!(", except from mail to {}", all.join(", ")),
            more => {
                format!(", except from mail to {} and {} more", all[..MAX_PATTERNS].join(", "), more - MAX_PATTERNS)
            }
        }
    }

    fn mode(&self) -> Option<String> {
        match self.rates[0].mode {
            Mode::Enforce => None,
            Mode::Soft => Some("soft: it warns, and refuses nothing".to_owned()),
            Mode::Shadow => Some("in shadow: it only logs, and refuses nothing".to_owned()),
        }
    }

    /// Adds the action `suspect` of the rung at this level, whose value may be a table of its own.
    fn add_suspect(&self, at: f64, actions: &mut String) {
        let rungs = self.rates[0].ladder.rungs().iter().filter(|rung| rung.at == at);
        let suspect = rungs.filter_map(|rung| if let Action::Suspect(one) = rung.action { Some(one) } else { None });
        for Suspect { points, most, half_life } in suspect {
            let and = if actions.is_empty() { "" } else { " and " };
            let (points, most) = (format_amount(points), format_amount(most));
            let half_life = format_duration(half_life);
            *actions +=
                &format!("{and}counted as suspicious: {points} points, at most {most}, half of them after {half_life}");
        }
    }

    /// Returns the limit's sub-tables with this name, such as `match`.
    fn tables(&self, key: &str) -> Vec<Vec<&Setting>> {
        let title = format!("limit.{key}");
        let within = self.written.iter().filter(|setting| setting.section.trim_matches(['[', ']']) == title);
        let within: Vec<&Setting> = within.copied().collect();
        within.chunk_by(|one, next| one.place == next.place).map(<[_]>::to_vec).collect()
    }
}

/// Describes a rate: for a bucket `50 messages at once, then 30 in 1h`, otherwise `100 recipients in 1d`. If the limit
/// refuses from its rate on, can add `, 99 of them at the same instant`.
fn rate(limit: &Limit, is_refused: bool) -> String {
    let Quota::Rate { rate, rule } = limit.quota else { return String::new() };
    let (at_once, period) = (limit.quota.at_once(limit.count).unwrap_or_default(), format_duration(rate.period));
    let number = amount(limit.count, rate.amount);
    match rule {
        Rule::Bucket(_) => format!("{} at once, then {number} in {period}", things(limit.thing(), at_once)),
        // If nothing passes, the lines of [`Bounds`] say so.
        Rule::Ewma(_) if at_once == rate.amount || at_once == 0.0 || !is_refused => {
            format!("{} in {period}", things(limit.thing(), rate.amount))
        }
        Rule::Ewma(_) => {
            let at_once = amount(limit.count, at_once);
            format!("{} in {period}, {at_once} of them at the same instant", things(limit.thing(), rate.amount))
        }
    }
}

/// Describes one key of `match` or `except` in words.
fn condition(setting: &Setting) -> String {
    match (setting.key, setting.value.as_deref()) {
        (key, Some("true")) => key.to_owned(),
        (key, Some("false")) => format!("not {key}"),
        ("suspicion", _) => format!("events of users who are {}", values(setting).concat()),
        ("exceeded", _) => format!("events while {} is exceeded", values(setting).join(" or ")),
        (key, _) => format!("{key} {}", values(setting).join(" or ")),
    }
}

/// Returns one rung: the level from which it applies (1 is the limit's rate), and a description of its actions.
/// `owner` is the field that an action can suspend, and `allowed` the mail that the suspension lets pass.
fn rung(table: &[&Setting], owner: &str, allowed: &str) -> (f64, String) {
    let (at, actions): (Vec<&Setting>, Vec<&Setting>) = table.iter().partition(|setting| setting.key == "at");
    let at = at.first().and_then(|at| values(at).concat().replace('_', "").parse().ok());
    let is_strict = actions.iter().any(|setting| setting.key == "strict" && setting.value.as_deref() == Some("true"));
    let actions = actions.into_iter().filter(|setting| !matches!(setting.key, "strict" | "suspect"));
    let actions = actions.map(|setting| match (setting.key, is_strict) {
        ("suspend", true) => action(setting, owner) + " from all mail",
        ("suspend", false) => action(setting, owner) + allowed,
        _ => action(setting, owner),
    });
    (at.unwrap_or(1.0), actions.collect::<Vec<_>>().join(" and "))
}

/// Describes one action of a rung in words.
fn action(setting: &Setting, owner: &str) -> String {
    let value = values(setting).concat();
    let text = if value == "true" { String::new() } else { format!(" with \"{value}\"") };
    match setting.key {
        "warn" => "warned of".to_owned(),
        "delay" if value == "until-free" => "delayed until there is room".to_owned(),
        "delay" => format!("delayed by {value}"),
        "defer" => format!("deferred{text}"),
        "deny" => format!("denied{text}"),
        "drop" => format!("dropped{text}"),
        "route" => format!("routed by {value}"),
        "suspend" => format!("denied, and the {owner} is suspended for {value}"),
        "lock" => format!("denied, and the {owner} is locked for {value}: it may write to known recipients only"),
        key => format!("told to {value} ({key})"),
    }
}
