//! TLS towards clients.

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::TlsAcceptor;

/// A certificate with its key, ready to be shown.
pub struct Certificate {
    certificate: PathBuf,
    key: PathBuf,
    /// Held to copy or replace it, never over an `.await`.
    acceptor: RwLock<TlsAcceptor>,
}

/// Why a certificate cannot be used.
#[derive(Debug)]
pub enum CertificateError {
    Certificate(PathBuf, String),
    Key(PathBuf, String),
    Mismatch(rustls::Error),
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(path, why) => write!(f, "certificate {}: {why}", path.display()),
            Self::Key(path, why) => write!(f, "key {}: {why}", path.display()),
            Self::Mismatch(error) => write!(f, "certificate and key do not go together: {error}"),
        }
    }
}

impl std::error::Error for CertificateError {}

impl Certificate {
    /// Reads a certificate chain and its key, both PEM.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, CertificateError> {
        let acceptor = RwLock::new(acceptor(certificate, key)?);
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), acceptor })
    }

    /// Reads both files again. After an error the former certificate stays.
    pub fn reload(&self) -> Result<(), CertificateError> {
        let acceptor = acceptor(&self.certificate, &self.key)?;
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
        Ok(())
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, CertificateError> {
    let bad_certificate = |why: String| CertificateError::Certificate(certificate.to_owned(), why);
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad_certificate(explain(error)))?;
    if chain.is_empty() {
        return Err(bad_certificate("there is no certificate in it".to_owned()));
    }
    let key =
        PrivateKeyDer::from_pem_file(key).map_err(|error| CertificateError::Key(key.to_owned(), explain(error)))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(CertificateError::Mismatch)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn explain(error: rustls::pki_types::pem::Error) -> String {
    match error {
        rustls::pki_types::pem::Error::Io(error) => error.to_string(),
        rustls::pki_types::pem::Error::NoItemsFound => "there is none in it".to_owned(),
        other => format!("it is not PEM: {other}"),
    }
}
