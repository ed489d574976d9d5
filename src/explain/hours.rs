//! Tables of the hours of a week in which the `time` conditions of a limit are true.

use crate::policy::matching::{AllOf, Condition, Hours, Matcher, Zone, week};

/// Returns the lines of the tables for `match` and for `except`.
pub fn tables(matcher: &Matcher, zone: &Zone) -> Vec<String> {
    let of = |key, tables: &[AllOf]| {
        let times = tables.iter().flat_map(|AllOf(conditions)| conditions).filter_map(|condition| match condition {
            Condition::Time(hours) => Some(hours),
            _ => None,
        });
        times.flat_map(|hours| table(key, hours, zone)).collect::<Vec<_>>()
    };
    [of("match", &matcher.matches), of("except", &matcher.except)].concat()
}

/// Returns the table of one `time` condition: a line for each day, or for successive days with the same hours.
fn table(key: &str, hours: &[Hours], zone: &Zone) -> Vec<String> {
    let mut lines = vec![format!("The time of {key} holds in these hours ({}):", zone.name())];
    for days in week(hours).chunk_by(|one, next| one.1 == next.1) {
        let (first, last) = (days[0].0, days[days.len() - 1].0);
        let name = if first == last { first.to_owned() } else { format!("{first}-{last}") };
        let spans = if days[0].1.is_empty() { "never".to_owned() } else { days[0].1.join(", ") };
        lines.push(format!("  {name:8} {spans}"));
    }
    lines
}
