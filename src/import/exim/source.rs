//! Reader of an Exim configuration: resolves included files, `.ifdef` branches, macros and continued lines in the same
//! way as Exim.

use super::super::budget::{Allowance, Resource};
use super::super::source_line::SourceLine;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Logical line: a line of the file together with the lines that continue it.
#[derive(Clone, Debug)]
pub struct Line {
    /// Place of its first line in the file.
    pub place: SourceLine,
    pub text: String,
}

/// Logical lines of a configuration, and the problems found while reading it.
#[derive(Debug, Default)]
pub struct Source {
    pub lines: Vec<Line>,
    pub problems: Vec<(SourceLine, String)>,
    /// Places of conditions `ratelimit` that are not in force: in branches that `.ifdef` leaves out, or in macros that
    /// are not used.
    pub inactive: Vec<SourceLine>,
    /// Name and value of each macro in the order of definition, which is the order in which Exim replaces them.
    macros: Vec<(String, String)>,
    /// Index of each macro in `macros`.
    known: HashMap<String, usize>,
    allowance: Rc<Allowance>,
    /// The `.ifdef` branches that contain the current line, the outermost first.
    branches: Vec<Branch>,
    unfinished: Option<Line>,
    /// Macros that contain a condition `ratelimit`, and that no line has used so far.
    unused: HashMap<String, SourceLine>,
}

/// Branch of an `.ifdef` conditional.
#[derive(Debug)]
struct Branch {
    is_on: bool,
    /// Whether this branch or an earlier branch of the same conditional is in force.
    was_on: bool,
}

/// Maximum depth of files that include each other; and maximum length in octets of a line after its macros are
/// replaced.
const MAX_DEPTH: usize = 20;
const MAX_LINE: usize = 1 << 20;
const TOO_LONG: &str = "macros make this line longer than 1 MiB";

impl Source {
    /// Reads a configuration file. If an included file cannot be read, records a problem and reads the rest.
    pub fn read(path: &Path, allowance: &Rc<Allowance>) -> std::io::Result<Self> {
        let text = allowance.read(path)?;
        let mut source = Self { allowance: allowance.clone(), ..Self::default() };
        source.file(path, &text, 0);
        source.inactive.extend(source.unused.drain().map(|(_, place)| place));
        let last = source.unfinished.take();
        source.lines.extend(last);
        Ok(source)
    }

    fn file(&mut self, path: &Path, text: &str, depth: usize) {
        let file: Rc<str> = path.display().to_string().into();
        for (n, line) in text.lines().enumerate() {
            if !self.allowance.take(Resource::Lines, 1) {
                return;
            }
            let place = SourceLine::new(&file, n + 1);
            let line = line.trim();
            // Exim ignores empty lines and comments also between a line and its continuation.
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match line.strip_prefix('.').filter(|directive| directive.starts_with(|c: char| c.is_ascii_lowercase())) {
                Some(directive) => self.directive(directive, &place, path, depth),
                None if self.branches.iter().all(|branch| branch.is_on) => self.line(line, place),
                None => self.inactive.extend((0..mentions(line)).map(|_| place.clone())),
            }
        }
    }

    fn directive(&mut self, directive: &str, place: &SourceLine, path: &Path, depth: usize) {
        let (word, rest) = directive.split_once(char::is_whitespace).unwrap_or((directive, ""));
        let rest = rest.trim();
        let is_defined = word.ends_with("def") && self.is_defined(rest);
        match word {
            "ifdef" => self.branches.push(Branch { is_on: is_defined, was_on: is_defined }),
            "ifndef" => self.branches.push(Branch { is_on: !is_defined, was_on: !is_defined }),
            "elifdef" | "elifndef" | "else" => {
                let holds = word == "else" || is_defined == (word == "elifdef");
                match self.branches.last_mut() {
                    Some(branch) => {
                        branch.is_on = holds && !branch.was_on;
                        branch.was_on |= holds;
                    }
                    None => self.problems.push((place.clone(), format!(".{word} without .ifdef"))),
                }
            }
            "endif" => {
                if self.branches.pop().is_none() {
                    self.problems.push((place.clone(), ".endif without .ifdef".to_owned()));
                }
            }
            _ if !self.branches.iter().all(|branch| branch.is_on) => {}
            "include" | "include_if_exists" => match self.replaced(rest) {
                Some(name) => self.include(path, name.trim_matches('"'), word == "include", place, depth),
                None => self.problems.push((place.clone(), TOO_LONG.to_owned())),
            },
            _ => self.problems.push((place.clone(), format!(".{word} is no directive of Exim's"))),
        }
    }

    /// Returns whether a text contains the name of a macro. Names that begin with `_` count as defined: they are Exim's
    /// own macros, which describe its build.
    fn is_defined(&self, text: &str) -> bool {
        text.starts_with('_') || self.macros.iter().any(|(name, _)| self.names(text, name))
    }

    /// Returns whether a text contains the name of this macro, also inside a word.
    fn names(&self, text: &str, name: &str) -> bool {
        self.allowance.take(Resource::Searches, 1 + text.len() / 64) && text.contains(name)
    }

    fn include(&mut self, from: &Path, name: &str, must_exist: bool, place: &SourceLine, depth: usize) {
        let path: PathBuf = from.parent().unwrap_or(Path::new("")).join(name);
        let mut fail =
            |why: &str| self.problems.push((place.clone(), format!("{} is not read: {why}", path.display())));
        if depth >= MAX_DEPTH {
            return fail("files include each other");
        }
        match self.allowance.read(&path) {
            Ok(text) => self.file(&path, &text, depth + 1),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {}
            Err(error) => fail(&error.to_string()),
        }
    }

    /// Adds a line of the file, or appends it to the line that it continues.
    fn line(&mut self, line: &str, place: SourceLine) {
        let (line, goes_on) = match line.strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        // In a macro definition, macros are replaced in the value and not in the name.
        let name = if self.unfinished.is_none() { macro_name(line) } else { None };
        let text = match name {
            Some(name) => self.replaced(&line[name.len()..]).map(|value| format!("{name}{value}")),
            None => self.replaced(line),
        };
        let Some(text) = text else { return self.problems.push((place, TOO_LONG.to_owned())) };
        let mut whole = match self.unfinished.take() {
            Some(begun) => Line { text: begun.text + &text, place: begun.place },
            None => Line { place, text },
        };
        if goes_on {
            self.unfinished = Some(whole);
            return;
        }
        whole.text = whole.text.trim().to_owned();
        match macro_name(&whole.text).map(str::to_owned) {
            Some(name) => self.define(&name, whole.text[name.len()..].trim_start(), whole.place),
            None => self.lines.push(whole),
        }
    }

    /// Defines a macro with `= VALUE`, or gives an existing macro a new value with `== VALUE`.
    fn define(&mut self, name: &str, rest: &str, place: SourceLine) {
        let value = rest.trim_start_matches('=').trim().to_owned();
        if mentions(&value) > 0 {
            self.unused.insert(name.to_owned(), place);
        }
        match self.known.get(name) {
            Some(at) => self.macros[*at].1 = value,
            None => {
                self.known.insert(name.to_owned(), self.macros.len());
                self.macros.push((name.to_owned(), value));
            }
        }
    }

    /// Replaces the macros in a text in the order of their definition: the value of a macro can contain a macro that is
    /// defined later. Returns `None` if the result would be too long.
    fn replaced(&mut self, text: &str) -> Option<String> {
        let mut text = text.to_owned();
        for (name, value) in &self.macros {
            if !self.names(&text, name) {
                continue;
            }
            let count = text.matches(&**name).count();
            let length = (text.len() - count * name.len()).checked_add(count.checked_mul(value.len())?)?;
            if length > MAX_LINE || !self.allowance.take(Resource::Octets, length) {
                return None;
            }
            text = text.replace(&**name, value);
            self.unused.remove(name);
        }
        Some(text)
    }
}

/// Returns the number of conditions `ratelimit =` in a text.
pub fn mentions(text: &str) -> usize {
    let is_condition = |(at, word): (usize, &str)| {
        let before = text[..at].chars().next_back();
        before.is_none_or(|c| c.is_whitespace() || matches!(c, '!' | '{' | '"' | 'n'))
            && text[at + word.len()..].trim_start().starts_with('=')
    };
    text.match_indices("ratelimit").filter(|found| is_condition(*found)).count()
}

/// Returns the name of the macro that a line defines. The name begins with a capital letter or `_`, and is followed by
/// `=`.
fn macro_name(line: &str) -> Option<&str> {
    let is_first = |c: char| c.is_ascii_uppercase() || c == '_';
    let end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
    (line.starts_with(is_first) && line[end..].trim_start().starts_with('=')).then(|| &line[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<(usize, String)> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("more"), "from = more LIMIT\n").unwrap();
        std::fs::write(folder.path().join("exim"), text).unwrap();
        let source = Source::read(&folder.path().join("exim"), &Rc::default()).unwrap();
        assert!(source.problems.is_empty(), "{:?}", source.problems);
        source.lines.into_iter().map(|line| (line.place.line, line.text)).collect()
    }

    #[test]
    fn macros_are_replaced_in_the_order_of_their_definition() {
        let text = "LIMIT = NUMBER / 1h\nNUMBER=10\nratelimit = LIMIT\nNUMBER == 20\nratelimit = LIMIT/xLIMITx\n";
        let expected = [(3, "ratelimit = 10 / 1h"), (5, "ratelimit = 20 / 1h/x20 / 1hx")];
        assert_eq!(lines(text), expected.map(|(n, text)| (n, text.to_owned())));
    }

    #[test]
    fn lines_go_on_over_comments_and_empty_lines() {
        assert_eq!(lines("# no\na = b \\\n  # within\n\n  c\\\n   d\ne\n"), [(2, "a = b cd".into()), (7, "e".into())]);
    }

    #[test]
    fn only_the_ifdef_branch_that_holds_is_read() {
        let text = "A = 1\n.ifdef B\nb\n.elifdef A\na\n.ifndef A\nno\n.else\nyes\n.endif\n.else\nneither\n.endif\n";
        assert_eq!(lines(text), [(5, "a".into()), (9, "yes".into())]);
    }

    #[test]
    fn included_files_are_read_and_missing_ones_reported() {
        let text = "LIMIT = 5\n.include more\n.include_if_exists none\n.include \"more\"\n";
        assert_eq!(lines(text), [(1, "from = more 5".into()), (1, "from = more 5".into())]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("exim");
        std::fs::write(&path, "\n.include none\n.include exim\n.oops\n.endif\n").unwrap();
        let problems = Source::read(&path, &Rc::default()).unwrap().problems;
        for (line, words) in [(2, "none is not read"), (3, "include each other"), (4, ".oops"), (5, "without .ifdef")] {
            assert!(problems.iter().any(|(at, why)| at.line == line && why.contains(words)), "{words}: {problems:?}");
        }
    }
}
