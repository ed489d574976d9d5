//! Translation of the rows of a table of Exim into override rows.

use super::super::budget::Allowance;
use super::super::limit::Limit;
use super::super::report::Report;
use super::argument::{Amount, Argument};
use super::counting::Counted;
use super::lookup::{Lookup, MAX_ROWS};
use super::number::{per_event, rate};
use super::{RatelimitUse, Verb};
use std::path::Path;

/// Adds the rows of a table to a limit: as an override table to be written to a file, or as a comment.
pub fn add(
    limit: &mut Limit,
    one: &RatelimitUse<'_>,
    lookup: &Lookup,
    counted: &Counted,
    report: &mut Report,
    allowance: &Allowance,
) {
    let (file, place) = (lookup.file(), &one.condition.place);
    let by = lookup.by.map_or("", |by| by.word());
    let rows = match lookup.rows(allowance) {
        Ok(rows) => rows,
        Err(why) => {
            let words = format!(
                "its numbers are not read: {why}; write a table with rows like \"WHO,500 / {}\" under the header \
                 \"{by},rate\", and name it with overrides = \"FILE\"",
                one.argument.period,
            );
            return limit.shadow(place, words);
        }
    };
    let table = csv(limit, one, lookup, counted, &rows);
    let stem =
        Path::new(file).file_stem().map_or_else(|| limit.name.clone(), |stem| stem.to_string_lossy().into_owned());
    if report.saves_tables {
        limit.overrides = Some(report.table(&stem, table));
        return;
    }
    limit.shadow(place, format!("the numbers of {file} are not in force: repeat the import with --tables FOLDER"));
    table.lines().take(MAX_ROWS + 1).for_each(|line| limit.comment(line));
    if rows.len() > MAX_ROWS {
        limit.comment(format!("... and {} more rows of {file}", rows.len() - MAX_ROWS));
    }
}

/// Returns the rows as an override table in CSV. If limits cannot express a row, the limit is put in shadow mode.
fn csv(
    limit: &mut Limit,
    one: &RatelimitUse<'_>,
    lookup: &Lookup,
    counted: &Counted,
    rows: &[(String, String)],
) -> String {
    let mut table = format!("{},rate\n", lookup.by.map_or("", |by| by.word()));
    for (who, value) in rows.iter().filter(|(who, _)| who != "*") {
        let whole = if one.lookup.is_some() { value.clone() } else { format!("{value} / {}", one.argument.period) };
        let row = Argument::parse(&whole).and_then(|row| match row.limit {
            _ if who.starts_with('^') => Err("it is a regular expression".to_owned()),
            _ if who.contains([',', '"']) => Err("it has a comma or a quote".to_owned()),
            Amount::Number(number) => {
                rate(per_event(lookup.divided(number), counted.amount), &row.period, counted.count, Verb::Deny)
            }
            Amount::Expansion(text) => Err(format!("{text} is known only to Exim")),
        });
        match row {
            Ok(rate) => table += &format!("{who},{rate}\n"),
            Err(why) => limit.shadow(&one.condition.place, format!("{}: {who}: {why}", lookup.file())),
        }
    }
    table
}
