//! What came of an import: limits in the order of what they stand for, and what could not be said.

use super::limit::Limit;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::rc::Rc;

/// A line of a file that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub file: Rc<str>,
    /// From 1.
    pub line: usize,
}

impl Place {
    pub fn new(file: &Rc<str>, line: usize) -> Self {
        Self { file: file.clone(), line }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", plain(&self.file), self.line)
    }
}

/// What came of an import.
#[derive(Debug, Default)]
pub struct Report {
    items: Vec<Item>,
    names: HashMap<String, usize>,
}

#[derive(Debug)]
enum Item {
    Limit(Box<Limit>),
    Untranslated(Place, String),
    Note(Place, String),
}

impl Report {
    /// Adds a limit, under a name that no other one has; the name that it got.
    pub fn add(&mut self, mut limit: Limit) -> String {
        let count = self.names.entry(limit.name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            limit.name = format!("{}-{count}", limit.name);
        }
        let name = limit.name.clone();
        self.items.push(Item::Limit(Box::new(limit)));
        name
    }

    /// Names what cannot be translated at all.
    pub fn refuse(&mut self, place: &Place, words: impl fmt::Display) {
        self.items.push(Item::Untranslated(place.clone(), plain(&words.to_string())));
    }

    /// Says something that is no fault.
    pub fn note(&mut self, place: &Place, words: impl fmt::Display) {
        self.items.push(Item::Note(place.clone(), plain(&words.to_string())));
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Everything that is not translated, or not wholly.
    pub fn complaints(&self) -> Vec<(&Place, &str)> {
        let mut all: Vec<(&Place, &str)> = Vec::new();
        for item in &self.items {
            match item {
                Item::Limit(limit) => all.extend(limit.lost.iter().map(|(place, words)| (place, &**words))),
                Item::Untranslated(place, words) => all.push((place, words)),
                Item::Note(..) => {}
            }
        }
        // What is the same for several limits is said once.
        let mut seen = HashSet::new();
        all.retain(|(place, words)| seen.insert((place.to_string(), *words)));
        all
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, item) in self.items.iter().enumerate() {
            if n > 0 {
                writeln!(f)?;
            }
            match item {
                Item::Limit(limit) => write!(f, "{limit}")?,
                Item::Untranslated(place, words) => writeln!(f, "# {place}: not translated: {words}")?,
                Item::Note(place, words) => writeln!(f, "# {place}: {words}")?,
            }
        }
        Ok(())
    }
}

/// What stands in a file is neither for a terminal to obey nor for a comment to end at.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c == '\t' { ' ' } else { c }).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_file_ends_a_comment_or_reaches_a_terminal() {
        let mut report = Report::default();
        report.refuse(&Place::new(&"a\x1b[2J".into(), 3), "x\nrate = \"0\"\x07");
        assert_eq!(report.to_string(), "# a\u{fffd}[2J:3: not translated: x\u{fffd}rate = \"0\"\u{fffd}\n");
    }
}
