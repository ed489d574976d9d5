//! Reads the keys of a table one by one. If a key in the file is never read, it is reported as unknown. The keys that
//! were read, with their values or defaults, form the effective configuration.

use super::diagnostic::Severity;
use super::source::{Setting, Source};
use super::synonyms;
use super::values::{closest, expected, key_text, text};
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A table of the configuration file, and the keys that have been read from it.
pub struct Section<'a> {
    title: String,
    /// Path of the table, such as `limit@120`. The path of each key in the table begins with it. The number is the
    /// position of the table, and distinguishes the tables of one list. Empty for the top of the file.
    path: String,
    table: Option<&'a DeTable<'a>>,
    span: Range<usize>,
    asked: Vec<&'static str>,
    source: &'a Source<'a>,
}

/// A value with its position in the file.
#[derive(Clone, Debug)]
pub struct Placed<T> {
    pub value: T,
    pub span: Range<usize>,
}

impl<'a> Section<'a> {
    /// Returns the table of the whole file.
    pub fn root(table: &'a Spanned<DeTable<'a>>, source: &'a Source<'a>) -> Self {
        // The position is empty, so problems of the whole file are shown first, and without a line of the file.
        Self {
            title: String::new(),
            path: String::new(),
            table: Some(table.get_ref()),
            span: 0..0,
            asked: Vec::new(),
            source,
        }
    }

    fn below(&self, title: String, path: String, table: Option<&'a DeTable<'a>>, span: Range<usize>) -> Self {
        Self { title, path, table, span, asked: Vec::new(), source: self.source }
    }

    /// Returns the section's position in the file.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Returns the line in the file, from 1, in which the section begins.
    pub fn line(&self) -> usize {
        self.source.line(self.span.start)
    }

    pub fn error(&self, span: &Range<usize>, message: impl Into<String>, help: Option<&str>) {
        self.source.error(span, message, help);
    }

    pub fn warn(&self, span: &Range<usize>, message: impl Into<String>, help: Option<&str>) {
        self.source.warn(span, message, help);
    }

    /// Reports an error, unless one of these keys of the section is found to be wrong. In that case, the error may be
    /// only a consequence of the wrong key.
    pub fn error_unless(&self, keys: &[&str], span: &Range<usize>, message: impl Into<String>, help: Option<&str>) {
        self.source.follow_up(self.paths(keys), Severity::Error, span, message, help);
    }

    /// Reports a warning unless one of these keys of the section is found to be wrong.
    pub fn warn_unless(&self, keys: &[&str], span: &Range<usize>, message: impl Into<String>, help: Option<&str>) {
        self.source.follow_up(self.paths(keys), Severity::Warning, span, message, help);
    }

    /// Records that a key is wrong and that its error has been reported. Other errors, which may be consequences of the
    /// wrong key, are then not reported.
    pub fn mark_wrong(&self, key: &str) {
        self.source.mark_wrong(&self.path(key));
    }

    /// Returns the path of a key. With this path, checks in other sections name the key as a possible cause of an
    /// error.
    pub fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn paths(&self, keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| self.path(key)).collect()
    }

    /// Reads an optional key.
    pub fn optional<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'a>) -> Result<T, String>,
    ) -> Option<Placed<T>> {
        let value = self.take(key, None)?;
        self.check(key, value.span(), read(value.get_ref()))
    }

    /// Reads a required key. If the key is missing, the error shows `example`.
    pub fn required<T>(
        &mut self,
        key: &'static str,
        example: &str,
        read: impl FnOnce(&DeValue<'a>) -> Result<T, String>,
    ) -> Option<Placed<T>> {
        let Some(value) = self.take(key, None) else {
            self.report_missing(key, example);
            return None;
        };
        self.check(key, value.span(), read(value.get_ref()))
    }

    /// Reads a key with a default. `default` is the text of a TOML value, as in the file. If the value is wrong,
    /// reports it and returns the default, so that the rest of the file can be checked.
    pub fn value<T>(
        &mut self,
        key: &'static str,
        default: &str,
        read: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> T {
        self.placed(key, default, read).value
    }

    /// Reads a key with a default. Also returns the position of the value, or the position of the section if the key is
    /// missing.
    pub fn placed<T>(
        &mut self,
        key: &'static str,
        default: &str,
        read: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Placed<T> {
        let given = self.take(key, Some(default));
        let given = given.and_then(|value| self.check(key, value.span(), read(value.get_ref())));
        given.unwrap_or_else(|| Placed { value: parse_default(key, default, read), span: self.span() })
    }

    /// Reads a list of texts, each with the function `read`. The key is required, unless there is a default.
    pub fn list<T>(
        &mut self,
        key: &'static str,
        default: Option<&'static str>,
        example: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Placed<Vec<T>>> {
        let Some(value) = self.take(key, default) else {
            if default.is_some() {
                return Some(Placed { value: Vec::new(), span: self.span() });
            }
            self.report_missing(key, example);
            return None;
        };
        let Some(items) = value.get_ref().as_array() else {
            return self.check(key, value.span(), Err(expected("a list", value.get_ref())));
        };
        let read_item = |item: &Spanned<DeValue<'_>>| {
            let read = text(item.get_ref()).and_then(|text| read(&text));
            self.check(key, item.span(), read).map(|placed| placed.value)
        };
        let list = items.iter().filter_map(read_item).collect();
        Some(Placed { value: list, span: value.span() })
    }

    /// Reports that a required key is missing, unless an unknown key of the section is a misspelling of it.
    fn report_missing(&self, key: &str, example: &str) {
        let help = format!("add {key} = {example}");
        let message = format!("{} has no \"{key}\"", self.name());
        self.source.follow_up(vec![misspelt(&self.path(key))], Severity::Error, &self.span, message, Some(&help));
        self.mark_wrong(key);
    }

    /// Returns the sub-table `key`. If the file has no such table, returns an empty section.
    pub fn section(&mut self, key: &'static str) -> Section<'a> {
        let read = self.table_of(key, |value| value.as_table().ok_or_else(|| expected("a table", value)));
        let title = format!("[{}]", self.path_of(key));
        match read {
            Some(placed) => self.below(title, self.path(key), Some(placed.value), placed.span),
            None => self.below(title, self.path(key), None, self.span()),
        }
    }

    /// Returns the value of a key if it is valid. Reports no error and records nothing: the key is read again later.
    pub fn peek<T>(&self, key: &str, read: impl FnOnce(&DeValue<'a>) -> Result<T, String>) -> Option<T> {
        read(self.table?.get(key)?.get_ref()).ok()
    }

    /// Returns whether the file has the key, with a valid or an invalid value.
    pub fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// Returns whether the table at `key`, or a table of the list at `key`, has the key `inner`.
    pub fn has_within(&self, key: &str, inner: &str) -> bool {
        let has = |value: &DeValue<'_>| value.as_table().is_some_and(|table| table.contains_key(inner));
        let Some(value) = self.table.and_then(|table| table.get(key)).map(Spanned::get_ref) else { return false };
        has(value) || value.as_array().is_some_and(|items| items.iter().any(|item| has(item.get_ref())))
    }

    pub fn is_list(&self, key: &str) -> bool {
        self.table.and_then(|table| table.get(key)).is_some_and(|value| value.get_ref().is_array())
    }

    /// Returns the position of the key's value if it is an empty list.
    pub fn is_empty_list(&self, key: &str) -> Option<Range<usize>> {
        let value = self.table?.get(key)?;
        value.get_ref().as_array().is_some_and(|items| items.is_empty()).then(|| value.span())
    }

    /// Returns whether the file has the section.
    pub fn exists(&self) -> bool {
        self.table.is_some()
    }

    /// Returns the sub-tables `[key.NAME]` with their names.
    pub fn named(&mut self, key: &'static str) -> Vec<(Placed<&'a str>, Section<'a>)> {
        let table = self
            .table_of(key, |value| value.as_table().ok_or_else(|| format!("write [{key}.NAME], a table with a name")));
        let Some(table) = table else { return Vec::new() };
        let mut named = Vec::new();
        for (name, value) in table.value.iter() {
            let title = format!("[{}.{}]", self.path_of(key), key_text(name.get_ref()));
            match value.get_ref().as_table() {
                Some(inner) => {
                    let placed = Placed { value: name.get_ref().as_ref(), span: name.span() };
                    let path = format!("{}.{}", self.path(key), name.get_ref());
                    named.push((placed, self.below(title, path, Some(inner), value.span())));
                }
                None => {
                    let help = format!("give it a name of its own: [{}.NAME]", self.path_of(key));
                    self.error(&name.span(), format!("[{}] needs a name", self.path_of(key)), Some(&help));
                    self.mark_wrong(key);
                    break;
                }
            }
        }
        named
    }

    /// Returns the tables of the list `[[key]]`.
    pub fn tables(&mut self, key: &'static str) -> Vec<Section<'a>> {
        let title = format!("[[{}]]", self.path_of(key));
        let items =
            self.table_of(key, |value| value.as_array().ok_or_else(|| format!("write {title}, with two brackets")));
        let Some(items) = items else { return Vec::new() };
        let mut sections = Vec::new();
        for item in items.value.iter() {
            match item.get_ref().as_table() {
                Some(table) => {
                    let path = format!("{}@{}", self.path(key), item.span().start);
                    sections.push(self.below(title.clone(), path, Some(table), item.span()));
                }
                None => {
                    self.error(&item.span(), expected("a table", item.get_ref()), None);
                    self.mark_wrong(key);
                }
            }
        }
        sections
    }

    /// Returns the tables at a key. If the value of the key is a table, returns this table. If the value is a list,
    /// returns the tables of the list. If the key is missing, the result is empty.
    pub fn table_or_tables(&mut self, key: &'static str) -> Vec<Section<'a>> {
        match (self.has(key), self.is_list(key)) {
            (false, _) => {
                self.asked.push(key);
                Vec::new()
            }
            (true, true) => self.tables(key),
            (true, false) => vec![self.section(key)],
        }
    }

    /// Returns whether the table has no keys.
    pub fn is_empty(&self) -> bool {
        self.table.is_none_or(DeTable::is_empty)
    }

    /// Returns whether the table has any of these keys.
    pub fn has_any(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.has(key))
    }

    /// Returns the file that the section belongs to.
    pub fn source(&self) -> &'a Source<'a> {
        self.source
    }

    /// Reports the keys that were never read, each with the most similar known key.
    pub fn finish(self) {
        for (key, _) in self.table.into_iter().flat_map(DeTable::iter) {
            let name: &str = key.get_ref();
            if self.asked.contains(&name) {
                continue;
            }
            let meant = synonyms::key(name, &self.asked).or(closest(name, self.asked.iter().copied()));
            let help = match (meant, synonyms::setting(name)) {
                (Some(meant), _) => format!("did you mean \"{meant}\"?"),
                (None, Some(setting)) if self.asked.contains(&setting.key) => setting.help(),
                (None, _) if TOP_KEYS.contains(&name) => format!("write {name} above the first section, [...]"),
                (None, _) => format!("its keys are {}", self.asked.join(", ")),
            };
            if let Some(meant) = meant {
                self.mark_wrong(meant);
                self.source.mark_wrong(&misspelt(&self.path(meant)));
            }
            self.error(&key.span(), format!("{} has no key \"{name}\"", self.name()), Some(&help));
        }
    }

    /// Returns the path of a key as messages print it: `limit.action`.
    fn path_of(&self, key: &str) -> String {
        let above = self.title.trim_matches(['[', ']']);
        if above.is_empty() { key.to_owned() } else { format!("{above}.{key}") }
    }

    fn name(&self) -> &str {
        if self.title.is_empty() { "the file" } else { &self.title }
    }

    /// Returns the value of a key, and records the key with its value or default for the effective configuration.
    fn take(&mut self, key: &'static str, default: Option<&str>) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.push(key);
        let given = self.table.and_then(|table| table.get(key));
        let written = given.and_then(|value| self.source.text.get(value.span())).map(str::to_owned);
        let is_default = written.is_none();
        let value = written.or(default.map(str::to_owned));
        self.source.record(Setting { section: self.title.clone(), place: self.span.start, key, value, is_default });
        given
    }

    fn table_of<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&'a DeValue<'a>) -> Result<T, String>,
    ) -> Option<Placed<T>> {
        self.asked.push(key);
        let value = self.table?.get(key)?;
        self.check(key, value.span(), read(value.get_ref()))
    }

    fn check<T>(&self, key: &str, span: Range<usize>, read: Result<T, String>) -> Option<Placed<T>> {
        match read {
            Ok(value) => Some(Placed { value, span }),
            Err(why) => {
                self.error(&span, format!("{key}: {why}"), None);
                self.mark_wrong(key);
                None
            }
        }
    }
}

/// Keys that must be above all sections. Below the header of a section, they would belong to that section.
const TOP_KEYS: [&str; 3] = ["hostname", "help-url", "timezone"];

/// Returns a special path for a missing key. This path is marked as wrong if an unknown key is a misspelling of the
/// missing key.
fn misspelt(path: &str) -> String {
    format!("?{path}")
}

/// Reads a default with the same function as a value in the file.
#[expect(clippy::panic, reason = "defaults are written in this room, and every reading of a file reads them")]
fn parse_default<T>(key: &str, default: &str, read: impl Fn(&DeValue<'_>) -> Result<T, String>) -> T {
    let parsed = DeValue::parse(default).map_err(|error| error.to_string());
    let read = parsed.and_then(|value| read(value.get_ref()));
    read.unwrap_or_else(|why| panic!("the default of {key}, {default}: {why}"))
}
