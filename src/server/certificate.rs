//! Certificate with its key: reads the files, the certificate's names and its end of validity.

use crate::time::Timestamp;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use webpki::{EndEntityCert, KeyUsage};

/// Files of a certificate chain and its key, both PEM.
#[derive(Clone, Debug)]
pub struct Paths {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Certificate, ready for handshakes.
pub struct Certificate {
    /// Host names of the certificate: the DNS names of its subjectAltName, in lower case, also wildcards such as
    /// `*.example.org`.
    pub names: Vec<String>,
    /// End of the certificate's validity; `None` if it cannot be read.
    pub end: Option<Timestamp>,
    /// File of the certificate chain.
    pub file: PathBuf,
    pub key: Arc<CertifiedKey>,
}

/// Reason for which a certificate cannot be used.
#[derive(Debug)]
pub enum CertificateError {
    Certificate(PathBuf, String),
    /// A file of the authorities that issue clients' certificates.
    Authorities(PathBuf, String),
    Key(PathBuf, String),
    Mismatch(Paths),
    /// The certificate names no host, so it would be sent to no client.
    Nameless(PathBuf),
    /// TLS cannot be set up; the files are not the cause.
    Tls(Error),
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(path, why) => write!(f, "certificate {}: {why}", path.display()),
            Self::Authorities(path, why) => write!(f, "client-certificates {}: {why}", path.display()),
            Self::Key(path, why) => write!(f, "key {}: {why}", path.display()),
            Self::Mismatch(Paths { certificate, key }) => {
                let (certificate, key) = (certificate.display(), key.display());
                write!(f, "certificate {certificate} and key {key} do not go together")
            }
            Self::Nameless(path) => write!(
                f,
                "certificate {}: it names no host (its subjectAltName has no DNS name), so no client would be shown it",
                path.display()
            ),
            Self::Tls(error) => write!(f, "TLS cannot be set up: {error}"),
        }
    }
}

impl std::error::Error for CertificateError {}

impl Certificate {
    /// Reads a certificate chain and its key.
    pub fn read(paths: &Paths) -> Result<Self, CertificateError> {
        let bad = |why: String| CertificateError::Certificate(paths.certificate.clone(), why);
        let bad_key = |why: String| CertificateError::Key(paths.key.clone(), why);
        let chain = CertificateDer::pem_file_iter(&paths.certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| bad(explain(error)))?;
        let first = chain.first().ok_or_else(|| bad("there is no certificate in it".to_owned()))?;
        let parsed = EndEntityCert::try_from(first).map_err(|error| bad(format!("it cannot be read: {error}")))?;
        let names = parsed.valid_dns_names().map(str::to_ascii_lowercase).collect();
        let end = end(&parsed);
        let key = PrivateKeyDer::from_pem_file(&paths.key).map_err(|error| bad_key(explain(error)))?;
        let key = ring::sign::any_supported_type(&key).map_err(|error| bad_key(error.to_string()))?;
        let key = CertifiedKey::new(chain, key);
        match key.keys_match() {
            // `Unknown` means that Weir cannot check whether a key of this kind matches the certificate.
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(Error::InconsistentKeys(_)) => return Err(CertificateError::Mismatch(paths.clone())),
            Err(error) => return Err(bad(error.to_string())),
        }
        Ok(Self { names, end, file: paths.certificate.clone(), key: Arc::new(key) })
    }

    /// Reads a certificate that Weir chooses by its names, so the certificate must have at least one name.
    pub fn read_named(paths: &Paths) -> Result<Self, CertificateError> {
        let certificate = Self::read(paths)?;
        match certificate.names.is_empty() {
            true => Err(CertificateError::Nameless(paths.certificate.clone())),
            false => Ok(certificate),
        }
    }
}

/// Returns the end of a certificate's validity (RFC 5280 §4.1.2.5, notAfter). webpki returns the end only in the error
/// for an expired certificate, so this function verifies the certificate at the latest possible time. webpki checks the
/// validity before the chain, so no certificate authorities are needed.
fn end(certificate: &EndEntityCert<'_>) -> Option<Timestamp> {
    let end_of_time = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    match certificate.verify_for_usage(&[], &[], &[], end_of_time, KeyUsage::server_auth(), None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => {
            let seconds = i64::try_from(not_after.as_secs()).ok()?;
            Some(Timestamp::from_micros(seconds.checked_mul(1_000_000)?))
        }
        _ => None,
    }
}

pub fn explain(error: pem::Error) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => "there is none in it".to_owned(),
        other => format!("it is not PEM: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, date_time_ymd};

    #[test]
    fn names_and_end_are_read_and_errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let read =
            |certificate: &str, key: &str| Certificate::read(&Paths { certificate: path(certificate), key: path(key) });
        let key = KeyPair::generate().unwrap();
        let names = ["Mail.Example.ORG", "192.0.2.1", "*.example.net"].map(str::to_owned);
        let mut params = CertificateParams::new(names).unwrap();
        params.not_after = date_time_ymd(2031, 2, 3);
        std::fs::write(path("good.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(path("good.key"), key.serialize_pem()).unwrap();
        let other = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        std::fs::write(path("other.key"), other.serialize_pem()).unwrap();
        std::fs::write(path("nonsense"), "nonsense").unwrap();
        for (name, label) in [("broken.pem", "CERTIFICATE"), ("broken.key", "PRIVATE KEY")] {
            std::fs::write(path(name), format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n")).unwrap();
        }

        let good = read("good.pem", "good.key").unwrap();
        assert_eq!(good.names, ["mail.example.org", "*.example.net"]);
        assert_eq!(good.end.map(Timestamp::rfc3339).as_deref(), Some("2031-02-03T00:00:00Z"));
        for (certificate, key, words) in [
            ("none.pem", "good.key", "none.pem: No such file"),
            ("nonsense", "good.key", "nonsense: there is no certificate in it"),
            ("broken.pem", "good.key", "broken.pem: it cannot be read"),
            ("good.pem", "none.key", "none.key: No such file"),
            ("good.pem", "nonsense", "nonsense: there is none in it"),
            ("good.pem", "broken.key", "broken.key: "),
            ("good.pem", "other.key", "other.key do not go together"),
        ] {
            let error = read(certificate, key).err().unwrap().to_string();
            assert!(error.contains(words), "{certificate}, {key}: {error}");
        }
    }
}
