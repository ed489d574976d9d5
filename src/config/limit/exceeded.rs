//! `exceeded` in `match`: the limit applies while another limit is exceeded. The other limit has no such condition
//! itself, so limits cannot depend on one another in a circle.

use super::moment::Moment;
use super::{Context, Exceedable};
use crate::config::section::{Placed, Section};
use crate::policy::limit::{Algorithm, Charge, Limit, Quota};
use crate::policy::matching::Condition;
use std::ops::Range;

/// Returns the condition for these names of limits. Reports names of limits that cannot be looked at.
pub fn condition(s: &Section<'_>, names: &[String], span: &Range<usize>, cx: &Context<'_>) -> Condition {
    let mut indices = Vec::new();
    for name in names {
        let mut named = cx.exceedable.iter().filter(|known| *known.limit.name == **name).peekable();
        match named.peek() {
            Some(Exceedable { limit, .. }) => check(s, limit, span),
            // The error of a wrong limit has been reported already.
            None if cx.has_wrong_limit(name) => {}
            None => {
                let message = format!("exceeded: no limit \"{name}\" counts in a budget of its own");
                let help = "it names a limit with a rate that has neither \"watch\" nor \"exceeded\" itself";
                s.error(span, message, Some(help));
            }
        }
        indices.extend(named.map(|known| known.index));
    }
    Condition::Exceeded(indices)
}

/// Checks that a limit has one level for all recipients of a message, and that its level can reach its rate.
fn check(s: &Section<'_>, limit: &Limit, span: &Range<usize>) {
    let name = &limit.name;
    if !matches!(limit.quota, Quota::Rate { .. } | Quota::Share(_) | Quota::Likelihood(_)) {
        let help = "name a limit with a rate, as in \"12 / 1h\"";
        s.error(span, format!("exceeded: \"{name}\" has no rate in a period"), Some(help));
    }
    if limit.per.iter().any(|field| field.is_of_recipient())
        || limit.overrides.as_ref().is_some_and(|overrides| overrides.rows.is_by_recipient())
    {
        s.error(span, format!("exceeded: \"{name}\" has another budget or rate for each recipient"), None);
    }
    let refuses = limit.ladder.rungs().iter().any(|rung| rung.at <= 1.0 && rung.action.refuses());
    let is_average = limit.algorithm == Algorithm::Ewma && matches!(limit.quota, Quota::Rate { .. });
    // In shadow mode, the limit charges what it would charge if it were enforced.
    if refuses && is_average && limit.charge != Charge::Attempts {
        let message =
            format!("\"{name}\" refuses what would bring its average to its rate: it is hardly ever exceeded");
        let help = "give it algorithm = \"token-bucket\", or actions that refuse nothing, as in warn = true";
        s.warn(span, message, Some(help));
    }
}

/// Checks that the owners of the limits to look at are known when this limit is evaluated, and that the recipient does
/// not decide on the same condition.
pub fn check_stage(s: &Section<'_>, moment: &Moment, limit: &Limit, keys: &[Placed<&'static str>], cx: &Context<'_>) {
    let Some(key) = keys.iter().find(|key| matches!(key.value, "exceeded" | "suspicion")) else { return };
    let conditions = limit.matcher.matches.iter().flat_map(|table| &table.0);
    let named: Vec<usize> = conditions.filter_map(Condition::exceeded).flatten().copied().collect();
    for Exceedable { limit, .. } in cx.exceedable.iter().filter(|known| named.contains(&known.index)) {
        limit.per.iter().for_each(|field| moment.check(s, &key.span, &field.name(), false, cx));
    }
    if limit.matcher.needs_recipient() && moment.is_at_message() {
        let message = format!("{} cannot be used together with conditions on recipients at data and end", key.value);
        s.error_unless(
            &["stage", "partial"],
            &key.span,
            message,
            Some("leave stage and partial out, or make two limits"),
        );
    }
}
