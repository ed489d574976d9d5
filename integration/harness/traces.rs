//! Search for secrets in the files of a site.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::path::{Path, PathBuf};

/// Returns the forms of a secret that the test searches for: the plain secret, and three forms in base64. The forms in
/// base64 differ because, in AUTH, the octets before the secret shift it by 0, 1 or 2 octets.
pub fn traces(secret: &str) -> Vec<String> {
    let at = |offset: usize| {
        let padded = STANDARD.encode(format!("{}{secret}", "x".repeat(offset)));
        padded[(offset * 4).div_ceil(3)..padded.len() - 4].to_owned()
    };
    vec![secret.to_owned(), at(0), at(1), at(2)]
}

/// Returns all files in a folder and its subfolders.
pub fn files_under(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_under(&path) } else { vec![path] }).collect()
}
