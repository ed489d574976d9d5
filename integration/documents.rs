//! Tests of the documents: the monitoring guide names every metric and log message, and every local link has a target.

use proc_macro2::TokenTree;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// Macros of the crate `tracing` with which Weir writes log lines.
const LEVELS: [&str; 3] = ["info", "warn", "error"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files with this extension in a folder and its subfolders.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => files(&path, ending),
            false => Vec::from_iter(path.extension().is_some_and(|e| e == ending).then_some(path)),
        })
        .collect()
}

/// Replaces each run of white space by one space, because a document may break a log message over two lines.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Names of metrics and texts of log messages that the source code contains.
#[derive(Default)]
struct Names {
    metrics: BTreeSet<String>,
    messages: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_lit_str(&mut self, literal: &'ast syn::LitStr) {
        let text = literal.value();
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        if text.strip_prefix("weir_").is_some_and(|rest| !rest.is_empty() && rest.chars().all(is_name)) {
            self.metrics.insert(text);
        }
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        let Some(name) = invocation.path.segments.last() else { return };
        if LEVELS.iter().any(|level| name.ident == level) {
            let literals = invocation.tokens.clone().into_iter().filter_map(|token| match token {
                TokenTree::Literal(literal) => syn::parse_str::<syn::LitStr>(&literal.to_string()).ok(),
                _ => None,
            });
            // The message is the macro's last argument. If the argument is a variable, the text is elsewhere in the
            // source code, and is not found here.
            let message = literals.last().map(|literal| literal.value()).filter(|message| message != "{message}");
            self.messages.extend(message);
        }
    }
}

#[test]
fn the_monitoring_guide_names_every_metric_and_every_log_message() {
    let guide = std::fs::read_to_string(root().join("conf/guide/monitoring.md")).unwrap();
    let (mut names, words) = (Names::default(), flat(&guide));
    for path in files(&root().join("src"), "rs") {
        // Look only at the path below the repository's root: a folder above it may be called `tests` too.
        let inside = path.strip_prefix(root()).unwrap();
        let is_test = inside.ends_with("tests.rs") || inside.components().any(|part| part.as_os_str() == "tests");
        if !is_test {
            let code = std::fs::read_to_string(&path).unwrap();
            names.visit_file(&syn::parse_file(&code).unwrap());
        }
    }
    assert!(names.metrics.len() > 30 && names.messages.len() > 60, "{} {}", names.metrics.len(), names.messages.len());
    let is_missing = |name: &&String| !words.contains(&format!("`{}`", flat(name)));
    let missing: Vec<_> = names.metrics.iter().chain(&names.messages).filter(is_missing).collect();
    assert!(missing.is_empty(), "conf/guide/monitoring.md names no {missing:#?}");
    let named = guide.split('`').filter(|word| word.starts_with("weir_") && !word.contains(['{', ' ', '*', '(']));
    let gone: Vec<_> = named.filter(|name| !is_metric(&names.metrics, name)).collect();
    assert!(gone.is_empty(), "conf/guide/monitoring.md names metrics that do not exist: {gone:#?}");
}

/// Tests whether `name` is a metric, or one of the series of a histogram (`_bucket`, `_sum`, `_count`).
fn is_metric(metrics: &BTreeSet<String>, name: &str) -> bool {
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
    metrics.contains(name) || metrics.contains(base)
}

/// Returns the anchors of a document's headings as links name them: the heading in lower case, with hyphens for spaces
/// and without punctuation. The second heading with the same text gets "-1" at its end.
fn anchors(document: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in document.lines().filter(|line| line.starts_with('#')) {
        let kept = heading.trim_matches('#').trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect();
        let numbered = (1..).map(|n| format!("{anchor}-{n}"));
        let free = std::iter::once(anchor.clone()).chain(numbered).find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}

/// Returns the documents for people: README.md and the Markdown files of conf/ and certs/.
fn documents() -> Vec<PathBuf> {
    let mut documents = [files(&root().join("conf"), "md"), files(&root().join("certs"), "md")].concat();
    documents.push(root().join("README.md"));
    assert!(documents.len() > 8, "{documents:?}");
    documents
}

#[test]
fn every_code_block_of_the_documents_begins_with_its_language_and_ends() {
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        let fences: Vec<&str> = text.lines().map(str::trim_start).filter(|line| line.starts_with("```")).collect();
        let is_good = |pair: &[&str]| pair.len() == 2 && pair[0].len() > 3 && pair[1] == "```";
        assert!(fences.chunks(2).all(is_good), "{}: {fences:?}", document.display());
    }
}

#[test]
fn every_link_of_the_documents_has_a_target() {
    let documents = documents();
    let mut broken = Vec::new();
    for document in &documents {
        let text = std::fs::read_to_string(document).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.contains(' ') {
                continue;
            }
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { document.clone() } else { document.parent().unwrap().join(path) };
            let has_heading = |text: String| anchors(&text).contains(heading);
            let is_good =
                target.exists() && (heading.is_empty() || std::fs::read_to_string(&target).is_ok_and(has_heading));
            if !is_good {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
