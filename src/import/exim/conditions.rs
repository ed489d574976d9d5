//! Translation of Exim's conditions into `match` and `except`.

use super::super::limit::{self, Limit};
use super::acl::{Condition, Statement};
use super::constant::{Scope, truth};
use super::expansion::of_expansion;
use super::list::{Kind, List, Named};
use super::translated::{Translated, of_list};

/// Kind of a part of a statement.
pub enum Part<'a> {
    Ratelimit(&'a Condition),
    Condition(&'a Condition),
    Modifier(&'a Condition),
}

/// Names of modifiers. A modifier has an effect, and tests nothing.
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

/// Translates a condition of Exim. Returns an error that says why limits cannot express the condition.
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
        "authenticated" if names_every_authenticator(&value, named) => Ok(Translated::flag("authenticated", !negated)),
        "authenticated" if !negated => Ok(Translated::part_of("authenticated", AUTHENTICATOR)),
        "authenticated" => Err(AUTHENTICATOR.to_owned()),
        "encrypted" if value == "*" => Ok(Translated::flag("tls", !negated)),
        "encrypted" if !negated => Ok(Translated::part_of("tls", CIPHER)),
        "encrypted" => Err(CIPHER.to_owned()),
        "condition" => match truth(&value) {
            Some(holds) => Ok(Translated { is_never: holds == negated, ..Translated::default() }),
            None => of_expansion(&value, negated, named),
        },
        "ratelimit" => Err("a limit is no condition of another limit".to_owned()),
        name => Err(format!("limits have no condition like {name}")),
    }
}

const AUTHENTICATOR: &str = "limits know whether a client has logged in, and not with which authenticator";
const CIPHER: &str = "limits know whether a connection is encrypted, and not with which cipher";

/// Returns whether a list of names or patterns matches every authenticator of the configuration.
fn names_every_authenticator(list: &str, named: &Named) -> bool {
    let items: Vec<&str> = list.split(':').map(str::trim).filter(|item| !item.is_empty()).collect();
    let is_named = |name: &String| items.contains(&&**name);
    items == ["*"] || !named.authenticators.is_empty() && named.authenticators.iter().all(is_named)
}

/// Adds a condition of Exim to `match` or `except` of a limit. If limits cannot express the condition, puts the limit
/// in shadow mode. `is_uncounted` means that Exim also counts the mail that does not meet the condition. Returns
/// whether no mail from the network can meet the condition.
pub fn narrow(limit: &mut Limit, condition: &Condition, is_uncounted: bool, named: &Named, scope: &Scope<'_>) -> bool {
    let words = |why: &str| format!("{}: {why}", short(condition));
    let translated = match translated(condition, named, scope) {
        Ok(translated) => translated,
        Err(why) => {
            limit.shadow(&condition.place, words(&why));
            return false;
        }
    };
    if let Some(difference) = translated.difference {
        limit.shadow(&condition.place, words(difference));
    }
    if translated.is_never {
        limit.shadow(&condition.place, words("this matches no client of the network"));
    }
    if is_uncounted && !translated.keys().all(|key| limit.owns(key)) {
        limit.shadow(
            &condition.place,
            words("it stands after ratelimit, so that Exim also counts mail that does not meet it"),
        );
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
    translated.is_never
}

/// Returns the conditions of the mail that an earlier `accept` or `discard` lets through: Exim does not evaluate the
/// limit for this mail. Returns `None` if this statement lets no mail from the network through. Returns an error that
/// says why limits cannot express the conditions.
pub fn accepted(accept: &Statement, named: &Named, scope: &Scope<'_>) -> Result<Option<Vec<limit::Condition>>, String> {
    let is_frozen = |one: &Condition| one.name == "control" && one.value.starts_with("freeze");
    if accept.conditions.iter().any(is_frozen) {
        // Exim freezes this mail and does not deliver it, so the limit does not have to exempt it.
        return Ok(None);
    }
    let mut table: Vec<limit::Condition> = Vec::new();
    for part in parts(accept) {
        let condition = match part {
            // The conditions before endpass select the mail. The conditions after endpass decide whether Exim accepts
            // or refuses this mail.
            Part::Modifier(condition) if condition.name == "endpass" => break,
            Part::Modifier(_) => continue,
            Part::Condition(condition) | Part::Ratelimit(condition) => condition,
        };
        let lets_through =
            |why: &str| format!("an earlier {} lets others through: {}: {why}", accept.verb, short(condition));
        match translated(condition, named, scope) {
            Ok(translated) if translated.is_never => return Ok(None),
            Ok(Translated { difference: Some(difference), .. }) => return Err(lets_through(difference)),
            Ok(Translated { holds, fails, .. })
                if fails.is_empty() && !holds.iter().any(|one| table.iter().any(|known| known.key == one.key)) =>
            {
                table.extend(holds);
            }
            Ok(_) => return Err(lets_through("except has no conditions that mail must not meet")),
            Err(why) => return Err(lets_through(&why)),
        }
    }
    match table.is_empty() {
        true => Err(format!("an earlier {} lets all mail through, so Exim never gets here", accept.verb)),
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
