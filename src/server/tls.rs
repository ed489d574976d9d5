//! TLS for connections from clients: issues session tickets, and reloads changed certificate files.

use super::certificate::{Certificate, CertificateError, Paths};
use super::certificate_chooser::CertificateChooser;
use super::client_authorities::{ClientAuthorities, Verifier};
use crate::accounts::file_metadata::FileMetadata;
use crate::clock;
use crate::log::LoggedState;
use crate::time::Timestamp;
use prometheus::IntGaugeVec;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::NoServerSessionStorage;
use rustls::sign::CertifiedKey;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

/// Files of all certificates.
#[derive(Clone, Debug)]
pub struct Options {
    /// Certificate for clients that send no server name, or a server name that no certificate has.
    pub default: Paths,
    /// Certificates for clients whose server name is one of the certificate's names. If several certificates have the
    /// name, Weir uses the first of them.
    pub also: Vec<Paths>,
    /// Files of the authorities that issue clients' certificates, each once.
    pub authorities: Vec<PathBuf>,
}

/// All certificates in use.
pub struct Certificates {
    options: Options,
    acceptor: TlsAcceptor,
    chooser: Arc<CertificateChooser>,
    /// Authorities of the listeners that ask clients for a certificate.
    authorities: Vec<ClientAuthorities>,
    /// The lock is held while the files are read. Only threads that are allowed to block take the lock.
    read: Mutex<LastRead>,
    /// Metric of the end of each certificate's validity, by file.
    expiry: IntGaugeVec,
    /// Error if the files are bad. The error is logged once, not at each check.
    error: LoggedState<Option<String>>,
}

/// State of the files, and their keys, when all files were last good.
struct LastRead {
    states: Vec<FileMetadata>,
    keys: Vec<Arc<CertifiedKey>>,
}

impl Options {
    /// Files of each certificate, the default first.
    pub fn pairs(&self) -> impl Iterator<Item = &Paths> {
        std::iter::once(&self.default).chain(&self.also)
    }

    /// Reads each certificate, the default first.
    pub fn read_each(&self) -> impl Iterator<Item = Result<Certificate, CertificateError>> {
        std::iter::once(Certificate::read(&self.default)).chain(self.also.iter().map(Certificate::read_named))
    }

    /// Present state of the files.
    fn files(&self) -> Vec<FileMetadata> {
        self.pairs().flat_map(|paths| [FileMetadata::of(&paths.certificate), FileMetadata::of(&paths.key)]).collect()
    }
}

impl Certificates {
    /// Reads all certificates. `expiry` is the metric of the ends of their validity.
    pub fn read(options: Options, expiry: IntGaugeVec) -> Result<Self, CertificateError> {
        // Take the state before the files are read, so that the next check finds a change in between.
        let states = options.files();
        let certificates = options.read_each().collect::<Result<Vec<_>, _>>()?;
        let now = clock::now();
        for certificate in &certificates {
            log(certificate, "certificate read", now);
            publish(certificate, &expiry);
        }
        let keys = certificates.iter().map(|certificate| certificate.key.clone()).collect();
        let read = Mutex::new(LastRead { states, keys });
        let chooser = Arc::new(CertificateChooser::new(&certificates));
        let acceptor = acceptor(chooser.clone()).map_err(CertificateError::Tls)?;
        let authorities = options.authorities.iter().map(|path| ClientAuthorities::read(path, chooser.clone()));
        let authorities = authorities.collect::<Result<_, _>>()?;
        Ok(Self { options, acceptor, chooser, authorities, read, expiry, error: LoggedState::default() })
    }

    /// Returns the acceptor for a listener. If the listener asks clients for a certificate of the authorities in this
    /// file, also returns the verifier of these certificates.
    pub fn acceptor(&self, authorities: Option<&Path>) -> (TlsAcceptor, Option<Verifier>) {
        match self.authorities.iter().find(|known| Some(known.path()) == authorities) {
            Some(known) => {
                let handshake = known.handshake();
                (handshake.acceptor, Some(handshake.verifier))
            }
            None => (self.acceptor.clone(), None),
        }
    }

    /// Reads all certificates again. If a certificate is bad, logs the error and keeps all former certificates.
    pub async fn reload(self: Arc<Self>) {
        let reload = move || {
            let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
            // Log the error again, because an administrator who reloads looks for it in the log.
            let was_bad = self.error.changes_to(None);
            self.read_again(&mut read, self.options.files(), was_bad);
            self.authorities.iter().for_each(|authorities| authorities.refresh(true));
        };
        let _ = tokio::task::spawn_blocking(reload).await;
    }

    /// Checks the files every `pace`, and reads all of them when a file has changed.
    pub async fn watch(self: Arc<Self>, pace: Duration) {
        loop {
            tokio::time::sleep(pace).await;
            let this = self.clone();
            let _ = tokio::task::spawn_blocking(move || this.refresh()).await;
        }
    }

    /// Reads all certificates again if a file has changed since all files were good. Reads bad files again at each
    /// check, because the key file is perhaps written later, or perhaps becomes readable.
    fn refresh(&self) {
        self.authorities.iter().for_each(|authorities| authorities.refresh(false));
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let files = self.options.files();
        match files == read.states {
            true => drop(self.error.changes_to(None)),
            false => self.read_again(&mut read, files, false),
        }
    }

    /// Reads all certificates. `was_bad`: a certificate was bad at the last attempt, and `self.error` no longer holds
    /// that error.
    fn read_again(&self, read: &mut LastRead, states: Vec<FileMetadata>, was_bad: bool) {
        let certificates = self.options.read_each().collect::<Result<Vec<_>, _>>();
        let is_news = self.error.changes_to(certificates.as_ref().err().map(ToString::to_string));
        match certificates {
            Ok(certificates) => {
                self.chooser.replace(&certificates);
                let now = clock::now();
                for (certificate, former) in certificates.iter().zip(&read.keys) {
                    // A reload also reads certificates that are the same as before. After an error, the log says for
                    // each certificate that it is good again.
                    if certificate.key.cert != former.cert || is_news || was_bad {
                        log(certificate, "certificate read again", now);
                        publish(certificate, &self.expiry);
                    }
                }
                let keys = certificates.into_iter().map(|certificate| certificate.key).collect();
                *read = LastRead { states, keys };
            }
            Err(error) if is_news => tracing::error!(%error, "certificates refused: the former ones stay in use"),
            Err(_) => {}
        }
    }
}

/// Creates the acceptor, for TLS 1.2 and 1.3. The acceptor lives as long as the process, so session tickets stay valid
/// when certificates change.
fn acceptor(chooser: Arc<CertificateChooser>) -> Result<TlsAcceptor, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(chooser);
    // The client stores its session ticket (RFC 5077, RFC 8446 §4.6.1). The ticket is encrypted with a key that changes
    // every 6 hours. The default session cache of rustls would cost memory here, and would keep only the last 256
    // sessions.
    config.ticketer = ring::Ticketer::new()?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn log(certificate: &Certificate, message: &str, now: Timestamp) {
    let (name, file) = (certificate.names.first(), certificate.file.display());
    let until = certificate.end.map(Timestamp::rfc3339);
    match certificate.end {
        Some(end) if end < now => tracing::warn!(name, until, %file, "{message}: its validity has ended"),
        _ => tracing::info!(name, until, %file, "{message}"),
    }
}

/// Shows the end of a certificate's validity in the metric.
fn publish(certificate: &Certificate, expiry: &IntGaugeVec) {
    let labels = [&*certificate.file.to_string_lossy()];
    match certificate.end {
        Some(end) => expiry.with_label_values(&labels).set(end.micros() / 1_000_000),
        None => drop(expiry.remove_label_values(&labels)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Makes a certificate for these names. Returns the certificate and its key.
    fn make(names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    /// Replaces a file like install(1) and certbot do. A file that is rewritten in place at once would perhaps look
    /// unchanged.
    fn put(path: &Path, text: &str) {
        std::fs::write(path.with_extension("new"), text).unwrap();
        std::fs::rename(path.with_extension("new"), path).unwrap();
    }

    fn put_pair(paths: &Paths, (certificate, key): &(String, String)) {
        put(&paths.certificate, certificate);
        put(&paths.key, key);
    }

    /// Makes certificates in a folder, one for each list of names, and reads them.
    fn certificates(folder: &Path, names: &[&[&str]]) -> Result<Certificates, CertificateError> {
        let pair = |(n, names): (usize, &&[&str])| {
            let paths = Paths { certificate: folder.join(format!("{n}.pem")), key: folder.join(format!("{n}.key")) };
            put_pair(&paths, &make(names));
            paths
        };
        let mut pairs = names.iter().enumerate().map(pair);
        let expiry = IntGaugeVec::new(prometheus::Opts::new("e", "e"), &["certificate"]).unwrap();
        Certificates::read(
            Options { default: pairs.next().unwrap(), also: pairs.collect(), authorities: Vec::new() },
            expiry,
        )
    }

    fn shown(certificates: &Certificates, name: Option<&str>) -> Arc<CertifiedKey> {
        certificates.chooser.choose(name).unwrap()
    }

    #[test]
    fn a_certificate_is_chosen_by_its_own_names() {
        let folder = tempfile::tempdir().unwrap();
        let all = certificates(
            folder.path(),
            &[
                &["smtp.example.org"],
                &["*.example.net", "Mail.Example.com"],
                &["smtp.example.net", "mail.example.com", "example.com"],
            ],
        )
        .unwrap();
        let keys = [Some("smtp.example.org"), Some("x.example.net"), Some("example.com")].map(|n| shown(&all, n));
        for (name, expected) in [
            (None, 0),
            (Some("unknown.example"), 0),
            (Some("localhost"), 0),
            (Some("MAIL.example.COM"), 1),
            (Some("any.example.net"), 1),
            (Some("Any.Example.Net"), 1),
            (Some("two.labels.example.net"), 0),
            (Some("example.net"), 0),
            (Some("smtp.example.net"), 2),
            (Some("Example.com"), 2),
        ] {
            assert!(Arc::ptr_eq(&shown(&all, name), &keys[expected]), "{name:?}");
        }
    }

    #[test]
    fn a_certificate_that_is_chosen_by_name_needs_a_name() {
        let folder = tempfile::tempdir().unwrap();
        assert!(certificates(folder.path(), &[&["192.0.2.1"]]).is_ok());
        let error = certificates(folder.path(), &[&["smtp.example.org"], &["192.0.2.1"]]).err().unwrap().to_string();
        assert!(error.contains("1.pem: it names no host"), "{error}");
    }

    #[test]
    fn changed_files_are_read_again_if_certificate_and_key_match() {
        let folder = tempfile::tempdir().unwrap();
        let all = certificates(folder.path(), &[&["smtp.example.org"], &["smtp.example.net"]]).unwrap();
        let both = || [None, Some("smtp.example.net")].map(|name| shown(&all, name));
        let same =
            |a: &[Arc<CertifiedKey>; 2], b: &[Arc<CertifiedKey>; 2]| a.iter().zip(b).all(|(a, b)| a.cert == b.cert);
        let before = both();
        all.refresh();
        assert!(Arc::ptr_eq(&before[0], &both()[0]), "nothing has changed");

        let (renewed, also_renewed) = (make(&["smtp.example.org"]), make(&["smtp.example.net"]));
        put(&all.options.also[0].certificate, &also_renewed.0);
        put_pair(&all.options.default, &renewed);
        all.refresh();
        assert!(same(&before, &both()), "all or nothing");
        let error = all.error.get().unwrap();
        assert!(error.contains("1.key do not go together"), "{error}");
        all.refresh();
        assert!(same(&before, &both()));

        put(&all.options.also[0].key, &also_renewed.1);
        all.refresh();
        let after = both();
        assert!(after.iter().zip(&before).all(|(after, before)| after.cert != before.cert));
        assert_eq!(all.error.get(), None);
        all.refresh();
        assert!(Arc::ptr_eq(&after[0], &both()[0]), "nothing has changed");
    }
}
