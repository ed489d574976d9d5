//! TLS towards the upstream: checked where it is required; taken as it comes where plain text would do as well.

use super::ConfigError;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The TLS that is configured for an upstream.
#[derive(Clone, Debug)]
pub struct Options {
    pub policy: Policy,
    /// Authorities that may vouch for its certificate, instead of the system's.
    pub ca: Option<PathBuf>,
}

/// Whether to use STARTTLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    None,
    /// If it is offered; the certificate is not checked.
    Opportunistic,
    /// Always; the certificate is checked.
    Required,
}

/// Begins TLS with an upstream.
pub struct Tls {
    connector: TlsConnector,
    /// What its certificate must be good for, where it is checked: the host as it is configured, though it be reached by an MX record,
    /// which whoever can forge DNS can forge, too (RFC 7672 §1.3.2).
    name: ServerName<'static>,
}

impl Tls {
    /// `None` where TLS is not wanted.
    pub fn new(options: &Options, host: &str) -> Result<Option<Self>, ConfigError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let config = match options.policy {
            Policy::None => return Ok(None),
            Policy::Required => builder.with_root_certificates(roots(options)?).with_no_client_auth(),
            Policy::Opportunistic => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Unchecked(provider)))
                .with_no_client_auth(),
        };
        let connector = TlsConnector::from(Arc::new(config));
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(bare).map_err(|_| ConfigError::Name(host.to_owned()))?;
        Ok(Some(Self { connector, name }))
    }

    /// The client's side of a handshake.
    pub async fn secure<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> std::io::Result<TlsStream<S>> {
        self.connector.connect(self.name.clone(), stream).await
    }
}

/// The authorities that may vouch for the upstream: those of `ca`, else the system's.
fn roots(options: &Options) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &options.ca {
        let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let certificates = read.map_err(|error| ConfigError::Ca(path.clone(), error.to_string()))?;
        roots.add_parsable_certificates(certificates);
        if roots.is_empty() {
            return Err(ConfigError::Ca(path.clone(), "there is no certificate in it".to_owned()));
        }
        return Ok(roots);
    }
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(ConfigError::NoRoots);
    }
    Ok(roots)
}

/// Takes any certificate: against whoever only listens, encryption without a name is better than none (RFC 7435).
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
