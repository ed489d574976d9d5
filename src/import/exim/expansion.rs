//! Translation of conditions that are expansions, `condition = ${if TEST}`.

use super::super::expression::{self, Meaning};
use super::super::limit::{Condition, MatchValue};
use super::braces::{Test, after_word, braced, is_constant, whole};
use super::key;
use super::list::{Kind, List, Named};
use super::translated::{Translated, of_list};
use crate::policy::matching::Field;

/// Translates the condition `${if TEST}`. The usual words for its two results, such as yes and no, can follow the test.
pub fn of_expansion(text: &str, negated: bool, named: &Named) -> Result<Translated, String> {
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

/// Returns the reason why limits cannot express an expansion.
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

/// Translates a test; `None` if limits cannot express the test.
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
        ("match", [variable, regex]) => of_regex(variable, regex, negated),
        ("match_ip", [variable, items]) => list(variable, Kind::Hosts, items),
        ("match_domain", [variable, items]) => list(variable, Kind::Domains, items),
        ("match_address", [variable, items]) => list(variable, Kind::Addresses, items),
        _ => None,
    }
}

/// Translates `match{$sender_address}{\N@example\.org$\N}`, if patterns can express the regular expression.
fn of_regex(variable: &str, regex: &str, negated: bool) -> Option<Result<Translated, String>> {
    let key = key_of(variable)?;
    let regex = match regex.trim().strip_prefix("\\N").and_then(|regex| regex.strip_suffix("\\N")) {
        Some(regex) => regex.to_owned(),
        // Outside \N…\N, Exim expands the text: two backslashes become one, and a dollar sign begins a variable.
        None if regex.trim().trim_end_matches('$').contains('$') => return None,
        None => regex.trim().replace("\\\\", "\\").replace("\\$", "$"),
    };
    match expression::meaning(key, &regex)? {
        Meaning::Among(patterns) => Some(of_list(key, List { among: Some(patterns), but: Vec::new() }, negated)),
        Meaning::Present if key == "user" => Some(Ok(Translated::flag("authenticated", !negated))),
        Meaning::Absent if key == "user" => Some(Ok(Translated::flag("authenticated", negated))),
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

/// Translates tests of which at least one must be true. Tests of the same field become one list of values; other tests
/// are not translated.
fn of_any(tests: Vec<Test<'_>>, negated: bool, named: &Named) -> Result<Translated, String> {
    let apart = || "of several conditions any one holds, and they are not of one field".to_owned();
    let mut found: Option<(&'static str, Vec<String>)> = None;
    for test in &tests {
        let one = of_test(test, false, named).ok_or_else(apart)??;
        let Translated { holds, fails, is_never: false, difference: None } = one else { return Err(apart()) };
        let [Condition { key, value: MatchValue::Texts(texts) }] = &holds[..] else { return Err(apart()) };
        let (known, all) = found.get_or_insert((*key, Vec::new()));
        if *known != *key || !fails.is_empty() || *key == "message-recipients" {
            return Err(apart());
        }
        all.extend(texts.iter().cloned());
    }
    let (key, values) = found.ok_or_else(apart)?;
    of_list(key, List { among: Some(values), but: Vec::new() }, negated)
}

/// Translates a comparison of `$recipients_count` with a number. At RCPT, Exim's variable has the number of recipients
/// so far, and limits do not know the number yet.
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
    Some(Translated { holds: vec![Condition { key: "message-recipients", value }], ..Translated::default() })
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
