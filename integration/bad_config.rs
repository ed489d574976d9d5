//! Tests of wrong configurations. Weir refuses the files `bad-config/*.toml`, and only warns of `warned-config/*.toml`.
//! Lines `#! words` in each file state the words that the first lines of Weir's message must contain. A line `#! exit
//! 78` in a file of `warned-config` says that Weir warns, and also refuses the file.

use crate::harness::{Outcome, run, weir};
use std::path::{Path, PathBuf};

#[test]
fn every_wrong_configuration_fails_with_its_message() {
    for path in files("bad-config", 15) {
        check(&path, 78, "error: ");
    }
}

#[test]
fn every_doubtful_configuration_gets_its_warning() {
    for path in files("warned-config", 15) {
        check(&path, 0, "warning: ");
    }
}

fn files(folder: &str, least: usize) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration").join(folder);
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "toml"));
    files.sort();
    assert!(files.len() >= least, "only {} files", files.len());
    files
}

/// Checks that Weir exits with `code`, and that its message begins with a diagnostic of this kind (error or warning).
fn check(path: &Path, code: i32, kind: &str) {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    let (exits, words): (Vec<&str>, Vec<&str>) =
        text.lines().map_while(|line| line.strip_prefix("#! ")).partition(|words| words.starts_with("exit "));
    assert!(!words.is_empty(), "{name} does not say what it must be met with");
    let code = exits.first().map_or(code, |exit| exit["exit ".len()..].parse().unwrap());
    let Outcome { code: got, err: said, .. } = run(weir().args(["check", "-c"]).arg(path), "");
    assert_eq!(got, Some(code), "{name}:\n{said}");
    for words in &words {
        assert!(said.contains(words), "{name}: {words:?} is not in\n{said}");
    }
    let is_problem = |line: &str| line.starts_with(kind) && line.contains(words[0]);
    assert!(said.lines().any(is_problem), "{name}: no {kind}{:?} in\n{said}", words[0]);
    assert!(said.contains(&format!("{name}:")), "{name}: no line of the file is named in\n{said}");
    for trace in ["panicked", "Some(", "Err(", "Error {"] {
        assert!(!said.contains(trace), "{name}: {trace}\n{said}");
    }
}
