//! Log lines in logfmt: `name=value name="value with spaces"`.

use crate::time::Timestamp;
use std::fmt::{self, Write as _};
use tracing::Event;
use tracing::field::{Field, Visit};

/// Writes an event as a line, without the line end.
pub fn write(event: &Event<'_>, now: Timestamp, line: &mut String) {
    let level = level_name(event.metadata().level());
    line.extend(["ts=", &now.rfc3339_fixed(), " level=", level]);
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

// The methods for numbers take a third of the time of `record_debug`.
impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add_name(field);
        self.0.push_str(zmij::Buffer::new().format(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add_name(field);
        self.0.push_str(itoa::Buffer::new().format(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add_name(field);
        let start = self.0.len();
        self.0.push_str(value);
        quote_from(self.0, start);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add_name(field);
        let start = self.0.len();
        // Writing to memory does not fail.
        let _ = write!(self.0, "{value:?}");
        quote_from(self.0, start);
    }
}

/// Quotes the value at the end of a line, from this octet on, if the value has characters that would end it, or that are
/// not printable.
fn quote_from(line: &mut String, start: usize) {
    let value = &line[start..];
    let is_plain = |byte: u8| byte.is_ascii_graphic() & (byte != b'=') & (byte != b'"');
    // A loop that never stops early checks several octets at once.
    if value.bytes().fold(true, |plain, byte| plain & is_plain(byte)) {
        return;
    }
    // This condition is slower, and also true for printable characters that are not ASCII.
    let is_plain_char = |c: char| if c.is_ascii() { is_plain(c as u8) } else { c.escape_debug().len() == 1 };
    if value.chars().all(is_plain_char) {
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
    fn a_number_is_exact_and_usual_numbers_have_no_exponent() {
        for (value, text) in
            [(0.0, "0.0"), (12.0, "12.0"), (0.004317, "0.004317"), (0.00001, "0.00001"), (-1.5, "-1.5")]
        {
            assert_eq!(zmij::Buffer::new().format(value), text);
        }
        for value in [1e-6, 1.5e-7, 1e16, 1e300, f64::INFINITY] {
            assert_eq!(zmij::Buffer::new().format(value).parse(), Ok(value));
        }
    }

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
