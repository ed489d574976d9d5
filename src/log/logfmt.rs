//! Log lines in logfmt: `name=value name="value with spaces"`.

use crate::time::Timestamp;
use std::fmt::{self, Write as _};
use tracing::Event;
use tracing::field::{Field, Visit};

/// Writes an event as a line, without the line end.
pub fn write(event: &Event<'_>, now: Timestamp, line: &mut String) {
    let level = level_name(event.metadata().level());
    // Writing to memory does not fail.
    let _ = write!(line, "ts={} level={level}", now.rfc3339_fixed());
    event.record(&mut Fields(line));
}

fn level_name(level: &tracing::Level) -> &'static str {
    match *level {
        tracing::Level::ERROR => "error",
        tracing::Level::WARN => "warn",
        tracing::Level::INFO => "info",
        tracing::Level::DEBUG => "debug",
        tracing::Level::TRACE => "trace",
    }
}

/// Writer of the fields of an event to the end of a line.
struct Fields<'a>(&'a mut String);

impl Fields<'_> {
    fn add_name(&mut self, field: &Field) {
        self.0.push(' ');
        self.0.push_str(field.name());
        self.0.push('=');
    }
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add_name(field);
        let start = self.0.len();
        self.0.push_str(value);
        quote_from(self.0, start);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add_name(field);
        let start = self.0.len();
        let _ = write!(self.0, "{value:?}");
        quote_from(self.0, start);
    }
}

/// Quotes the value at the end of a line, from this octet on, if the value has characters that would end it, or that are
/// not printable.
fn quote_from(line: &mut String, start: usize) {
    let value = &line[start..];
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'=' | b'"');
    // The second condition is slower, and also true for printable characters that are not ASCII.
    let is_plain_char = |c: char| if c.is_ascii() { is_plain(c as u8) } else { c.escape_debug().len() == 1 };
    if value.bytes().all(is_plain) || value.chars().all(is_plain_char) {
        return;
    }
    let needs_no_escape = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\'' | b'\\');
    if value.bytes().all(needs_no_escape) {
        line.insert(start, '"');
    } else {
        let value = line.split_off(start);
        let _ = write!(line, "\"{}", value.escape_debug());
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_quoted_if_it_could_be_misread() {
        for (value, written) in [
            ("", ""),
            ("alice@example.org", "alice@example.org"),
            (r"a\b", r"a\b"),
            ("it's", "it's"),
            ("message ended", r#""message ended""#),
            ("a=b", r#""a=b""#),
            (r#"say "no""#, r#""say \"no\"""#),
            (r"a \b", r#""a \\b""#),
            ("two\nlines", r#""two\nlines""#),
            ("\u{1b}[2J", r#""\u{1b}[2J""#),
            // DEL, and a control sequence of one octet in Latin-1.
            ("a\u{7f}", r#""a\u{7f}""#),
            ("a\u{9b}2J", r#""a\u{9b}2J""#),
            ("a\u{202e}b", r#""a\u{202e}b""#),
            ("a\u{200c}b", r#""a\u{200c}b""#),
            ("jürgen@example.org", "jürgen@example.org"),
            ("Jürgen Groß", r#""Jürgen Groß""#),
        ] {
            let mut line = "name=".to_owned();
            line.push_str(value);
            quote_from(&mut line, 5);
            assert_eq!(line, format!("name={written}"));
        }
    }
}
