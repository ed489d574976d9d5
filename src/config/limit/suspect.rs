//! `suspect` in `[[limit.action]]`: makes the limit a sign, which raises the suspicion score of the user.

use super::{Context, Exceedable};
use crate::config::section::{Placed, Section};
use crate::config::suspicion::{half_life, points};
use crate::policy::Suspect;
use crate::policy::limit::{Action, Count, Limit, Rung};
use crate::policy::matching::{Condition, Field};
use crate::time::format_amount;
use std::ops::Range;

/// Reads `suspect`: points, or a table with `points`, `most` and `half-life`.
pub fn read(s: &mut Section<'_>, cx: &Context<'_>) -> Option<Placed<Action>> {
    let usual = cx.suspicion.rules.half_life;
    let is_table = s.peek("suspect", |value| value.as_table().map(|_| ()).ok_or_else(String::new)).is_some();
    if !is_table {
        return s.optional("suspect", |value| {
            let points = points(value)?;
            Ok(Action::Suspect(Suspect { points, most: points, half_life: usual }))
        });
    }
    let mut table = s.section("suspect");
    let span = table.span();
    let points = table.required("points", "40", points);
    let most = table.optional("most", self::points);
    let half_life = table.optional("half-life", half_life).map_or(usual, |half_life| half_life.value);
    let Some(points) = points else {
        table.finish();
        s.mark_wrong("suspect");
        return None;
    };
    if let Some(most) = most.as_ref().filter(|most| most.value < points.value) {
        let message = format!("most = {} is lower than the points of one event", format_amount(most.value));
        table.error(&most.span, message, Some("leave most out: then the sign has at most the points of one event"));
    }
    table.finish();
    let most = most.map_or(points.value, |most| most.value.max(points.value));
    Some(Placed { value: Action::Suspect(Suspect { points: points.value, most, half_life }), span })
}

/// Checks that a limit with `suspect` has a user, and that its sign does not keep the score up by itself.
pub fn check(s: &Section<'_>, rungs: &[(Rung, Range<usize>)], limit: &Limit, cx: &Context<'_>) {
    let suspects: Vec<(Suspect, &Range<usize>)> = rungs
        .iter()
        .filter_map(|(rung, span)| if let Action::Suspect(one) = rung.action { Some((one, span)) } else { None })
        .collect();
    let Some((first, span)) = suspects.first() else { return };
    if !limit.per.contains(&Field::User) {
        let message = "suspect needs \"user\" in \"per\": the score is that of the user";
        s.error_unless(&["per", "watch"], span, message, Some("per = [\"user\"], or [\"user\", \"client\"]"));
    }
    if limit.count == Count::LoginFailures {
        let message = "suspect cannot be used with count = \"login-failures\": guesses would make the owner of the password suspicious";
        let help =
            "count = \"logins\" with match = { exceeded = \"…\" } is a sign of wrong passwords before a right one";
        s.error_unless(&["count"], span, message, Some(help));
    }
    if suspects.iter().any(|(other, _)| other.half_life != first.half_life) {
        s.error(span, "the actions suspect of one limit share its points: write the same half-life in all", None);
    }
    if depends_on_suspicion(limit, cx) {
        let message = "suspect cannot be used in a limit that matches on suspicion: the score would keep itself up";
        s.error(span, message, Some("leave suspicion out of match, or suspect out"));
    }
}

/// Returns whether the limit applies only to suspicious users, by itself or by a limit that `exceeded` names.
fn depends_on_suspicion(limit: &Limit, cx: &Context<'_>) -> bool {
    let conditions = limit.matcher.matches.iter().flat_map(|table| &table.0);
    let named: Vec<usize> = conditions.filter_map(Condition::exceeded).flatten().copied().collect();
    let is_named = |known: &&Exceedable| named.contains(&known.index) || limit.watch == Some(known.index);
    limit.matcher.has_suspicion()
        || cx.exceedable.iter().filter(is_named).any(|known| known.limit.matcher.has_suspicion())
}
