//! TLS towards the upstream: checked where it is required; taken as it comes where plain text would do as well.

use super::{ConfigError, Options, TlsPolicy};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// Makes the connector for an upstream; `None` where TLS is not wanted.
pub fn connector(options: &Options) -> Result<Option<TlsConnector>, ConfigError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let config = match options.tls {
        TlsPolicy::None => return Ok(None),
        TlsPolicy::Required => builder.with_root_certificates(roots(options)?).with_no_client_auth(),
        TlsPolicy::Opportunistic => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked(provider))).with_no_client_auth()
        }
    };
    Ok(Some(TlsConnector::from(Arc::new(config))))
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
