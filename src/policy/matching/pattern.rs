//! Patterns for the values of a field: `*@students.example.org`, `postmaster`, `*.example.org`.

use crate::policy::address::{NULL_SENDER, domain, lower_case, split};
use crate::policy::request::{Asn, Country};
use foldhash::fast::RandomState;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

/// Shape of the values of a field. In a pattern, `*` stands for any sequence of characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// User, sender or recipient. A pattern without `@` is a local part: it matches addresses with this local part and
    /// any domain or no domain. A `*` before the `@` does not match an `@`. The null sender, `<>`, matches only the
    /// patterns `<>` and `*`.
    Address,
    /// Domain of an address.
    Domain,
    /// Listener, group, or a client's name in EHLO.
    Name,
    /// Country code of two letters, or `*`.
    Country,
    /// Number of an autonomous system, with or without `AS`, or `*`.
    Asn,
}

/// Map from patterns to values. It is fast even with 100,000 patterns, because hash tables find patterns without `*`
/// and patterns of the forms `*@DOMAIN`, `*@*.DOMAIN` and `*.DOMAIN`. Only other patterns with `*` are compared with
/// the value one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternTable<T> {
    shape: Shape,
    entries: Vec<Entry<T>>,
    /// All patterns, as long as there are at most [`MAX_FEW`]. Comparing each pattern is then faster than a look-up.
    few: Option<Vec<(Class, Box<str>)>>,
    /// Pattern `*`.
    any: Option<usize>,
    /// Patterns without `*`.
    exact: Indices,
    /// Patterns without `@` and `*`: local parts, at any domain.
    locals: Indices,
    /// Domains of `*@DOMAIN`.
    domains: Indices,
    /// Domains of the patterns `*@*.DOMAIN`, each with the dot before it. If the values are not addresses: domains of
    /// the patterns `*.DOMAIN`.
    parents: Indices,
    /// All other patterns.
    globs: Indices,
}

/// Indices of entries, by pattern.
type Indices = HashMap<Box<str>, usize, RandomState>;

/// Class of a pattern: the way in which it is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Pattern `*`.
    Any,
    Exact,
    /// Local part without `*`, at any domain.
    Local,
    /// Domain of `*@DOMAIN`.
    AtDomain,
    /// Domain of `*@*.DOMAIN`, with the dot before it. If the values are not addresses: domain of `*.DOMAIN`.
    Parent,
    Glob,
}

/// Maximum number of patterns for which comparing each pattern is faster than a look-up.
const MAX_FEW: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry<T> {
    value: T,
    /// Number of characters other than `*`.
    literals: usize,
}

/// Error in a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadPattern {
    Empty,
    /// The table has this pattern already.
    Twice(Box<str>),
    NoLocalPart(Box<str>),
    NoDomain(Box<str>),
    /// Address where a domain is expected.
    NotADomain(Box<str>),
    NotACountry(Box<str>),
    NotAnAsn(Box<str>),
}

impl fmt::Display for BadPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a pattern is empty; \"*\" matches everything"),
            Self::Twice(text) => write!(f, "\"{text}\" is listed twice"),
            Self::NoLocalPart(text) => write!(f, "\"{text}\" has nothing before the @; did you mean \"*{text}\"?"),
            Self::NoDomain(text) => {
                write!(f, "\"{text}\" has nothing after the @; did you mean \"{}\"?", text.trim_end_matches('@'))
            }
            Self::NotADomain(text) => match split(text).1 {
                Some(domain) => write!(f, "\"{text}\" is not a domain; did you mean \"{domain}\"?"),
                None => write!(f, "\"{text}\" is not a domain"),
            },
            Self::NotACountry(text) => {
                write!(f, "\"{text}\" is not a country code: write the two letters of ISO 3166, as in \"at\"")
            }
            Self::NotAnAsn(text) => {
                write!(f, "\"{text}\" is not the number of an autonomous system: write one as in \"AS1853\"")
            }
        }
    }
}

impl std::error::Error for BadPattern {}

impl<T> PatternTable<T> {
    pub fn new(shape: Shape) -> Self {
        let [exact, locals, domains, parents, globs] = Default::default();
        Self { shape, entries: Vec::new(), few: Some(Vec::new()), any: None, exact, locals, domains, parents, globs }
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|entry| &entry.value)
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of patterns.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Normalizes a pattern and adds it.
    pub fn insert(&mut self, pattern: &str, value: T) -> Result<(), BadPattern> {
        let normalized = normalized(self.shape, pattern);
        self.check(&normalized).map_err(|bad| bad(pattern.into()))?;
        let index = self.entries.len();
        let (class, key) = self.class(&normalized);
        let is_there = match self.indices(class) {
            Some(indices) if indices.contains_key(key) => true,
            Some(indices) => indices.insert(key.into(), index).is_some(),
            None => self.any.is_some(),
        };
        if is_there {
            return Err(BadPattern::Twice(pattern.into()));
        }
        if class == Class::Any {
            self.any = Some(index);
        }
        let literals = normalized.chars().filter(|c| *c != '*').count();
        self.entries.push(Entry { value, literals });
        self.few = self.few.take().filter(|few| few.len() < MAX_FEW);
        self.few.iter_mut().for_each(|few| few.push((class, key.into())));
        Ok(())
    }

    /// Checks that a normalized pattern can match values of the table's shape.
    fn check(&self, pattern: &str) -> Result<(), fn(Box<str>) -> BadPattern> {
        if pattern.is_empty() {
            return Err(|_| BadPattern::Empty);
        }
        match (self.shape, split(pattern)) {
            (Shape::Address, ("", Some(_))) => Err(BadPattern::NoLocalPart),
            (Shape::Address, (_, Some(""))) => Err(BadPattern::NoDomain),
            (Shape::Country, _) if pattern != "*" && pattern.parse::<Country>().is_err() => {
                Err(BadPattern::NotACountry)
            }
            (Shape::Asn, _) if pattern != "*" && pattern.parse::<Asn>().is_err() => Err(BadPattern::NotAnAsn),
            (Shape::Domain, _) if pattern.contains('@') || pattern == NULL_SENDER => Err(BadPattern::NotADomain),
            _ => Ok(()),
        }
    }

    /// Returns the class of a pattern, and the part of the pattern to compare.
    fn class<'p>(&self, pattern: &'p str) -> (Class, &'p str) {
        let is_plain = |text: &str| !text.contains('*');
        let parent = |text: &'p str| text.strip_prefix('*').filter(|rest| rest.starts_with('.') && is_plain(rest));
        match (self.shape, split(pattern)) {
            _ if pattern == "*" => (Class::Any, pattern),
            (Shape::Address, (local, None)) if is_plain(local) && local != NULL_SENDER => (Class::Local, local),
            _ if is_plain(pattern) => (Class::Exact, pattern),
            (Shape::Address, ("*", Some(domain))) if is_plain(domain) => (Class::AtDomain, domain),
            (Shape::Address, ("*", Some(domain))) => match parent(domain) {
                Some(parent) => (Class::Parent, parent),
                None => (Class::Glob, pattern),
            },
            (Shape::Address, _) => (Class::Glob, pattern),
            (_, _) => match parent(pattern) {
                Some(parent) => (Class::Parent, parent),
                None => (Class::Glob, pattern),
            },
        }
    }

    /// Returns the map for patterns of a class; `None` for the pattern `*`.
    fn indices(&mut self, class: Class) -> Option<&mut Indices> {
        match class {
            Class::Any => None,
            Class::Exact => Some(&mut self.exact),
            Class::Local => Some(&mut self.locals),
            Class::AtDomain => Some(&mut self.domains),
            Class::Parent => Some(&mut self.parents),
            Class::Glob => Some(&mut self.globs),
        }
    }

    /// Returns the value for a normalized text. A pattern that equals the text has precedence. Otherwise the matching
    /// pattern with the most characters other than `*` is used. Among patterns with the same number of these
    /// characters, the pattern that was added first is used.
    pub fn find(&self, value: &str) -> Option<&T> {
        if let Some(few) = &self.few {
            return self.find_few(few, value).map(|index| &self.entries[index].value);
        }
        let index = match self.shape {
            _ if self.entries.is_empty() => None,
            Shape::Address if value == NULL_SENDER => self.exact.get(NULL_SENDER).copied(),
            Shape::Address => self.find_address(value),
            _ => {
                let near = || self.better(self.parent_of(value), self.glob(|pattern| matches_domain(pattern, value)));
                self.exact.get(value).copied().or_else(near)
            }
        };
        index.or(self.any).map(|index| &self.entries[index].value)
    }

    /// Finds the same pattern as [`PatternTable::find`], by comparing each of the few patterns. Returns the pattern's
    /// index.
    fn find_few(&self, few: &[(Class, Box<str>)], value: &str) -> Option<usize> {
        let is_address = self.shape == Shape::Address;
        let is_null = is_address && value == NULL_SENDER;
        let mut best = None;
        for (index, (class, text)) in few.iter().enumerate() {
            // Compare the beginning or end of the value first. Most patterns differ there, so that the value need not
            // be split.
            let matched = match class {
                // A local pattern equals only a value without a domain.
                Class::Exact | Class::Local if **text == *value => return Some(index),
                Class::Exact | Class::Any => false,
                _ if is_null => false,
                Class::Local => value.starts_with(&**text) && split(value).0 == &**text,
                // The `@` before the domain is the last `@` of the value, because no domain contains an `@`.
                Class::AtDomain => value.strip_suffix(&**text).is_some_and(|local| local.ends_with('@')),
                Class::Parent if !is_address => value.ends_with(&**text),
                Class::Parent => {
                    value.ends_with(&**text) && split(value).1.is_some_and(|domain| domain.ends_with(&**text))
                }
                Class::Glob => self.is_glob_of(text, value),
            };
            if matched {
                best = self.better(best, Some(index));
            }
        }
        best.or(self.any)
    }

    fn is_glob_of(&self, pattern: &str, value: &str) -> bool {
        if self.shape != Shape::Address {
            return matches_domain(pattern, value);
        }
        let (local, domain) = split(value);
        match (split(pattern), domain) {
            ((before, None), _) => matches(before, local),
            ((before, Some(after)), Some(domain)) => matches(before, local) && matches_domain(after, domain),
            ((_, Some(_)), None) => false,
        }
    }

    fn find_address(&self, address: &str) -> Option<usize> {
        let (local, domain) = split(address);
        let Some(domain) = domain else {
            let near = || self.glob(|pattern| split(pattern).1.is_none() && matches(pattern, local));
            return self.locals.get(local).copied().or_else(near);
        };
        if let Some(exact) = self.exact.get(address) {
            return Some(*exact);
        }
        let glob = self.glob(|pattern| match split(pattern) {
            (before, None) => matches(before, local),
            (before, Some(after)) => matches(before, local) && matches_domain(after, domain),
        });
        let at_domain = self.better(self.domains.get(domain).copied(), self.parent_of(domain));
        self.better(self.better(self.locals.get(local).copied(), at_domain), glob)
    }

    /// Returns the index of the longest entry of `parents` that contains this domain.
    fn parent_of(&self, domain: &str) -> Option<usize> {
        if self.parents.is_empty() {
            return None;
        }
        let mut dots = domain.match_indices('.').map(|(at, _)| at);
        dots.find_map(|at| self.parents.get(&domain[at..]).copied())
    }

    /// Returns the index of the glob that matches and has the most characters other than `*`.
    fn glob(&self, is_match: impl Fn(&str) -> bool) -> Option<usize> {
        self.globs.iter().fold(None, |best, (pattern, index)| {
            let is_better = self.better(best, Some(*index)) == Some(*index);
            if is_better && is_match(pattern) { Some(*index) } else { best }
        })
    }

    /// Returns the index of the pattern with more characters other than `*`. If both patterns have the same number of
    /// these characters, returns the index of the pattern that was added first.
    fn better(&self, one: Option<usize>, other: Option<usize>) -> Option<usize> {
        let (Some(first), Some(second)) = (one, other) else { return one.or(other) };
        let rank = |index: usize| (self.entries[index].literals, Reverse(index));
        Some(if rank(second) > rank(first) { second } else { first })
    }
}

/// Normalizes a pattern in the same way as values are normalized, and merges adjacent `*`.
fn normalized(shape: Shape, pattern: &str) -> String {
    let mut normalized = match (shape, split(pattern)) {
        (Shape::Name | Shape::Country, _) => pattern.to_lowercase(),
        (Shape::Asn, _) => pattern.parse::<Asn>().map_or_else(|()| pattern.to_owned(), |asn| asn.to_string()),
        (Shape::Address, (local, Some(domain))) => {
            format!("{}@{}", lower_case(local.into()), domain::pattern(domain))
        }
        (Shape::Address, (local, None)) => lower_case(local.into()).into_owned(),
        (Shape::Domain, _) => domain::pattern(pattern).into_owned(),
    };
    let mut before = ' ';
    normalized.retain(|c| {
        let is_repeated = c == '*' && before == '*';
        before = c;
        !is_repeated
    });
    normalized
}

/// Matches a domain. A pattern with non-ASCII letters is compared with U-labels.
fn matches_domain(pattern: &str, domain: &str) -> bool {
    matches(pattern, domain) || !pattern.is_ascii() && matches(pattern, &domain::unicode(domain))
}

/// Matches a text with a pattern that has any number of `*`.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    let inner = text.strip_prefix(start).and_then(|inner| inner.strip_suffix(end));
    // The earliest match of each piece leaves the most text for the pieces after it.
    let after = |inner: &str, piece: &str| inner.find(piece).map(|at| at + piece.len());
    let all_found = |inner| middle.split('*').try_fold(inner, |inner: &str, piece| inner.get(after(inner, piece)?..));
    inner.and_then(all_found).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table<'p>(shape: Shape, patterns: &[&'p str]) -> PatternTable<&'p str> {
        let mut table = PatternTable::new(shape);
        for pattern in patterns {
            table.insert(pattern, *pattern).unwrap();
        }
        table
    }

    #[test]
    fn addresses_are_found_by_the_most_literal_pattern() {
        let patterns = [
            "*",
            "postmaster",
            "*@students.Example.org",
            "*@*.example.org",
            "*@*.org",
            "Alice@example.org",
            "al*",
            "*.lists",
            "bounce-*@*.example.*",
            "<>",
            "\"a b\"@d",
            "ÄNNE@d",
        ];
        let table = table(Shape::Address, &patterns);
        for (value, pattern) in [
            ("alice@example.org", "Alice@example.org"),
            ("alice@students.example.org", "*@students.Example.org"),
            ("alice@x.students.example.org", "*@*.example.org"),
            ("alice@example.com", "al*"),
            ("alice", "al*"),
            ("bob@example.org", "*@*.org"),
            ("bob@org", "*"),
            ("postmaster", "postmaster"),
            ("postmaster@d", "postmaster"),
            ("postmaster@students.example.org", "*@students.Example.org"),
            ("weir.lists@d", "*.lists"),
            ("bounce-7@x.example.org", "bounce-*@*.example.*"),
            ("bounce-7@example.org", "*@*.org"),
            ("\"a b\"@d", "\"a b\"@d"),
            ("änne@d", "ÄNNE@d"),
            ("<>", "<>"),
        ] {
            assert_eq!(table.find(value), Some(&pattern), "{value}");
        }
    }

    #[test]
    fn a_pattern_that_equals_a_login_without_a_domain_has_precedence() {
        let mut table = table(Shape::Address, &["al*ice", "alice"]);
        assert_eq!(table.find("alice"), Some(&"alice"));
        // Do the same look-up in a table that has too many patterns to compare each pattern.
        for other in ["b", "c", "d", "e", "f", "g", "h"] {
            table.insert(other, other).unwrap();
        }
        assert_eq!(table.find("alice"), Some(&"alice"));
    }

    #[test]
    fn patterns_and_values_may_be_spelled_with_either_kind_of_label() {
        use crate::policy::address::AddressNormalizer;
        let normalizer = AddressNormalizer::default();
        let spellings = ["bücher.example", "BU\u{308}CHER.example", "xn--bcher-kva.example", "XN--Bcher-kva.example"];
        for pattern in spellings {
            for value in spellings {
                for (pattern, value) in [
                    (format!("Ä@{pattern}"), format!("a\u{308}@{value}")),
                    (format!("*@{pattern}"), format!("a@{value}")),
                    (format!("*@*.{pattern}"), format!("a@x.{value}")),
                    (format!("a*@x*.{pattern}"), format!("a@x.{value}")),
                    (format!("*@x*ö.{pattern}"), format!("a@xyo\u{308}.{value}")),
                ] {
                    assert!(
                        table(Shape::Address, &[&pattern]).find(&normalizer.address(&value)).is_some(),
                        "{pattern} {value}"
                    );
                    // Do the same look-up in a table that has too many patterns to compare each pattern.
                    let mut many = table(Shape::Address, &[&pattern]);
                    (0..9).for_each(|n| many.insert(&format!("u{n}@d"), "").unwrap());
                    assert_eq!(many.find(&normalizer.address(&value)), Some(&&*pattern), "{pattern} {value}");
                }
                let (host, parent) = (format!("x.{value}"), format!("*.{pattern}"));
                for (pattern, value) in [(pattern, value), (&parent, &host)] {
                    assert!(
                        table(Shape::Domain, &[pattern]).find(&domain::normal(value)).is_some(),
                        "{pattern} {value}"
                    );
                }
            }
        }
        assert_eq!(table(Shape::Domain, &["*cher.example"]).find("xn--bcher-kva.example"), None);
        assert!(table(Shape::Domain, &["*ücher.example"]).find("xn--bcher-kva.example").is_some());
        assert!(table(Shape::Domain, &["[IPv6:2001:DB8:0::1]"]).find("[ipv6:2001:db8::1]").is_some());
    }

    #[test]
    fn only_a_lone_star_matches_the_null_sender_too() {
        assert_eq!(table(Shape::Address, &["*@*", "<*", "*>", "<*>", "a"]).find("<>"), None);
        assert_eq!(table(Shape::Address, &["<*", "**"]).find("<>"), Some(&"**"));
        assert_eq!(table(Shape::Address, &["<>"]).find("a@d"), None);
    }

    #[test]
    fn domains_and_names_are_matched_as_a_whole() {
        for (shape, patterns, value, pattern) in [
            (Shape::Domain, ["example.org", "*.example.org", "*example.org"], "example.org", Some("example.org")),
            (Shape::Domain, ["example.org", "*.example.org", "*example.org"], "a.b.example.org", Some("*.example.org")),
            (Shape::Domain, ["example.org", "*.org", "*example.org"], "an-example.org", Some("*example.org")),
            (Shape::Domain, ["*.org", "*.example.org", "x.*"], "example.com", None),
            (Shape::Name, ["staff", "s*", "*f"], "staff", Some("staff")),
            (Shape::Name, ["st*ff", "s*", "*f"], "stuff", Some("st*ff")),
        ] {
            assert_eq!(table(shape, &patterns).find(value), pattern.as_ref(), "{value}");
        }
        assert_eq!(PatternTable::<()>::new(Shape::Name).find("a"), None);
    }

    #[test]
    fn a_pattern_that_cannot_match_as_meant_is_refused() {
        for (shape, pattern, words) in [
            (Shape::Address, "", "a pattern is empty"),
            (Shape::Address, "Bob", "\"Bob\" is listed twice"),
            (Shape::Address, "*@D", "\"*@D\" is listed twice"),
            (Shape::Address, "***", "\"***\" is listed twice"),
            (Shape::Address, "a**@*", "\"a**@*\" is listed twice"),
            (Shape::Address, "@d", "\"@d\" has nothing before the @; did you mean \"*@d\"?"),
            (Shape::Address, "x@", "\"x@\" has nothing after the @; did you mean \"x\"?"),
            (Shape::Domain, "bob@d", "\"bob@d\" is not a domain; did you mean \"d\"?"),
            (Shape::Domain, "<>", "\"<>\" is not a domain"),
        ] {
            let mut table = table(shape, if shape == Shape::Address { &["bob", "*@d", "*", "a*@*"] } else { &[] });
            let before = table.len();
            assert!(table.insert(pattern, "").unwrap_err().to_string().starts_with(words), "{pattern}");
            assert_eq!(table.len(), before);
        }
    }

    #[test]
    fn of_a_hundred_thousand_common_patterns_none_is_tried_in_turn() {
        let mut table = PatternTable::new(Shape::Address);
        for n in 0..25_000 {
            for pattern in [format!("u{n}@d"), format!("u{n}"), format!("*@d{n}"), format!("*@*.d{n}")] {
                table.insert(&pattern, n).unwrap();
            }
        }
        assert!(table.globs.is_empty());
        for (value, n) in [("u7@d", 7), ("u8@x", 8), ("u8", 8), ("x@d9", 9), ("x@a.b.d24999", 24_999)] {
            assert_eq!(table.find(value), Some(&n), "{value}");
        }
    }

    /// Reference implementation of [`matches`]: its definition.
    fn says(pattern: &[char], text: &[char]) -> bool {
        match (pattern, text) {
            ([], []) => true,
            (['*', rest @ ..], _) => (0..=text.len()).any(|n| says(rest, &text[n..])),
            ([p, pattern @ ..], [t, text @ ..]) if p == t => says(pattern, text),
            _ => false,
        }
    }

    /// Reference implementation of a match, by the description of [`Shape`].
    fn holds(shape: Shape, pattern: &str, value: &str) -> bool {
        let says =
            |pattern: &str, text: &str| says(&pattern.chars().collect::<Vec<_>>(), &text.chars().collect::<Vec<_>>());
        if shape != Shape::Address || pattern == "*" {
            return says(pattern, value);
        }
        match (split(pattern), split(value)) {
            _ if pattern == NULL_SENDER || value == NULL_SENDER => pattern == value,
            ((before, None), (local, _)) => says(before, local),
            ((before, Some(after)), (local, Some(domain))) => says(before, local) && says(after, domain),
            ((_, Some(_)), (_, None)) => false,
        }
    }

    /// Reference implementation of [`PatternTable::find`]. Returns the index of the pattern.
    fn best(shape: Shape, patterns: &[String], value: &str) -> Option<usize> {
        let holding = (0..patterns.len()).filter(|n| holds(shape, &patterns[*n], value));
        holding.max_by_key(|n| {
            let literals = patterns[*n].chars().filter(|c| *c != '*').count();
            (patterns[*n] == value && !value.contains('*'), literals, Reverse(*n))
        })
    }

    fn shapes() -> impl Strategy<Value = Shape> {
        prop_oneof![3 => Just(Shape::Address), 1 => Just(Shape::Domain), 1 => Just(Shape::Name)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(800))]

        #[test]
        fn finds_the_same_as_trying_all_patterns(
            shape in shapes(),
            patterns in proptest::collection::vec(r#"[ab*]{0,2}[ab*"]?@?(\*\.)?[ab*."]{0,2}(\.b)?|<>|<\*"#, 0..12),
            values in proptest::collection::vec(r#"[ab"*]{0,2}@?[ab."]{0,3}(\.b)?|<>"#, 1..12),
        ) {
            let mut table = PatternTable::new(shape);
            let mut used = Vec::new();
            for pattern in patterns.iter().map(|pattern| normalized(shape, pattern)) {
                match table.insert(&pattern, used.len()) {
                    Ok(()) => used.push(pattern),
                    Err(BadPattern::Twice(_)) => prop_assert!(used.contains(&pattern)),
                    Err(_) => {}
                }
            }
            prop_assert_eq!(table.len(), used.len());
            for value in values {
                prop_assert_eq!(table.find(&value).copied(), best(shape, &used, &value), "{:?} {}", used, value);
            }
        }
    }
}
