//! `[suspicion]`: the classes of suspicious users, and checks of the signs and limits together.

use super::section::{Placed, Section};
use super::source::Source;
use super::values::{choice, duration};
use crate::policy::limit::{Limit, Mode};
use crate::policy::{Policy, SuspicionClass, SuspicionRules};
use crate::time::format_amount;
use std::time::Duration;
use toml::de::DeValue;

/// Rules of `[suspicion]`, and the classes that limits match on.
#[derive(Default)]
pub struct Suspicion {
    pub rules: SuspicionRules,
    /// Classes that limits match on, with their positions.
    pub matched: Vec<Placed<SuspicionClass>>,
}

/// Most points of a sign, and highest score of a class.
pub const MAX_POINTS: f64 = 10_000.0;

/// Longest half-life.
const MAX_HALF_LIFE: Duration = Duration::from_secs(366 * 86_400);

/// Reads `[suspicion]`.
pub fn read(mut s: Section<'_>) -> Suspicion {
    let modes = [Mode::Enforce, Mode::Shadow].map(|mode| (mode.name(), mode));
    let mode = s.value("mode", "\"enforce\"", choice(&modes));
    let half_life = s.value("half-life", "\"7d\"", half_life);
    let watched = s.placed("watched", "50", points);
    let locked = s.placed("locked", "100", points);
    if locked.value < watched.value {
        let message = format!(
            "locked = {} is lower than watched = {}: a locked user is also watched",
            format_amount(locked.value),
            format_amount(watched.value)
        );
        s.error(&locked.span, message, Some("write locked at least as high as watched"));
    }
    s.finish();
    let rules =
        SuspicionRules { is_enforced: mode == Mode::Enforce, half_life, watched: watched.value, locked: locked.value };
    Suspicion { rules, matched: Vec::new() }
}

/// Reads points: a number above 0.
pub fn points(value: &DeValue<'_>) -> Result<f64, String> {
    let written = match value {
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.as_str().to_owned(),
        _ => return Err("write points as a number, as in 40".to_owned()),
    };
    let number = written.replace('_', "").parse().ok().filter(|points| *points >= 1.0 && *points <= MAX_POINTS);
    number.ok_or_else(|| format!("{written} is not a number of points from 1 to {MAX_POINTS}"))
}

/// Reads a half-life: a duration above 0.
pub fn half_life(value: &DeValue<'_>) -> Result<Duration, String> {
    match duration(value)? {
        time if time.is_zero() => Err("write a half-life above 0s, as in \"7d\"".to_owned()),
        time if time > MAX_HALF_LIFE => Err("at most 366d".to_owned()),
        time => Ok(time),
    }
}

impl Suspicion {
    /// Warns of classes that no user can reach. `limits`: all limits without errors.
    pub fn check(&self, source: &Source<'_>, limits: &[Limit]) {
        let mut limits = limits.to_vec();
        let signs = Policy::signs_of(&mut limits);
        if let Some(first) = self.matched.first().filter(|_| signs.is_empty()) {
            let message = "suspicion: no user is ever suspicious, because no limit has an action suspect";
            let help = "add suspect = 40 to an [[limit.action]] of a limit with per = [\"user\"]";
            source.warn_unless(&["limit"], &first.span, message, Some(help));
            return;
        }
        let most: f64 = signs.iter().map(|sign| sign.rule.most()).sum();
        for class in SuspicionClass::ALL {
            let from = self.rules.from(class);
            let Some(matched) = self.matched.iter().find(|matched| matched.value == class) else { continue };
            if most < from {
                let message = format!(
                    "no user is ever {}: that needs {} points, and all signs together have at most {}",
                    class.name(),
                    format_amount(from),
                    format_amount(most)
                );
                source.warn_unless(
                    &["limit", "suspicion"],
                    &matched.span,
                    message,
                    Some("lower the class, or add signs"),
                );
            }
        }
    }
}

/// Reads the condition `suspicion` of `match`.
pub fn class(value: &DeValue<'_>) -> Result<SuspicionClass, String> {
    choice(&SuspicionClass::ALL.map(|class| (class.name(), class)))(value)
}
