//! Translation of Exim's conditions into `match` and `except`.

use super::super::limit::{self, Limit, MatchValue};
use super::acl::{Condition, Statement};
use super::braces::{Test, after_word, is_constant, whole};
use super::constant::{Scope, truth};
use super::key;
use super::list::{Kind, List, Named};
use crate::policy::matching::Field;

/// Translation of one or several conditions of Exim.
#[derive(Debug, Default, PartialEq)]
pub struct Translated {
    /// Conditions that the mail must meet.
    holds: Vec<limit::Condition>,
    /// Conditions of which the mail must meet none.
    fails: Vec<limit::Condition>,
    /// No mail from the network can meet the condition: only mail of local programs can.
    is_never: bool,
}

/// Kind of a part of a statement.
pub enum Part<'a> {
    Ratelimit(&'a Condition),
    Condition(&'a Condition),
    Modifier(&'a Condition),
}

/// Names of modifiers: they do something, and test nothing.
const MODIFIERS: [&str; 14] = [
    "add_header",
    "continue",
    "control",
    "delay",
    "dscp",
    "endpass",
    "log_message",
    "log_reject_target",
    "logwrite",
    "message",
    "queue",
    "remove_header",
    "set",
    "udpsend",
];

pub fn parts(statement: &Statement) -> impl Iterator<Item = Part<'_>> {
    statement.conditions.iter().map(|condition| match condition.name.split_whitespace().next().unwrap_or_default() {
        "ratelimit" => Part::Ratelimit(condition),
        _ if is_modifier(condition) => Part::Modifier(condition),
        _ => Part::Condition(condition),
    })
}

/// Returns whether this part of a statement is a modifier.
pub fn is_modifier(condition: &Condition) -> bool {
    MODIFIERS.contains(&condition.name.split_whitespace().next().unwrap_or_default())
}

/// Translates a condition of Exim. The error says why limits cannot express it.
pub fn translated(condition: &Condition, named: &Named, scope: &Scope<'_>) -> Result<Translated, String> {
    let (negated, value) = (condition.negated, scope.simplified(condition.value.trim()));
    named.allowance.octets(value.len())?;
    let list = |key, kind| of_list(key, List::parse(kind, &value, named)?, negated);
    match &*condition.name {
        "hosts" => list("client", Kind::Hosts),
        "senders" => list("sender", Kind::Addresses),
        "sender_domains" => list("sender-domain", Kind::Domains),
        "recipients" => list("recipient", Kind::Addresses),
        "domains" => list("recipient-domain", Kind::Domains),
        "local_parts" => list("recipient", Kind::LocalParts),
        "authenticated" if value == "*" => Ok(Translated::flag("authenticated", !negated)),
        "encrypted" if value == "*" => Ok(Translated::flag("tls", !negated)),
        "condition" => match truth(&value) {
            Some(holds) => Ok(Translated { is_never: holds == negated, ..Translated::default() }),
            None => of_expansion(&value, negated, named),
        },
        name => Err(format!("limits have no condition like {name}")),
    }
}

impl Translated {
    fn flag(key: &'static str, flag: bool) -> Self {
        let condition = limit::Condition { key, value: MatchValue::Flag(flag) };
        Self { holds: vec![condition], ..Self::default() }
    }

    /// Adds another translation: the mail must meet both.
    fn join(&mut self, other: Self) {
        self.holds.extend(other.holds);
        self.fails.extend(other.fails);
        self.is_never |= other.is_never;
    }
}

/// Translates the condition `${if TEST}`, also with the usual words for its two results, such as yes and no.
fn of_expansion(text: &str, negated: bool, named: &Named) -> Result<Translated, String> {
    let unknown = || "it is an expansion that is not understood".to_owned();
    let rest = whole(text).and_then(|inner| after_word(inner, "if")).ok_or_else(unknown)?;
    let (test, rest) = Test::parse(rest).ok_or_else(unknown)?;
    let words: String = rest.chars().filter(|c| !c.is_whitespace()).collect();
    let is_inverse = match &*words {
        "" | "{yes}" | "{true}" | "{1}" | "{yes}{no}" | "{true}{false}" | "{1}{0}" | "{1}{}" | "{yes}{}" => false,
        "{no}{yes}" | "{false}{true}" | "{0}{1}" | "{}{1}" => true,
        _ => return Err(unknown()),
    };
    of_test(&test, negated != is_inverse, named).ok_or_else(unknown)?
}

/// Translates a test; `None` if limits have no condition like it.
fn of_test(test: &Test<'_>, negated: bool, named: &Named) -> Option<Result<Translated, String>> {
    let negated = negated != test.negated;
    let list = |variable: &str, kind, items: &str| {
        let key = key_of(variable)?;
        Some(List::parse(kind, items, named).and_then(|list| of_list(key, list, negated)))
    };
    match (test.name, &test.arguments[..]) {
        ("and", [all]) if !negated => {
            let mut joined = Translated::default();
            for test in Test::parse_all(all)? {
                match of_test(&test, false, named)? {
                    Ok(one) => joined.join(one),
                    Err(why) => return Some(Err(why)),
                }
            }
            Some(Ok(joined))
        }
        ("def", [variable]) => Some(Ok(Translated::flag(flag(variable)?, !negated))),
        ("eq" | "eqi", [variable, ""] | ["", variable]) => Some(Ok(Translated::flag(flag(whole(variable)?)?, negated))),
        ("eq" | "eqi", [variable, value] | [value, variable]) if is_constant(value) && !value.contains('*') => {
            let key = key_of(variable)?;
            let list = List { among: Some(vec![value.trim().to_owned()]), but: Vec::new() };
            Some(of_list(key, list, negated))
        }
        ("match_ip", [variable, items]) => list(variable, Kind::Hosts, items),
        ("match_domain", [variable, items]) => list(variable, Kind::Domains, items),
        ("match_address", [variable, items]) => list(variable, Kind::Addresses, items),
        _ => None,
    }
}

/// Returns the key of `match` for an expansion whose result is the value of one field.
fn key_of(variable: &str) -> Option<&'static str> {
    whole(variable)?;
    // Weir's field `listener` has names, and Exim's variable has ports or addresses: they cannot be compared.
    let field = key::plain(variable).filter(|field| *field != Field::Listener)?;
    (field.name() == field.word()).then(|| field.word())
}

/// Returns the key of `match` that is true if and only if this variable is set.
fn flag(variable: &str) -> Option<&'static str> {
    match variable.trim() {
        "authenticated_id" | "sender_host_authenticated" => Some("authenticated"),
        "tls_in_cipher" | "tls_cipher" => Some("tls"),
        _ => None,
    }
}

fn of_list(key: &'static str, list: List, negated: bool) -> Result<Translated, String> {
    let texts = |values| limit::Condition { key, value: MatchValue::Texts(values) };
    let one = |values: Vec<String>| if values.is_empty() { Vec::new() } else { vec![texts(values)] };
    let is_empty = list.among.as_ref().is_some_and(Vec::is_empty);
    match (negated, list.among, list.but) {
        (false, among, but) => {
            Ok(Translated { holds: one(among.unwrap_or_default()), fails: one(but), is_never: is_empty })
        }
        (true, Some(among), but) if but.is_empty() => {
            Ok(Translated { holds: Vec::new(), fails: one(among), is_never: false })
        }
        (true, None, but) => Ok(Translated { is_never: but.is_empty(), holds: one(but), fails: Vec::new() }),
        (true, Some(_), _) => Err("a list with exceptions cannot be negated".to_owned()),
    }
}

/// Adds a condition of Exim to `match` or `except` of a limit. If limits cannot express the condition, the limit is in
/// shadow mode.
pub fn narrow(limit: &mut Limit, condition: &Condition, named: &Named, scope: &Scope<'_>) {
    let words = |why: &str| format!("{}: {why}", short(condition));
    let translated = match translated(condition, named, scope) {
        Ok(translated) => translated,
        Err(why) => return limit.shadow(&condition.place, words(&why)),
    };
    if translated.is_never {
        limit.shadow(&condition.place, words("this matches no client of the network"));
    }
    for one in translated.holds {
        if !limit.add_match(one) {
            limit.shadow(&condition.place, words("there is a condition with this key already, and both must hold"));
        }
    }
    for one in translated.fails.into_iter().map(|one| vec![one]) {
        if !limit.except.contains(&one) {
            limit.except.push(one);
        }
    }
}

/// Returns the conditions of the mail that an earlier `accept` lets through, so that Exim does not evaluate the limit
/// for it. `None` if this `accept` lets no mail from the network through. The error says why limits cannot express the
/// conditions.
pub fn accepted(
    accept: &Statement,
    named: &Named,
    scope: &Scope<'_>,
) -> Result<Option<Vec<limit::Condition>>, &'static str> {
    let is_frozen = |one: &Condition| one.name == "control" && one.value.starts_with("freeze");
    if accept.conditions.iter().any(is_frozen) {
        // Exim holds this mail and does not deliver it, so that the limit need not except it.
        return Ok(None);
    }
    let mut table: Vec<limit::Condition> = Vec::new();
    for part in parts(accept) {
        let condition = match part {
            // The conditions after endpass decide whether Exim accepts or refuses the mail; those before it select the
            // mail.
            Part::Modifier(condition) if condition.name == "endpass" => break,
            Part::Modifier(_) => continue,
            Part::Condition(condition) | Part::Ratelimit(condition) => condition,
        };
        match translated(condition, named, scope) {
            Ok(translated) if translated.is_never => return Ok(None),
            Ok(Translated { holds, fails, .. })
                if fails.is_empty() && !holds.iter().any(|one| table.iter().any(|known| known.key == one.key)) =>
            {
                table.extend(holds);
            }
            _ => return Err("an earlier accept lets others through, under conditions that limits do not have"),
        }
    }
    match table.is_empty() {
        true => Err("an earlier accept lets all mail through, so Exim never gets here"),
        false => Ok(Some(table)),
    }
}

/// Returns the condition as written, cut to `MAX_SHORT` characters.
pub fn short(condition: &Condition) -> String {
    let written = written(condition);
    match written.char_indices().nth(MAX_SHORT) {
        Some((at, _)) => format!("{}…", &written[..at]),
        None => written,
    }
}

/// Maximum number of characters of a condition that a reason quotes.
const MAX_SHORT: usize = 70;

/// Returns the condition as written.
pub fn written(condition: &Condition) -> String {
    let not = if condition.negated { "!" } else { "" };
    match condition.value.is_empty() {
        true => format!("{not}{}", condition.name),
        false => format!("{not}{} = {}", condition.name, condition.value),
    }
}
