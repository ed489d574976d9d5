//! `[tls]`: the certificates, and checks of them.

use super::diagnostic::{Diagnostic, Severity};
use super::section::Section;
use super::values::text;
use crate::server::certificate::{Certificate, CertificateError, Paths};
use crate::server::tls::Options;
use crate::time::Timestamp;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Interval at which the certificate files are checked for changes. Certificates are renewed days before they expire,
/// so a delay of one minute does no harm. A check costs little.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Positions of two file names in the configuration: the name of a certificate file and the name of its key file.
type Places = (Range<usize>, Range<usize>);

/// Reads the section. Adds to `places` the positions of each certificate and its key. The positions of the default
/// certificate come first.
pub fn read(mut s: Section<'_>, folder: &Path, places: &mut Vec<Places>) -> Option<Options> {
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
    Some(Options { default: default?, also, authorities: Vec::new() })
}

fn pair(s: &mut Section<'_>, folder: &Path, places: &mut Vec<Places>) -> Option<Paths> {
    let certificate = s.required("certificate", "\"certs/fullchain.pem\"", text);
    let key = s.required("key", "\"certs/key.pem\"", text);
    let (certificate, key) = (certificate?, key?);
    places.push((certificate.span, key.span));
    Some(Paths { certificate: folder.join(certificate.value), key: folder.join(key.value) })
}

/// Reads all certificate files; returns the problems found.
pub fn check(options: &Options, places: &[Places], now: Timestamp) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut first_for: HashMap<String, PathBuf> = HashMap::new();
    for (read, (span, key)) in options.read_each().zip(places) {
        let Certificate { names, end, file, .. } = match read {
            Ok(certificate) => certificate,
            Err(why) => {
                found.push(unusable(&why, span, key));
                continue;
            }
        };
        let mut warn = |message, help: Option<&str>| {
            let (severity, help) = (Severity::Warning, help.map(str::to_owned));
            found.push(Diagnostic { severity, span: span.clone(), message, help });
        };
        if let Some(message) = ended(&file, end, now) {
            warn(message, None);
        }
        if let Some((name, first)) = names.iter().find_map(|name| first_for.get_key_value(name)) {
            let message = format!("certificates {} and {} are both for {name}", first.display(), file.display());
            warn(message, Some("the first is shown to clients that ask for it"));
        }
        for name in names {
            first_for.entry(name).or_insert_with(|| file.clone());
        }
    }
    found
}

/// Returns the error about a certificate that cannot be used. The position of the error is the name of the wrong file:
/// the certificate file or the key file.
fn unusable(why: &CertificateError, certificate: &Range<usize>, key: &Range<usize>) -> Diagnostic {
    let span = match why {
        CertificateError::Key(path, _) => match encrypted(path, key) {
            Some(error) => return error,
            None => key,
        },
        _ => certificate,
    };
    Diagnostic { severity: Severity::Error, span: span.clone(), message: why.to_string(), help: None }
}

/// Returns an error if the key in a file is encrypted: Weir starts without an operator, so nobody can type the
/// passphrase.
pub fn encrypted(key: &Path, span: &Range<usize>) -> Option<Diagnostic> {
    let text = std::fs::read_to_string(key).ok()?;
    // The first text begins an encrypted key in PKCS #8 (RFC 5958). The second text is a header of an encrypted key in
    // OpenSSL's older format (RFC 1421).
    if !text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") && !text.contains("Proc-Type: 4,ENCRYPTED") {
        return None;
    }
    let path = key.display();
    let message = format!("key {path}: it is encrypted, and Weir cannot ask for the passphrase");
    let help = format!("openssl pkey -in {path} -out plain.pem writes it without: for Weir's user alone, mode 0600");
    Some(Diagnostic { severity: Severity::Error, span: span.clone(), message, help: Some(help) })
}

/// Returns a warning if Weir's client certificate has expired. Other errors of this certificate are reported when the
/// upstream is created.
pub fn check_client(paths: &crate::relay::tls::Paths, now: Timestamp) -> Option<String> {
    let paths = Paths { certificate: paths.certificate.clone(), key: paths.key.clone() };
    let Certificate { end, file, .. } = Certificate::read(&paths).ok()?;
    ended(&file, end, now)
}

fn ended(file: &Path, end: Option<Timestamp>, now: Timestamp) -> Option<String> {
    let end = end.filter(|end| *end < now)?;
    Some(format!("certificate {}: its validity ended on {}", file.display(), end.rfc3339()))
}
