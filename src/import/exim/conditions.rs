//! Translation of Exim's conditions into `match` and `except`.

use super::super::limit::{self, Limit, MatchValue};
use super::acl::{Condition, Statement};
use super::braces::{Test, after_word, braced, is_constant, whole};
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
    /// Difference between the condition and its translation.
    difference: Option<&'static str>,
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

impl Translated {
    /// Returns the translation of a condition that only some of the mail with this flag meets.
    fn part_of(key: &'static str, difference: &'static str) -> Self {
        Self { difference: Some(difference), ..Self::flag(key, true) }
    }

    fn flag(key: &'static str, flag: bool) -> Self {
        let condition = limit::Condition { key, value: MatchValue::Flag(flag) };
        Self { holds: vec![condition], ..Self::default() }
    }

    /// Adds another translation: the mail must meet both.
    fn join(&mut self, other: Self) {
        self.holds.extend(other.holds);
        self.fails.extend(other.fails);
        self.is_never |= other.is_never;
        self.difference = self.difference.or(other.difference);
    }

    /// Returns the keys of `match` and `except` that the condition becomes.
    fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.holds.iter().chain(&self.fails).map(|condition| condition.key)
    }
}

/// Translates the condition `${if TEST}`, also with the usual words for its two results, such as yes and no.
fn of_expansion(text: &str, negated: bool, named: &Named) -> Result<Translated, String> {
    let unknown = || not_understood(text);
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

/// Returns the reason why limits have no condition like an expansion.
fn not_understood(text: &str) -> String {
    const REASONS: [(&[&str], &str); 9] = [
        (&["$message_size"], "limits have no condition on the size of a message; count = \"bytes\" adds up sizes"),
        (
            &["$recipients_count", "$rcpt_count"],
            "limits have the number of recipients as in message-recipients = \"> 10\", which is judged at DATA",
        ),
        (
            &["$received_port", "$interface_port", "$received_ip_address", "$interface_address"],
            "Weir's listeners have names: write match = { listener = \"NAME\" }",
        ),
        (&["$sender_rate"], "limits compare the rate with their own number alone: write it into rate"),
        (&["exists{", "exists {"], "whether this file exists is known only on Exim's machine"),
        (&["$tod_"], "limits have hours as in time = \"Mon-Fri 08:00-18:00\": write them into match"),
        (&["$h_", "$header_", "$rh_", "$bh_", "$message_"], "limits do not see the content of a message"),
        (&["$sender_host_name", "$host_lookup"], "limits look up no names of clients"),
        (&["$acl_"], "the value of this variable is known only to Exim"),
    ];
    let plain = text.replace("${", "$").replace("def:", "$");
    let reason = REASONS.into_iter().find(|(names, _)| names.iter().any(|name| plain.contains(name)));
    reason.map_or("it is an expansion that is not understood", |(_, words)| words).to_owned()
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
        ("or", [any]) => Some(of_any(Test::parse_all(any)?, negated, named)),
        ("def", [variable]) => Some(Ok(Translated::flag(flag(variable)?, !negated))),
        ("eq" | "eqi", [variable, ""] | ["", variable]) => Some(Ok(Translated::flag(flag(whole(variable)?)?, negated))),
        ("eq" | "eqi", [choice, value] | [value, choice])
            if is_constant(value) && whole(choice).is_some_and(|inner| after_word(inner, "if").is_some()) =>
        {
            of_choice(choice, value, negated, named)
        }
        ("inlist" | "inlisti", [variable, items]) if is_constant(items) && !items.contains(['*', '<']) => {
            let items = items.split(':').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty());
            let list = List { among: Some(items.collect()), but: Vec::new() };
            Some(of_list(key_of(variable)?, list, negated))
        }
        ("eq" | "eqi", [variable, value] | [value, variable]) if is_constant(value) && !value.contains('*') => {
            let key = key_of(variable)?;
            let list = List { among: Some(vec![value.trim().to_owned()]), but: Vec::new() };
            Some(of_list(key, list, negated))
        }
        (operator @ (">" | ">=" | "<" | "<=" | "=" | "=="), [variable, number]) => {
            of_recipient_count(variable, operator, number, negated).map(Ok)
        }
        ("match_ip", [variable, items]) => list(variable, Kind::Hosts, items),
        ("match_domain", [variable, items]) => list(variable, Kind::Domains, items),
        ("match_address", [variable, items]) => list(variable, Kind::Addresses, items),
        _ => None,
    }
}

/// Translates `eq{${if TEST {A}{B}}}{VALUE}`, where A and B are different constants, and VALUE is one of them.
fn of_choice(choice: &str, value: &str, negated: bool, named: &Named) -> Option<Result<Translated, String>> {
    let (test, rest) = Test::parse(after_word(whole(choice)?, "if")?)?;
    let (yes, rest) = braced(rest.trim_start())?;
    let (no, rest) = braced(rest.trim_start())?;
    let (yes, no, value) = (yes.trim(), no.trim(), value.trim());
    let is_clear = is_constant(yes) && is_constant(no) && yes != no && rest.trim().is_empty();
    (is_clear && (value == yes || value == no)).then_some(())?;
    of_test(&test, negated != (value == no), named)
}

/// Translates tests of which any one must hold: of one field, these become one list of values.
fn of_any(tests: Vec<Test<'_>>, negated: bool, named: &Named) -> Result<Translated, String> {
    let apart = || "of several conditions any one holds, and they are not of one field".to_owned();
    let mut found: Option<(&'static str, Vec<String>)> = None;
    for test in &tests {
        let one = of_test(test, false, named).ok_or_else(apart)??;
        let Translated { holds, fails, is_never: false, difference: None } = one else { return Err(apart()) };
        let [limit::Condition { key, value: MatchValue::Texts(texts) }] = &holds[..] else { return Err(apart()) };
        let (known, all) = found.get_or_insert((key, Vec::new()));
        if known != key || !fails.is_empty() || *key == "message-recipients" {
            return Err(apart());
        }
        all.extend(texts.iter().cloned());
    }
    let (key, values) = found.ok_or_else(apart)?;
    of_list(key, List { among: Some(values), but: Vec::new() }, negated)
}

/// Translates a comparison of `$recipients_count` with a number. At RCPT, Exim's variable has the recipients so far, and
/// limits do not know the number yet.
fn of_recipient_count(variable: &str, operator: &str, number: &str, negated: bool) -> Option<Translated> {
    whole(variable).filter(|name| matches!(*name, "recipients_count" | "rcpt_count"))?;
    let number: u32 = number.trim().parse().ok()?;
    let operator = match (operator, negated) {
        (">", false) | ("<=", true) => ">",
        (">=", false) | ("<", true) => ">=",
        ("<", false) | (">=", true) => "<",
        ("<=", false) | (">", true) => "<=",
        ("=" | "==", false) => "=",
        _ => return None,
    };
    let value = MatchValue::Texts(vec![format!("{operator} {number}")]);
    Some(Translated { holds: vec![limit::Condition { key: "message-recipients", value }], ..Translated::default() })
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
        (false, among, but) => Ok(Translated {
            holds: one(among.unwrap_or_default()),
            fails: one(but),
            is_never: is_empty,
            difference: None,
        }),
        (true, Some(among), but) if but.is_empty() => Ok(Translated { fails: one(among), ..Translated::default() }),
        (true, None, but) => Ok(Translated { is_never: but.is_empty(), holds: one(but), ..Translated::default() }),
        (true, Some(_), _) => Err("a list with exceptions cannot be negated".to_owned()),
    }
}

/// Adds a condition of Exim to `match` or `except` of a limit. If limits cannot express the condition, the limit is in
/// shadow mode. `is_uncounted`: Exim has counted the mail that does not meet the condition. Returns whether no mail meets
/// it.
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

/// Returns the conditions of the mail that an earlier `accept` or `discard` lets through, so that Exim does not evaluate
/// the limit for it. `None` if this statement lets no mail from the network through. The error says why limits cannot
/// express the conditions.
pub fn accepted(accept: &Statement, named: &Named, scope: &Scope<'_>) -> Result<Option<Vec<limit::Condition>>, String> {
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
