//! TLS to an upstream. If TLS is required, the upstream's certificate is checked; if TLS is optional, any certificate
//! is accepted.
//!
//! [`verify`] checks the upstream's certificate, also by its [`pin`](crate::certificate_pin), and [`client_certificate`] is Weir's own certificate.
//! [`downgrade_log`] warns if connections have no TLS although TLS is possible, and [`error_text`] explains failed
//! handshakes.

mod client_certificate;
mod downgrade_log;
mod error_text;
mod verify;

pub use crate::certificate_pin::Pin;
pub use client_certificate::Paths;
pub(super) use downgrade_log::{DowngradeLog, NoTlsReason};
pub(super) use error_text::explain;

use crate::relay::config_error::ConfigError;
use client_certificate::ClientCertificate;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use verify::{Accept, Verifier};

/// TLS options of an upstream, from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub policy: Policy,
    /// File of the certificate authorities that Weir trusts to issue the upstream's certificate; `None` means the
    /// system's authorities.
    pub ca: Option<PathBuf>,
    /// Name that the certificate must have; `None` means the configured host.
    pub name: Option<String>,
    /// Pinned keys. If there are any, the certificate must have one of these keys, and nothing else in the certificate
    /// is checked.
    pub pins: Vec<Pin>,
    /// Files of Weir's client certificate, which is sent if the upstream asks for a certificate.
    pub client: Option<Paths>,
}

/// Policy of using TLS and checking the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    None,
    /// STARTTLS if the upstream offers it; the certificate is not checked.
    Opportunistic,
    /// STARTTLS always; the certificate is checked.
    Required,
    /// TLS from the first octet (RFC 8314 §3.3); the certificate is checked.
    Implicit,
}

impl Policy {
    /// Returns whether mail is sent only with TLS and a checked certificate.
    pub fn is_checked(self) -> bool {
        matches!(self, Self::Required | Self::Implicit)
    }
}

/// TLS settings of one upstream.
pub struct Tls {
    connector: Connector,
    /// Name that a checked certificate must have. The name is also sent as SNI. It is the configured name or host, even
    /// if mail goes to the host of an MX record. The name of the MX record is not used, because an attacker who can
    /// forge DNS can forge this record, too (RFC 7672 §1.3.2).
    name: ServerName<'static>,
}

enum Connector {
    WithoutCertificate(TlsConnector),
    WithCertificate(Arc<ClientCertificate>),
}

impl Tls {
    /// Creates the TLS settings for an upstream on `host`. Returns `None` if the policy is to use no TLS.
    pub fn new(options: &Options, host: &str) -> Result<Option<Self>, ConfigError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let accept = match options.policy {
            Policy::None => return Ok(None),
            Policy::Opportunistic => Some(Accept::Any),
            Policy::Required | Policy::Implicit if options.pins.is_empty() => None,
            Policy::Required | Policy::Implicit => Some(Accept::Pinned(options.pins.clone())),
        };
        let builder = match accept {
            None => builder.with_root_certificates(roots(options)?),
            Some(accept) => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(Verifier { accept, provider }))
            }
        };
        let config = builder.with_no_client_auth();
        let connector = match &options.client {
            Some(paths) => Connector::WithCertificate(Arc::new(ClientCertificate::read(paths, config)?)),
            None => Connector::WithoutCertificate(TlsConnector::from(Arc::new(config))),
        };
        let host = options.name.as_deref().unwrap_or(host);
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(bare).map_err(|_| ConfigError::Name(host.to_owned()))?;
        Ok(Some(Self { connector, name }))
    }

    /// Performs the client's side of a TLS handshake on the stream.
    pub async fn secure<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> std::io::Result<TlsStream<S>> {
        let connector = match &self.connector {
            Connector::WithoutCertificate(connector) => connector.clone(),
            Connector::WithCertificate(certificate) => {
                let certificate = certificate.clone();
                tokio::task::spawn_blocking(move || certificate.connector()).await.map_err(std::io::Error::other)?
            }
        };
        connector.connect(self.name.clone(), stream).await
    }
}

/// Returns the trusted certificate authorities: the authorities in the file `ca`, or the system's authorities.
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
