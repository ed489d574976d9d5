//! What is wrong with a configuration, drawn as a compiler would.

use super::redact::veil;
use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use std::ops::Range;
use std::path::PathBuf;

/// A problem at a place of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    /// Octets of the file; empty where something is missing from it as a whole.
    pub span: Range<usize>,
    pub message: String,
    /// What to write instead.
    pub help: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// It can, but may not do what is expected.
    Warning,
}

/// A configuration file and what is wrong with it.
#[derive(Clone, Debug)]
pub struct Diagnostics {
    pub path: PathBuf,
    pub text: String,
    pub found: Vec<Diagnostic>,
}

impl Diagnostics {
    pub fn has_errors(&self) -> bool {
        self.found.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// All problems, in the order of the file, with the lines they stand in; coloured for terminals.
    pub fn render(&self, coloured: bool) -> String {
        let renderer = if coloured { Renderer::styled() } else { Renderer::plain() };
        let path = self.path.display().to_string();
        let text = veil(&self.text);
        let mut found = self.found.clone();
        found.sort_by_key(|problem| problem.span.start);
        let drawn = found.iter().map(|problem| {
            let level = match problem.severity {
                Severity::Error => Level::ERROR,
                Severity::Warning => Level::WARNING,
            };
            let title = level.primary_title(&problem.message);
            let mut group = if problem.span.is_empty() {
                title.element(Origin::path(&path))
            } else {
                let place = AnnotationKind::Primary.span(self.within_text(&problem.span));
                title.element(Snippet::source(&text).path(&path).annotation(place))
            };
            if let Some(help) = &problem.help {
                group = group.element(Level::HELP.message(help));
            }
            renderer.render(&[group])
        });
        drawn.collect::<Vec<_>>().join("\n\n")
    }

    fn within_text(&self, span: &Range<usize>) -> Range<usize> {
        let boundary =
            |at: usize| (at.min(self.text.len())..=self.text.len()).find(|at| self.text.is_char_boundary(*at));
        let start = boundary(span.start).unwrap_or(self.text.len());
        start..boundary(span.end).unwrap_or(start).max(start)
    }
}
