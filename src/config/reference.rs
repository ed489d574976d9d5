//! Reference of all keys of `weir.toml`, as Markdown and as the manual page weir.toml(5), from the comments of `conf/weir.toml`.
//!
//! Tests compare that file with the keys and defaults of the parser.

use std::fmt::Write as _;

const TEXT: &str = include_str!("../../conf/weir.toml");

/// Beginning of a comment that is a heading.
const HEADING: &str = "---- ";

/// First version of Weir that has the keys. It is the same for all keys.
const SINCE: &str = "0.1";

/// Section titles whose second word is a name that the administrator chooses: `[listener.NAME]`.
const NAMED: [&str; 3] = ["listener", "list", "notify"];

#[derive(Debug, Default, PartialEq, Eq)]
struct Section {
    /// Title as in the file, `[session]`, with NAME in place of a name that the administrator chooses; empty for the
    /// keys above all sections.
    header: String,
    /// Lines of the comment, without `#`.
    text: Vec<String>,
    keys: Vec<Key>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Key {
    name: String,
    /// Lines of the comment, without `#`; lines that begin with a space are aligned by hand.
    text: Vec<String>,
    default: Option<String>,
    example: Option<String>,
    value: String,
}

/// The comment above a key or a section.
#[derive(Default)]
struct Comment(Vec<String>);

impl Key {
    /// Type of the key's value in TOML.
    fn kind(&self) -> &'static str {
        match self.value.chars().next() {
            Some('"' | '\'') => "text",
            Some('[') => "list",
            Some('{') => "table",
            Some('t' | 'f') => "true or false",
            _ => "number",
        }
    }

    /// Adds the text, default and example of another comment on the same key.
    fn extend(&mut self, other: Self) {
        if !other.text.is_empty() && self.text != other.text {
            self.text.push(String::new());
            self.text.extend(other.text);
        }
        self.default = self.default.take().or(other.default);
        self.example = self.example.take().or(other.example);
    }
}

impl Section {
    fn add(&mut self, key: Key) {
        match self.keys.iter_mut().find(|known| known.name == key.name) {
            Some(known) => known.extend(key),
            None => self.keys.push(key),
        }
    }
}

impl Comment {
    /// Makes a key with this name and value. The lines of the comment become the key's text, default and example. The
    /// comment is empty afterwards.
    fn take_key(&mut self, name: &str, value: &str) -> Key {
        let mut key = Key { name: name.to_owned(), value: value.to_owned(), ..Key::default() };
        for line in std::mem::take(&mut self.0) {
            if let Some(default) = line.strip_prefix("Default: ") {
                key.default = Some(default.to_owned());
            } else if let Some(example) = line.strip_prefix("Example:") {
                let example = example.trim();
                key.example = Some(if example.is_empty() { value.to_owned() } else { example.to_owned() });
            } else {
                key.text.push(line);
            }
        }
        key
    }

    /// Makes keys from assignments that occur only inside the comment, and empties the comment. An example line, such
    /// as `Example: stage = "data"`, makes one key. Without an example line, each indented assignment makes one key.
    /// The text below the assignment, with a deeper indentation, becomes the key's text.
    fn take_commented_keys(&mut self) -> Vec<Key> {
        let example = self.0.iter().find_map(|line| assignment(line.strip_prefix("Example: ")?));
        if let Some((name, value)) = example.map(|(name, value)| (name.to_owned(), value.to_owned())) {
            let key = self.take_key(&name, &value);
            return vec![Key { example: Some(value), ..key }];
        }
        let mut keys: Vec<Key> = Vec::new();
        for line in std::mem::take(&mut self.0) {
            let indented = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '));
            match (indented.and_then(assignment), keys.last_mut()) {
                (Some((name, value)), _) => {
                    let example = Some(value.to_owned());
                    keys.push(Key { name: name.to_owned(), value: value.to_owned(), example, ..Key::default() });
                }
                (None, Some(key)) if line.starts_with("    ") => key.text.push(line.trim().to_owned()),
                (None, _) => {}
            }
        }
        keys
    }
}

/// Splits an assignment into the name and the value of a key: `idle-timeout = "5m"`.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(" = ")?;
    let is_part = |c: char| c.is_ascii_lowercase() || c == '-';
    (!name.is_empty() && name.chars().all(is_part)).then_some((name, value))
}

/// Returns the title of a section, with NAME in place of a name that the administrator chooses.
fn generic(header: &str) -> String {
    let inner = header.trim_matches(['[', ']']);
    let table = inner.split('.').next().unwrap_or_default();
    let inner = if NAMED.contains(&table) { format!("{table}.NAME") } else { inner.to_owned() };
    if header.starts_with("[[") { format!("[[{inner}]]") } else { format!("[{inner}]") }
}

/// Returns whether every bracket that a value opens is closed.
fn is_whole(value: &str) -> bool {
    let count = |wanted: &[char]| value.chars().filter(|c| wanted.contains(c)).count();
    count(&['[', '{']) <= count(&[']', '}'])
}

fn sections() -> Vec<Section> {
    let mut sections = vec![Section::default()];
    let mut comment = Comment::default();
    let mut at = 0;
    let mut lines = TEXT.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix('#') {
            comment.0.push(text.strip_prefix(' ').unwrap_or(text).to_owned());
        } else if line.starts_with('[') {
            let header = generic(line);
            let known = sections.iter().position(|section| section.header == header);
            at = known.unwrap_or(sections.len());
            let lines = std::mem::take(&mut comment.0);
            let is_heading = lines.first().is_some_and(|line| line.starts_with(HEADING));
            let text = lines.into_iter().map(|line| line.trim_start_matches(HEADING).to_owned());
            match sections.get_mut(at) {
                // Only a heading is about all sections of this name; other comments are about this example.
                Some(known) if is_heading => known.text.extend([String::new()].into_iter().chain(text)),
                Some(_) => {}
                None => sections.push(Section { header, text: text.collect(), keys: Vec::new() }),
            }
        } else if let Some((name, value)) = assignment(line) {
            let mut value = value.to_owned();
            while !is_whole(&value) {
                let Some(more) = lines.next() else { break };
                value = format!("{value} {more}");
            }
            sections[at].add(comment.take_key(name, &value));
        } else if line.is_empty() {
            let is_heading = comment.0.first().is_some_and(|line| line.starts_with("---- "));
            match (at, sections[0].text.is_empty()) {
                _ if is_heading => {}
                (0, true) => sections[0].text = std::mem::take(&mut comment.0),
                _ => comment.take_commented_keys().into_iter().for_each(|key| sections[at].add(key)),
            }
        }
    }
    comment.take_commented_keys().into_iter().for_each(|key| sections[at].add(key));
    sections
}

/// Returns the text of `conf/REFERENCE.md`.
pub fn markdown() -> String {
    let mut page = "# Reference of weir.toml\n\n\
                    `weir man --reference` prints this page, from the comments of [`weir.toml`](weir.toml).\n"
        .to_owned();
    for section in sections() {
        let heading = if section.header.is_empty() { "Top of the file" } else { &format!("`{}`", section.header) };
        let _ = write!(page, "\n## {heading}\n");
        paragraphs(&mut page, &section.text);
        for key in &section.keys {
            let _ = write!(page, "\n### `{}`\n", key.name);
            paragraphs(&mut page, &key.text);
            let _ = write!(page, "\n* Type: {}\n", key.kind());
            let code =
                |text: &str| if text.starts_with(['"', '[', '{']) { format!("`{text}`") } else { text.to_owned() };
            for (label, text) in [("Default", &key.default), ("Example", &key.example)] {
                let _ = text.as_ref().map_or(Ok(()), |text| writeln!(page, "* {label}: {}", code(text)));
            }
            let _ = writeln!(page, "* Since: {SINCE}");
        }
    }
    page
}

/// Adds lines to a Markdown page; lines that are aligned by hand become a code block.
fn paragraphs(page: &mut String, lines: &[String]) {
    for block in lines.chunk_by(|one, next| one.starts_with(' ') == next.starts_with(' ')) {
        let is_aligned = block[0].starts_with(' ');
        let fence = if is_aligned { "```text\n" } else { "" };
        let text = block.join("\n");
        let text = if is_aligned { text } else { text.trim().replace('<', "&lt;").replace('*', "\\*") };
        if !text.is_empty() {
            let _ = write!(page, "\n{fence}{text}\n{}", if is_aligned { "```\n" } else { "" });
        }
    }
}

/// Returns the manual page weir.toml(5) in roff, the language of man pages.
pub fn manual_page() -> String {
    let mut page = String::from(
        ".TH weir.toml 5\n.SH NAME\nweir.toml \\- configuration of Weir, the SMTP submission proxy\n.SH DESCRIPTION\n",
    );
    for section in sections() {
        if !section.header.is_empty() {
            let _ = writeln!(page, ".SH {}", roff(&section.header));
        }
        lines(&mut page, &section.text);
        for key in &section.keys {
            let _ = writeln!(page, ".TP\n.B {}", roff(&key.name));
            lines(&mut page, &key.text);
            for (label, text) in [("Default", &key.default), ("Example", &key.example)] {
                let _ = text.as_ref().map_or(Ok(()), |text| writeln!(page, ".br\n{label}: {}", roff(text)));
            }
        }
    }
    page.push_str(".SH SEE ALSO\n.BR weir (1)\n");
    page
}

/// Adds lines to a roff page; lines that are aligned by hand keep their line breaks.
fn lines(page: &mut String, lines: &[String]) {
    for block in lines.chunk_by(|one, next| one.starts_with(' ') == next.starts_with(' ')) {
        let (begin, end) = if block[0].starts_with(' ') { (".nf\n", ".fi\n") } else { ("", "") };
        let text: String = block.iter().filter(|line| !line.is_empty()).map(|line| roff(line) + "\n").collect();
        let _ = write!(page, "{begin}{text}{end}");
    }
}

/// Escapes a text, so that roff does not interpret any part of it as a command.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(section: &str, name: &str) -> Key {
        let section = sections().into_iter().find(|known| known.header == section).unwrap();
        section.keys.into_iter().find(|key| key.name == name).unwrap()
    }

    #[test]
    fn a_key_has_its_text_type_and_default() {
        let key = key("[session]", "idle-timeout");
        assert_eq!(key.text, ["Longest silence of a client between two commands. Time, above 0s, at most 1d."]);
        assert_eq!((key.kind(), key.default.as_deref(), key.example), ("text", Some("\"5m\""), None));
    }

    #[test]
    fn keys_that_stand_in_a_comment_alone_are_found() {
        assert_eq!(key("[[limit.action]]", "suspend").example.as_deref(), Some("\"1d\""));
        let stage = key("[[limit]]", "stage");
        assert!(stage.text.len() > 2 && stage.default.is_some(), "{stage:?}");
    }

    #[test]
    fn every_key_of_the_parser_is_in_the_reference() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/weir.toml");
        let config = crate::config::read(&path).unwrap_or_else(|_| panic!("conf/weir.toml has an error"));
        let sections = sections();
        let documented = |key: &str| sections.iter().any(|section| section.keys.iter().any(|known| known.name == key));
        // The text of the tables "match" and "except" describes their keys, which have no comments of their own.
        let is_of_match = |section: &str| section.contains("match") || section.contains("except");
        let missing: Vec<_> =
            config.settings.iter().filter(|s| !is_of_match(&s.section) && !documented(s.key)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn no_line_of_the_manual_page_is_a_request_by_accident() {
        assert_eq!(roff(".tls \\ a-b"), "\\&.tls \\e a\\-b");
        assert!(manual_page().lines().all(|line| !line.starts_with('\'')));
    }
}
