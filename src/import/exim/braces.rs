//! Syntax of Exim's string expansions: braces, variables and the tests of `${if …}`.

/// Test in `${if …}`, with its arguments: `!eq{$domain}{example.org}`.
#[derive(Debug, PartialEq, Eq)]
pub struct Test<'t> {
    pub negated: bool,
    pub name: &'t str,
    pub arguments: Vec<&'t str>,
}

/// Maximum depth of nested expansions.
pub const MAX_DEPTH: usize = 40;

/// Splits a text that begins with a brace. Returns the text between this brace and its closing brace, and the text
/// after the closing brace.
pub fn braced(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.checked_sub(1)?,
            _ if depth == 0 => return None,
            _ => {}
        }
        if depth == 0 {
            return Some((&text[1..at], &text[at + 1..]));
        }
    }
    None
}

/// Splits a text that begins with an expansion. Returns the expansion without dollar sign and braces, and the text
/// after the expansion.
pub fn expansion(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix('$')?;
    if rest.starts_with('{') {
        return braced(rest);
    }
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| rest.split_at(end))
}

/// Returns the content of a text that consists of one expansion only: `${…}` or `$name`.
pub fn whole(text: &str) -> Option<&str> {
    expansion(text.trim()).filter(|(_, rest)| rest.is_empty()).map(|(inner, _)| inner.trim())
}

/// Returns the part of an expansion after its first word, if the first word is `word`: `if …`, `lookup…`.
pub fn after_word<'t>(inner: &'t str, word: &str) -> Option<&'t str> {
    let rest = inner.trim_start().strip_prefix(word)?;
    (!rest.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'))).then(|| rest.trim_start())
}

/// Returns whether a text has nothing for Exim to expand, so that it always has the same value.
pub fn is_constant(text: &str) -> bool {
    !text.contains(['$', '\\', '{', '}'])
}

impl<'t> Test<'t> {
    /// Parses the test at the beginning of a text. Returns the test, and the text after it.
    pub fn parse(text: &'t str) -> Option<(Self, &'t str)> {
        let text = text.trim_start();
        if let Some(rest) = text.strip_prefix('!') {
            let (test, rest) = Self::parse(rest)?;
            return Some((Self { negated: !test.negated, ..test }, rest));
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '<' | '=' | '>');
        let (name, mut rest) = text.split_at(text.find(|c: char| !is_part(c)).unwrap_or(text.len()));
        let mut arguments = Vec::new();
        if name == "def" {
            let variable = rest.strip_prefix(':')?.trim_start();
            let end = variable.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(variable.len());
            arguments.push(&variable[..end]);
            rest = &variable[end..];
        }
        for _ in 0..count(name)? {
            let (argument, after) = braced(rest.trim_start())?;
            arguments.push(argument);
            rest = after;
        }
        Some((Self { negated: false, name, arguments }, rest))
    }

    /// Parses the tests of `and` and `or`: `{eq{a}{b}}{eq{c}{d}}`.
    pub fn parse_all(mut text: &'t str) -> Option<Vec<Self>> {
        let mut tests = Vec::new();
        while !text.trim().is_empty() {
            let (one, rest) = braced(text.trim_start())?;
            tests.push(Self::parse(one).filter(|(_, rest)| rest.trim().is_empty())?.0);
            text = rest;
        }
        Some(tests)
    }
}

/// Returns how many arguments in braces the test `name` has; `None` if the test is not known.
fn count(name: &str) -> Option<usize> {
    Some(match name {
        "def" => 0,
        "and" | "or" | "exists" | "bool" | "bool_lax" | "isip" | "isip4" | "isip6" => 1,
        "eq" | "eqi" | "=" | "==" | "<" | "<=" | ">" | ">=" => 2,
        "match" | "match_ip" | "match_domain" | "match_address" | "match_local_part" | "inlist" | "inlisti" => 2,
        _ => return None,
    })
}
