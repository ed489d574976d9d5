//! Translation of conditions that only read a record of Exim (`readonly`, `noupdate`). Such a condition becomes a limit
//! that watches the budget of another limit, or a limit that counts the same as another limit.

use super::super::limit::{Budget, Limit};
use super::counting;
use super::event::Event;
use super::key::Owner;
use super::number::rate;
use super::records::Record;
use super::{RatelimitUse, Verb, known};
use crate::policy::limit::Charge;
use crate::policy::request::Stage;

/// Way in which a limit can do the same as a condition that only reads a record.
pub enum Reading {
    /// The limit watches the budget of the limit that charges.
    Watch,
    /// The limit itself counts what the other limit counts. Exim reads the record after it has counted the same event,
    /// but a limit that watches sees the budget before this event.
    Count,
    /// Like `Watch`, but for this reason the limit would not apply to the same mail as the condition.
    Doubtful(String),
}

impl Record<'_> {
    /// Returns how a condition that only reads this record is translated.
    pub fn reading(&self, look: &RatelimitUse<'_>) -> Reading {
        let (first, line) = (&self.first, self.first.line());
        let doubt = if let Some(other) = self.other {
            format!("Exim's record also has what line {other} counts, and the budget has only what line {line} counts")
        } else if first.limits.iter().flatten().any(|(limit, _)| limit.is_in_shadow()) {
            format!("the limit of line {line}, whose budget it watches, is in shadow mode")
        } else if first.is_part {
            format!("Exim's record has more mail than the budget: line {line} has conditions after its ratelimit")
        } else if first.one.verb == Verb::Warn && first.charges(Charge::Accepted) {
            format!("line {line} is leaky: Exim counts nothing above its limit, and Weir counts all that passes")
        } else if first.is_elsewhere() {
            format!("Exim counts at {}, and the limit of line {line} does not", first.one.event.name())
        } else if first.one.event != look.event {
            return Reading::Watch;
        } else if !std::ptr::eq(first.one.acl, look.acl) {
            format!("whether Exim gets to line {line} before it depends on the calls of their ACLs")
        } else if first.one.at < look.at {
            return Reading::Count;
        } else if look.verb != Verb::Warn && first.charges(Charge::Attempts) {
            format!("Exim does not get to line {line} with what this refuses, and Weir counts it there")
        } else {
            return Reading::Watch;
        };
        Reading::Doubtful(doubt)
    }
}

/// Returns a limit that counts what another limit counts, and allows another amount.
pub fn twin(charging: &Limit, one: &RatelimitUse<'_>, most: f64) -> Result<Limit, String> {
    let mut limit = Limit::new(charging.budget.clone());
    if let Budget::Own { rate: own, count, .. } = &mut limit.budget {
        *own = rate(most, &one.argument.period, *count, one.verb)?;
    }
    limit.stage = charging.stage;
    limit.matches.clone_from(&charging.matches);
    limit.except.clone_from(&charging.except);
    limit.comment("Exim reads its record after it has counted the same event: this limit counts for itself.");
    Ok(limit)
}

/// Returns a limit that watches the budget `name` at the event of a condition.
pub fn watching(
    name: &str,
    one: &RatelimitUse<'_>,
    owner: &Owner,
    number: f64,
    most: f64,
    line: usize,
) -> Result<Limit, String> {
    let at = number / most;
    if !(0.01..=1000.0).contains(&at) {
        return Err(format!("{number} is not from 0.01 to 1000 times {most}, which line {line} limits to"));
    }
    let mut limit = Limit::new(Budget::Watched(name.to_owned()));
    limit.rung.at = at;
    let stage = counting::stage(one.event);
    if let Event::Other(name) = one.event {
        return Err(counting::other(name));
    }
    if stage.is_none() {
        limit.shadow(&one.condition.place, "Exim reads the record once, at HELO; Weir reads its budget at each MAIL");
    }
    let stage = stage.unwrap_or(Stage::Mail);
    if let Some(field) = owner.per.iter().find(|field| !known::is_known(**field, stage)) {
        return Err(format!("{} is not known at {}", field.name(), one.event.name()));
    }
    limit.stage = Some(stage);
    Ok(limit)
}
