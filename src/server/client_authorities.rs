//! TLS client certificates: asks clients for a certificate, and verifies it.
//!
//! A certificate that has no user does not end the handshake: some programs send any certificate that they have. The
//! client has only to prove that it has the certificate's key. Weir verifies the certificate after each handshake, also
//! after one that resumes an earlier session, so that an expired certificate is not accepted.

use super::certificate::CertificateError;
use super::certificate_chooser::CertificateChooser;
use crate::accounts::ClientCertificate;
use crate::accounts::file_metadata::FileMetadata;
use crate::certificate_pin::Pin;
use crate::log::LoggedState;
use crate::time::Timestamp;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ProducesTickets, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_rustls::TlsAcceptor;
use x509_parser::extensions::GeneralName;

/// File of the authorities that issue the certificates of a listener's clients, in use.
pub struct ClientAuthorities {
    path: PathBuf,
    chooser: Arc<CertificateChooser>,
    /// The key of the session tickets. It is another than that of listeners that do not ask for a certificate, since a
    /// session of theirs has none.
    ticketer: Arc<dyn ProducesTickets>,
    /// The lock is held to copy or replace the acceptor, and while the file is read. Only threads that are allowed to
    /// block read the file, and they read it before they take the lock.
    current: Mutex<(Handshake, FileMetadata)>,
    /// Error if the file is bad. The error is logged once, not at each check.
    error: LoggedState<Option<String>>,
}

/// The settings of a handshake that asks for a certificate.
#[derive(Clone)]
pub struct Handshake {
    pub acceptor: TlsAcceptor,
    pub verifier: Verifier,
}

/// Verifier of the certificate after the handshake.
#[derive(Clone)]
pub struct Verifier(Arc<dyn ClientCertVerifier>);

/// Verifier within the handshake: the client must have the certificate's key, and nothing else is checked.
#[derive(Debug)]
struct KeyVerifier {
    /// The names of the authorities, from which a client finds out which of its certificates to send.
    authorities: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

/// Maximum octets of a name in a certificate.
const MAX_SUBJECT: usize = 255;

impl ClientAuthorities {
    pub fn read(path: &Path, chooser: Arc<CertificateChooser>) -> Result<Self, CertificateError> {
        let ticketer = ring::Ticketer::new().map_err(CertificateError::Tls)?;
        let state = FileMetadata::of(path);
        let handshake = handshake(path, chooser.clone(), ticketer.clone())?;
        let current = Mutex::new((handshake, state));
        Ok(Self { path: path.to_owned(), chooser, ticketer, current, error: LoggedState::default() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn handshake(&self) -> Handshake {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Reads the file again if it has changed since it was good. If it is bad, the former authorities stay in use.
    /// `is_told`: an administrator has asked for it, and looks for the error in the log. Blocks.
    pub fn refresh(&self, is_told: bool) {
        let state = FileMetadata::of(&self.path);
        if is_told {
            self.error.changes_to(None);
        }
        if self.current.lock().unwrap_or_else(PoisonError::into_inner).1 == state {
            self.error.changes_to(None);
            return;
        }
        let read = handshake(&self.path, self.chooser.clone(), self.ticketer.clone());
        let is_news = self.error.changes_to(read.as_ref().err().map(ToString::to_string));
        match read {
            Ok(handshake) => {
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) = (handshake, state);
                tracing::info!(file = %self.path.display(), "authorities of client certificates read again");
            }
            Err(error) if is_news => {
                tracing::error!(%error, "authorities of client certificates refused: the former ones stay in use");
            }
            Err(_) => {}
        }
    }
}

/// Reads a file of authorities, and creates the settings of a handshake.
fn handshake(
    path: &Path,
    chooser: Arc<CertificateChooser>,
    ticketer: Arc<dyn ProducesTickets>,
) -> Result<Handshake, CertificateError> {
    let provider = Arc::new(ring::default_provider());
    let roots = Arc::new(authorities(path)?);
    let bad = |error: &dyn std::fmt::Display| CertificateError::Authorities(path.to_owned(), error.to_string());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
    let verifier = Verifier(verifier.map_err(|error| bad(&error))?);
    let in_handshake = KeyVerifier { authorities: roots.subjects(), provider: provider.clone() };
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(CertificateError::Tls)?;
    let mut config = builder.with_client_cert_verifier(Arc::new(in_handshake)).with_cert_resolver(chooser);
    config.ticketer = ticketer;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Handshake { acceptor: TlsAcceptor::from(Arc::new(config)), verifier })
}

/// Reads the certificates of a file.
pub fn authorities(path: &Path) -> Result<RootCertStore, CertificateError> {
    let bad = |why: String| CertificateError::Authorities(path.to_owned(), why);
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| bad(super::certificate::explain(error)))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| bad(format!("a certificate in it cannot be read: {error}")))?;
    }
    if roots.is_empty() { Err(bad("there is no certificate in it".to_owned())) } else { Ok(roots) }
}

impl Verifier {
    /// Verifies a client's certificate, which comes first in `chain`. Returns also the reason if no authority of the
    /// listener vouches for it now. Such a certificate can be used only by its pin. Returns `None` if there is no
    /// certificate, or if it cannot be read.
    pub fn verify(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Option<(ClientCertificate, Option<String>)> {
        let (certificate, intermediates) = chain.split_first()?;
        let pin = Pin::of(certificate).ok()?;
        let now = UnixTime::since_unix_epoch(Duration::from_micros(now.micros().try_into().unwrap_or_default()));
        Some(match self.0.verify_client_cert(certificate, intermediates, now) {
            Ok(_) => (ClientCertificate { pin, subjects: subjects(certificate) }, None),
            Err(error) => (ClientCertificate { pin, subjects: Vec::new() }, Some(error.to_string())),
        })
    }
}

/// Returns the names in a certificate: mail addresses and host names of its subjectAltName, and the common names of its
/// subject.
fn subjects(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return Vec::new() };
    let mut names: Vec<&str> = Vec::new();
    if let Ok(Some(alternative)) = parsed.subject_alternative_name() {
        names.extend(alternative.value.general_names.iter().filter_map(|name| match name {
            GeneralName::RFC822Name(name) | GeneralName::DNSName(name) => Some(*name),
            _ => None,
        }));
    }
    names.extend(parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok()));
    names.retain(|name| (1..=MAX_SUBJECT).contains(&name.len()));
    names.into_iter().map(str::to_owned).collect()
}

impl ClientCertVerifier for KeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.authorities
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
        date_time_ymd,
    };

    fn issuer(name: &str) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn params() -> CertificateParams {
        let mut params = CertificateParams::new(["printer.example.org".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::Rfc822Name("alice@example.org".try_into().unwrap()));
        params.distinguished_name.push(DnType::CommonName, "Alice Example");
        params
    }

    #[test]
    fn names_count_only_if_an_authority_vouches_for_the_certificate_now() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let (authority, other) = (issuer("Ours"), issuer("Theirs"));
        std::fs::write(&path, authority.pem()).unwrap();
        let chooser = Arc::new(CertificateChooser::new(&[]));
        let authorities = ClientAuthorities::read(&path, chooser).unwrap();
        let verify = |certificate: &rcgen::Certificate| {
            authorities.handshake().verifier.verify(&[certificate.der().clone()], clock::now()).unwrap()
        };
        let key = KeyPair::generate().unwrap();
        let good = params().signed_by(&key, &authority).unwrap();
        let (certificate, why) = verify(&good);
        assert_eq!((certificate.pin, why), (Pin::of(good.der()).unwrap(), None));
        assert_eq!(certificate.subjects, ["printer.example.org", "alice@example.org", "Alice Example"]);

        let mut expired = params();
        (expired.not_before, expired.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        let mut of_server = params();
        of_server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for (certificate, words) in [
            (expired.signed_by(&key, &authority).unwrap(), "expired"),
            (of_server.signed_by(&key, &authority).unwrap(), "usage"),
            (params().signed_by(&key, &other).unwrap(), "UnknownIssuer"),
            (params().self_signed(&key).unwrap(), "UnknownIssuer"),
        ] {
            let (certificate, why) = verify(&certificate);
            let why = why.unwrap();
            assert!(why.to_lowercase().contains(&words.to_lowercase()), "{why}");
            // The pin is that of the key, so it stays the same when the certificate is renewed.
            assert_eq!(certificate, ClientCertificate { pin: Pin::of(good.der()).unwrap(), subjects: Vec::new() });
        }
        assert!(authorities.handshake().verifier.verify(&[], clock::now()).is_none());
        assert!(authorities.handshake().verifier.verify(&[vec![0; 9].into()], clock::now()).is_none());

        // Another authority: its certificates are good as soon as the file is read again.
        std::fs::write(path.with_extension("new"), other.pem()).unwrap();
        std::fs::rename(path.with_extension("new"), &path).unwrap();
        assert!(verify(&good).1.is_none());
        authorities.refresh(false);
        assert!(verify(&good).1.is_some() && verify(&params().signed_by(&key, &other).unwrap()).1.is_none());
        std::fs::write(&path, "nonsense").unwrap();
        authorities.refresh(false);
        assert!(authorities.error.get().unwrap().contains("ca.pem: there is no certificate in it"));
        assert!(verify(&good).1.is_some());
    }
}
