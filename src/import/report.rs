//! Report of an import: limits, parts that are not translated, and notes, in the order of the source; then a summary.

use super::limit::Limit;
use super::source_line::{SourceLine, plain};
use std::collections::HashMap;
use std::fmt;

/// Result of an import.
#[derive(Debug)]
pub struct Report {
    items: Vec<Item>,
    names: HashMap<String, usize>,
    /// Noun for the units of the source that the summary counts: `condition`, `bucket`.
    noun: &'static str,
    /// Number of these units in the source.
    count: usize,
    /// Whether the caller writes the override tables to files.
    pub saves_tables: bool,
    tables: Vec<Table>,
}

/// Override table that is to be written to a file.
#[derive(Debug)]
pub struct Table {
    pub file: String,
    pub text: String,
}

/// Number that identifies one unit of the source, such as a condition or a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number(usize);

#[derive(Debug)]
enum Item {
    Limit(Number, Box<Limit>),
    /// Limit that Weir would refuse, with the reason.
    Withdrawn(Number, Box<Limit>, String),
    Untranslated(Option<Number>, SourceLine, String),
    Note(SourceLine, String),
}

/// Outcome for one unit of the source. If a unit has several outcomes, the summary counts only the outcome that is last
/// in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Translated,
    Shadow,
    Named,
}

impl Report {
    pub fn new(noun: &'static str, saves_tables: bool) -> Self {
        Self { items: Vec::new(), names: HashMap::new(), noun, count: 0, saves_tables, tables: Vec::new() }
    }

    /// Returns the number for the next condition or rule of the source.
    pub fn number(&mut self) -> Number {
        self.count += 1;
        Number(self.count)
    }

    /// Adds a limit. If another limit has the same name, a number is added to the name. Returns the final name.
    pub fn add(&mut self, of: Number, mut limit: Limit) -> String {
        let count = self.names.entry(limit.name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            limit.name = format!("{}-{count}", limit.name);
        }
        let name = limit.name.clone();
        self.items.push(Item::Limit(of, Box::new(limit)));
        name
    }

    /// Adds an override table. Returns the name of its file.
    pub fn table(&mut self, stem: &str, text: String) -> String {
        let fits = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
        let stem: String = stem.trim_start_matches('.').chars().map(fits).collect();
        if let Some(known) = self.tables.iter().find(|table| table.text == text) {
            return known.file.clone();
        }
        let names = (1..).map(|n| if n == 1 { format!("{stem}.csv") } else { format!("{stem}-{n}.csv") });
        let is_free = |name: &String| self.tables.iter().all(|table| table.file != *name);
        let file = names.into_iter().find(is_free).unwrap_or_default();
        self.tables.push(Table { file: file.clone(), text });
        file
    }

    /// Returns the override tables that the limits name.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Adds a condition or rule of the source that is not translated.
    pub fn refuse(&mut self, of: Number, place: &SourceLine, words: impl fmt::Display) {
        self.items.push(Item::Untranslated(Some(of), place.clone(), plain(&words.to_string())));
    }

    /// Adds another part of the source that is not translated.
    pub fn leave_out(&mut self, place: &SourceLine, words: impl fmt::Display) {
        self.items.push(Item::Untranslated(None, place.clone(), plain(&words.to_string())));
    }

    /// Adds a note that is not a fault.
    pub fn note(&mut self, place: &SourceLine, words: impl fmt::Display) {
        self.items.push(Item::Note(place.clone(), plain(&words.to_string())));
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the limits, each with its name and its text in TOML.
    pub fn limits(&self) -> impl Iterator<Item = (&str, String)> {
        self.items.iter().filter_map(|item| match item {
            Item::Limit(_, limit) => Some((&*limit.name, limit.to_string())),
            _ => None,
        })
    }

    /// Withdraws a limit that Weir would refuse: the report prints it as a comment, with the reason.
    pub fn withdraw(&mut self, name: &str, reason: &str) {
        for item in &mut self.items {
            if let Item::Limit(of, limit) = item
                && limit.name == name
            {
                *item = Item::Withdrawn(*of, limit.clone(), plain(reason));
            }
        }
    }

    /// Returns whether every part of the source was translated without a loss.
    pub fn is_complete(&self) -> bool {
        self.items.iter().all(|item| match item {
            Item::Limit(_, limit) => limit.lost.is_empty() && !limit.is_in_shadow(),
            Item::Withdrawn(..) | Item::Untranslated(..) => false,
            Item::Note(..) => true,
        })
    }

    /// Returns how many units were translated and how many were not: `80 conditions: 41 translated, 20 in shadow, 19
    /// named`.
    pub fn summary(&self) -> String {
        let mut outcomes: HashMap<usize, Outcome> = HashMap::new();
        for item in &self.items {
            let (of, outcome) = match item {
                Item::Limit(of, limit) if limit.is_in_shadow() => (of, Outcome::Shadow),
                Item::Limit(of, _) => (of, Outcome::Translated),
                Item::Withdrawn(of, ..) | Item::Untranslated(Some(of), ..) => (of, Outcome::Named),
                Item::Untranslated(None, ..) | Item::Note(..) => continue,
            };
            let known = outcomes.entry(of.0).or_insert(outcome);
            *known = outcome.max(*known);
        }
        let count = |wanted| outcomes.values().filter(|outcome| **outcome == wanted).count();
        let (translated, shadow) = (count(Outcome::Translated), count(Outcome::Shadow));
        let plural = if self.count == 1 { "" } else { "s" };
        format!(
            "{} {}{plural}: {translated} translated, {shadow} in shadow, {} named",
            self.count,
            self.noun,
            self.count - translated - shadow
        )
    }
}

/// Comments that have been printed, each with the name of the limit for which it was printed.
type Printed = HashMap<String, String>;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printed = Printed::new();
        for item in &self.items {
            match item {
                Item::Limit(_, limit) => {
                    write_comments(f, limit, &mut printed)?;
                    writeln!(f, "{limit}")?;
                }
                Item::Withdrawn(_, limit, why) => {
                    write_comments(f, limit, &mut printed)?;
                    writeln!(f, "# Not translated: Weir would refuse this limit: {why}")?;
                    limit.to_string().lines().try_for_each(|line| writeln!(f, "#   {line}"))?;
                    writeln!(f)?;
                }
                Item::Untranslated(_, place, words) => {
                    let line = format!("{place}: not translated: {words}");
                    if printed.insert(line.clone(), String::new()).is_none() {
                        writeln!(f, "# {line}\n")?;
                    }
                }
                Item::Note(place, words) => writeln!(f, "# {place}: {words}\n")?,
            }
        }
        writeln!(f, "# {}", self.summary())
    }
}

/// Writes the comments of a limit, without the comments that were printed for an earlier limit.
fn write_comments(f: &mut fmt::Formatter<'_>, limit: &Limit, printed: &mut Printed) -> fmt::Result {
    for line in &limit.comments {
        if printed.insert(line.clone(), limit.name.clone()).is_none() {
            writeln!(f, "# {line}")?;
        }
    }
    let (_, lost) = new_reasons(&limit.lost, limit, printed);
    lost.iter().try_for_each(|line| writeln!(f, "# {line}"))?;
    if !limit.is_in_shadow() {
        return Ok(());
    }
    let (like, reasons) = new_reasons(&limit.shadow_reasons, limit, printed);
    let like = like.map(|name| format!(", like {name}")).unwrap_or_default();
    match reasons.is_empty() {
        true => writeln!(f, "# In shadow mode{like}.")?,
        false => writeln!(f, "# In shadow mode{like}, because of:")?,
    }
    reasons.iter().try_for_each(|line| writeln!(f, "#   {line}"))
}

/// Returns the reasons that have not been printed for another limit. If some reasons were already printed, also returns
/// the name of the limit for which the first of them was printed.
fn new_reasons(
    reasons: &[(SourceLine, String)],
    limit: &Limit,
    printed: &mut Printed,
) -> (Option<String>, Vec<String>) {
    let (mut like, mut new) = (None, Vec::new());
    for (place, words) in reasons {
        match printed.insert(format!("{place}: {words}"), limit.name.clone()) {
            Some(name) if name == limit.name => {}
            Some(name) => {
                like.get_or_insert_with(|| name.clone());
                printed.insert(format!("{place}: {words}"), name);
            }
            None => new.push((place, &**words)),
        }
    }
    (like, grouped(new))
}

/// Joins the places that have the same reason: `exim.conf:3, 7: …`.
fn grouped(reasons: Vec<(&SourceLine, &str)>) -> Vec<String> {
    let mut groups: Vec<(&str, &SourceLine, String)> = Vec::new();
    for (place, words) in reasons {
        match groups.iter_mut().find(|(known, ..)| *known == words) {
            Some((_, first, places)) if first.file == place.file => *places += &format!(", {}", place.line),
            Some((_, _, places)) => *places += &format!(", {place}"),
            None => groups.push((words, place, place.to_string())),
        }
    }
    groups.into_iter().map(|(words, _, places)| format!("{places}: {words}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_a_file_are_replaced() {
        let mut report = Report::new("condition", false);
        report.leave_out(&SourceLine::new(&"a\x1b[2J".into(), 3), "x\nrate = \"0\"\x07");
        let expected = "# a\u{fffd}[2J:3: not translated: x\u{fffd}rate = \"0\"\u{fffd}\n\n# 0 conditions";
        assert!(report.to_string().starts_with(expected), "{report}");
    }
}
