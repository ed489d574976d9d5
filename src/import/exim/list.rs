//! Parser of Exim's lists of hosts, domains and addresses, for the values of `match` and `except`.

use super::super::budget::Allowance;
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

/// Named lists of a configuration.
#[derive(Debug, Default)]
pub struct Named {
    pub lists: HashMap<(Kind, String), String>,
    /// Bounds on reading them: each list can name several others.
    pub allowance: Rc<Allowance>,
}

/// Translated list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Items that match; `None`: all.
    pub among: Option<Vec<String>>,
    /// Items that are excepted.
    pub but: Vec<String>,
}

/// Maximum depth of lists that name each other.
const MAX_DEPTH: usize = 20;

impl List {
    /// Parses a list. The error names the item that limits cannot express.
    pub fn parse(kind: Kind, text: &str, named: &Named) -> Result<Self, String> {
        let mut items = Vec::new();
        gather(kind, text, named, false, 0, &mut items)?;
        let (mut but, mut among) = (Vec::new(), Vec::new());
        let ends_with_negation = items.last().is_some_and(|(negated, _)| *negated);
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
        // A list that ends with a negated item matches everything else.
        let among = if ends_with_negation || among.iter().any(|item| item == "*") { None } else { Some(among) };
        Ok(Self { among, but })
    }
}

/// Collects the items of a list, and of the lists that it names.
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
            None => items.extend(item(kind, name)?.map(|item| (negated != is_not, item))),
        }
    }
    Ok(())
}

/// Splits a list at colons, or at the separator that follows a `<`. A double separator is a literal one.
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
    // A separator at the end does not begin another item.
    if !item.trim().is_empty() {
        items.push(item);
    }
    items.into_iter().map(|item| item.trim().to_owned()).collect()
}

/// Translates an item; `None`: no client of Weir can match it.
fn item(kind: Kind, text: &str) -> Result<Option<String>, String> {
    let no = |why: &str| Err(format!("{text} {why}"));
    if text == "*" {
        return Ok(Some(text.to_owned()));
    }
    if text.contains('$') || text.contains(';') {
        return no("is looked up, which limits do not");
    }
    if text.starts_with(['^', '@', '\\']) {
        return no("is no plain item");
    }
    match kind {
        // An empty item matches mail that does not come over the network.
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
    fn list_items_match_or_are_excepted() {
        let mut named = Named::default();
        for (name, items) in [("relay", "127.0.0.1 : ::::1"), ("all", "+relay : 192.0.2.0/24")] {
            named.lists.insert((Kind::Hosts, name.to_owned()), items.to_owned());
        }
        for (kind, text, expected) in [
            (Kind::Hosts, "+all", list(Some(&["127.0.0.1", "::1", "192.0.2.0/24"]), &[])),
            (Kind::Hosts, "<; ::1 ; 10.0.0.0/8", list(Some(&["::1", "10.0.0.0/8"]), &[])),
            (Kind::Hosts, ":", list(Some(&[]), &[])),
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
            (Kind::Domains, "lsearch;/etc/domains"),
            (Kind::Addresses, "^.*@x"),
        ] {
            assert!(List::parse(kind, text, &named).is_err(), "{text}");
        }
    }
}
