//! Text for a terminal. Names, reasons and other texts from clients must not control the terminal, and must not look like
//! other texts.

use unicode_width::UnicodeWidthChar as _;

/// Returns the text with escapes in place of characters that would move the cursor, reorder the line, or not be seen:
/// control characters, right-to-left letters, and invisible characters.
pub fn harmless(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        let is_plain = matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1;
        if is_plain && !is_right_to_left(c) {
            safe.push(c);
        } else {
            safe.extend(c.escape_unicode());
        }
    }
    safe
}

/// Makes each line of a text harmless. Keeps the line ends.
pub fn harmless_lines(text: &str) -> String {
    text.split('\n').map(harmless).collect::<Vec<_>>().join("\n")
}

/// Returns a harmless text as one value of a line: in quotes if it has spaces or quotes, or if it is empty.
pub fn quoted(text: &str) -> String {
    let text = harmless(text);
    match text.is_empty() || text.contains(|c: char| c.is_whitespace() || "\"'".contains(c)) {
        true => format!("\"{}\"", text.replace('"', "\\\"")),
        false => text,
    }
}

/// Returns a text as one word of a command for a POSIX shell. The word is harmless, and the shell reads it as the text:
/// the command `printf` writes the characters that must not be shown.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@._=/:+,-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if harmless(text) == text {
        return format!("'{}'", text.replace('\'', "'\\''"));
    }
    let mut format = String::new();
    for c in text.chars() {
        match c {
            '%' => format += "%%",
            // printf and the quotes have a meaning for these characters.
            c if "\\'".contains(c) || harmless(c.encode_utf8(&mut [0; 4])).len() != c.len_utf8() => {
                let octets = c.to_string().into_bytes();
                octets.iter().for_each(|octet| format += &format!("\\{octet:03o}"));
            }
            c => format.push(c),
        }
    }
    format!("\"$(printf '{format}')\"")
}

/// Returns whether the character is in a block of scripts that are written from right to left (Unicode Standard Annex
/// 9). A terminal could show such a letter in the wrong column.
fn is_right_to_left(c: char) -> bool {
    matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{feff}' | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}')
}

/// Returns the number of columns of a harmless text.
pub fn columns_of(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Cuts a harmless text to at most `width` columns. An ellipsis shows that text is missing.
pub fn cut(text: &str, width: usize) -> String {
    if columns_of(text) <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |c: &char| {
        let columns = c.width().unwrap_or(0);
        let fits = columns <= left;
        left -= if fits { columns } else { 0 };
        fits
    };
    let kept: String = text.chars().take_while(fits).collect();
    if width == 0 { kept } else { kept + "…" }
}

/// Breaks a harmless text into lines of at most `width` columns, each after `indent` spaces. A word that is too long is
/// cut.
pub fn wrapped(text: &str, indent: usize, width: usize) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    let room = width.saturating_sub(indent).max(1);
    let mut end = |line: &mut String| {
        if !line.is_empty() {
            lines += &format!("{:indent$}{line}\n", "");
            line.clear();
        }
    };
    for word in text.split_whitespace() {
        let word = cut(word, room);
        if !line.is_empty() && columns_of(&line) + 1 + columns_of(&word) > room {
            end(&mut line);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += &word;
    }
    end(&mut line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hostile_names_are_escaped() {
        for (text, safe) in [
            ("a\x1b[2Jb\n\r\0", "a\\u{1b}[2Jb\\u{a}\\u{d}\\u{0}"),
            ("\u{202e}evil\u{200b}", "\\u{202e}evil\\u{200b}"),
            ("שלום", "\\u{5e9}\\u{5dc}\\u{5d5}\\u{5dd}"),
            ("jürgen@österreich.at 株式会社", "jürgen@österreich.at 株式会社"),
            ("a\\b\"c'", "a\\b\"c'"),
        ] {
            assert_eq!(harmless(text), safe);
        }
    }

    #[test]
    fn wide_letters_take_two_columns() {
        assert_eq!(cut("株式会社", 5), "株式…");
        assert_eq!(cut("株式会社", 8), "株式会社");
        assert_eq!(cut("abc", 0), "");
    }

    #[test]
    fn a_value_with_spaces_or_quotes_is_in_quotes() {
        for (text, value) in [
            ("alice@example.org", "alice@example.org"),
            ("", "\"\""),
            ("it's", "\"it's\""),
            ("\"a b\"@example.org", "\"\\\"a b\\\"@example.org\""),
            ("\u{202e}a", "\\u{202e}a"),
        ] {
            assert_eq!(quoted(text), value);
        }
        assert_eq!(harmless_lines("a\u{202e}\nb\r\n"), "a\\u{202e}\nb\\u{d}\n");
    }

    #[test]
    fn a_word_is_harmless_and_quoted_for_a_shell() {
        for (text, word) in [
            ("user=alice@example.org", "user=alice@example.org"),
            ("", "''"),
            ("user=a b", "'user=a b'"),
            ("user=$(rm -rf)`", "'user=$(rm -rf)`'"),
            ("user=it's", "'user=it'\\''s'"),
            ("user=jürgen", "'user=jürgen'"),
            ("user=株式会社", "'user=株式会社'"),
            ("user=a\u{1b}%'\\", "\"$(printf 'user=a\\033%%\\047\\134')\""),
            ("user=\u{202e}a", "\"$(printf 'user=\\342\\200\\256a')\""),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }

    /// Returns the argument that `sh` reads.
    fn read_by_sh(word: &str) -> String {
        let mut command = std::process::Command::new("sh");
        let output = command.args(["-c", &format!("printf %s {word}")]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn a_shell_reads_the_text_of_a_word(text in "[a-c '\"$`\\\\%!*~#&;|<>()\\[\\]{}éש\u{202e}\u{1b}\u{301}株0-9]{1,12}") {
            let word = shell_word(&text);
            prop_assert_eq!(harmless(&word), word.as_str());
            prop_assert_eq!(read_by_sh(&word), text);
        }
    }
}
