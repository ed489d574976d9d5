//! Translation of regular expressions, as in Exim and postfwd, into patterns of limits, whose only wildcard is `*`.

use std::net::IpAddr;

/// Values for which an item of a rule, or another test of a field, is true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Every value, also none.
    Always,
    /// Every value that is not empty.
    Present,
    /// No value.
    Absent,
    /// Values that match one of these patterns.
    Among(Vec<String>),
    /// Values that match none of these patterns. If `is_present` is true, there must be a value.
    Not { patterns: Vec<String>, is_present: bool },
}

impl Meaning {
    /// Returns the values for which the negation of the item is true.
    pub fn negated(self) -> Option<Self> {
        match self {
            Self::Present => Some(Self::Absent),
            Self::Absent => Some(Self::Present),
            Self::Among(patterns) => Some(Self::Not { patterns, is_present: false }),
            Self::Not { patterns, is_present: false } => Some(Self::Among(patterns)),
            Self::Always | Self::Not { .. } => None,
        }
    }
}

/// Returns a regular expression without the slashes around it.
pub fn bare(value: &str) -> &str {
    value.strip_prefix('/').and_then(|value| value.strip_suffix('/')).unwrap_or(value)
}

/// Translates a regular expression for a key of `match`; `None` if patterns cannot express it.
pub fn meaning(key: &str, expression: &str) -> Option<Meaning> {
    let core = expression.strip_prefix('^').unwrap_or(expression);
    let core = core.strip_suffix('$').unwrap_or(core);
    let core = core.strip_prefix('(').and_then(|core| core.strip_suffix(')')).unwrap_or(core);
    let is_whole = expression.starts_with('^') && expression.ends_with('$');
    match core {
        "" if is_whole => return Some(Meaning::Absent),
        "" | ".*" => return Some(Meaning::Always),
        "." | ".+" | r"\S" | r"\S+" | r"\w" | r"\w+" | r"[^\s]+" => return Some(Meaning::Present),
        "[^@]+" if is_whole && is_address(key) => {
            return Some(Meaning::Not { patterns: vec!["*@*".to_owned()], is_present: true });
        }
        _ => {}
    }
    let group = expression.find('(').zip(expression.rfind(')'));
    let (before, inner, after) = match group {
        Some((from, to)) if from < to => (&expression[..from], &expression[from + 1..to], &expression[to + 1..]),
        Some(_) => return None,
        None => (expression, "", ""),
    };
    let inner = inner.strip_prefix("?:").unwrap_or(inner);
    let patterns = inner.split('|').map(|one| patterns(key, &format!("{before}{one}{after}")));
    Some(Meaning::Among(patterns.collect::<Option<Vec<_>>>()?.concat()))
}

fn is_address(key: &str) -> bool {
    matches!(key, "user" | "sender" | "recipient")
}

/// Translates a regular expression that has only literal characters, `.*` and `.+`.
fn patterns(key: &str, expression: &str) -> Option<Vec<String>> {
    let (core, begin) = expression.strip_prefix('^').map_or((expression, "*"), |core| (core, ""));
    let is_ended = core.ends_with('$') && !core.ends_with("\\$");
    let (core, end) = if is_ended { (&core[..core.len() - 1], "") } else { (core, "*") };
    let mut pattern = begin.to_owned();
    let mut characters = core.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\\' => pattern.push(characters.next().filter(|c| matches!(c, '.' | '@' | '-' | '_' | '+'))?),
            '.' if characters.next_if(|c| matches!(c, '*' | '+')).is_some() => pattern.push('*'),
            // In a regular expression a dot matches any character, but an administrator who writes example.org means a
            // literal dot.
            '.' | '@' | '-' | '_' => pattern.push(c),
            _ if c.is_ascii_alphanumeric() => pattern.push(c),
            _ => return None,
        }
    }
    pattern += end;
    while pattern.contains("**") {
        pattern = pattern.replace("**", "*");
    }
    match key {
        "client" => pattern.parse::<IpAddr>().is_ok().then(|| vec![pattern]),
        "local part" => (!pattern.contains('@')).then(|| vec![pattern]),
        _ if is_address(key) && !pattern.contains('@') => without_domain(&pattern),
        _ => Some(vec![pattern]),
    }
}

/// Converts a pattern without `@` into patterns for whole addresses. This is necessary because a limit compares a
/// pattern without `@` with the local part alone.
fn without_domain(pattern: &str) -> Option<Vec<String>> {
    let core = pattern.trim_matches('*');
    if core.is_empty() || core.contains('*') {
        return None;
    }
    Some(match (pattern.starts_with('*'), pattern.ends_with('*')) {
        (true, true) => vec![pattern.to_owned(), format!("*@{pattern}")],
        (true, false) => vec![format!("*@{pattern}")],
        (false, _) => vec![pattern.to_owned()],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_expressions_are_patterns() {
        let among = |items: &[&str]| Some(Meaning::Among(items.iter().map(|item| (*item).to_owned()).collect()));
        for (key, expression, expected) in [
            ("user", "^(.+)$", Some(Meaning::Present)),
            ("user", "^(\\S+)$", Some(Meaning::Present)),
            ("user", "^$", Some(Meaning::Absent)),
            ("recipient-domain", ".*", Some(Meaning::Always)),
            ("sender", ".+@.+", among(&["*@*"])),
            ("user", "^(alice|bob)$", among(&["alice", "bob"])),
            ("user", "@(example\\.org|example\\.com)$", among(&["*@example.org", "*@example.com"])),
            ("recipient", ".+@yahoo\\.(com|com\\.br)$", among(&["*@yahoo.com", "*@yahoo.com.br"])),
            ("sender-domain", "\\.example\\.org$", among(&["*.example.org"])),
            ("user", "bob", among(&["*bob*", "*@*bob*"])),
            ("user", "^bob", among(&["bob*"])),
            ("sender", "example\\.org$", among(&["*@*example.org"])),
            ("local part", "^news", among(&["news*"])),
            ("sender", "\\(x", None),
            ("sender", "[0-9]+@", None),
            ("sender", "a.*b", None),
            ("client", "^10\\.", None),
        ] {
            assert_eq!(meaning(key, expression), expected, "{key} {expression}");
        }
        let local = Meaning::Not { patterns: vec!["*@*".to_owned()], is_present: true };
        assert_eq!(meaning("user", "^[^@]+$"), Some(local));
    }
}
