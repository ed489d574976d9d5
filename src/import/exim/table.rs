//! Files that an Exim configuration names: tables for lookups, and lists.

use super::super::budget::{Allowance, Resource};
use std::io::ErrorKind;
use std::path::Path;

/// Reads the rows of a table, each as key and value. Returns an error that says why the import cannot know the rows.
pub fn rows(kind: &str, file: &str, allowance: &Allowance) -> Result<Vec<(String, String)>, String> {
    // A lookup with partial matching also finds the row of a parent domain.
    let is_partial = kind.trim_start().starts_with("partial");
    // In `lsearch*` tables, the row `*` has the default value; for `lsearch`, this row has the ordinary key "*".
    let has_default = kind.contains('*') || kind.contains("wildlsearch") || kind.contains("iplsearch");
    // In the keys of other lookups, an asterisk is a character like any other, which no address has.
    let has_patterns = kind.contains("*@") || kind.contains("wildlsearch") || kind.contains("iplsearch");
    let kind = base(kind);
    let mut rows = match kind {
        _ if is_partial => return Err("partial matching is not translated".to_owned()),
        "cdb" => {
            let bytes = allowance.bytes(Path::new(file)).map_err(|error| unread(file, &error))?;
            cdb(&bytes).ok_or_else(|| format!("{file} is not a cdb file"))?
        }
        "dsearch" => {
            let names = std::fs::read_dir(file).map_err(|error| unread(file, &error))?;
            let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            names.map(|name| (name.clone(), name)).collect()
        }
        _ if is_text(kind) => {
            let text = allowance.read(Path::new(file)).map_err(|error| unread(file, &error))?;
            entries(&text).iter().filter_map(|line| row(line)).collect()
        }
        _ => return Err(format!("{kind} is not a type of table that is read")),
    };
    if !allowance.take(Resource::Lines, rows.len()) {
        return Err("the import exceeds its bounds".to_owned());
    }
    rows.retain(|(key, _)| if key == "*" { has_default } else { has_patterns || !key.contains('*') });
    Ok(rows)
}

/// Reads the items of a list in a file. A `#` begins a comment; in lists of addresses only at the beginning of a word.
pub fn items(file: &str, has_addresses: bool, allowance: &Allowance) -> Result<Vec<String>, String> {
    let text = allowance.read(Path::new(file)).map_err(|error| unread(file, &error))?;
    let is_comment = |line: &str, at: usize| !has_addresses || line[..at].trim_end().len() < at || at == 0;
    let lines = text.lines().map(|line| {
        let end = line.match_indices('#').map(|(at, _)| at).find(|at| is_comment(line, *at));
        line[..end.unwrap_or(line.len())].trim().to_owned()
    });
    let items: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
    if allowance.take(Resource::Lines, items.len()) {
        Ok(items)
    } else {
        Err("the import exceeds its bounds".to_owned())
    }
}

/// Returns the reason why a file could not be read.
pub fn unread(file: &str, error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => format!("there is no {file} here"),
        _ => format!("{file} cannot be read: {error}"),
    }
}

/// Returns the basic type of a lookup, without the prefix for networks, the default and the options: `iplsearch` for
/// `net-iplsearch`.
pub fn base(kind: &str) -> &str {
    let kind = kind.trim().split(['*', ',']).next().unwrap_or_default();
    kind.rsplit('-').next().unwrap_or_default()
}

/// Keys with which a lookup by a client's address finds rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Networks {
    /// The row of the longest prefix that contains the address: `iplsearch`.
    Containing,
    /// The row whose key is exactly the address: `lsearch`, and `net-lsearch` in lists of hosts.
    None,
    /// The row whose key is exactly the network of this prefix length: `net24-lsearch` in lists of hosts.
    OfLength(u8),
}

impl Networks {
    /// Returns the keys of a lookup in a list of hosts; `None` if Exim looks up the host's name, or refuses the lookup.
    pub fn of_lookup(kind: &str) -> Option<Self> {
        let (length, base) = kind.trim().strip_prefix("net")?.split_once('-')?;
        match (length, base.starts_with("iplsearch")) {
            ("", true) => Some(Self::Containing),
            ("", false) => Some(Self::None),
            (_, true) => None,
            (length, false) => length.parse().ok().map(Self::OfLength),
        }
    }

    /// Returns whether the lookup can find a row with this key.
    pub fn finds(self, key: &str) -> bool {
        match (self, key.split_once('/')) {
            (Self::Containing, _) | (Self::None, None) => true,
            (Self::OfLength(length), Some((_, written))) => written.parse() == Ok(length),
            _ => key == "*",
        }
    }
}

fn is_text(kind: &str) -> bool {
    matches!(kind, "lsearch" | "wildlsearch" | "nwildlsearch" | "iplsearch")
}

/// Returns the entries of a table. A line that begins with a space continues the entry before it; comments are left
/// out.
fn entries(text: &str) -> Vec<String> {
    let mut entries: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#')) {
        match entries.last_mut().filter(|_| line.starts_with([' ', '\t'])) {
            Some(entry) => *entry = format!("{entry} {}", line.trim()),
            None => entries.push(line.trim_end().to_owned()),
        }
    }
    entries
}

/// Parses an entry of a table: `192.0.2.1: 500`, `"2001:db8::/32": 500`, or a key without a value.
fn row(line: &str) -> Option<(String, String)> {
    let (key, value) = match line.strip_prefix('"') {
        Some(rest) => rest.split_once('"')?,
        None => line.split_at(line.find(|c: char| c == ':' || c.is_whitespace()).unwrap_or(line.len())),
    };
    let value = value.trim_start_matches(|c: char| c == ':' || c.is_whitespace());
    Some((key.to_owned(), value.trim_end().to_owned()))
}

/// Returns the records of a file in cdb format. The file begins with 256 pairs (position and length of a hash table).
/// The records follow, up to the first hash table.
fn cdb(bytes: &[u8]) -> Option<Vec<(String, String)>> {
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
    let end = (0..256).map(|n| number(n * 8)).collect::<Option<Vec<_>>>()?.into_iter().min()?;
    let text = |from: usize, length: usize| Some(String::from_utf8_lossy(bytes.get(from..from.checked_add(length)?)?));
    let (mut rows, mut at) = (Vec::new(), 2048);
    while at < end {
        let (key, value) = (number(at)?, number(at + 4)?);
        rows.push((text(at + 8, key)?.into_owned(), text(at + 8 + key, value)?.into_owned()));
        at += 8 + key + value;
    }
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_a_key_and_a_value() {
        for (line, key, value) in [
            ("192.0.2.1: 500", "192.0.2.1", "500"),
            ("\"2001:db8::/32\": 5", "2001:db8::/32", "5"),
            ("a\t 7", "a", "7"),
            ("alone", "alone", ""),
        ] {
            assert_eq!(row(line), Some((key.into(), value.into())));
        }
        assert_eq!(entries("a: 1\n  2\n# no\n\nb\n"), ["a: 1 2", "b"]);
    }

    #[test]
    fn an_asterisk_is_a_pattern_only_where_exim_takes_it_as_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table");
        std::fs::write(&path, "bob: 1\n*@a.test: 2\n*: 3\n").unwrap();
        for (kind, keys) in [
            ("lsearch", &["bob"][..]),
            ("lsearch*", &["bob", "*"]),
            ("lsearch*@", &["bob", "*@a.test", "*"]),
            ("wildlsearch", &["bob", "*@a.test", "*"]),
        ] {
            let rows = rows(kind, &path.display().to_string(), &Allowance::default()).unwrap();
            assert_eq!(rows.iter().map(|(key, _)| &**key).collect::<Vec<_>>(), keys, "{kind}");
        }
    }

    #[test]
    fn the_records_of_a_cdb_file_are_read() {
        let mut bytes = Vec::new();
        for _ in 0..256 {
            bytes.extend(2048u32.saturating_add(16).to_le_bytes());
            bytes.extend(0u32.to_le_bytes());
        }
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(5u32.to_le_bytes());
        bytes.extend(b"bob100/d");
        assert_eq!(cdb(&bytes), Some(vec![("bob".to_owned(), "100/d".to_owned())]));
        assert_eq!((cdb(&bytes[..2060]), cdb(b"text")), (None, None));
    }

    #[test]
    fn items_end_at_a_comment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list");
        std::fs::write(&path, "a#b@c # note\n# note\n\n!d@e\n").unwrap();
        let read = |has_addresses| items(&path.display().to_string(), has_addresses, &Allowance::default());
        assert_eq!(
            (read(true).unwrap(), read(false).unwrap()),
            (vec!["a#b@c".into(), "!d@e".into()], vec!["a".into(), "!d@e".into()])
        );
        assert_eq!(items("/none", true, &Allowance::default()), Err("there is no /none here".to_owned()));
    }
}
