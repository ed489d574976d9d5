//! Parser of `${lookup{KEY}TYPE{FILE}{$value}{DEFAULT}}`: numbers from a table, which become overrides in Weir.

use super::super::budget::{Allowance, Resource};
use super::key::{self, braced};
use crate::policy::matching::Field;
use std::path::Path;

/// Lookup by a field that limits know.
#[derive(Clone, Debug, PartialEq)]
pub struct Lookup {
    /// Field of the key: the column of the overrides.
    pub by: Field,
    pub kind: String,
    pub file: String,
    /// Value for keys without a row, if the table has no row `*`.
    default: Option<String>,
}

/// Value of a key that has no limit.
pub const UNLIMITED: &str = "unlimited";

/// Maximum of table rows that are printed.
pub const MAX_ROWS: usize = 1000;

impl Lookup {
    /// Parses a text that is one lookup by one field and uses the value unchanged.
    pub fn parse(text: &str) -> Option<Self> {
        let (inner, rest) = braced(text.trim().strip_prefix('$')?)?;
        let inner = inner.trim_start().strip_prefix("lookup")?;
        let (by, inner) = braced(inner.trim_start())?;
        let (kind, inner) = inner.split_at(inner.find('{')?);
        let (file, inner) = braced(inner)?;
        let (found, inner) = match braced(inner.trim_start()) {
            Some((found, inner)) => (found, inner.trim()),
            None => ("$value", inner.trim()),
        };
        let default = match inner {
            // With `fail`, the ratelimit condition does not hold: there is no limit.
            "fail" => Some(UNLIMITED.to_owned()),
            "" => None,
            _ => Some(braced(inner)?.0.trim().to_owned()),
        };
        let owners = key::owners(by).ok()?;
        let [by] = owners.first()?.per[..] else { return None };
        let is_whole = rest.trim().is_empty() && matches!(found.trim(), "$value" | "${value}");
        is_whole.then(|| Self { by, kind: kind.trim().to_owned(), file: file.trim().to_owned(), default })
    }

    /// Returns the value for keys without a row.
    pub fn default_value(&self, allowance: &Allowance) -> Option<String> {
        let row = self.rows(allowance).into_iter().flatten().find(|(who, _)| who == "*");
        row.map(|(_, value)| value).or_else(|| self.default.clone())
    }

    /// Returns the rows of the file, as key and value. `None`: the file is not of a text type, or cannot be read.
    pub fn rows(&self, allowance: &Allowance) -> Option<Vec<(String, String)>> {
        let kind = self.kind.split(['*', ',']).next().unwrap_or_default();
        let kind = kind.rsplit('-').next().unwrap_or_default();
        if !matches!(kind, "lsearch" | "wildlsearch" | "nwildlsearch" | "iplsearch") {
            return None;
        }
        let text = allowance.read(Path::new(&self.file)).ok()?;
        let rows = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Some(rows.take_while(|_| allowance.take(Resource::Lines, 1)).filter_map(row).collect())
    }
}

/// Parses a row: `192.0.2.1: 500`, `"2001:db8::/32": 500`.
fn row(line: &str) -> Option<(String, String)> {
    let (key, value) = match line.strip_prefix('"') {
        Some(rest) => rest.split_once('"')?,
        None => line.split_at(line.find(|c: char| c == ':' || c.is_whitespace())?),
    };
    let value = value.trim_start_matches(|c: char| c == ':' || c.is_whitespace());
    Some((key.to_owned(), value.to_owned()))
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
                by: Field::Client(Default::default()),
                kind: kind.into(),
                file: file.into(),
                default: default.map(str::to_owned),
            };
            assert_eq!(Lookup::parse(text), Some(expected), "{text}");
        }
        for text in ["${lookup mysql{select 1}}", "100", "${lookup{$acl_c_x}lsearch{f}{$value}{1}}"] {
            assert_eq!(Lookup::parse(text), None, "{text}");
        }
    }

    #[test]
    fn rows_have_a_key_and_a_value() {
        for (line, key, value) in [
            ("192.0.2.1: 500", "192.0.2.1", "500"),
            ("\"2001:db8::/32\": 5", "2001:db8::/32", "5"),
            ("a\t 7", "a", "7"),
        ] {
            assert_eq!(row(line), Some((key.into(), value.into())));
        }
    }
}
