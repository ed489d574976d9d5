//! Tests of `weir check --explain`, with a configuration that contains every form of a limit.

use crate::harness::{succeed, weir};
use std::path::Path;

/// Returns the output of `weir check --explain` for this configuration.
fn explanation(config: &Path) -> String {
    succeed(weir().args(["check", "--explain", "-c"]).arg(config), "").out
}

#[test]
fn every_form_of_limit_is_explained_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/explain");
    let said = explanation(&folder.join("every-form.toml"));
    let expected = std::fs::read_to_string(folder.join("every-form.txt")).unwrap();
    for (said, expected) in said.split("\n\n").zip(expected.split("\n\n")) {
        assert_eq!(said, expected);
    }
    assert_eq!(said, expected);
}

#[test]
fn every_form_of_limit_is_printed_so_that_it_reads_again() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/explain");
    let read = |text: String| match weir::config::parse(&folder.join("printed.toml"), text) {
        Ok(config) => config,
        Err(weir::config::ConfigError::Diagnostics(problems)) => panic!("{}", problems.render(false)),
        Err(weir::config::ConfigError::Io(..)) => unreachable!(),
    };
    let values = |config: &weir::config::Config| -> Vec<(String, &str, Option<String>)> {
        config.settings.iter().map(|s| (s.section.clone(), s.key, s.value.clone())).collect()
    };
    let config = read(std::fs::read_to_string(folder.join("every-form.toml")).unwrap());
    let again = read(config.effective(|_| Some("What it does.\nAnd how.".to_owned())));
    assert_eq!(values(&again), values(&config));
}

#[test]
fn the_explanation_of_the_reference_has_no_gap() {
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/weir.toml");
    let text = std::fs::read_to_string(reference).unwrap();
    // The reference names several files, and only bulk-hosts.csv exists here: put a list in place of bulk-hosts.txt.
    let limits = &text[text.find("[addresses]").unwrap()..];
    let limits = limits.replace("file = \"bulk-hosts.txt\"", "items = [\"192.0.2.1\"]");
    let folder = tempfile::tempdir().unwrap();
    let csv = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/bulk-hosts.csv");
    std::fs::copy(csv, folder.path().join("bulk-hosts.csv")).unwrap();
    let head = "listener.submission = { address = \"127.0.0.1:0\", tls = \"none\", auth = \"none\", xclient = [\"192.0.2.9\"] }\n\
        upstream = [{ address = \"127.0.0.1:2525\" }]\nstate.path = \"state.db\"\n";
    std::fs::write(folder.path().join("weir.toml"), format!("{head}{limits}")).unwrap();
    let said = explanation(&folder.path().join("weir.toml"));
    assert_eq!(said.lines().filter(|line| !line.starts_with(' ') && line.contains(": ")).count(), 7, "{said}");
    assert!(!said.contains("; ;") && !said.contains("  ;") && said.contains("list:bulk-hosts"), "{said}");
}
