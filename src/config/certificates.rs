//! `[tls]`: the certificates, and checks of them.

use super::diagnostic::{Diagnostic, Severity};
use super::section::Section;
use super::values::text;
use crate::server::certificate::{Certificate, Paths};
use crate::server::tls::Options;
use crate::time::Timestamp;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Interval at which the files are checked. A certificate is renewed days before it expires: a minute is soon enough,
/// and costs nothing.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Reads the section. `places` gets the position of each certificate, the default first.
pub fn read(mut s: Section<'_>, folder: &Path, places: &mut Vec<Range<usize>>) -> Option<Options> {
    if !s.exists() {
        return None;
    }
    let default = pair(&mut s, folder, places);
    let mut also = Vec::new();
    for mut s in s.tables("also") {
        also.extend(pair(&mut s, folder, places));
        s.finish();
    }
    s.finish();
    Some(Options { default: default?, also })
}

fn pair(s: &mut Section<'_>, folder: &Path, places: &mut Vec<Range<usize>>) -> Option<Paths> {
    let certificate = s.required("certificate", "\"certs/fullchain.pem\"", text);
    let key = s.required("key", "\"certs/key.pem\"", text);
    let (certificate, key) = (certificate?, key?);
    places.push(certificate.span);
    Some(Paths { certificate: folder.join(certificate.value), key: folder.join(key.value) })
}

/// Reads all certificates; returns the problems.
pub fn check(options: &Options, places: &[Range<usize>], now: Timestamp) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut first_for: HashMap<String, PathBuf> = HashMap::new();
    for (read, span) in options.read_each().zip(places) {
        let mut problem = |severity, message, help: Option<&str>| {
            found.push(Diagnostic { severity, span: span.clone(), message, help: help.map(str::to_owned) });
        };
        let Certificate { names, end, file, .. } = match read {
            Ok(certificate) => certificate,
            Err(why) => {
                problem(Severity::Error, why.to_string(), None);
                continue;
            }
        };
        if let Some(message) = ended(&file, end, now) {
            problem(Severity::Warning, message, None);
        }
        if let Some((name, first)) = names.iter().find_map(|name| first_for.get_key_value(name)) {
            let message = format!("certificates {} and {} are both for {name}", first.display(), file.display());
            problem(Severity::Warning, message, Some("the first is shown to clients that ask for it"));
        }
        for name in names {
            first_for.entry(name).or_insert_with(|| file.clone());
        }
    }
    found
}

/// Checks the dates of Weir's client certificate; its other errors are reported when the upstream is created.
pub fn check_client(paths: &crate::relay::tls::Paths, now: Timestamp) -> Option<String> {
    let paths = Paths { certificate: paths.certificate.clone(), key: paths.key.clone() };
    let Certificate { end, file, .. } = Certificate::read(&paths).ok()?;
    ended(&file, end, now)
}

fn ended(file: &Path, end: Option<Timestamp>, now: Timestamp) -> Option<String> {
    let end = end.filter(|end| *end < now)?;
    Some(format!("certificate {}: its validity ended on {}", file.display(), end.rfc3339()))
}
