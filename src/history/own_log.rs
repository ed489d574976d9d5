//! Weir's own log: lines in logfmt or JSON, with or without a syslog header before them.

use super::entry::{Entry, Kind, LeftOut, Outcome, Parsed, sender};
use crate::time::{Timestamp, parse_duration, parse_time};
use serde_json::Value;
use std::borrow::Cow;
use std::str::Chars;
use std::time::Duration;

/// Possible names of the field that has the time of a line.
const TIMES: [&str; 3] = ["ts", "timestamp", "time"];

/// Returns the part of a line that Weir itself wrote: the text after the header of syslog.
fn own_text(line: &str) -> Option<&str> {
    let start = match line.find('{') {
        Some(brace) if line[..brace].ends_with(": ") || brace == 0 => brace,
        _ => TIMES.iter().find_map(|name| {
            let at = line.find(&format!("{name}="))?;
            (at == 0 || line[..at].ends_with(": ") || line[..at].ends_with('>')).then_some(at)
        })?,
    };
    Some(&line[start..])
}

/// Names and values of the fields of a line.
struct Fields<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Fields<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        match text.starts_with('{') {
            true => serde_json::from_str(text).ok().map(Self::of_json),
            false => Some(Self(logfmt(text).collect())),
        }
    }

    fn of_json(object: serde_json::Map<String, Value>) -> Self {
        let text = |value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        Self(object.into_iter().map(|(name, value)| (name.into(), text(value).into())).collect())
    }

    fn get(&self, name: &str) -> Option<Cow<'a, str>> {
        let found = self.0.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty() && value != "null")
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }
}

/// Returns the fields of a logfmt line: `name=value name="value with \"quotes\""`.
fn logfmt(text: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (name, after) = rest.trim_start().split_once('=')?;
        let Some(quoted) = after.strip_prefix('"') else {
            let (value, after) = after.split_at(after.find(' ').unwrap_or(after.len()));
            rest = after;
            return Some((name.into(), value.into()));
        };
        let mut is_escaped = false;
        let end = quoted.find(|c: char| {
            let is_end = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        });
        let (value, after) = quoted.split_at(end.unwrap_or(quoted.len()));
        rest = after.get(1..).unwrap_or_default();
        Some((name.into(), unescaped(value)))
    })
}

fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return value.into();
    }
    let mut chars = value.chars();
    let mut text = String::with_capacity(value.len());
    while let Some(c) = chars.next() {
        text.extend(if c == '\\' { escaped(&mut chars) } else { Some(c) });
    }
    text.into()
}

/// Reads the rest of an escape sequence, as [`str::escape_debug`] writes it.
fn escaped(chars: &mut Chars<'_>) -> Option<char> {
    match chars.next()? {
        'n' => Some('\n'),
        'r' => Some('\r'),
        't' => Some('\t'),
        '0' => Some('\0'),
        'u' => {
            let code = chars.as_str().strip_prefix('{').and_then(|text| text.split_once('}'));
            let Some((digits, after)) = code else { return Some('u') };
            *chars = after.chars();
            u32::from_str_radix(digits, 16).ok().and_then(char::from_u32)
        }
        other => Some(other),
    }
}

/// Returns the time of a line from its time field.
pub fn time(line: &str) -> Option<Timestamp> {
    let text = own_text(line)?;
    let after = TIMES.iter().find_map(|name| {
        let (_, after) = text.split_once(&format!("{name}=")).or_else(|| text.split_once(&format!("\"{name}\":")))?;
        Some(after)
    })?;
    let after = after.trim_start_matches(['"', ' ']);
    let end = after.find(['"', ' ', ',', '}']).unwrap_or(after.len());
    parse_time(&after[..end]).ok()
}

/// Parses a line.
pub fn parse(body: &str) -> Parsed<'_> {
    let Some(text) = own_text(body) else { return Parsed::Foreign };
    // Most lines report other events. Skipping these lines here avoids the parsing of their fields.
    if !["message ended", "refused", "upstream away"].iter().any(|message| text.contains(message)) {
        return Parsed::Irrelevant;
    }
    let Some(fields) = Fields::parse(text) else { return Parsed::Bad("it is not complete") };
    match fields.get("message").as_deref() {
        Some("message ended") => message(&fields),
        Some("refused" | "refused by upstream" | "upstream away") => refusal(&fields),
        Some("refused more often than is logged") => {
            let refusals = [fields.number("refusals"), fields.number("suppressed")].into_iter().flatten().sum();
            Parsed::LeftOut(LeftOut::NotLogged(refusals))
        }
        _ => Parsed::Irrelevant,
    }
}

/// Reads the fields that all lines of a session have.
fn common<'a>(fields: &Fields<'a>) -> Entry<'a> {
    Entry {
        kind: Kind::Whole,
        id: fields.get("session").unwrap_or_default(),
        client: fields.get("client").and_then(|client| client.parse().ok()),
        user: fields.get("user"),
        sender: Some(fields.get("from").map_or("<>".into(), |from| sender(&from).into_owned().into())),
        ..Entry::default()
    }
}

/// Parses a line about the end of a message.
fn message<'a>(fields: &Fields<'a>) -> Parsed<'a> {
    let Some(result) = fields.get("result") else { return Parsed::Bad("it has no result") };
    // Weir itself has taken a mail to the report address: no user has sent it.
    if ["report", "no-report"].contains(&&*result) {
        return Parsed::Irrelevant;
    }
    let is_sent = ["delivered", "passed"].contains(&&*result);
    let outcome = if is_sent { Outcome::Sent } else { Outcome::Refused };
    let named: Vec<_> = match fields.get("to").or_else(|| fields.get("recipients")) {
        Some(to) => addresses(&to).map(|address| (address.into(), outcome)).collect(),
        None => Vec::new(),
    };
    let accepted = fields.number("accepted").or_else(|| fields.number("asked")).unwrap_or(0);
    Parsed::Entry(Entry {
        size: fields.number("size"),
        unnamed: Some((accepted.saturating_sub(named.len() as u64), outcome)),
        recipients: named,
        age: fields.get("duration").and_then(|duration| age(&duration)).unwrap_or_default(),
        ..common(fields)
    })
}

/// Parses a duration: a number of seconds, or a text such as `2m3s` in older logs.
fn age(duration: &str) -> Option<Duration> {
    let seconds = duration.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.or_else(|| parse_duration(duration).ok())
}

/// Returns the addresses of a list, which is separated by commas or is a JSON array.
fn addresses(list: &str) -> impl Iterator<Item = String> {
    let parts = list.trim_matches(['[', ']']).split([',', ' ']);
    parts.map(|part| part.trim_matches(['"', '<', '>']).to_owned()).filter(|part| !part.is_empty())
}

/// Parses a line about a command that a limit, a suspension or an upstream refused.
fn refusal<'a>(fields: &Fields<'a>) -> Parsed<'a> {
    let refused = match (fields.get("to"), fields.get("stage").as_deref()) {
        (Some(to), _) => Entry { recipients: vec![(to, Outcome::Refused)], ..common(fields) },
        // The line does not name the recipients of a message that is refused at DATA.
        (None, Some("data")) => Entry { unnamed: Some((1, Outcome::Refused)), ..common(fields) },
        // The line about the end of the message also reports this refusal.
        (None, Some("end")) => return Parsed::Irrelevant,
        (None, _) => return Parsed::LeftOut(LeftOut::RefusedBeforeRecipient),
    };
    Parsed::Entry(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_value_is_read_as_it_was_written() {
        for value in
            ["say \"no\"", "a\\b c", "it's =", "\r\n\t\0", "a\u{200c}b@example.net", "\u{10fffd}}", "\u{301}a\u{9b}31m"]
        {
            let line = format!("to=\"{}\" result=delivered", value.escape_debug());
            let fields: Vec<_> = logfmt(&line).collect();
            assert_eq!(fields, [("to".into(), Cow::from(value)), ("result".into(), "delivered".into())]);
        }
        assert_eq!(unescaped(r"\u \u{zz}\u{41"), "u u{41");
    }
}
