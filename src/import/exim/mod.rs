//! Import of the `ratelimit` conditions of an Exim configuration (Exim 4.96).

mod acl;
mod actions;
mod argument;
mod conditions;
mod counting;
mod key;
mod list;
mod lookup;
mod number;
mod source;
mod texts;
mod translation;

use super::budget::Allowance;
use super::report::Report;
use acl::{Acl, Condition, Configuration, Event, Statement};
use argument::Argument;
use conditions::Part;
use lookup::Lookup;
use source::Source;
use std::path::Path;
use std::rc::Rc;
use translation::Translation;

/// `ratelimit` condition at one event.
struct RatelimitUse<'a> {
    event: Event,
    acl: &'a Acl,
    /// Index of its statement in the ACL.
    at: usize,
    condition: &'a Condition,
    argument: Argument,
    /// Table that gives the whole argument.
    lookup: Option<Lookup>,
    verb: Verb,
    /// Whether it only reads a record that others charge.
    is_read_only: bool,
    /// Whether the event is guessed: no option says when the ACL runs.
    is_guessed: bool,
}

impl RatelimitUse<'_> {
    fn statement(&self) -> &Statement {
        &self.acl.statements[self.at]
    }
}

/// Verb of a statement: its action on mail that exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Warn,
    Defer,
    Deny,
    Drop,
}

/// Reads a configuration.
pub fn read(path: &Path, allowance: &Rc<Allowance>) -> std::io::Result<Report> {
    let source = Source::read(path, allowance)?;
    let mut report = Report::default();
    source.problems.iter().for_each(|(place, why)| report.refuse(place, why));
    let configuration = Configuration::parse(source.lines, allowance);
    for (place, option) in &configuration.options {
        report.refuse(
            place,
            format!(
                "{option}: it slows the commands of one connection; rate = \"50 / connection\" bounds their number"
            ),
        );
    }
    let ratelimit_uses = ratelimit_uses(&configuration, &mut report);
    Translation::new(&configuration, &ratelimit_uses, &mut report).all();
    Ok(report)
}

/// Returns every `ratelimit`, once for each event that runs its ACL. Reports those that are wrong.
fn ratelimit_uses<'a>(configuration: &'a Configuration, report: &mut Report) -> Vec<RatelimitUse<'a>> {
    let mut found = Vec::new();
    for acl in &configuration.acls {
        let (events, is_guessed) = configuration.events(acl);
        for (at, statement) in acl.statements.iter().enumerate() {
            let conditions = conditions::parts(statement).filter_map(|part| match part {
                Part::Ratelimit(condition) => Some(condition),
                _ => None,
            });
            let conditions: Vec<&Condition> = conditions.collect();
            for condition in &conditions {
                let mut refuse =
                    |why: String| report.refuse(&condition.place, format!("{}: {why}", conditions::written(condition)));
                let read = match argument(&condition.value, &configuration.named.allowance) {
                    Ok(_) if conditions.len() > 1 => Err(SEVERAL.to_owned()),
                    read => read,
                };
                let (argument, lookup) = match read {
                    Ok(read) => read,
                    Err(why) => {
                        refuse(why);
                        continue;
                    }
                };
                for event in &events {
                    let fits = counting::fits(argument.per, *event);
                    let (argument, lookup) = (argument.clone(), lookup.clone());
                    let one = verb(statement, condition).map_err(str::to_owned).and_then(|verb| {
                        let is_read_only = argument.is_read_only(fits, event.name())?;
                        Ok(RatelimitUse {
                            event: *event,
                            acl,
                            at,
                            condition,
                            argument,
                            lookup,
                            verb,
                            is_read_only,
                            is_guessed,
                        })
                    });
                    match one {
                        Ok(one) => found.push(one),
                        Err(why) => refuse(why),
                    }
                }
            }
        }
    }
    found
}

const SEVERAL: &str =
    "a statement with several ratelimit conditions needs all of them exceeded, and each limit stands alone";

/// Parses an argument. If the whole argument is a lookup, parses the value for keys that are not in the table.
fn argument(text: &str, allowance: &Allowance) -> Result<(Argument, Option<Lookup>), String> {
    match Lookup::parse(text) {
        Some(lookup) => {
            let default = lookup.default_value(allowance);
            let default =
                default.ok_or("it is looked up, and there is no default for keys that are not in the table")?;
            if default == lookup::UNLIMITED {
                return Err("keys that are not in the table have no limit, and no period is known".to_owned());
            }
            Ok((Argument::parse(&default)?, Some(lookup)))
        }
        None => Ok((Argument::parse(text)?, None)),
    }
}

/// Returns the action of a statement on mail that exceeds the limit.
fn verb(statement: &Statement, condition: &Condition) -> Result<Verb, &'static str> {
    match (&*statement.verb, condition.negated) {
        ("warn", false) => Ok(Verb::Warn),
        ("defer", false) => Ok(Verb::Defer),
        ("deny", false) | ("require", true) => Ok(Verb::Deny),
        ("drop", false) => Ok(Verb::Drop),
        ("accept", false) => Err("accept lets mail through that exceeds the limit, and limits of Weir only hold back"),
        ("accept", true) => Err("accept lets mail through below the limit; other statements decide about the rest"),
        ("discard", _) => Err("discard accepts a message and drops it silently; Weir never does so: use defer or deny"),
        _ => Err("it acts on mail below the limit, and limits of Weir act on mail that exceeds it"),
    }
}
