//! Parser of rspamd's selectors: `user.lower.append("x");ip.ipmask(24, 56)`.

use crate::policy::matching::{Field, Widths};

/// One step of a selector: a name with arguments, at the beginning or after `.` or `:`.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    name: String,
    arguments: Vec<String>,
}

/// The value that a selector returns for a mail.
#[derive(Debug, Default, PartialEq)]
pub struct Selected {
    /// Field whose value the selector returns; `None` if the value is the same for all mail.
    pub field: Option<Field>,
    /// The only values of the field for which the selector returns a result.
    pub among: Option<Vec<String>>,
}

/// Splits a text at the semicolons that are outside quotes and parentheses.
pub fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut from, mut depth, mut quote) = (Vec::new(), 0, 0usize, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(end), _) if c == end => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '{') => depth += 1,
            (None, ')' | '}') => depth = depth.saturating_sub(1),
            (None, ';') if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[from..].trim());
    parts.into_iter().filter(|part| !part.is_empty()).collect()
}

/// Parses one selector. Returns an error if limits cannot express the selector.
pub fn parse(text: &str) -> Result<Selected, String> {
    let unknown = || format!("the selector {text} is not understood");
    let steps = steps(text).ok_or_else(unknown)?;
    let (first, rest) = steps.split_first().ok_or_else(unknown)?;
    let mut selected = Selected { field: source(first).ok_or_else(unknown)?, among: None };
    for step in rest {
        apply(&mut selected, step).ok_or_else(unknown)?;
    }
    Ok(selected)
}

/// Returns the field of the first step. The outer `None` means that limits have no such field. The inner `None` means
/// that the value is the same for all mail.
fn source(step: &Step) -> Option<Option<Field>> {
    // The address must be an envelope address: limits do not know the addresses in the message header.
    let is_of_envelope = step.arguments.iter().all(|argument| matches!(&**argument, "smtp" | "orig" | "1"));
    Some(match &*step.name {
        "id" => None,
        "user" => Some(Field::User),
        "ip" => Some(Field::Client(Widths::default())),
        "from" if is_of_envelope => Some(Field::Sender),
        "rcpts" | "to" if is_of_envelope => Some(Field::Recipient),
        "helo" => Some(Field::Helo),
        _ => return None,
    })
}

/// Applies a later step of the selector to the value so far; `None` if limits cannot express the result.
fn apply(selected: &mut Selected, step: &Step) -> Option<()> {
    let arguments: Vec<&str> = step.arguments.iter().map(String::as_str).collect();
    let field = selected.field;
    match (&*step.name, &arguments[..]) {
        // Two values that differ (apart from case) still differ after these steps. So a budget per unchanged value
        // counts the same.
        (
            "lower" | "first" | "last" | "uniq" | "sort" | "digest" | "to_string" | "id" | "tolower" | "append"
            | "prepend" | "join" | "identity" | "hex" | "base32" | "base64",
            _,
        ) => {}
        ("nth" | "take_n", ["1"]) => {}
        ("addr", []) if field.is_some() => {}
        ("domain" | "get_domain", []) => {
            selected.field = Some(match field? {
                Field::User => Field::UserDomain,
                Field::Sender => Field::SenderDomain,
                Field::Recipient => Field::RecipientDomain,
                _ => return None,
            });
        }
        ("ipmask", [v4, v6]) if matches!(field, Some(Field::Client(_))) => {
            selected.field = Some(Field::Client(Widths::new(v4.parse().ok()?, v6.parse().ok()?)?));
        }
        ("in", values) if field.is_some() && selected.among.is_none() && !values.is_empty() => {
            selected.among = Some(values.iter().map(|value| (*value).to_owned()).collect());
        }
        _ => return None,
    }
    Some(())
}

/// Splits a selector into its steps.
fn steps(text: &str) -> Option<Vec<Step>> {
    let (mut steps, mut rest) = (Vec::new(), text.trim());
    loop {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        if name.is_empty() {
            return None;
        }
        let (arguments, after) = match after.trim_start().strip_prefix('(') {
            Some(inner) => arguments(inner)?,
            None => (Vec::new(), after),
        };
        steps.push(Step { name: name.to_owned(), arguments });
        rest = after.trim_start();
        match rest.strip_prefix(['.', ':']) {
            Some(next) => rest = next.trim_start(),
            None => return rest.is_empty().then_some(steps),
        }
    }
}

/// Parses the arguments up to the closing parenthesis. Returns the arguments, and the text after the parenthesis.
fn arguments(text: &str) -> Option<(Vec<String>, &str)> {
    let (mut arguments, mut rest) = (Vec::new(), text.trim_start());
    loop {
        if let Some(after) = rest.strip_prefix(')') {
            return Some((arguments, after));
        }
        let (argument, after) = match rest.chars().next()? {
            quote @ ('"' | '\'') => rest[1..].split_once(quote)?,
            _ => {
                let end = rest.find([',', ')'])?;
                (rest[..end].trim(), &rest[end..])
            }
        };
        arguments.push(argument.to_owned());
        rest = after.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_fields_or_constants() {
        for (selector, name) in [
            ("user.lower", "user"),
            ("user.lower.append(\"_hour; max\")", "user"),
            ("user:domain.lower", "user-domain"),
            ("from(\"smtp\"):addr.lower.prepend('a')", "sender"),
            ("from('smtp'):domain", "sender-domain"),
            ("rcpts:addr.take_n(1)", "recipient"),
            ("ip.ipmask( 24, 56)", "client/24/56"),
            ("id('all')", ""),
        ] {
            let selected = parse(selector).unwrap();
            assert_eq!(selected.field.map_or(String::new(), |field| field.name().into_owned()), name, "{selector}");
        }
        assert_eq!(parse("to.in('a@b', 'c@d')").unwrap().among, Some(vec!["a@b".to_owned(), "c@d".to_owned()]));
        for selector in ["header(x)", "from('mime')", "user.substring(1, 2)", "ip.in(", "user.", "asn", "id.in('x')"] {
            assert!(parse(selector).is_err(), "{selector}");
        }
        assert_eq!(split("user.append(\"a;b\"); ip ;"), ["user.append(\"a;b\")", "ip"]);
    }
}
