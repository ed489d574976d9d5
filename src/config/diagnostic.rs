//! Problems of a configuration. They are printed like the errors of a compiler, with the lines that they refer to.

use super::redact::redact;
use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use std::ops::Range;
use std::path::PathBuf;

/// A problem at a position of the configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    /// Range in octets of the file's text; empty if the problem concerns the whole file.
    pub span: Range<usize>,
    pub message: String,
    /// The remedy.
    pub help: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used, but perhaps does not do what the administrator expects.
    Warning,
}

/// A configuration file and its problems.
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

    /// Formats all problems, sorted by position. Each problem is shown with the lines of the file that it refers to. If
    /// `coloured` is true, the text has colours for terminals.
    pub fn render(&self, coloured: bool) -> String {
        let renderer = if coloured { Renderer::styled() } else { Renderer::plain() };
        let path = self.path.display().to_string();
        let text = redact(&self.text);
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
