//! Weir's client certificate for an upstream that asks for a certificate. Weir reads the files again for each
//! connection, because the certificate can be renewed at any time.

use crate::log::LoggedState;
use crate::relay::config_error::ConfigError;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, Error};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio_rustls::TlsConnector;

/// Paths of the files of a certificate chain and its key, both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Client certificate for one upstream, and the upstream's TLS configuration.
pub struct ClientCertificate {
    paths: Paths,
    config: ClientConfig,
    /// The certificate in use. The lock is held while the files are read. The files are read when Weir starts. After
    /// the start, only threads that are allowed to block read them.
    shown: Mutex<Shown>,
    /// Error if the files cannot be used. The error is logged when it changes, not for each connection.
    error: LoggedState<Option<String>>,
}

struct Shown {
    connector: TlsConnector,
    /// Content of the files from which the certificate was made.
    files: Files,
}

/// The octets of both files, a few kilobytes. They are compared to find changes, because the modification time does not
/// show every change.
#[derive(PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl ClientCertificate {
    /// Reads the certificate for the first time. `config` is the upstream's TLS configuration, without a client
    /// certificate.
    pub fn read(paths: &Paths, config: ClientConfig) -> Result<Self, ConfigError> {
        let files = Files::read(paths)?;
        let connector = connector(&config, files.parse(paths)?);
        let shown = Mutex::new(Shown { connector, files });
        Ok(Self { paths: paths.clone(), config, shown, error: LoggedState::default() })
    }

    /// Returns a connector with the certificate that is now in the files. If the files cannot be used, the connector
    /// has the certificate that was read before. Blocks the thread while it reads the files.
    pub fn connector(&self) -> TlsConnector {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let renewed = self.renew(&shown.files);
        let is_news = self.error.changes_to(renewed.as_ref().err().map(ToString::to_string));
        match renewed {
            Ok(None) => {}
            Ok(Some((connector, files))) => {
                tracing::info!(file = %self.paths.certificate.display(), "client certificate read again");
                *shown = Shown { connector, files };
            }
            Err(error) if is_news => tracing::error!(%error, "client certificate refused: the former one stays in use"),
            Err(_) => {}
        }
        shown.connector.clone()
    }

    fn renew(&self, before: &Files) -> Result<Option<(TlsConnector, Files)>, ConfigError> {
        let files = Files::read(&self.paths)?;
        if files == *before {
            return Ok(None);
        }
        Ok(Some((connector(&self.config, files.parse(&self.paths)?), files)))
    }
}

/// Makes a connector with this certificate. Its cache of TLS sessions is new, so that no session with the old
/// certificate is resumed.
fn connector(config: &ClientConfig, key: CertifiedKey) -> TlsConnector {
    let mut config = config.clone();
    config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(key));
    config.resumption = Resumption::default();
    TlsConnector::from(Arc::new(config))
}

impl Files {
    fn read(paths: &Paths) -> Result<Self, ConfigError> {
        let read = |path: &Path| std::fs::read(path).map_err(|error| bad(path, error.to_string()));
        Ok(Self { certificate: read(&paths.certificate)?, key: read(&paths.key)? })
    }

    fn parse(&self, paths: &Paths) -> Result<CertifiedKey, ConfigError> {
        let explain = |path, error| match error {
            pem::Error::NoItemsFound => bad(path, "there is none in it".to_owned()),
            other => bad(path, format!("it is not PEM: {other}")),
        };
        let chain = CertificateDer::pem_slice_iter(&self.certificate).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| explain(&paths.certificate, error))?;
        if chain.is_empty() {
            return Err(explain(&paths.certificate, pem::Error::NoItemsFound));
        }
        if is_encrypted(&self.key) {
            return Err(bad(&paths.key, "it is encrypted, and Weir has no passphrase for it".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| explain(&paths.key, error))?;
        CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|error| match error {
            Error::InconsistentKeys(_) => bad(&paths.key, "it is not the key of the client-certificate".to_owned()),
            Error::InvalidCertificate(_) => bad(&paths.certificate, format!("it cannot be read: {error}")),
            _ => bad(&paths.key, error.to_string()),
        })
    }
}

/// Returns whether a key in PEM is encrypted, in the format of PKCS #8 or in OpenSSL's older format.
fn is_encrypted(key: &[u8]) -> bool {
    let marks = ["-----BEGIN ENCRYPTED ", "Proc-Type: 4,ENCRYPTED"];
    String::from_utf8_lossy(key).lines().any(|line| marks.iter().any(|mark| line.starts_with(mark)))
}

fn bad(path: &Path, why: String) -> ConfigError {
    ConfigError::ClientCertificate(path.to_owned(), why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::generate_simple_self_signed;

    #[test]
    fn bad_files_are_named_and_cost_no_certificate_that_was_good() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let made = || generate_simple_self_signed(["weir.example".to_owned()]).unwrap();
        let (one, other) = (made(), made());
        std::fs::write(path("one.pem"), one.cert.pem()).unwrap();
        std::fs::write(path("one.key"), one.signing_key.serialize_pem()).unwrap();
        std::fs::write(path("other.key"), other.signing_key.serialize_pem()).unwrap();
        std::fs::write(path("nonsense"), "nonsense").unwrap();
        let encrypted = one.signing_key.serialize_pem().replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
        std::fs::write(path("encrypted.key"), encrypted).unwrap();
        let head = "-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0\n\n";
        std::fs::write(path("former.key"), one.signing_key.serialize_pem().replacen("-----\n", head, 1)).unwrap();
        let read = |certificate: &str, key: &str| {
            let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
            let builder = builder.with_safe_default_protocol_versions().unwrap();
            let config = builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
            ClientCertificate::read(&Paths { certificate: path(certificate), key: path(key) }, config)
        };
        for (certificate, key, words) in [
            ("none", "one.key", "none: No such file"),
            ("nonsense", "one.key", "nonsense: there is none in it"),
            ("one.pem", "none", "none: No such file"),
            ("one.pem", "nonsense", "nonsense: there is none in it"),
            ("one.pem", "encrypted.key", "encrypted.key: it is encrypted, and Weir has no passphrase for it"),
            ("one.pem", "former.key", "former.key: it is encrypted, and Weir has no passphrase for it"),
            ("one.pem", "other.key", "other.key: it is not the key of the client-certificate"),
        ] {
            let error = read(certificate, key).err().unwrap().to_string();
            assert!(error.contains(words), "{certificate}, {key}: {error}");
        }

        let certificate = read("one.pem", "one.key").unwrap();
        let now = || Arc::as_ptr(certificate.connector().config());
        let first = now();
        assert_eq!(now(), first);
        // The certificate file is renewed, but the key file is still the old file.
        std::fs::write(path("one.pem"), other.cert.pem()).unwrap();
        assert_eq!((now(), certificate.error.get().is_some()), (first, true));
        std::fs::write(path("one.key"), other.signing_key.serialize_pem()).unwrap();
        assert_ne!(now(), first);
        assert!(certificate.error.get().is_none());
    }
}
