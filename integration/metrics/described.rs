//! The metrics that the source code registers, with their types and labels.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use syn::visit::{self, Visit};

/// Type and labels of a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    pub kind: &'static str,
    pub labels: BTreeSet<String>,
}

/// Functions that create metrics, each with the type of these metrics.
const CREATORS: [(&str, &str); 6] = [
    ("counter", "counter"),
    ("counters", "counter"),
    ("gauge", "gauge"),
    ("gauges", "gauge"),
    ("histogram", "histogram"),
    ("histograms", "histogram"),
];

/// Metrics by name.
#[derive(Default)]
struct Found(BTreeMap<String, Described>);

impl<'ast> Visit<'ast> for Found {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let creator = CREATORS.iter().find(|(name, _)| call.method == name);
        if let (Some((method, kind)), Some(name)) = (creator, call.args.first().and_then(literal)) {
            let labels = if method.ends_with('s') { labels(&call.args[2]) } else { BTreeSet::new() };
            self.0.insert(name, Described { kind, labels });
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        // The process metrics: `Counter::new(NAME, HELP)`.
        if let (syn::Expr::Path(path), Some(name)) = (&*call.func, call.args.first().and_then(literal))
            && name.starts_with("process_")
        {
            let is_counter = path.path.segments.iter().any(|segment| segment.ident == "Counter");
            let kind = if is_counter { "counter" } else { "gauge" };
            self.0.insert(name, Described { kind, labels: BTreeSet::new() });
        }
        visit::visit_expr_call(self, call);
    }
}

fn literal(expression: &syn::Expr) -> Option<String> {
    match expression {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

/// Returns the labels of `&["a", "b"]`.
fn labels(expression: &syn::Expr) -> BTreeSet<String> {
    let syn::Expr::Reference(reference) = expression else { panic!("labels are a literal list") };
    let syn::Expr::Array(array) = &*reference.expr else { panic!("labels are a literal list") };
    array.elems.iter().map(|label| literal(label).unwrap()).collect()
}

/// Returns all metrics.
pub fn metrics() -> BTreeMap<String, Described> {
    let mut found = Found::default();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/metrics")).unwrap() {
        let code = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        found.visit_file(&syn::parse_file(&code).unwrap());
    }
    assert!(found.0.len() > 50, "only {} metrics found", found.0.len());
    found.0
}

/// Returns the metric of this name, or of the histogram to which a series of this name (`_bucket`, `_sum`, `_count`)
/// belongs. The labels of `_bucket` include `le`.
pub fn series(metrics: &BTreeMap<String, Described>, name: &str) -> Option<Described> {
    if let Some(metric) = metrics.get(name) {
        // A histogram has no series of its own name.
        return Some(metric.clone()).filter(|metric| metric.kind != "histogram");
    }
    let (base, ending) = name.rsplit_once('_')?;
    let mut metric = metrics.get(base).filter(|metric| metric.kind == "histogram")?.clone();
    match ending {
        "bucket" => drop(metric.labels.insert("le".to_owned())),
        "sum" | "count" => {}
        _ => return None,
    }
    Some(metric)
}
