//! Suspicion score in the text of `weir show`.

use super::coloured;
use crate::admin::budgets::{BudgetsAnswer, SignRow, SuspicionRow};
use crate::cli::table::{Paint, Tone, amount, harmless, span, wrapped};
use crate::cli::top::ago;
use crate::policy::limit::Mode;
use crate::policy::suspicion::rounded;

/// Returns the score of the user, with a line for each sign; empty if the owner is no user, or if no limit is a sign.
pub fn text(answer: &BudgetsAnswer, width: usize, paint: Paint) -> String {
    let head = format!("\n{}\n", paint.paint(Tone::Heading, "suspicion"));
    if let Some(why) = &answer.suspicion_unknown {
        return head + &wrapped(&harmless(&format!("not known: {why}")), 2, width);
    }
    let Some(row) = &answer.suspicion else { return String::new() };
    let tone = if row.class.is_some() { Tone::Bad } else { Tone::Plain };
    let score = coloured(&score(row), tone, 2, width, paint);
    let signs = row.signs.iter().map(|sign| wrapped(&harmless(&sentence(sign, &answer.time)), 2, width));
    head + &score + &signs.collect::<String>()
}

fn score(SuspicionRow { points, class, mode, watched, locked, .. }: &SuspicionRow) -> String {
    let (watched, locked) = (rounded(*watched), rounded(*locked));
    let state = match (class.as_deref(), mode) {
        (_, Mode::Shadow | Mode::Soft) => {
            format!(
                "[suspicion] has mode = \"shadow\", so that no user is watched (from {watched}) or locked (from {locked})"
            )
        }
        (None, Mode::Enforce) => format!("the user is not watched (from {watched}; locked from {locked})"),
        (Some("locked"), Mode::Enforce) => format!("the user is locked (from {locked}; watched from {watched})"),
        (Some(class), Mode::Enforce) => format!("the user is {class} (from {watched}; locked from {locked})"),
    };
    format!("score {}: {state}", rounded(*points))
}

fn sentence(sign: &SignRow, now: &str) -> String {
    let SignRow { limit, points, most, half_life_seconds, raised, mode, level, allowed, unit, .. } = sign;
    let (points, most) = (rounded(*points), rounded(*most));
    let (ago, half) = (ago(raised, now), span(*half_life_seconds));
    let present = match (level, allowed, unit) {
        // A limit of 0 has no level.
        (Some(level), Some(allowed), Some(unit)) if *allowed > 0.0 => {
            format!("; now {} of {} {unit}", amount(*level), amount(*allowed))
        }
        _ => String::new(),
    };
    let mode = match mode {
        Mode::Enforce => String::new(),
        mode => format!("; mode {}: adds nothing to the score", mode.name()),
    };
    format!("{limit}: {points} of {most} points, last raised {ago} ago, half left after {half}{present}{mode}")
}
