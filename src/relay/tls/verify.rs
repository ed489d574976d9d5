//! Verification of an upstream's certificate by its pinned key, or not at all; and plain texts for TLS errors.

use super::pin::Pin;
use crate::time::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use std::fmt;
use std::sync::Arc;

/// Verifier that checks at most the certificate's key: not its issuer, names or dates. If keys are pinned, the upstream
/// must prove that it has one. Otherwise nothing is checked: the key says nothing about the upstream, and may be of an
/// obsolete kind.
#[derive(Debug)]
pub struct Verifier {
    pub accept: Accept,
    pub provider: Arc<CryptoProvider>,
}

/// The certificates that are accepted.
#[derive(Debug)]
pub enum Accept {
    /// Any: against a passive eavesdropper, encryption without authentication is better than none (RFC 7435).
    Any,
    /// Certificates with one of these keys.
    Pinned(Vec<Pin>),
}

/// The certificate has another key.
#[derive(Debug)]
struct NotPinned(Pin);

impl fmt::Display for NotPinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its certificate has another key than certificate-pin says: {}", self.0)
    }
}

impl std::error::Error for NotPinned {}

/// The handshake is not signed with the certificate's key, or the key is too weak.
#[derive(Debug)]
struct NotShown;

impl fmt::Display for NotShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it has not shown that it has the certificate's key, or the key is too weak")
    }
}

impl std::error::Error for NotShown {}

/// Wraps the error in the one for certificates, though no certificate authority is involved here.
fn not_shown(_: Error) -> Error {
    CertificateError::Other(OtherError(Arc::new(NotShown))).into()
}

/// A function of rustls that verifies the signature of a handshake.
type VerifySignature = fn(
    &[u8],
    &CertificateDer<'_>,
    &DigitallySignedStruct,
    &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error>;

impl Verifier {
    /// Verifies the signature, unless any certificate is accepted: then it does not matter whose key it is.
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

/// Maximum names of a certificate shown in an error: it may have hundreds.
const SHOWN_NAMES: usize = 5;

/// Describes the error of a connection; errors of TLS in plain words.
pub fn explain(error: &std::io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(why)) => refusal(why),
        Some(Error::InvalidMessage(_)) => "what it says is not TLS".to_owned(),
        Some(Error::AlertReceived(AlertDescription::CertificateRequired)) => {
            "it asks for a certificate, and Weir has none for it (client-certificate)".to_owned()
        }
        Some(Error::AlertReceived(alert)) => match complaint(*alert) {
            Some(why) => format!("it does not take Weir's own certificate (client-certificate): {why}"),
            None => error.to_string(),
        },
        _ => error.to_string(),
    }
}

/// Describes an alert about Weir's client certificate.
fn complaint(alert: AlertDescription) -> Option<&'static str> {
    match alert {
        AlertDescription::CertificateExpired => Some("it has expired"),
        AlertDescription::CertificateRevoked => Some("it has been revoked"),
        AlertDescription::UnknownCA => Some("it is from an authority that is not trusted there"),
        AlertDescription::BadCertificate => Some("it is bad"),
        AlertDescription::UnsupportedCertificate => Some("it is of a kind that is not taken there"),
        AlertDescription::CertificateUnknown => Some("there is something wrong with it"),
        _ => None,
    }
}

fn refusal(why: &CertificateError) -> String {
    let date = |at: &UnixTime| {
        let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
        Timestamp::from_micros(seconds.saturating_mul(1_000_000)).rfc3339()
    };
    match why {
        CertificateError::NotValidForNameContext { expected, presented } => {
            format!("its certificate is for {}, not for {}", names(presented), expected.to_str())
        }
        CertificateError::ExpiredContext { not_after, .. } => format!("its certificate expired on {}", date(not_after)),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("its certificate is not valid before {}", date(not_before))
        }
        CertificateError::UnknownIssuer => "its certificate is from an authority that Weir does not trust".to_owned(),
        CertificateError::BadSignature => {
            "its certificate is not signed with the key of the authority that it names".to_owned()
        }
        CertificateError::Other(OtherError(error)) => match error.downcast_ref::<webpki::Error>() {
            Some(webpki::Error::CaUsedAsEndEntity) => {
                "its certificate is that of an authority, which is no server's; it can be pinned".to_owned()
            }
            Some(error) => format!("its certificate cannot be used: {error}"),
            None => error.to_string(),
        },
        other => format!("its certificate cannot be used: {other}"),
    }
}

/// Lists the names in a certificate; webpki writes each as `DnsName("mail.example.org")`.
fn names(presented: &[String]) -> String {
    let bare = |name: &String| {
        let name = name.split_once("(\"").map_or(name.as_str(), |(_, rest)| rest.trim_end_matches("\")"));
        name.replace(|c: char| !c.is_ascii_graphic(), "?")
    };
    let mut names: Vec<String> = presented.iter().take(SHOWN_NAMES).map(bare).collect();
    if names.is_empty() {
        return "no host at all".to_owned();
    }
    if presented.len() > SHOWN_NAMES {
        names.push(format!("{} more", presented.len() - SHOWN_NAMES));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_configuration_key_that_helps() {
        let alert = Error::AlertReceived(AlertDescription::CertificateRequired);
        assert!(explain(&std::io::Error::other(alert)).ends_with("Weir has none for it (client-certificate)"));
        let alert = Error::AlertReceived(AlertDescription::CertificateExpired);
        assert!(
            explain(&std::io::Error::other(alert)).ends_with("own certificate (client-certificate): it has expired")
        );
        let alert = Error::AlertReceived(AlertDescription::HandshakeFailure);
        assert!(!explain(&std::io::Error::other(alert)).contains("client-certificate"));
        assert_eq!(explain(&std::io::ErrorKind::BrokenPipe.into()), "broken pipe");
    }

    #[test]
    fn a_certificate_for_others_is_named_in_short() {
        for (presented, shown) in [
            (&[][..], "no host at all"),
            (&["DnsName(\"a.example\")", "IpAddress(192.0.2.1)"], "a.example, IpAddress(192.0.2.1)"),
            (&["DnsName(\"a\nb\")", "b", "c", "d", "e", "f", "g"], "a?b, b, c, d, e, 2 more"),
        ] {
            let presented: Vec<String> = presented.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(names(&presented), shown);
        }
    }
    /// Performs a handshake with a server that does not have the certificate's key; returns how it ended.
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
