//! Parser of UCL, the language of rspamd's configuration, limited to the syntax that ratelimit sections use.

use super::super::budget::Allowance;

/// A key with its value and its line number.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: String,
    pub line: usize,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Object(Vec<Entry>),
    Array(Vec<Value>),
    /// Text in quotes, which is never read as a number.
    Quoted(String),
    Bare(String),
}

/// A syntax error and its line number.
#[derive(Debug, PartialEq, Eq)]
pub struct SyntaxError {
    pub line: usize,
    pub why: String,
}

/// Result of parsing: the entries up to the end of the text or up to the first error, and the files that the text
/// includes.
#[derive(Debug, Default)]
pub struct Read {
    pub entries: Vec<Entry>,
    pub included: Vec<(usize, String)>,
    pub error: Option<SyntaxError>,
}

/// Maximum depth of sections and lists inside one another.
const MAX_DEPTH: usize = 50;

impl Value {
    /// Returns the text of a value, with or without quotes.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Quoted(text) | Self::Bare(text) => Some(text),
            Self::Object(_) | Self::Array(_) => None,
        }
    }

    /// Returns the number of a value without quotes. The number can have a unit of amount (`k`) or of time (`min`).
    pub fn number(&self) -> Option<f64> {
        let Self::Bare(text) = self else { return None };
        const UNITS: [(&str, f64); 14] = [
            ("", 1.0),
            ("k", 1e3),
            ("m", 1e6),
            ("g", 1e9),
            ("kb", 1024.0),
            ("mb", 1024.0 * 1024.0),
            ("gb", 1024.0 * 1024.0 * 1024.0),
            ("ms", 1e-3),
            ("s", 1.0),
            ("min", 60.0),
            ("h", 3_600.0),
            ("d", 86_400.0),
            ("w", 7.0 * 86_400.0),
            ("y", 365.0 * 86_400.0),
        ];
        let end = text.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '-' | '+')).unwrap_or(text.len());
        if let Ok(number) = text.parse::<f64>() {
            return Some(number).filter(|number| number.is_finite());
        }
        let unit = text[end..].to_ascii_lowercase();
        let (_, scale) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        Some(text[..end].parse::<f64>().ok()? * scale)
    }

    pub fn is_true(&self) -> bool {
        matches!(self, Self::Bare(text) if matches!(&**text, "true" | "yes" | "on"))
    }

    pub fn is_false(&self) -> bool {
        matches!(self, Self::Bare(text) if matches!(&**text, "false" | "no" | "off"))
    }
}

/// Parses the text of a configuration file.
pub fn read(text: &str, allowance: &Allowance) -> Read {
    let starts = text.match_indices('\n').map(|(at, _)| at + 1).collect();
    let mut reader = Reader { text, starts, at: 0, included: Vec::new(), allowance };
    let mut entries = Vec::new();
    let error = reader.entries(&mut entries, 0).err().map(|why| SyntaxError { line: reader.line(), why });
    Read { entries, included: reader.included, error }
}

struct Reader<'t> {
    text: &'t str,
    /// For each line except the first: the offset, in octets, at which the line begins.
    starts: Vec<usize>,
    at: usize,
    included: Vec<(usize, String)>,
    allowance: &'t Allowance,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn line(&self) -> usize {
        self.starts.partition_point(|start| *start <= self.at) + 1
    }

    fn take(&mut self, c: char) -> bool {
        let is_next = self.peek() == Some(c);
        if is_next {
            self.at += c.len_utf8();
        }
        is_next
    }

    /// Skips comments, and characters for which `is_space` is true.
    fn skip(&mut self, is_space: impl Fn(char) -> bool) -> Result<(), String> {
        loop {
            let rest = self.rest();
            let spaces = rest.len() - rest.trim_start_matches(&is_space).len();
            self.at += spaces;
            if self.rest().starts_with('#') {
                self.at += self.rest().find('\n').unwrap_or(self.rest().len());
            } else if self.rest().starts_with("/*") {
                self.comment()?;
            } else if spaces == 0 {
                return Ok(());
            }
        }
    }

    /// Skips a comment, `/* … */`. Comments can be nested.
    fn comment(&mut self) -> Result<(), String> {
        let mut depth = 0;
        loop {
            match self.rest() {
                rest if rest.starts_with("/*") => depth += 1,
                rest if rest.starts_with("*/") => depth -= 1,
                "" => return Err("a comment has no end".to_owned()),
                _ => {
                    self.at += self.peek().map_or(0, char::len_utf8);
                    continue;
                }
            }
            self.at += 2;
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Parses entries up to the end of the text or the closing brace of the section.
    fn entries(&mut self, entries: &mut Vec<Entry>, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err("sections stand too deep in each other".to_owned());
        }
        loop {
            self.skip(|c| c.is_whitespace() || matches!(c, ';' | ','))?;
            match self.peek() {
                None if depth == 0 => return Ok(()),
                None => return Err("a { has no }".to_owned()),
                Some('}') if depth > 0 => {
                    self.take('}');
                    return Ok(());
                }
                Some('.') => self.directive()?,
                Some(_) => {
                    let entry = self.entry(depth)?;
                    entries.push(entry);
                }
            }
        }
    }

    /// Parses a directive such as `.include(try=true) "FILE"`.
    fn directive(&mut self) -> Result<(), String> {
        self.allowance.items(1)?;
        let line = self.line();
        let end = self.rest().find('\n').unwrap_or(self.rest().len());
        let text = self.rest()[..end].trim().to_owned();
        self.at += end;
        self.included.push((line, text));
        Ok(())
    }

    fn entry(&mut self, depth: usize) -> Result<Entry, String> {
        let line = self.line();
        let key = match self.peek() {
            Some(quote @ ('"' | '\'')) => self.quoted(quote)?,
            _ => self.bare(|c| c.is_whitespace() || matches!(c, '=' | ':' | '{' | '[' | '}' | ';' | '"' | '\'')),
        };
        if key.is_empty() {
            return Err(format!("\"{}\" stands where a key was expected", self.peek().unwrap_or(' ')));
        }
        self.skip(|c| c == ' ' || c == '\t' || c == '\r')?;
        if self.take('=') || self.take(':') {
            self.skip(char::is_whitespace)?;
        }
        let named = matches!(self.peek(), Some('"' | '\'')) || self.peek().is_some_and(char::is_alphanumeric);
        // `section "name" { … }` is a section `name` inside the section `section`.
        if named && self.is_name_of_section() {
            let inner = self.entry(depth)?;
            return Ok(Entry { key, line, value: Value::Object(vec![inner]) });
        }
        // The opening brace can be on the next line.
        let before = self.at;
        self.skip(char::is_whitespace)?;
        if !matches!(self.peek(), Some('{' | '[')) {
            self.at = before;
        }
        let value = self.value(depth)?;
        Ok(Entry { key, line, value })
    }

    /// Returns whether the text at this position is one word followed by a brace.
    fn is_name_of_section(&self) -> bool {
        let rest = self.rest();
        let word = match rest.strip_prefix(['"', '\'']) {
            Some(quoted) => quoted.find(['"', '\'']).map_or(rest.len(), |end| end + 2),
            None => rest.find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '-')).unwrap_or(rest.len()),
        };
        rest[word.min(rest.len())..].trim_start_matches([' ', '\t']).starts_with('{')
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        self.allowance.items(1)?;
        match self.peek() {
            Some('{') => {
                self.take('{');
                let mut entries = Vec::new();
                self.entries(&mut entries, depth + 1)?;
                Ok(Value::Object(entries))
            }
            Some('[') => {
                self.take('[');
                self.array(depth + 1)
            }
            Some(quote @ ('"' | '\'')) => Ok(Value::Quoted(self.quoted(quote)?)),
            _ if self.rest().starts_with("<<") => Ok(Value::Quoted(self.document()?)),
            _ => {
                let text = self.bare(|c| matches!(c, ';' | ',' | '\n' | '}' | ']' | '#' | '{'));
                Ok(Value::Bare(text.trim().to_owned()))
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, String> {
        if depth > MAX_DEPTH {
            return Err("lists stand too deep in each other".to_owned());
        }
        let mut values = Vec::new();
        loop {
            self.skip(|c| c.is_whitespace() || matches!(c, ';' | ','))?;
            match self.peek() {
                None => return Err("a [ has no ]".to_owned()),
                Some(']') => {
                    self.take(']');
                    return Ok(Value::Array(values));
                }
                Some('}') => return Err("a } stands in a [".to_owned()),
                Some(_) => values.push(self.value(depth)?),
            }
        }
    }

    fn bare(&mut self, is_end: impl Fn(char) -> bool) -> String {
        let end = self.rest().find(is_end).unwrap_or(self.rest().len());
        let text = self.rest()[..end].to_owned();
        self.at += end;
        text
    }

    fn quoted(&mut self, quote: char) -> Result<String, String> {
        let begin = self.at;
        self.take(quote);
        let mut text = String::new();
        while let Some(c) = self.peek() {
            self.at += c.len_utf8();
            match c {
                _ if c == quote => return Ok(text),
                '\\' => {
                    let escaped = self.peek().unwrap_or('\\');
                    self.at += self.peek().map_or(0, char::len_utf8);
                    text.push(if escaped == 'n' { '\n' } else { escaped });
                }
                _ => text.push(c),
            }
        }
        self.at = begin;
        Err("a quote has no end".to_owned())
    }

    /// Parses a here document: `<<EOD`, lines, and `EOD` alone on a line.
    fn document(&mut self) -> Result<String, String> {
        let rest = &self.rest()[2..];
        let (name, body) = rest.split_once('\n').ok_or("<< has no end")?;
        let (name, from) = (name.trim(), self.text.len() - body.len());
        let mut at = from;
        for line in body.split_inclusive('\n') {
            if line.trim() == name {
                self.at = at + line.trim_end_matches('\n').len();
                return Ok(self.text[from..at].to_owned());
            }
            at += line.len();
        }
        Err(format!("<<{name} has no end"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_all(text: &str) -> Read {
        read(text, &Allowance::default())
    }

    #[test]
    fn sections_lists_and_values_are_read_in_every_spelling() {
        let text = "# c\nratelimit \"x\" {\n a = 1; b: \"2;\" /* x /* y */ ; */\n c [ 1, { d = e f } ]\n}\ng =\n  <<EOD\nh\nEOD\n.include \"i\"\nj { }";
        let read = read_all(text);
        assert!(read.error.is_none(), "{:?}", read.error);
        assert_eq!(read.included, [(10, ".include \"i\"".to_owned())]);
        let entry = |key: &str, line, value| Entry { key: key.into(), line, value };
        let bare = |text: &str| Value::Bare(text.into());
        let inner = vec![
            entry("a", 3, bare("1")),
            entry("b", 3, Value::Quoted("2;".into())),
            entry("c", 4, Value::Array(vec![bare("1"), Value::Object(vec![entry("d", 4, bare("e f"))])])),
        ];
        let expected = [
            entry("ratelimit", 2, Value::Object(vec![entry("x", 2, Value::Object(inner))])),
            entry("g", 6, Value::Quoted("h\n".into())),
            entry("j", 11, Value::Object(vec![])),
        ];
        assert_eq!(read.entries, expected);
    }

    #[test]
    fn numbers_have_units_without_quotes() {
        for (text, number) in
            [("10", 10.0), ("10k", 1e4), ("1kb", 1024.0), ("2min", 120.0), ("0.5", 0.5), ("1e2", 100.0)]
        {
            assert_eq!(Value::Bare(text.into()).number(), Some(number), "{text}");
        }
        assert_eq!((Value::Quoted("1".into()).number(), Value::Bare("x".into()).number()), (None, None));
    }

    #[test]
    fn syntax_errors_name_the_line() {
        for (text, line, why) in [
            ("a = 1\nb {\n", 3, "a { has no }"),
            ("a\n[ 1, }", 2, "a } stands in a ["),
            ("\n\na = \"b", 3, "a quote has no end"),
            ("/* a", 1, "a comment has no end"),
            ("a = 1\n}", 2, "\"}\" stands where a key was expected"),
            ("a = <<X\nb\n", 1, "<<X has no end"),
        ] {
            assert_eq!(read_all(text).error, Some(SyntaxError { line, why: why.into() }), "{text}");
        }
        assert!(read_all(&"a {".repeat(100_000)).error.is_some_and(|error| error.why.contains("too deep")));
        assert!(read_all(&format!("a = {}", "[".repeat(100_000))).error.is_some());
    }

    #[test]
    fn parsing_stops_at_the_bounds() {
        let allowance = Allowance::default();
        while allowance.items(1000).is_ok_and(|()| allowance.excess().is_none()) {}
        assert_eq!(read("a = 1\n", &allowance).error.map(|error| error.line), Some(1));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[a \\n{}\\[\\]=:;,\"'#/*<.é\\\\]{0,40}") {
            let _ = read_all(&text);
        }
    }
}
