//! TLS towards the upstream: checked where it is required; taken as it comes where plain text would do as well.
//!
//! [`verify`] and [`pin`] say which certificate is taken, [`identity`] is Weir's own, and [`downgrade_log`] tells where there is no TLS.

mod downgrade_log;
mod identity;
mod pin;
mod verify;

pub(super) use downgrade_log::{DowngradeLog, Plain};
pub use identity::Paths;
pub use pin::Pin;
pub(super) use verify::explain;

use crate::relay::ConfigError;
use identity::Identity;
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

/// The TLS that is configured for an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub policy: Policy,
    /// Authorities that may vouch for its certificate, instead of the system's.
    pub ca: Option<PathBuf>,
    /// What its certificate must be good for, instead of the host.
    pub name: Option<String>,
    /// Where there are any, its certificate must have one of these keys, and is not looked at for anything else.
    pub pins: Vec<Pin>,
    /// Shown to it, if it asks.
    pub client: Option<Paths>,
}

/// How to begin TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    None,
    /// By STARTTLS, if it is offered; the certificate is not checked.
    Opportunistic,
    /// By STARTTLS, always; the certificate is checked.
    Required,
    /// From the first octet (RFC 8314 §3.3); the certificate is checked.
    Implicit,
}

impl Policy {
    /// Whether there is no mail without TLS with an upstream that is known for sure.
    pub fn is_checked(self) -> bool {
        matches!(self, Self::Required | Self::Implicit)
    }
}

/// Begins TLS with an upstream.
pub struct Tls {
    connector: Connector,
    /// What its certificate must be good for, where that is checked, and what it is asked for (SNI): the host as it is configured, though
    /// it be reached by an MX record, which whoever can forge DNS can forge, too (RFC 7672 §1.3.2).
    name: ServerName<'static>,
}

enum Connector {
    Anonymous(TlsConnector),
    /// With a certificate of Weir's own.
    Known(Arc<Identity>),
}

impl Tls {
    /// `None` where TLS is not wanted.
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
            Some(paths) => Connector::Known(Arc::new(Identity::read(paths, config)?)),
            None => Connector::Anonymous(TlsConnector::from(Arc::new(config))),
        };
        let host = options.name.as_deref().unwrap_or(host);
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(bare).map_err(|_| ConfigError::Name(host.to_owned()))?;
        Ok(Some(Self { connector, name }))
    }

    /// The client's side of a handshake.
    pub async fn secure<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> std::io::Result<TlsStream<S>> {
        let connector = match &self.connector {
            Connector::Anonymous(connector) => connector.clone(),
            Connector::Known(identity) => {
                let identity = identity.clone();
                tokio::task::spawn_blocking(move || identity.connector()).await.map_err(std::io::Error::other)?
            }
        };
        connector.connect(self.name.clone(), stream).await
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
