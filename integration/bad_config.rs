//! Wrong configurations in `bad-config/*.toml`, each with the words that it must fail with in its first lines (`#! words`).

use crate::harness::{run, weir};
use std::path::Path;

#[test]
fn every_wrong_configuration_fails_with_its_words() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/bad-config");
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "toml"));
    files.sort();
    assert!(files.len() >= 15, "only {} files", files.len());
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        let words: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("#! ")).collect();
        assert!(!words.is_empty(), "{name} does not say what it must fail with");
        let output = run(weir().args(["check", "-c"]).arg(&path), "");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{name}:\n{said}");
        for words in words {
            assert!(said.contains(words), "{name}: {words:?} is not in\n{said}");
        }
        assert!(said.contains(&format!("{name}:")), "{name}: no line of the file is named in\n{said}");
        for trace in ["panicked", "Some(", "Err(", "Error {"] {
            assert!(!said.contains(trace), "{name}: {trace}\n{said}");
        }
    }
}
