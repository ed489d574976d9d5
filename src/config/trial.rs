//! Limit on trial: one `[[limit]]` table from an administrator, read as if it stood at the end of the configuration
//! file.

use super::diagnostic::{Diagnostic, Diagnostics, Severity};
use super::location::KnownDatabases;
use super::section::Section;
use super::source::Source;
use super::{Config, ConfigError, Reader, syntax};
use crate::policy::Policy;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// A limit without errors, with the policy of the configuration that contains it.
pub struct LimitOnTrial {
    pub name: String,
    /// The policy of the configuration, with this limit at its end. It replaces a limit of the same name.
    pub policy: Policy,
    /// Warnings about the limit.
    pub warnings: Vec<String>,
}

/// Texts of the configuration file and of the limit. The text of the limit is parsed behind as many spaces as the
/// configuration file is long, so that all positions refer to one text.
struct Texts {
    file: String,
    /// Spaces, then the text of the limit.
    limit: String,
    /// The text of the configuration file, then the text of the limit.
    both: String,
}

/// Reads a configuration file, and the text of a limit. Returns the error as `weir check` prints it. Positions in the
/// limit are counted from the beginning of its text.
pub fn limit_on_trial(path: &Path, limit: &str) -> Result<LimitOnTrial, String> {
    let file = std::fs::read(path).map_err(|error| ConfigError::Io(path.to_owned(), error));
    let file = file.map_err(|_| format!("{}: the configuration file cannot be read", path.display()))?;
    let file = String::from_utf8(file).map_err(|_| format!("{}: this is not UTF-8", path.display()))?;
    let texts = Texts { limit: " ".repeat(file.len()) + limit, both: file.clone() + limit, file };
    let source = Source::new(&texts.both);
    let read = read(path, &texts, &source);
    let (found, _) = source.into_findings();
    let (of_limit, of_file) = texts.split(found);
    let of_file = Diagnostics { path: path.to_owned(), text: texts.file, found: of_file };
    let of_limit = Diagnostics { path: PathBuf::from("limit"), text: limit.to_owned(), found: of_limit };
    if of_limit.has_errors() {
        return Err(only_errors(of_limit).render(false));
    }
    if of_file.has_errors() {
        let drawn = only_errors(of_file).render(false);
        return Err(format!("{drawn}\n\nwith this limit, the configuration file has errors: correct them first"));
    }
    let Some((name, Config { policy, .. })) = read else {
        return Err("the limit cannot be read: write one [[limit]] table, as in weir.toml".to_owned());
    };
    let warnings = of_limit.found.into_iter().map(|found| found.message).collect();
    Ok(LimitOnTrial { name, policy, warnings })
}

/// Reads the configuration with the limit. Errors are reported to `source`. Returns also the name of the limit.
fn read<'a>(path: &Path, texts: &'a Texts, source: &'a Source<'a>) -> Option<(String, Config)> {
    let (mut document, errors) = DeTable::parse_recoverable(&texts.file);
    syntax::report(source, &texts.file, &errors);
    let (limit, limit_errors) = DeTable::parse_recoverable(&texts.limit);
    syntax::report(source, &texts.limit, &limit_errors);
    if !errors.is_empty() || !limit_errors.is_empty() {
        return None;
    }
    let limit = only_limit(limit, texts, source)?;
    // If the name is missing, the reader reports it.
    let name = name(&limit).unwrap_or_default().to_owned();
    let limits = limits(document.get_mut());
    check_overrides(&limits, &limit, source)?;
    let mut others = DeArray::new();
    limits.into_iter().filter(|other| self::name(other) != Some(&name)).for_each(|other| others.push(other));
    others.push(limit);
    let key = Spanned::new(0..0, "limit".into());
    document.get_mut().insert(key, Spanned::new(0..0, DeValue::Array(others)));
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    // The document does not live as long as the source, so it is read with a source of its own.
    let own = Source::new(&texts.both);
    let config = Reader { folder }.read(Section::root(&document, &own), &KnownDatabases::default());
    for Diagnostic { severity, span, message, help } in own.into_findings().0 {
        source.problem(severity, &span, message, help.as_deref());
    }
    Some((name, config))
}

/// Returns the single limit of a text. Reports an error if the text has anything else.
fn only_limit<'a>(
    mut document: Spanned<DeTable<'a>>,
    texts: &Texts,
    source: &Source<'_>,
) -> Option<Spanned<DeValue<'a>>> {
    let mut limits = limits(document.get_mut());
    let other = document.get_ref().iter().find(|(key, _)| key.get_ref() != "limit").map(|(key, _)| key.span());
    let span = other.or_else(|| limits.get(1).map(Spanned::span));
    match limits.pop() {
        Some(limit) if span.is_none() && limit.get_ref().is_table() => Some(limit),
        _ => {
            let span = span.unwrap_or(texts.file.len()..texts.both.len().max(texts.file.len() + 1));
            source.error(&span, "this is not one limit", Some("write one [[limit]] table, as in weir.toml"));
            None
        }
    }
}

/// Takes the limits out of a document.
fn limits<'a>(document: &mut DeTable<'a>) -> Vec<Spanned<DeValue<'a>>> {
    match document.remove("limit").map(Spanned::into_inner) {
        Some(DeValue::Array(limits)) => limits.iter().cloned().collect(),
        _ => Vec::new(),
    }
}

/// Reports an error if the limit on trial names a table of overrides that no limit of the file names. Errors of such a
/// table show its lines, and a request must not show lines of any other file.
fn check_overrides(limits: &[Spanned<DeValue<'_>>], limit: &Spanned<DeValue<'_>>, source: &Source<'_>) -> Option<()> {
    let Some((file, span)) = text(limit, "overrides") else { return Some(()) };
    if limits.iter().any(|other| text(other, "overrides").is_some_and(|(other, _)| other == file)) {
        return Some(());
    }
    let help = "name a table that a limit of the configuration file names, too";
    source.error(&span, "overrides: no limit of the configuration file names this table", Some(help));
    None
}

fn name<'v>(limit: &'v Spanned<DeValue<'_>>) -> Option<&'v str> {
    text(limit, "name").map(|(name, _)| name)
}

fn text<'v>(limit: &'v Spanned<DeValue<'_>>, key: &str) -> Option<(&'v str, Range<usize>)> {
    let value = limit.get_ref().as_table()?.get(key)?;
    Some((value.get_ref().as_str()?, value.span()))
}

fn only_errors(mut problems: Diagnostics) -> Diagnostics {
    problems.found.retain(|problem| problem.severity == Severity::Error);
    problems
}

impl Texts {
    /// Divides diagnostics into those of the limit, whose positions become positions in its own text, and those of the
    /// file.
    fn split(&self, found: Vec<Diagnostic>) -> (Vec<Diagnostic>, Vec<Diagnostic>) {
        let begin = self.file.len();
        let (mut limit, file): (Vec<_>, Vec<_>) = found.into_iter().partition(|problem| problem.span.end > begin);
        for problem in &mut limit {
            problem.span = problem.span.start.saturating_sub(begin)..problem.span.end - begin;
        }
        (limit, file)
    }
}
