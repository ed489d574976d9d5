//! JSON lines that are safe to show in a terminal.

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter};
use std::io::{self, Write};

/// Returns the value as one line of JSON, with its line end. Characters that could control a terminal or change the
/// direction of writing are escaped, because administrators read such lines, too.
pub fn json_line(value: &impl Serialize) -> Vec<u8> {
    let mut line = Vec::with_capacity(1024);
    let mut serializer = serde_json::Serializer::with_formatter(&mut line, Escaping(CompactFormatter));
    // Writing to memory fails only for a map whose keys are not texts, and records have no such map.
    let _ = value.serialize(&mut serializer);
    line.push(b'\n');
    line
}

/// Compact formatter that escapes more characters than JSON requires.
struct Escaping(CompactFormatter);

impl Formatter for Escaping {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, hidden)) = rest.char_indices().find(|(_, c)| is_hidden(*c)) {
            self.0.write_string_fragment(writer, &rest[..at])?;
            let mut units = [0; 2];
            hidden.encode_utf16(&mut units).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))?;
            rest = &rest[at + hidden.len_utf8()..];
        }
        self.0.write_string_fragment(writer, rest)
    }
}

/// Returns whether a character is a control character, an invisible one, or one that changes the direction of writing.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_contains_no_character_that_controls_a_terminal() {
        for text in
            ["", "plain", "\u{1b}[31m\r\n\0", "a\u{9b}31m\u{7f}", "\u{202e}moc.elpmaxe", "é\u{feff}日本\u{e0041}\""]
        {
            let line = String::from_utf8(json_line(&text)).unwrap();
            assert!(!line.trim_end_matches('\n').contains(is_hidden), "{line:?}");
            assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
        }
        assert_eq!(json_line(&"\u{202e}é"), "\"\\u202eé\"\n".as_bytes());
    }
}
