//! Reads the keys of a table one by one; what nobody asked for is an unknown key.

use super::problem::{Problem, Severity};
use crate::time::parse_duration;
use std::cell::RefCell;
use std::ops::Range;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Problems found so far: one file's sections all add to it.
pub type Found = RefCell<Vec<Problem>>;

/// A table of the file.
pub struct Section<'a> {
    /// As the file names it: `[listener.submission]`.
    title: String,
    table: &'a DeTable<'a>,
    span: Range<usize>,
    asked: Vec<&'static str>,
    found: &'a Found,
}

/// A value with its place in the file.
#[derive(Clone, Debug)]
pub struct Placed<T> {
    pub value: T,
    pub span: Range<usize>,
}

/// Longest time-out that may be configured: beyond that a typing error is likelier.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(86_400);

impl<'a> Section<'a> {
    pub fn new(title: &str, table: &'a Spanned<DeTable<'a>>, found: &'a Found) -> Self {
        Self::of(title, table.get_ref(), table.span(), found)
    }

    fn of(title: &str, table: &'a DeTable<'a>, span: Range<usize>, found: &'a Found) -> Self {
        Self { title: title.to_owned(), table, span, asked: Vec::new(), found }
    }

    /// Adds an error at a place.
    pub fn error(&self, span: &Range<usize>, message: impl Into<String>, help: Option<String>) {
        let (message, span) = (message.into(), span.clone());
        self.found.borrow_mut().push(Problem { severity: Severity::Error, span, message, help });
    }

    /// Adds a warning at a place.
    pub fn warn(&self, span: &Range<usize>, message: impl Into<String>, help: Option<String>) {
        let (message, span) = (message.into(), span.clone());
        self.found.borrow_mut().push(Problem { severity: Severity::Warning, span, message, help });
    }

    /// Where the section begins.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Says that a key that must be there is not.
    pub fn missing(&self, key: &str, example: &str) {
        self.error(&self.span(), format!("{} has no \"{key}\"", self.title), Some(format!("add {key} = {example}")));
    }

    /// A key's value, read by `read`, whose error says what is wrong with it.
    pub fn read<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&'a DeValue<'a>) -> Result<T, String>,
    ) -> Option<Placed<T>> {
        self.asked.push(key);
        let value = self.table.get(key)?;
        match read(value.get_ref()) {
            Ok(read) => Some(Placed { value: read, span: value.span() }),
            Err(why) => {
                self.error(&value.span(), format!("{key}: {why}"), None);
                None
            }
        }
    }

    pub fn string(&mut self, key: &'static str) -> Option<Placed<&'a str>> {
        self.read(key, text)
    }

    /// One of some words.
    pub fn choice<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> Option<Placed<T>> {
        self.read(key, |value| {
            let word = text(value)?;
            choose(word, words)
        })
    }

    /// A list of texts, each read by `read`.
    pub fn list<T>(&mut self, key: &'static str, read: impl Fn(&str) -> Result<T, String>) -> Option<Placed<Vec<T>>> {
        self.asked.push(key);
        let value = self.table.get(key)?;
        let Some(items) = value.get_ref().as_array() else {
            let kind = value.get_ref().type_str();
            self.error(&value.span(), format!("{key}: a list is expected, not {}", with_article(kind)), None);
            return None;
        };
        let mut list = Vec::new();
        for item in items.iter() {
            match text(item.get_ref()).and_then(&read) {
                Ok(item) => list.push(item),
                Err(why) => self.error(&item.span(), format!("{key}: {why}"), None),
            }
        }
        Some(Placed { value: list, span: value.span() })
    }

    /// A time-out: above 0, at most a day.
    pub fn timeout(&mut self, key: &'static str, default: Duration) -> Duration {
        let read = self.read(key, |value| {
            let duration = parse_duration(text(value)?).map_err(|e| e.to_string())?;
            if duration.is_zero() || duration > LONGEST_TIMEOUT {
                return Err("a time-out is above 0s and at most 1d".to_owned());
            }
            Ok(duration)
        });
        read.map_or(default, |read| read.value)
    }

    /// A whole number within bounds.
    pub fn count(&mut self, key: &'static str, default: usize, bounds: std::ops::RangeInclusive<usize>) -> usize {
        let read = self.read(key, |value| {
            let number = value.as_integer().ok_or_else(|| expected("a whole number", value))?;
            let number = i64::from_str_radix(number.as_str(), number.radix()).ok();
            let number = number.and_then(|number| usize::try_from(number).ok()).filter(|n| bounds.contains(n));
            number.ok_or_else(|| format!("it must be from {} to {}", bounds.start(), bounds.end()))
        });
        read.map_or(default, |read| read.value)
    }

    /// A number of octets: `50M`, K, M and G being 1024, 1024² and 1024³.
    pub fn octets(&mut self, key: &'static str, default: u64) -> u64 {
        self.read(key, |value| parse_octets(text(value)?)).map_or(default, |read| read.value)
    }

    /// The table of this name.
    pub fn section(&mut self, key: &'static str) -> Option<Section<'a>> {
        let title = format!("[{key}]");
        let table = self.read(key, |value| value.as_table().ok_or_else(|| expected("a table", value)))?;
        Some(Section::of(&title, table.value, table.span, self.found))
    }

    /// The tables below this one, with their names: `[key.NAME]`.
    pub fn named(&mut self, key: &'static str) -> Vec<(Placed<&'a str>, Section<'a>)> {
        let table = self.read(key, |value| value.as_table().ok_or_else(|| expected("tables with names", value)));
        let Some(table) = table else { return Vec::new() };
        let mut named = Vec::new();
        for (name, value) in table.value.iter() {
            let title = format!("[{key}.{}]", name.get_ref());
            match value.get_ref().as_table() {
                Some(inner) => {
                    let placed = Placed { value: name.get_ref().as_ref(), span: name.span() };
                    named.push((placed, Section::of(&title, inner, value.span(), self.found)));
                }
                None => self.error(&name.span(), format!("{title} is not a table"), Some(format!("write {title}"))),
            }
        }
        named
    }

    /// The tables of a list: `[[key]]`.
    pub fn tables(&mut self, key: &'static str) -> Vec<Section<'a>> {
        let title = format!("[[{key}]]");
        let items = self.read(key, |value| value.as_array().ok_or_else(|| format!("write {title}, with two brackets")));
        let Some(items) = items else { return Vec::new() };
        let mut sections = Vec::new();
        for item in items.value.iter() {
            match item.get_ref().as_table() {
                Some(table) => sections.push(Section::of(&title, table, item.span(), self.found)),
                None => self.error(&item.span(), expected("a table", item.get_ref()), None),
            }
        }
        sections
    }

    /// Says which keys nobody asked for, and which was meant.
    pub fn finish(self) {
        for (key, _) in self.table.iter() {
            let name: &str = key.get_ref();
            if self.asked.contains(&name) {
                continue;
            }
            let help = match closest(name, self.asked.iter().copied()) {
                Some(meant) => format!("did you mean \"{meant}\"?"),
                None => format!("its keys are {}", self.asked.join(", ")),
            };
            self.error(&key.span(), format!("{} has no key \"{name}\"", self.title), Some(help));
        }
    }
}

/// A value that should be text.
pub fn text<'a>(value: &'a DeValue<'a>) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| expected("text in quotes", value))
}

/// What a word stands for, of those that may stand here.
pub fn choose<T: Copy>(word: &str, words: &[(&str, T)]) -> Result<T, String> {
    if let Some((_, value)) = words.iter().find(|(known, _)| *known == word) {
        return Ok(*value);
    }
    let names: Vec<String> = words.iter().map(|(known, _)| format!("\"{known}\"")).collect();
    let meant = closest(word, words.iter().map(|(known, _)| *known));
    let meant = meant.map_or(String::new(), |meant| format!("; did you mean \"{meant}\"?"));
    Err(format!("\"{word}\" is not one of {}{meant}", names.join(", ")))
}

/// The known word that was probably meant.
fn closest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    known
        .map(|known| (strsim::damerau_levenshtein(&word.to_lowercase(), known), known))
        .filter(|(distance, known)| *distance <= 2.max(known.len() / 3))
        .min()
        .map(|(_, known)| known)
}

fn expected(what: &str, value: &DeValue<'_>) -> String {
    format!("{what} is expected, not {}", with_article(value.type_str()))
}

fn with_article(kind: &str) -> String {
    match kind {
        "array" => "a list".to_owned(),
        kind if kind.starts_with(['a', 'e', 'i', 'o', 'u']) => format!("an {kind}"),
        kind => format!("a {kind}"),
    }
}

fn parse_octets(text: &str) -> Result<u64, String> {
    let (digits, scale) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let number = Some(digits).filter(|_| plain).and_then(|digits| digits.parse::<u64>().ok());
    let octets = number.and_then(|number| number.checked_mul(scale)).filter(|octets| *octets > 0);
    octets.ok_or_else(|| format!("\"{text}\" is not a size: write 500K, 50M, 1G"))
}
