//! Choice of the certificate for each handshake, by the server name that the client gives (SNI).

use super::certificate::Certificate;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Resolver of the certificate in each handshake.
#[derive(Debug)]
pub struct CertificateChooser(
    /// The lock is held to look up or replace certificates, never across an `.await`.
    RwLock<Choice>,
);

impl CertificateChooser {
    /// Creates the chooser. The first certificate is the default.
    pub fn new(certificates: &[Certificate]) -> Self {
        Self(RwLock::new(Choice::new(certificates)))
    }

    /// Replaces all certificates; the first one is the default.
    pub fn replace(&self, certificates: &[Certificate]) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Choice::new(certificates);
    }

    /// Returns the certificate for a server name, or for a client that gives none.
    pub fn choose(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).of(name)
    }
}

impl ResolvesServerCert for CertificateChooser {
    fn resolve(&self, client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(client.server_name())
    }
}

/// Certificates by name.
#[derive(Debug)]
struct Choice {
    /// Always set: there is at least one certificate.
    default: Option<Arc<CertifiedKey>>,
    /// Keys are names in lower case.
    named: HashMap<String, Arc<CertifiedKey>>,
}

impl Choice {
    fn new(certificates: &[Certificate]) -> Self {
        let default = certificates.first().map(|certificate| certificate.key.clone());
        let mut named = HashMap::new();
        for Certificate { names, key, .. } in certificates {
            for name in names {
                named.entry(name.clone()).or_insert_with(|| key.clone());
            }
        }
        Self { default, named }
    }

    /// Returns the certificate for a name. An exact name is preferred to a wildcard, which stands for one label (RFC
    /// 9525 §6.3).
    fn of(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let named = name.and_then(|name| {
            let name = name.to_ascii_lowercase();
            let wildcard = || name.split_once('.').and_then(|(_, domain)| self.named.get(&format!("*.{domain}")));
            self.named.get(&name).or_else(wildcard)
        });
        named.or(self.default.as_ref()).cloned()
    }
}
