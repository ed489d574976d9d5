//! Errors in the TOML syntax of the file. Each cause is reported once, with its position and remedy, in words that
//! administrators know.

use super::source::Source;
use std::ops::Range;
use toml::de::{DeTable, Error};

/// Beginnings of the TOML parser's messages, each with a plainer message.
const MESSAGES: [(&str, &str); 25] = [
    ("invalid basic string, expected `\"`", "the closing \" is missing"),
    ("invalid multi-line basic string", "the closing \"\"\" is missing"),
    ("invalid literal string, expected `'`", "the closing ' is missing"),
    ("invalid multi-line literal string", "the closing ''' is missing"),
    ("missing opening quote", "the opening quote is missing"),
    ("string values must be quoted", "text needs quotes, as in \"text\""),
    // The parser reads `none` as a wrong `nan`, `implicit` as a wrong `inf`, and `tls` as a wrong `true`.
    ("invalid float", "text needs quotes, as in \"text\""),
    ("invalid boolean", "text needs quotes, as in \"text\""),
    ("unclosed table", "the closing ] is missing"),
    ("unclosed array table", "the closing ]] is missing"),
    ("key with no value", "= is missing after the key"),
    ("unclosed array", "the list is not closed: ] is missing"),
    ("missing comma between array elements", "the list is not closed, or a comma is missing: write ] or ,"),
    ("unclosed inline table", "the table is not closed: } is missing"),
    ("missing comma between key-value pairs", "the table is not closed, or a comma is missing: write } or ,"),
    ("missing key for inline table element", "the table is not closed: } is missing"),
    ("invalid basic string, expected non-double-quote", "a text has no control characters"),
    ("invalid literal string, expected non-single-quote", "a text has no control characters"),
    ("invalid unquoted key", "a key has only letters, digits, - and _, or stands in quotes"),
    ("unquoted keys cannot be empty", "the name is missing"),
    ("invalid key-value pair, expected key", "a line is a key with its value, or a section, as in [section]"),
    ("unexpected leading zero", "a number does not begin with 0"),
    ("extra comma in array", "there is a comma too many"),
    ("missing escaped value", "\\ begins an escape: write \\\\, or the text in single quotes"),
    ("too few unicode value digits", "\\ begins an escape: write \\\\, or the text in single quotes"),
];

/// Quotation marks that word processors put in place of ".
const TYPOGRAPHIC: [char; 5] = ['\u{201c}', '\u{201d}', '\u{201e}', '\u{2018}', '\u{2019}'];

/// Explanation for a line that has more text after its value.
const LINE: &str = "text needs quotes, numbers have no thousands separators, and each key begins a line of its own";

/// Reports the errors that the TOML parser has found. `text` is the whole file.
pub fn report(source: &Source<'_>, text: &str, errors: &[Error]) {
    let mut errors: Vec<(Range<usize>, &Error)> = errors.iter().map(|error| (position(text, error), error)).collect();
    // If two errors have the same position, the missing closing quote causes the other error. So the missing quote is
    // sorted first.
    errors.sort_by_key(|(span, error)| (span.start, !error.message().starts_with("invalid")));
    let mut reported: Vec<(Range<usize>, &Error)> = Vec::new();
    for (span, error) in errors {
        if let Some((last, cause)) = reported.last() {
            if leaves_open(text, last, cause) {
                break;
            }
            if is_follow_up(text, last, cause, &span, error) {
                continue;
            }
        }
        let (message, help) = explain(text, &span, error);
        source.error(&span, message, help.as_deref());
        reported.push((span, error));
    }
}

/// Returns the position of an error. The position has at least one character, so that the line of this character is
/// shown.
fn position(text: &str, error: &Error) -> Range<usize> {
    let span = error.span().unwrap_or_default();
    if error.message().starts_with("invalid multi-line") && text[span.start.min(text.len())..].trim().is_empty() {
        // If the closing quotes are missing, the text reaches to the end of the file. So the error is shown at the
        // opening quotes.
        let quotes = if error.message().contains("literal") { "'''" } else { "\"\"\"" };
        if let Some(at) = text.rfind(quotes) {
            return at..at + quotes.len();
        }
    }
    let (before, after) = text.split_at(span.start.min(text.len()));
    let is_at_end = after.trim_start_matches([' ', '\t', '\r']).starts_with('\n') || after.trim().is_empty();
    let is_at_start = before.trim_end_matches([' ', '\t']).ends_with('\n');
    match span.is_empty() {
        // Something is missing at the end of the text before the error. So the error is shown at the last character of
        // that text.
        true if is_at_end || is_at_start => {
            let end = before.trim_end().len();
            let last = before[..end].char_indices().next_back().map_or(0, |(at, _)| at);
            last..end.max(last + 1)
        }
        true => span.start..span.start + after.chars().next().map_or(1, char::len_utf8),
        false => span,
    }
}

/// Returns whether an error leaves something open: a list, a table in one line, or a text of several lines. The parser
/// then reads the following text as a part of it, so later errors are only consequences.
fn leaves_open(text: &str, span: &Range<usize>, error: &Error) -> bool {
    let message = error.message();
    let is_within = message.contains("array elements") || message.contains("unclosed array, ");
    let is_in_table = message.contains("inline table") || message.contains("key-value pairs");
    // A text without its closing quote may be inside a list that is open on this line.
    let line = &text[text[..span.start].rfind('\n').map_or(0, |at| at + 1)..span.start];
    let value = line.split_once('=').map_or("", |(_, value)| value);
    let value = value.rfind(['"', '\'']).map_or(value, |quote| &value[..quote]);
    let count = |sign: char| value.matches(sign).count();
    let is_in_list = count('[') > count(']') || count('{') > count('}');
    is_within || is_in_table || message.starts_with("invalid multi-line") || is_in_list
}

/// Returns whether `error` may be a consequence of `cause`, the error before it: both errors are on the same line, or
/// `cause` is a repeated section header and `error` is a repeated key in this section.
fn is_follow_up(text: &str, last: &Range<usize>, cause: &Error, span: &Range<usize>, error: &Error) -> bool {
    let is_repeated = |error: &Error| error.message().starts_with("duplicate key");
    let is_header = line_before(text, last.start).trim_start().starts_with('[');
    let is_below = || !text[last.start..span.start].contains("\n[");
    line_of(text, span.start) == line_of(text, last.start)
        || is_header && is_repeated(cause) && is_repeated(error) && is_below()
}

fn explain(text: &str, span: &Range<usize>, error: &Error) -> (String, Option<String>) {
    let (message, found) = (error.message(), text.get(span.clone()).unwrap_or_default());
    if message.starts_with("duplicate key") || message.starts_with("cannot extend") {
        return repeated(text, span, message);
    }
    let is_unquoted = message.starts_with("string values must be quoted");
    let (plain, help) = match found {
        _ if ["true", "false"].contains(&&*found.to_lowercase()) => ("write true or false, in lower case", None),
        _ if is_unquoted && found.starts_with(TYPOGRAPHIC) => ("these are typographic quotes: write \"…\"", None),
        "=" if is_unquoted => ("there is no value after the =", None),
        ":" if message.starts_with("invalid unquoted key") => ("= stands between a key and its value, not :", None),
        _ if found.starts_with(is_invisible) => {
            ("there is an invisible character here: delete it, or write a space", None)
        }
        "//" | ";" | "--" if message.starts_with("invalid unquoted key") => ("a comment begins with #", None),
        _ if message.starts_with("unexpected key or value") => ("the line should end here", Some(LINE)),
        _ => ("", None),
    };
    if !plain.is_empty() {
        return (plain.to_owned(), help.map(str::to_owned));
    }
    let plain = MESSAGES.iter().find(|(begin, _)| message.starts_with(begin)).map(|(_, plain)| (*plain).to_owned());
    (plain.unwrap_or_else(|| message.to_owned()), None)
}

/// Returns whether a character is invisible or looks like a space, although it is not white space in TOML.
fn is_invisible(c: char) -> bool {
    c.is_control() && !"\t\r\n".contains(c)
        || c.is_whitespace() && !c.is_ascii()
        || "\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}".contains(c)
}

/// Explains the error about a key that the file has twice, or that is used as a table although it has another value.
/// The message names the line of the first use.
fn repeated(text: &str, span: &Range<usize>, message: &str) -> (String, Option<String>) {
    let key = text.get(span.clone()).unwrap_or_default().trim_matches(['"', '\'']);
    let Some(first) = first_place(text, span) else { return (message.to_owned(), None) };
    let line = line_of(text, first.start);
    let said = match message.starts_with("duplicate key") {
        true => format!("duplicate key \"{key}\": line {line} has it already"),
        false => format!("\"{key}\" cannot be a table: line {line} gives it a value ({message})"),
    };
    let is_header = |span: &Range<usize>| line_before(text, span.start).trim().starts_with('[');
    let help = (is_header(span) && !is_header(&first))
        .then(|| format!("write the one in line {line} with a header of its own, too, instead of {key} = …"));
    (said, help)
}

/// Returns the position of the earlier key that the key at `span` repeats. To find the earlier key, parses the file
/// with another name for the key at `span`. The parser then keeps both keys in the same table.
fn first_place(text: &str, span: &Range<usize>) -> Option<Range<usize>> {
    const OTHER: &str = "another key of weir";
    let (name, before, after) = (text.get(span.clone())?, text.get(..span.start)?, text.get(span.end..)?);
    let line = format!("{name} = 0");
    let (name, _) = DeTable::parse_recoverable(&line);
    let name = name.get_ref().keys().next()?.get_ref().to_string();
    let changed = format!("{before}\"{OTHER}\"{after}");
    let (document, _) = DeTable::parse_recoverable(&changed);
    let found = sibling(document.get_ref(), OTHER, &name)?;
    (found.start < span.start).then_some(found)
}

/// Returns the position of the key `name` in the table that has the key `other`.
fn sibling(table: &DeTable<'_>, other: &str, name: &str) -> Option<Range<usize>> {
    if table.contains_key(other) {
        return table.get_key_value(name).map(|(key, _)| key.span());
    }
    table.iter().find_map(|(_, value)| within(value.get_ref(), other, name))
}

fn within(value: &toml::de::DeValue<'_>, other: &str, name: &str) -> Option<Range<usize>> {
    match (value.as_table(), value.as_array()) {
        (Some(table), _) => sibling(table, other, name),
        (None, Some(items)) => items.iter().find_map(|item| within(item.get_ref(), other, name)),
        (None, None) => None,
    }
}

/// Returns the part of a line that is before a position.
fn line_before(text: &str, at: usize) -> &str {
    text[..at].rsplit('\n').next().unwrap_or_default()
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines and messages of the errors.
    fn said(text: &str) -> Vec<(usize, String)> {
        let (_, errors) = DeTable::parse_recoverable(text);
        let source = Source::new(text);
        report(&source, text, &errors);
        let found = source.into_findings().0.into_iter();
        found.map(|problem| (line_of(text, problem.span.start), problem.message)).collect()
    }

    #[test]
    fn every_syntax_error_has_one_message_at_its_line() {
        for (text, line, words) in [
            ("a = 1\nb = \"x\nc = 2\n", 2, "the closing \" is missing"),
            ("a = 1\nb = x\"\nc = 2\n", 2, "the opening quote is missing"),
            ("a = 1\nb = 'x\nc = 2\n", 2, "the closing ' is missing"),
            ("a = 1\nb = x\nc = 2\n", 2, "text needs quotes"),
            ("a = 1\nb = none\nc = 2\n", 2, "text needs quotes"),
            ("a = 1\nb = implicit\nc = 2\n", 2, "text needs quotes"),
            ("a = 1\nb = tls\nc = 2\n", 2, "text needs quotes"),
            ("a = 1\nb = 1.2.3\nc = 2\n", 2, "text needs quotes"),
            ("a = 1\nb = True\nc = 2\n", 2, "write true or false, in lower case"),
            ("a = 1\nb = FALSE\nc = 2\n", 2, "write true or false, in lower case"),
            ("a = 1\nb = \"C:\\state\"\n", 2, "\\ begins an escape"),
            ("[a.b]\nc = 1\n[d]\n[a.b]\nc = 2\n", 4, "duplicate key \"b\": line 1 has it already"),
            ("a = 1\nb = \u{201c}x\u{201d}\nc = 2\n", 2, "typographic quotes"),
            ("a = 1\nb =\nc = 2\n", 2, "there is no value after the ="),
            ("a = 1\nb \"x\"\nc = 2\n", 2, "= is missing after the key"),
            ("a = 1\nb: \"x\"\nc = 2\n", 2, "= stands between a key and its value"),
            ("a = 1\n[b\nc = 2\n", 2, "the closing ] is missing"),
            ("a = 1\n[[b]\nc = 2\n", 2, "the closing ]] is missing"),
            ("a = 1\nb = [\"x\"\nc = 2\nd = 3\n", 2, "the list is not closed"),
            ("a = 1\nb = [\"x]\nc = 2\nd = 3\n", 2, "the closing \" is missing"),
            ("a = 1\nb = { c = 1\nd = 2\n", 2, "the table is not closed"),
            ("a = 1\nb = \"\"\"x\nc = 2\n", 2, "the closing \"\"\" is missing"),
            ("a = 1\nb = \"C:\\users\"\n", 2, "\\ begins an escape"),
            ("a = 1\nb = 1,000\nc = 2\n", 2, "the line should end here"),
            ("a = 1\n// b\nc = 2\n", 2, "a comment begins with #"),
            ("a = 1\nb = \"x\";\n", 2, "the line should end here"),
            ("a = 1\n[b", 2, "the closing ] is missing"),
            ("a = 1\nb\u{a0}= 2\nc = 2\n", 2, "an invisible character"),
            ("a = 1\nb = 2\n\0", 3, "an invisible character"),
            ("{\"a\": 1}\n", 1, "a line is a key with its value"),
            ("a = 1\nb = 2\na = 3\n", 3, "duplicate key \"a\": line 1 has it already"),
            ("[t]\na = 1\n[u]\n[t]\na = 1\n[v]\n", 4, "duplicate key \"t\": line 1 has it already"),
            ("[[t]]\na = 1\n[[t]]\na = 1\n\"a\" = 2\n", 5, "duplicate key \"a\": line 4 has it already"),
            ("a = [{ b = 1 }]\n[[a]]\nb = 2\n", 2, "duplicate key \"a\": line 1 has it already"),
            ("a = 1\na.b = 2\n", 2, "\"a\" cannot be a table: line 1 gives it a value"),
        ] {
            let said = said(text);
            assert_eq!(said.len(), 1, "{text}: {said:?}");
            assert!(said[0].0 == line && said[0].1.contains(words), "{text}: {said:?}");
        }
    }

    #[test]
    fn errors_of_different_causes_are_all_reported() {
        let said = said("a = x\nb = 1\n[d]\ne = 2\ne = 3\n[f\n");
        let lines: Vec<usize> = said.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 5, 6], "{said:?}");
    }
}
