//! Parser of Exim's lists of hosts, domains and addresses, whose items become values of `match` and `except`.

use super::super::budget::Allowance;
use super::table::{self, Networks};
use ipnet::IpNet;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

/// Kind of the items of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Hosts,
    Domains,
    Addresses,
    LocalParts,
}

/// Named lists of an Exim configuration.
#[derive(Debug, Default)]
pub struct Named {
    pub lists: HashMap<(Kind, String), String>,
    /// Names of the authenticators that the configuration defines. Empty if the input is only a part of a configuration.
    pub authenticators: Vec<String>,
    /// Bounds on the use of these lists: each list can name several other lists, and those lists can name further
    /// lists.
    pub allowance: Rc<Allowance>,
}

/// A list of Exim, translated for limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Items that match; `None` if everything matches.
    pub among: Option<Vec<String>>,
    /// Items that do not match, as exceptions from `among`.
    pub but: Vec<String>,
}

/// Maximum depth of lists that name other lists.
const MAX_DEPTH: usize = 20;

impl List {
    /// Parses a list. Returns an error that names the item that limits cannot express.
    pub fn parse(kind: Kind, text: &str, named: &Named) -> Result<Self, String> {
        let mut items = Vec::new();
        gather(kind, text, named, false, 0, &mut items)?;
        let (mut but, mut among) = (Vec::new(), Vec::new());
        let is_last_negated = split(text).last().is_some_and(|last| last.starts_with('!'));
        let ends_with_negation = is_last_negated || items.last().is_some_and(|(negated, _)| *negated);
        for (negated, item) in items {
            match negated {
                true if !among.is_empty() => {
                    return Err(format!(
                        "!{item} after others: in Exim the first match decides, and limits have no order"
                    ));
                }
                true => but.push(item),
                false => among.push(item),
            }
        }
        // In Exim, a list whose last item is negated matches everything that no item names.
        let among = if ends_with_negation || among.iter().any(|item| item == "*") { None } else { Some(among) };
        Ok(Self { among, but })
    }
}

/// Collects the items of a list, and the items of the lists that it names.
fn gather(
    kind: Kind,
    text: &str,
    named: &Named,
    negated: bool,
    depth: usize,
    items: &mut Vec<(bool, String)>,
) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err("lists name each other".to_owned());
    }
    named.allowance.octets(text.len())?;
    for written in split(text) {
        named.allowance.items(1)?;
        let (is_not, name) = match written.strip_prefix('!') {
            Some(rest) => (true, rest.trim()),
            None => (false, &*written),
        };
        match name.strip_prefix('+') {
            Some("include_unknown" | "ignore_unknown" | "include_defer" | "ignore_defer" | "caseful") => {}
            Some(list) => {
                let other =
                    named.lists.get(&(kind, list.to_owned())).ok_or_else(|| format!("there is no list +{list}"))?;
                let negates = other.contains('!') && (negated || is_not);
                if negates {
                    return Err(format!("!+{list} has items with ! of its own"));
                }
                gather(kind, other, named, negated != is_not, depth + 1, items)?;
            }
            None => {
                let read = read(kind, name, &named.allowance)?;
                items.extend(read.into_iter().map(|item| (negated != is_not, item)));
            }
        }
    }
    Ok(())
}

/// Reads one item. If the item names a file or the table of a lookup, returns the items in this file or table.
fn read(kind: Kind, name: &str, allowance: &Allowance) -> Result<Vec<String>, String> {
    if name.contains('$') {
        return Err(format!("{name} is known only to Exim"));
    }
    let names = match name.split_once(';') {
        _ if name.starts_with('/') => {
            table::items(name, matches!(kind, Kind::Addresses | Kind::LocalParts), allowance)?
        }
        Some((lookup, file)) if !name.starts_with(['^', '@']) => keys(kind, lookup, file.trim(), allowance)?,
        _ if kind == Kind::Hosts && name == "localhost" => vec!["127.0.0.1".to_owned(), "::1".to_owned()],
        _ => return Ok(item(kind, name)?.into_iter().collect()),
    };
    let mut items = Vec::new();
    for name in &names {
        allowance.octets(name.len())?;
        if name.starts_with('!') {
            return Err(format!("the file has an item with ! of its own: {name}"));
        }
        items.extend(item(kind, name)?);
    }
    Ok(items)
}

/// Returns the keys of a table as items of a list. Returns an error for tables whose keys are matched in another way
/// than items of a list.
fn keys(kind: Kind, lookup: &str, file: &str, allowance: &Allowance) -> Result<Vec<String>, String> {
    let is_exact = |key: &str| !key.contains(['*', '^', '+']);
    let rows = table::rows(lookup, file, allowance).map_err(|why| format!("{lookup};{file}: {why}"))?;
    let mut keys: Vec<String> = rows.into_iter().map(|(key, _)| key).collect();
    if kind == Kind::Hosts {
        let networks = Networks::of_lookup(lookup).ok_or_else(|| {
            format!("{lookup};{file}: Exim looks up the host's name, and limits look up no names; with net-iplsearch Exim looks up the address")
        })?;
        keys.retain(|key| networks.finds(key));
    }
    let is_pattern = table::base(lookup).contains("wild");
    match keys.iter().find(|key| !(is_exact(key) || is_pattern && key.starts_with('*'))) {
        Some(key) => Err(format!("{lookup};{file}: the key {key} is no plain item")),
        // Exim looks up a whole address, so it never finds a key without a domain.
        None if kind == Kind::Addresses && !is_pattern => {
            Ok(keys.into_iter().filter(|key| key.contains('@')).collect())
        }
        None => Ok(keys),
    }
}

/// Splits a list at colons, or at the character that follows a `<` at its beginning. Two separators in a row are one
/// literal character.
fn split(text: &str) -> Vec<String> {
    let text = text.trim();
    let (separator, text) = match text.strip_prefix('<').and_then(|rest| Some((rest.chars().next()?, rest))) {
        Some((c, rest)) if c.is_ascii_punctuation() => (c, &rest[1..]),
        _ => (':', text),
    };
    let (mut items, mut item) = (Vec::new(), String::new());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        if c != separator {
            item.push(c);
        } else if characters.peek() == Some(&separator) {
            characters.next();
            item.push(c);
        } else {
            items.push(std::mem::take(&mut item));
        }
    }
    // A separator at the end begins no further item.
    if !item.trim().is_empty() {
        items.push(item);
    }
    items.into_iter().map(|item| item.trim().to_owned()).collect()
}

/// Translates one item; `None` if no client of Weir can match it.
fn item(kind: Kind, text: &str) -> Result<Option<String>, String> {
    let no = |why: &str| Err(format!("{text} {why}"));
    if text == "*" {
        return Ok(Some(text.to_owned()));
    }
    if text.starts_with(['^', '@', '\\', '/']) || text.contains(['$', ';']) {
        return no("is no plain item");
    }
    match kind {
        // In Exim, an empty item matches mail from local programs, which has no client address.
        Kind::Hosts if text.is_empty() => Ok(None),
        Kind::Hosts => match text.parse::<IpNet>().is_ok() || text.parse::<IpAddr>().is_ok() {
            true => Ok(Some(text.to_owned())),
            false => no("is no address or network, and limits look up no names"),
        },
        Kind::Addresses if text.is_empty() => Ok(Some("<>".to_owned())),
        Kind::Addresses if !text.contains('@') => Ok(Some(format!("*@{text}"))),
        _ if text.is_empty() => no("is empty"),
        _ if text.contains(char::is_whitespace) => no("is no plain item"),
        _ => Ok(Some(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(among: Option<&[&str]>, but: &[&str]) -> List {
        let own = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
        List { among: among.map(own), but: own(but) }
    }

    #[test]
    fn files_have_items() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("senders", "a@b # first\n\n!c.d\n");
        write("empty", "# nobody\n");
        write("hosts", "192.0.2.1 # one\n10.0.0.0/8");
        write("table", "e@f: 1\nlocal: 2\n");
        let parse = |kind, text: &str| {
            List::parse(kind, &text.replace("FOLDER", &folder.path().display().to_string()), &Named::default())
        };
        assert_eq!(parse(Kind::Hosts, "FOLDER/hosts"), Ok(list(Some(&["192.0.2.1", "10.0.0.0/8"]), &[])));
        assert_eq!(parse(Kind::Hosts, "! FOLDER/hosts"), Ok(list(None, &["192.0.2.1", "10.0.0.0/8"])));
        assert_eq!(parse(Kind::Addresses, "lsearch;FOLDER/table"), Ok(list(Some(&["e@f"]), &[])));
        assert!(parse(Kind::Addresses, "FOLDER/senders").unwrap_err().contains("! of its own"));
        assert_eq!(parse(Kind::Hosts, "! FOLDER/empty"), Ok(list(None, &[])));
        assert!(parse(Kind::Hosts, "FOLDER/none").unwrap_err().contains("there is no"));
    }

    #[test]
    fn list_items_match_or_are_excepted() {
        let mut named = Named::default();
        for (name, items) in [("relay", "127.0.0.1 : ::::1"), ("all", "+relay : 192.0.2.0/24")] {
            named.lists.insert((Kind::Hosts, name.to_owned()), items.to_owned());
        }
        for (kind, text, expected) in [
            (Kind::Hosts, "+all", list(Some(&["127.0.0.1", "::1", "192.0.2.0/24"]), &[])),
            (Kind::Hosts, "<; ::1 ; 10.0.0.0/8", list(Some(&["::1", "10.0.0.0/8"]), &[])),
            (Kind::Hosts, ":", list(Some(&[]), &[])),
            (Kind::Hosts, ": localhost", list(Some(&["127.0.0.1", "::1"]), &[])),
            (Kind::Hosts, "!10.0.0.1 : 10.0.0.0/8", list(Some(&["10.0.0.0/8"]), &["10.0.0.1"])),
            (Kind::Hosts, "!+relay", list(None, &["127.0.0.1", "::1"])),
            (Kind::Hosts, "!10.0.0.1 : *", list(None, &["10.0.0.1"])),
            (Kind::Addresses, "a@b : c.d : *@*.e :", list(Some(&["a@b", "*@c.d", "*@*.e"]), &[])),
            (Kind::Addresses, ":", list(Some(&["<>"]), &[])),
            (Kind::Domains, "*.example.org", list(Some(&["*.example.org"]), &[])),
            (Kind::LocalParts, "postmaster : abuse", list(Some(&["postmaster", "abuse"]), &[])),
        ] {
            assert_eq!(List::parse(kind, text, &named), Ok(expected), "{text}");
        }
        for (kind, text) in [
            (Kind::Hosts, "10.0.0.0/8 : !10.0.0.1 : 192.0.2.1"),
            (Kind::Hosts, "mail.example.org"),
            (Kind::Hosts, "+none"),
            (Kind::Domains, "@"),
            (Kind::Domains, "lsearch;/none/domains"),
            (Kind::Addresses, "/none/senders"),
            (Kind::Addresses, "! /none/senders"),
            (Kind::Addresses, "^.*@x"),
        ] {
            assert!(List::parse(kind, text, &named).is_err(), "{text}");
        }
    }
}
