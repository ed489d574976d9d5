//! Report of an import: limits, untranslated parts and notes, in the order of the source.

use super::limit::Limit;
use super::source_line::{SourceLine, plain};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// Result of an import.
#[derive(Debug, Default)]
pub struct Report {
    items: Vec<Item>,
    names: HashMap<String, usize>,
}

#[derive(Debug)]
enum Item {
    Limit(Box<Limit>),
    Untranslated(SourceLine, String),
    Note(SourceLine, String),
}

impl Report {
    /// Adds a limit, with a number after its name if the name is taken. Returns the final name.
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

    /// Adds a part of the source that is not translated at all.
    pub fn refuse(&mut self, place: &SourceLine, words: impl fmt::Display) {
        self.items.push(Item::Untranslated(place.clone(), plain(&words.to_string())));
    }

    /// Adds a note that is not a fault.
    pub fn note(&mut self, place: &SourceLine, words: impl fmt::Display) {
        self.items.push(Item::Note(place.clone(), plain(&words.to_string())));
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns all parts that are not translated, or only in part.
    pub fn complaints(&self) -> Vec<(&SourceLine, &str)> {
        let mut all: Vec<(&SourceLine, &str)> = Vec::new();
        for item in &self.items {
            match item {
                Item::Limit(limit) => all.extend(limit.lost.iter().map(|(place, words)| (place, &**words))),
                Item::Untranslated(place, words) => all.push((place, words)),
                Item::Note(..) => {}
            }
        }
        // A complaint about several limits is printed once.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_a_file_are_replaced() {
        let mut report = Report::default();
        report.refuse(&SourceLine::new(&"a\x1b[2J".into(), 3), "x\nrate = \"0\"\x07");
        assert_eq!(report.to_string(), "# a\u{fffd}[2J:3: not translated: x\u{fffd}rate = \"0\"\u{fffd}\n");
    }
}
