//! Log lines in JSON.

use crate::time::Timestamp;
use serde::Serialize;
use std::fmt::{self, Write as _};
use tracing::Event;
use tracing::field::{Field, Visit};

/// Writes an event as an object, without a line end. Its fields are those of logfmt.
pub fn write(event: &Event<'_>, now: Timestamp, line: &mut String) {
    let start = line.len();
    line.push_str("{\"ts\":");
    push(line, &now.rfc3339_fixed());
    line.push_str(",\"level\":");
    push(line, event.metadata().level().as_str());
    event.record(&mut Fields(line));
    line.push('}');
    escape_from(line, start);
}

/// Escapes the characters at the end of a line, from this octet on, that JSON permits within texts, but that control a
/// terminal or end a line.
fn escape_from(line: &mut String, start: usize) {
    let is_hidden = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    if line[start..].bytes().all(|byte| matches!(byte, b' '..=b'~')) || !line[start..].contains(is_hidden) {
        return;
    }
    let object = line.split_off(start);
    for c in object.chars() {
        match is_hidden(c) {
            // Writing to memory does not fail.
            true => drop(write!(line, "\\u{:04x}", u32::from(c))),
            false => line.push(c),
        }
    }
}

/// Writer of the fields of an event to the end of a line.
struct Fields<'a>(&'a mut String);

impl Fields<'_> {
    fn add(&mut self, field: &Field, value: &(impl Serialize + ?Sized)) {
        self.0.push(',');
        push(self.0, field.name());
        self.0.push(':');
        push(self.0, value);
    }
}

impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, &value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, &value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, &value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format!("{value:?}"));
    }
}

/// Adds a value in JSON.
fn push(line: &mut String, value: &(impl Serialize + ?Sized)) {
    // Numbers and texts can always be written in JSON.
    line.push_str(&serde_json::to_string(value).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_control_a_terminal_or_end_a_line_are_escaped() {
        let text = "{\"user\":\"jürgen\u{9b}31m\u{85}\u{2028}\u{7f}\"}";
        let mut line = "<6>".to_owned() + text;
        escape_from(&mut line, 3);
        assert_eq!(line, r#"<6>{"user":"jürgen\u009b31m\u0085\u2028\u007f"}"#);
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&line[3..]), read(text));
    }
}
