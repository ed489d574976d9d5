//! Verifier of an upstream's certificate if its key is pinned, or if any certificate is accepted. If the certificate
//! must be from a certificate authority, rustls's own verifier is used.

use crate::certificate_pin::Pin;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use std::fmt;
use std::sync::Arc;

/// Verifier that checks at most the key of the certificate, and never its issuer, names or dates. If keys are pinned,
/// the upstream must prove that it has one of them. Otherwise nothing is checked, because Weir does not know the
/// upstream's key, and because the key is perhaps of an obsolete kind that rustls refuses.
#[derive(Debug)]
pub struct Verifier {
    pub accept: Accept,
    pub provider: Arc<CryptoProvider>,
}

/// Certificates that are accepted.
#[derive(Debug)]
pub enum Accept {
    /// Any certificate: encryption without authentication still protects against passive eavesdroppers (RFC 7435).
    Any,
    /// Certificates with one of these pinned keys.
    Pinned(Vec<Pin>),
}

/// Error: the certificate's key is not one of the pinned keys. Contains the pin of the certificate's key.
#[derive(Debug)]
struct NotPinned(Pin);

impl fmt::Display for NotPinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its certificate has another key than certificate-pin says: {}", self.0)
    }
}

impl std::error::Error for NotPinned {}

/// Error: the handshake is not signed with the certificate's key, or the key is too weak.
#[derive(Debug)]
struct NotShown;

impl fmt::Display for NotShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it has not shown that it has the certificate's key, or the key is too weak")
    }
}

impl std::error::Error for NotShown {}

/// Replaces rustls's error by [`NotShown`], as an error of the certificate, so that the log shows the text of
/// [`NotShown`].
fn not_shown(_: Error) -> Error {
    CertificateError::Other(OtherError(Arc::new(NotShown))).into()
}

/// Type of rustls's functions that verify the signature of a handshake.
type VerifySignature = fn(
    &[u8],
    &CertificateDer<'_>,
    &DigitallySignedStruct,
    &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error>;

impl Verifier {
    /// Verifies that the handshake is signed with the certificate's key. Skips this if any certificate is accepted,
    /// because the signature would then prove nothing.
    fn verify_signature(
        &self,
        verify: VerifySignature,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.accept {
            Accept::Any => Ok(HandshakeSignatureValid::assertion()),
            Accept::Pinned(_) => {
                let algorithms = &self.provider.signature_verification_algorithms;
                verify(message, certificate, signature, algorithms).map_err(not_shown)
            }
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Accept::Pinned(pins) = &self.accept else { return Ok(ServerCertVerified::assertion()) };
        let other = |error: Arc<dyn std::error::Error + Send + Sync>| CertificateError::Other(OtherError(error));
        let pin = Pin::of(certificate).map_err(|error| other(Arc::new(error)))?;
        match pins.contains(&pin) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(other(Arc::new(NotPinned(pin))).into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(verify_tls12_signature, message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(verify_tls13_signature, message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tls::error_text::explain;

    /// Performs a handshake with a server that does not have the key of its certificate. Returns the result.
    async fn handshake(
        accept: Accept,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> Result<(), std::io::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let made = [(); 2].map(|()| rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap());
        let key = rustls::pki_types::PrivateKeyDer::try_from(made[1].signing_key.serialize_der()).unwrap();
        let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
        let key = rustls::sign::CertifiedKey::new(vec![made[0].cert.der().clone()], key);
        let server = rustls::ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[version]);
        let server = server.unwrap().with_no_client_auth();
        let server = server.with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key)));
        let accept = match accept {
            Accept::Any => Accept::Any,
            Accept::Pinned(_) => Accept::Pinned(vec![Pin::of(made[0].cert.der()).unwrap()]),
        };
        let verifier = Arc::new(Verifier { accept, provider: provider.clone() });
        let client = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let client = client.unwrap().dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let accepting = tokio_rustls::TlsAcceptor::from(Arc::new(server)).accept(theirs);
        let name = ServerName::try_from("localhost").unwrap();
        let connecting = tokio_rustls::TlsConnector::from(Arc::new(client)).connect(name, ours);
        let (_, connected) = tokio::join!(accepting, connecting);
        connected.map(drop)
    }

    #[tokio::test]
    async fn a_pinned_certificate_needs_proof_of_its_key_and_any_other_does_not() {
        for version in rustls::ALL_VERSIONS {
            handshake(Accept::Any, version).await.unwrap();
            let error = handshake(Accept::Pinned(Vec::new()), version).await.unwrap_err();
            assert!(explain(&error).starts_with("it has not shown that it has the certificate's key"), "{error}");
        }
    }
}
