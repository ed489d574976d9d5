//! Import of the `ratelimit` conditions of an Exim configuration (Exim 4.96).

mod acl;
mod actions;
mod argument;
mod braces;
mod conditions;
mod constant;
mod counting;
mod event;
mod expansion;
mod followed;
mod key;
mod known;
mod list;
mod looks;
mod lookup;
mod number;
mod overrides;
mod records;
mod source;
mod table;
mod texts;
mod translated;
mod translation;
mod variables;

use super::budget::Allowance;
use super::report::{Number, Report};
use acl::{Acl, Condition, Configuration, Statement};
use argument::Argument;
use counting::Events;
use event::Event;
use followed::{Refusal, Use};
use lookup::Lookup;
use source::Source;
use std::path::Path;
use std::rc::Rc;
use translation::Translation;
use variables::Variables;

/// A condition `ratelimit` at one of the events at which Exim evaluates it.
struct RatelimitUse<'a> {
    number: Number,
    event: Event,
    acl: &'a Acl,
    /// Index of the condition's statement in the ACL.
    at: usize,
    condition: &'a Condition,
    argument: Argument,
    /// Lookup whose value is the whole argument of the condition.
    lookup: Option<Lookup>,
    verb: Verb,
    /// Events that the condition counts.
    events: Events,
    /// Differences between the statement and its limits. If there are any, the limits are in shadow mode.
    differences: Vec<String>,
    /// Later statement that refuses mail because of a variable that this statement sets.
    refusal: Option<Refusal<'a>>,
    /// Whether the condition only reads a record that other conditions charge.
    is_read_only: bool,
    /// Whether the event is guessed, because no option says at which events Exim runs the ACL.
    is_guessed: bool,
}

impl RatelimitUse<'_> {
    fn statement(&self) -> &Statement {
        &self.acl.statements[self.at]
    }
}

/// Verb of a statement: what Exim does with mail that exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Warn,
    Defer,
    Deny,
    Drop,
    /// Exim holds all mail of this user, client or sender until an administrator releases it.
    Suspend,
}

/// Reads an Exim configuration and translates its `ratelimit` conditions.
pub fn read(path: &Path, saves_tables: bool, allowance: &Rc<Allowance>) -> std::io::Result<Report> {
    let source = Source::read(path, allowance)?;
    let mut report = Report::new("condition", saves_tables);
    source.problems.iter().for_each(|(place, why)| report.leave_out(place, why));
    for place in &source.inactive {
        let number = report.number();
        report.refuse(
            number,
            place,
            "ratelimit: Exim does not use it: .ifdef leaves it out, or it is in a macro that nothing names",
        );
    }
    let configuration = Configuration::parse(source.lines, allowance);
    for (place, why) in &configuration.unread {
        let number = report.number();
        report.refuse(number, place, why);
    }
    for (place, option) in &configuration.options {
        report.leave_out(
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

/// Returns each condition `ratelimit` once for each event at which Exim runs its ACL. Reports the conditions that are
/// wrong.
fn ratelimit_uses<'a>(configuration: &'a Configuration, report: &mut Report) -> Vec<RatelimitUse<'a>> {
    let mut found = Vec::new();
    for acl in &configuration.acls {
        let (events, is_guessed) = configuration.events(acl);
        let variables = Variables::of(acl, configuration);
        for (at, statement) in acl.statements.iter().enumerate() {
            for (n, condition) in statement.conditions.iter().enumerate().filter(|(_, one)| one.name == "ratelimit") {
                let number = report.number();
                let text = variables.at(at, n).simplified(&condition.value);
                let followed = followed::follow(configuration, acl, at, condition);
                let is_called = configuration.is_called(acl);
                let written = Written { number, acl, at, condition, is_guessed, is_called, followed: &followed };
                for event in &events {
                    match written.at_event(*event, &text, &configuration.named.allowance) {
                        Ok(one) => found.push(one),
                        Err(why) => {
                            report.refuse(number, &condition.place, format!("{}: {why}", conditions::short(condition)));
                        }
                    }
                }
            }
        }
    }
    found
}

/// A condition `ratelimit` as written, before its argument is parsed for an event.
#[derive(Clone, Copy)]
struct Written<'a, 'f> {
    number: Number,
    acl: &'a Acl,
    at: usize,
    condition: &'a Condition,
    is_guessed: bool,
    /// Whether another ACL calls this one.
    is_called: bool,
    /// Use of the variables that the condition's statement sets.
    followed: &'f Use<'a>,
}

impl<'a> Written<'a, '_> {
    /// Parses the condition for one event. `text` is its argument, with the constant parts evaluated.
    fn at_event(&self, event: Event, text: &str, allowance: &Allowance) -> Result<RatelimitUse<'a>, String> {
        let Self { number, acl, at, condition, is_guessed, is_called, followed } = *self;
        let (argument, lookup) = argument(text, allowance)?;
        let statement = &acl.statements[at];
        let events = Events::of(statement, event);
        let (verb, difference) = verb(statement, condition, events)?;
        let difference = match &*statement.verb {
            "accept" | "discard" if is_called => difference.map(|_| CALLED),
            _ => difference,
        };
        let is_read_only = argument.is_read_only(counting::fits(argument.per, event), event.name())?;
        let mut differences: Vec<String> =
            difference.into_iter().chain(several(statement)).map(str::to_owned).collect();
        let refusal = match followed {
            Use::Refusal(refusal) => Some(*refusal),
            Use::Other(words) => {
                differences.push(words.clone());
                None
            }
            Use::None => None,
        };
        Ok(RatelimitUse {
            number,
            event,
            acl,
            at,
            condition,
            argument,
            lookup,
            verb: refusal.map_or(verb, |refusal| refusal.verb),
            events,
            differences,
            refusal,
            is_read_only,
            is_guessed,
        })
    }
}

const CALLED: &str = "another ACL calls this one, and what it does with the mail is not followed";

/// Returns the difference between Exim and Weir for a statement with several conditions `ratelimit`; `None` if the
/// statement has only one such condition.
fn several(statement: &Statement) -> Option<&'static str> {
    let conditions = statement.conditions.iter().filter(|condition| condition.name == "ratelimit");
    (conditions.count() > 1)
        .then_some("the statement acts if all its ratelimit conditions are exceeded, and each limit acts alone")
}

/// Parses an argument. If the whole argument is a lookup, parses the value that the lookup has for keys that are not in
/// its tables.
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

/// Returns Exim's action on mail that exceeds the limit. Also returns a difference between this action and the limit's
/// action, if there is one.
fn verb(
    statement: &Statement,
    condition: &Condition,
    events: Events,
) -> Result<(Verb, Option<&'static str>), &'static str> {
    Ok(match (&*statement.verb, condition.negated) {
        ("accept" | "warn", false) if events == Events::Rejections => (Verb::Suspend, None),
        ("warn", false) => (Verb::Warn, None),
        ("defer", false) => (Verb::Defer, None),
        ("deny", false) | ("require", true) => (Verb::Deny, None),
        ("drop", false) => (Verb::Drop, None),
        ("accept", false) => (Verb::Warn, Some("accept lets mail through that exceeds the limit")),
        ("accept", true) => {
            (Verb::Defer, Some("accept lets mail through below the limit; later statements decide about the rest"))
        }
        ("discard", false) => (Verb::Deny, Some("discard accepts a message and drops it silently; Weir never does so")),
        _ => return Err("it acts on mail below the limit, and limits of Weir act on mail that exceeds it"),
    })
}
