//! Parser of `${lookup{KEY}TYPE{FILE}{$value}{DEFAULT}}`: numbers that Exim looks up in a table. In Weir, these numbers
//! become override rows.

use super::super::budget::Allowance;
use super::braces::{MAX_DEPTH, Test, after_word, braced, expansion, is_constant, whole};
use super::key;
use super::table::{self, Networks};
use crate::policy::matching::{Field, Widths};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

/// Value that Exim looks up in tables by the value of one field.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lookup {
    /// Field whose values are the keys of the tables: the column of the override table. `None` if there is no table.
    pub by: Option<Field>,
    /// Type and file of each table; Exim uses the first table that has the key.
    tables: Vec<(String, String)>,
    /// Value for keys that no table has, unless a table has a row `*`.
    default: Option<String>,
    /// Number by which the value is divided: `${eval:… / 2}`.
    divisor: Option<u32>,
}

/// Value of a key for which Exim has no limit.
pub const UNLIMITED: &str = "unlimited";

/// Maximum number of table rows that are printed as a comment.
pub const MAX_ROWS: usize = 1000;

impl Lookup {
    /// Parses a text that is a single lookup by one field, whose result is used unchanged or divided by a constant.
    pub fn parse(text: &str) -> Option<Self> {
        let divided = whole(text).and_then(|inner| inner.strip_prefix("eval:")?.rsplit_once('/'));
        let (text, divisor) = match divided.and_then(|(text, by)| Some((text, by.trim().parse().ok()?))) {
            Some((_, 0)) => return None,
            Some((text, by)) => (text, Some(by)),
            None => (text, None),
        };
        let lookup = Self::value(text, 0).filter(|lookup| !lookup.tables.is_empty())?;
        Some(Self { divisor, ..lookup })
    }

    /// Divides a number from the table by the divisor, if there is one.
    pub fn divided(&self, number: f64) -> f64 {
        self.divisor.map_or(number, |by| (number / f64::from(by)).floor())
    }

    /// Parses a constant, a lookup, or `${if exists{FILE}{A}{B}}` whose branches are constants or lookups.
    fn value(text: &str, depth: usize) -> Option<Self> {
        if is_constant(text) {
            return Some(Self { default: Some(text.trim().to_owned()), ..Self::default() });
        }
        let inner = whole(text).filter(|_| depth < MAX_DEPTH)?;
        match after_word(inner, "if") {
            Some(rest) => Self::if_exists(rest, depth),
            None => Self::of_table(after_word(inner, "lookup")?, depth),
        }
    }

    fn of_table(inner: &str, depth: usize) -> Option<Self> {
        let (by, inner) = braced(inner)?;
        let (kind, inner) = inner.split_at(inner.find('{')?);
        let (file, inner) = braced(inner)?;
        let (found, inner) = match braced(inner.trim_start()) {
            Some((found, inner)) => (found, inner.trim()),
            None => ("$value", inner.trim()),
        };
        let others = match inner {
            // With `fail` the condition `ratelimit` is false for this key, so that there is no limit.
            "fail" => Self { default: Some(UNLIMITED.to_owned()), ..Self::default() },
            "" => Self::default(),
            _ => Self::value(braced(inner)?.0, depth + 1)?,
        };
        let by = key::plain(by)?;
        let table =
            Self { by: Some(by), tables: vec![(kind.trim().to_owned(), file.trim().to_owned())], ..Self::default() };
        matches!(found.trim(), "$value" | "${value}").then_some(())?;
        table.or(others)
    }

    /// Parses both branches. Returns `None` if the branches have different values for keys that no table has.
    fn if_exists(rest: &str, depth: usize) -> Option<Self> {
        let (_, rest) = Test::parse(rest).filter(|(test, _)| test.name == "exists" && !test.negated)?;
        let (yes, rest) = braced(rest.trim_start())?;
        let (no, _) = braced(rest.trim_start()).filter(|(_, rest)| rest.trim().is_empty())?;
        let (yes, no) = (Self::value(yes, depth + 1)?, Self::value(no, depth + 1)?);
        (yes.default == no.default).then(|| yes.or(no)).flatten()
    }

    /// Adds the tables of another lookup. These tables are used for keys that the tables of this lookup do not have.
    fn or(mut self, others: Self) -> Option<Self> {
        let is_same = self.by.is_none() || others.by.is_none() || self.by == others.by;
        self.tables.extend(others.tables);
        is_same.then(|| Self { by: self.by.or(others.by), tables: self.tables, default: others.default, divisor: None })
    }

    /// Returns the file of the first table.
    pub fn file(&self) -> &str {
        self.tables.first().map_or("", |(_, file)| file)
    }

    /// Returns the value for keys that no table has.
    pub fn default_value(&self, allowance: &Allowance) -> Option<String> {
        let row = self.rows(allowance).into_iter().flatten().find(|(who, _)| who == "*");
        row.map(|(_, value)| value).or_else(|| self.default.clone())
    }

    /// Returns which keys this lookup finds in a table; `None` if it does not look up a client's address.
    fn networks(&self, kind: &str) -> Option<Networks> {
        match self.by {
            Some(Field::Client(_)) if table::base(kind) == "iplsearch" => Some(Networks::Containing),
            Some(Field::Client(widths)) if widths == Widths::default() => Some(Networks::None),
            Some(Field::Client(widths)) => Some(Networks::OfLength(widths.of(IpAddr::V4(Ipv4Addr::UNSPECIFIED)))),
            _ => None,
        }
    }

    /// Returns the rows of all tables, each as key and value. Returns an error that says why the import cannot know the
    /// rows.
    pub fn rows(&self, allowance: &Allowance) -> Result<Vec<(String, String)>, String> {
        let mut rows: Vec<(String, String)> = Vec::new();
        for (kind, file) in &self.tables {
            for file in files(file, allowance)? {
                let new = table::rows(kind, &file, allowance)?;
                let networks = self.networks(kind);
                rows.extend(new.into_iter().filter(|(key, _)| networks.is_none_or(|networks| networks.finds(key))));
            }
        }
        let mut seen = HashSet::new();
        rows.retain(|(who, _)| seen.insert(who.clone()));
        Ok(rows)
    }
}

/// Returns the files that a name stands for: a part `${lookup{…}dsearch{FOLDER}}` stands for each name in that folder.
fn files(name: &str, allowance: &Allowance) -> Result<Vec<String>, String> {
    if is_constant(name) {
        return Ok(vec![name.to_owned()]);
    }
    let unknown = || format!("the file name {name} is known only to Exim");
    let at = name.find('$').ok_or_else(unknown)?;
    let (inner, after) = expansion(&name[at..]).filter(|(_, after)| is_constant(after)).ok_or_else(unknown)?;
    let (_, rest) = after_word(inner, "lookup").and_then(braced).ok_or_else(unknown)?;
    let folder = rest.trim_start().strip_prefix("dsearch").and_then(|rest| braced(rest.trim_start()));
    let (folder, _) = folder.ok_or_else(unknown)?;
    let names = table::rows("dsearch", folder.trim(), allowance)?;
    let files = names.iter().map(|(part, _)| format!("{}{part}{after}", &name[..at]));
    Ok(files.filter(|file| Path::new(file).exists()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lookup_has_a_table_and_a_default() {
        for (text, kind, file, default) in [
            (
                "${lookup{$sender_host_address}lsearch*{/etc/limits}{$value}{100}}",
                "lsearch*",
                "/etc/limits",
                Some("100"),
            ),
            ("${lookup {$sender_host_address} cdb {DB/x.cdb} {$value} {9 / 1h} }", "cdb", "DB/x.cdb", Some("9 / 1h")),
            ("${lookup{$sender_host_address}iplsearch{f}{$value}fail}", "iplsearch", "f", Some("unlimited")),
            ("${lookup{$sender_host_address}lsearch{f}}", "lsearch", "f", None),
        ] {
            let expected = Lookup {
                by: Some(Field::Client(Default::default())),
                tables: vec![(kind.into(), file.into())],
                default: default.map(str::to_owned),
                divisor: None,
            };
            assert_eq!(Lookup::parse(text), Some(expected), "{text}");
        }
        for text in ["${lookup mysql{select 1}}", "100", "${lookup{$acl_c_x}lsearch{f}{$value}{1}}"] {
            assert_eq!(Lookup::parse(text), None, "{text}");
        }
    }
}
