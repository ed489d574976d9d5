//! Translation of Exim's conditions to `match` and `except`.

use super::super::limit::{self, Limit, MatchValue};
use super::acl::{Condition, Statement};
use super::list::{Kind, List, Named};

/// Translated condition.
#[derive(Debug, PartialEq)]
pub struct Translated {
    /// Conditions that must hold.
    holds: Vec<limit::Condition>,
    /// Conditions of which none may hold.
    fails: Vec<limit::Condition>,
    /// The condition holds for no client of the network.
    is_never: bool,
}

/// Kind of a condition or modifier in a statement.
pub enum Part<'a> {
    Ratelimit(&'a Condition),
    Condition(&'a Condition),
    Modifier(&'a Condition),
}

/// Modifiers: they do something, and test nothing.
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
        name if MODIFIERS.contains(&name) => Part::Modifier(condition),
        _ => Part::Condition(condition),
    })
}

/// Translates a condition. The error says why limits cannot express it.
pub fn translated(condition: &Condition, named: &Named) -> Result<Translated, String> {
    let (negated, value) = (condition.negated, condition.value.trim());
    named.allowance.octets(value.len())?;
    let flag = |key, flag| {
        let condition = limit::Condition { key, value: MatchValue::Flag(flag) };
        Ok(Translated { holds: vec![condition], fails: Vec::new(), is_never: false })
    };
    let list = |key, kind| of_list(key, List::parse(kind, value, named)?, negated);
    match &*condition.name {
        "hosts" => list("client", Kind::Hosts),
        "senders" => list("sender", Kind::Addresses),
        "sender_domains" => list("sender-domain", Kind::Domains),
        "recipients" => list("recipient", Kind::Addresses),
        "domains" => list("recipient-domain", Kind::Domains),
        "local_parts" => list("recipient", Kind::LocalParts),
        "authenticated" if value == "*" => flag("authenticated", !negated),
        "encrypted" if value == "*" => flag("tls", !negated),
        "condition" => match known_expansion(value) {
            Some((key, holds)) => flag(key, holds != negated),
            None if matches!(value, "true" | "yes" | "1") && !negated => {
                Ok(Translated { holds: Vec::new(), fails: Vec::new(), is_never: false })
            }
            None => Err("it is an expansion that is not understood".to_owned()),
        },
        name => Err(format!("limits have no condition like {name}")),
    }
}

/// Recognizes the usual spellings of the test for a login or for TLS.
fn known_expansion(text: &str) -> Option<(&'static str, bool)> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let text = text.replace("{yes}{no}", "").replace("{true}{false}", "").replace("{1}{0}", "");
    match &*text {
        "${ifdef:authenticated_id}" | "${if!eq{$authenticated_id}{}}" => Some(("authenticated", true)),
        "${if!def:authenticated_id}" | "${ifeq{$authenticated_id}{}}" => Some(("authenticated", false)),
        "${ifdef:tls_in_cipher}" => Some(("tls", true)),
        "${if!def:tls_in_cipher}" => Some(("tls", false)),
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

/// Adds a condition to `match` or `except` of a limit. A condition that cannot be expressed broadens the limit.
pub fn narrow(limit: &mut Limit, condition: &Condition, named: &Named) {
    let words = |why: &str| format!("{}: {why}", written(condition));
    let translated = match translated(condition, named) {
        Ok(translated) => translated,
        Err(why) => return limit.broaden(&condition.place, words(&why)),
    };
    if translated.is_never {
        limit.broaden(&condition.place, words("this matches no client of the network"));
    }
    for one in translated.holds {
        if !limit.add_match(one) {
            limit.broaden(&condition.place, words("there is a condition with this key already, and both must hold"));
        }
    }
    limit.except.extend(translated.fails.into_iter().map(|one| vec![one]));
}

/// Adds the conditions of an earlier `accept` to `except`: Exim does not reach the limit for such mail.
pub fn except_accepted(limit: &mut Limit, accept: &Statement, named: &Named) {
    let mut table: Vec<limit::Condition> = Vec::new();
    for part in parts(accept) {
        let condition = match part {
            // Conditions after endpass decide between accept and refuse; they do not select the mail.
            Part::Modifier(condition) if condition.name == "endpass" => break,
            Part::Modifier(_) => continue,
            Part::Condition(condition) | Part::Ratelimit(condition) => condition,
        };
        let translation = translated(condition, named).and_then(|translated| match translated {
            Translated { fails, .. } if !fails.is_empty() => Err("an exception of an exception".to_owned()),
            translated => Ok(translated),
        });
        match translation {
            Ok(translated) if translated.is_never => return,
            Ok(translated) if translated.holds.iter().any(|one| table.iter().any(|known| known.key == one.key)) => {
                return limit.broaden(&condition.place, format!("{} uses one key twice", written(condition)));
            }
            Ok(translated) => table.extend(translated.holds),
            Err(why) => {
                let words = format!("an earlier accept lets others through: {}: {why}", written(condition));
                return limit.broaden(&condition.place, words);
            }
        }
    }
    match table.is_empty() {
        true => limit.broaden(&accept.place, "an earlier accept lets all mail through, so Exim never gets here"),
        false => limit.except.push(table),
    }
}

/// Returns the condition as written.
pub fn written(condition: &Condition) -> String {
    let not = if condition.negated { "!" } else { "" };
    match condition.value.is_empty() {
        true => format!("{not}{}", condition.name),
        false => format!("{not}{} = {}", condition.name, condition.value),
    }
}
