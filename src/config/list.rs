//! `[list.NAME]`: a list of values, which are in a file or in the configuration itself. A limit refers to the list as
//! `list:NAME`.

use super::files::{self, Files, LineErrors, MAX_ITEM, TOO_LONG, check_item};
use super::section::{Placed, Section};
use super::values::text;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::de::DeValue;

/// All lists. How an item is read depends on the field that a limit compares with the list.
#[derive(Debug, Default)]
pub struct Lists(BTreeMap<String, List>);

#[derive(Debug)]
pub struct List {
    pub items: Vec<Item>,
    /// The file that contains the items; `None` if the items are in the configuration.
    path: Option<PathBuf>,
    /// Position of the key `file` or `items`.
    span: Range<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The item as written, without surrounding spaces.
    pub text: Box<str>,
    /// Line number in the file, or number of the item in `items`; counted from 1.
    pub line: usize,
}

impl Lists {
    pub fn get(&self, name: &str) -> Option<&List> {
        self.0.get(name)
    }

    /// Returns the names of all lists in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl List {
    /// Returns the position of the list's items in the configuration.
    pub fn span(&self) -> &Range<usize> {
        &self.span
    }

    /// Formats an error of one item.
    pub fn wrong(&self, item: &Item, why: &str) -> String {
        match &self.path {
            Some(path) => files::at(path, item.line, why),
            None => format!("item {}: {why}", item.line),
        }
    }
}

/// Reads all lists, and the files that they name.
pub fn lists(named: Vec<(Placed<&str>, Section<'_>)>, files: &mut Files) -> Lists {
    let read = |(name, section): (Placed<&str>, Section<'_>)| {
        if !is_name(name.value) {
            let help = "use up to 64 letters, digits, hyphens, dots and underscores";
            section.error(&name.span, format!("\"{}\" is not a name for a list", name.value), Some(help));
        }
        (name.value.to_owned(), list(section, name.span, files))
    };
    Lists(named.into_iter().map(read).collect())
}

fn is_name(name: &str) -> bool {
    let is_fit = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=64).contains(&name.len()) && name.bytes().all(is_fit)
}

/// Reads a list. Returns an empty list if the list cannot be read.
fn list(mut s: Section<'_>, name: Range<usize>, files: &mut Files) -> List {
    let file = s.optional("file", file_name);
    let items = s.optional("items", inline);
    let has_both = s.has("file") && s.has("items");
    if has_both || !s.has("file") && !s.has("items") {
        let message = if has_both { "a list has a file or items, not both" } else { "a list has a file or items" };
        s.error(&name, message, Some("write file = \"list.txt\", one item a line, or items = [\"…\"]"));
    }
    let list = match (file, items) {
        _ if has_both => None,
        (Some(file), _) => of_file(&s, &file, files),
        (_, Some(items)) => Some(List { items: items.value, path: None, span: items.span }),
        (None, None) => None,
    };
    if let Some(list) = list.as_ref().filter(|list| list.items.is_empty()) {
        s.warn(&list.span, "this list is empty: it matches nothing", None);
    }
    s.finish();
    list.unwrap_or(List { items: Vec::new(), path: None, span: name })
}

fn file_name(value: &DeValue<'_>) -> Result<String, String> {
    match text(value)? {
        name if name.is_empty() => Err("it is empty".to_owned()),
        name => Ok(name),
    }
}

/// Reads `items`, the items that are in the configuration itself.
fn inline(value: &DeValue<'_>) -> Result<Vec<Item>, String> {
    let values = value.as_array().ok_or("a list of texts is expected, as in [\"192.0.2.0/24\"]")?;
    let read = |(n, value): (usize, &toml::Spanned<DeValue<'_>>)| {
        let (text, line) = (text(value.get_ref()).map_err(|why| format!("item {}: {why}", n + 1))?, n + 1);
        match check_item(text.trim()) {
            _ if text.trim().is_empty() => Err(format!("item {line}: it is empty")),
            Err(why) => Err(format!("item {line}: {why}")),
            Ok(()) => Ok(Item { text: text.trim().into(), line }),
        }
    };
    values.iter().enumerate().map(read).collect()
}

fn of_file(s: &Section<'_>, file: &Placed<String>, files: &mut Files) -> Option<List> {
    let read = files.read(&file.value).map_err(|why| vec![why]);
    match read.and_then(|(path, text)| Ok((items(&path, &text)?, path))) {
        Ok((items, path)) => Some(List { items, path: Some(path), span: file.span.clone() }),
        Err(errors) => {
            errors.iter().for_each(|why| s.error(&file.span, format!("file: {why}"), None));
            None
        }
    }
}

/// Reads the text of a file that has one item in each line. Ignores empty lines and comments. A comment begins with a
/// `#` at the start of a line or after a space, and ends with the line.
fn items(path: &Path, text: &str) -> Result<Vec<Item>, Vec<String>> {
    let (mut items, mut errors) = (Vec::new(), LineErrors::new(path));
    for (n, line) in text.lines().enumerate() {
        let item = without_comment(line).trim();
        let checked = if line.len() > MAX_ITEM { Err(TOO_LONG) } else { check_item(item) };
        match checked {
            Err(why) => errors.line(n + 1, why),
            Ok(()) if item.is_empty() => {}
            Ok(()) => items.push(Item { text: item.into(), line: n + 1 }),
        }
    }
    errors.or(items)
}

/// Returns a line without its comment. A `#` inside an item does not begin a comment, because local parts can contain
/// `#`.
fn without_comment(line: &str) -> &str {
    let begins = |(at, _): &(usize, &str)| line[..*at].chars().next_back().is_none_or(char::is_whitespace);
    line.match_indices('#').find(begins).map_or(line, |(at, _)| &line[..at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::source::Source;
    use toml::de::DeTable;

    /// Returns the lists of the configuration `config` in this folder, and the messages about it.
    fn read(folder: &Path, config: &str) -> (Lists, Vec<String>) {
        let document = DeTable::parse(config).unwrap();
        let source = Source::new(config);
        let lists = lists(Section::root(&document, &source).named("list"), &mut Files::new(folder));
        (lists, source.into_findings().0.into_iter().map(|problem| problem.message).collect())
    }

    #[test]
    fn a_file_has_one_item_a_line() {
        let text =
            "# printers\r\n\r\n192.0.2.1\r\n  192.0.2.2 # attic\n\t\na#b@d\n#x@d\n\"a b\"@d\t# two\r\n例子.example";
        let items = items(Path::new("f"), text).unwrap();
        let read: Vec<(usize, &str)> = items.iter().map(|item| (item.line, &*item.text)).collect();
        let expected = [(3, "192.0.2.1"), (4, "192.0.2.2"), (6, "a#b@d"), (8, "\"a b\"@d"), (9, "例子.example")];
        assert_eq!(read, expected);
        assert_eq!(items_of(&"x".repeat(MAX_ITEM)), Ok(1));
    }

    fn items_of(text: &str) -> Result<usize, Vec<String>> {
        items(Path::new("f"), text).map(|items| items.len())
    }

    #[test]
    fn a_wrong_line_is_named() {
        let long = format!("a\n{}", "x".repeat(MAX_ITEM + 1));
        for (text, words) in [
            (&*long, "f, line 2: it is longer than 1000 octets"),
            ("a\n\nb\0c\n", "f, line 3: there is a control character in it"),
            ("a\rb\n", "f, line 1: there is a control character in it"),
        ] {
            assert_eq!(items_of(text), Err(vec![words.to_owned()]));
        }
    }

    #[test]
    fn lists_are_read_from_files_and_from_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("hosts.txt"), "192.0.2.1\n\n192.0.2.2\n").unwrap();
        let config = "[list.hosts]\nfile = \"hosts.txt\"\n[list.local]\nitems = [\"a.example\", \" b.example \"]\n";
        let (lists, said) = read(folder.path(), config);
        assert_eq!(said, Vec::<String>::new());
        assert_eq!(lists.names().collect::<Vec<_>>(), ["hosts", "local"]);
        let texts = |name| lists.get(name).map(|list| list.items.iter().map(|item| &*item.text).collect::<Vec<_>>());
        assert_eq!(texts("hosts"), Some(vec!["192.0.2.1", "192.0.2.2"]));
        assert_eq!(texts("local"), Some(vec!["a.example", "b.example"]));
        assert_eq!(texts("others"), None);
    }

    #[test]
    fn a_wrong_item_is_reported_at_the_key_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("hosts.txt"), "\nx\n").unwrap();
        let config = "[list.hosts]\nfile = \"hosts.txt\"\n[list.local]\nitems = [\"y\"]\n";
        let (lists, _) = read(folder.path(), config);
        for (name, key, words) in
            [("hosts", "\"hosts.txt\"", "hosts.txt, line 2: bad"), ("local", "[\"y\"]", "item 1: bad")]
        {
            let list = lists.get(name).unwrap();
            let said = list.wrong(&list.items[0], "bad");
            assert_eq!(&config[list.span().clone()], key);
            assert!(said.ends_with(words), "{said}");
        }
    }

    #[test]
    fn an_empty_list_is_warned_of() {
        let (lists, said) = read(Path::new(""), "[list.x]\nitems = []\n");
        assert_eq!(said, ["this list is empty: it matches nothing"]);
        assert!(lists.get("x").is_some_and(|list| list.items.is_empty()));
    }
}
