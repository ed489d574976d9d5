//! Accounts: users, passwords and logins.
//!
//! [`Accounts`] asks the sources of accounts in the order of the configuration: the users file ([`FileSource`]),
//! [`Dovecot`], and the upstream ([`UpstreamSource`]). [`certificate_users`] has the users of TLS client certificates.

mod cache;
pub mod certificate_users;
pub mod dovecot;
mod exchange;
pub mod file_metadata;
mod file_source;
mod in_flight;
pub mod locked_file;
mod login_networks;
mod password_hash;
mod scram;
mod turns;
mod upstream_source;
pub mod users_file;
mod watched_users_file;
mod wrong_passwords;

pub use certificate_users::ClientCertificate;
pub use dovecot::{Client, Peer};
pub use exchange::Exchange;

use crate::groups::Groups;
use crate::metrics::Metrics;
use crate::smtp::mechanism::{Mechanism, Mechanisms};
use crate::smtp::sasl::{Credentials, Response, Verified};
use certificate_users::{CertificatesError, WatchedCertificates};
use dovecot::Dovecot;
use exchange::{EXTERNAL, SCRAM};
use file_source::{FileSource, Presence};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;
use upstream_source::UpstreamSource;
use users_file::{ReadError, ScramUsers, User};
use wrong_passwords::WrongPasswords;

/// Configuration of the accounts. There is at least one source.
#[derive(Clone, Debug)]
pub struct Options {
    /// The users file.
    pub file: Option<PathBuf>,
    /// Dovecot's socket.
    pub dovecot: Option<dovecot::Address>,
    /// True if a listener asks the upstream.
    pub upstream: bool,
    /// The file of client certificates and their users.
    pub certificates: Option<PathBuf>,
    /// Whether SCRAM-SHA-256 is offered by the users file: whenever a user has keys for it, or never; `None`: if all
    /// users have keys for it, as clients prefer it to other mechanisms.
    pub scram: Option<bool>,
}

/// Reason why the accounts cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    Users(ReadError),
    Certificates(CertificatesError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Users(error) => error.fmt(f),
            Self::Certificates(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

/// A source of accounts. A listener has a list of sources, and asks them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    File,
    Dovecot,
    /// An upstream at which clients log in with their own passwords.
    Upstream,
}

/// The sources of accounts.
pub struct Accounts {
    file: Option<Arc<FileSource>>,
    dovecot: Option<Arc<Dovecot>>,
    upstream: Option<UpstreamSource>,
    certificates: Option<Arc<WatchedCertificates>>,
    scram: Option<bool>,
    /// Wrong passwords that limits on failed logins have already counted.
    wrong: WrongPasswords,
    metrics: Arc<Metrics>,
    /// PLAIN and LOGIN.
    of_passwords: Mechanisms,
}

impl Accounts {
    pub fn open(options: &Options, metrics: Arc<Metrics>) -> Result<Self, OpenError> {
        let queue = |source| metrics.password_checks.queue(source);
        let file = options.file.as_deref().map(|path| FileSource::open(path, queue("file")));
        let file = file.transpose().map_err(OpenError::Users)?;
        let upstream = options.upstream.then(|| UpstreamSource::new(queue("upstream")));
        let certificates = options.certificates.as_deref().map(WatchedCertificates::open).transpose();
        let dovecot = options.dovecot.clone().map(|address| Arc::new(Dovecot::new(address, metrics.clone())));
        Ok(Self {
            file: file.map(Arc::new),
            dovecot,
            upstream,
            certificates: certificates.map_err(OpenError::Certificates)?.map(Arc::new),
            scram: options.scram,
            wrong: WrongPasswords::new(),
            metrics,
            of_passwords: Mechanisms::of_passwords(),
        })
    }

    /// Asks the sources for their mechanisms, if they are not known yet.
    pub async fn learn_mechanisms(&self, sources: &[Source]) {
        if let Some(dovecot) = self.dovecot_of(sources) {
            dovecot.learn_mechanisms().await;
        }
    }

    /// Returns the mechanisms by which users of these sources can log in. While Dovecot's mechanisms are unknown, it
    /// counts as offering PLAIN and LOGIN. `needs_passwords`: an upstream needs the clients' passwords, so only mechanisms
    /// that show the password can be offered.
    pub fn mechanisms(&self, sources: &[Source], needs_passwords: bool) -> Mechanisms {
        let mechanisms = match self.dovecot_of(sources).and_then(|dovecot| dovecot.mechanisms()) {
            None => self.of_passwords.clone(),
            Some(offered) => {
                // Clients' messages of LOGIN go to Dovecot as PLAIN.
                let has_passwords =
                    sources.iter().any(|source| *source != Source::Dovecot) || offered.find("PLAIN").is_some();
                let passwords = self.of_passwords.iter().filter(|_| has_passwords);
                let is_other =
                    |mechanism: &&Mechanism| !needs_passwords && self.of_passwords.find(mechanism.name()).is_none();
                let others = offered.iter().filter(is_other);
                Mechanisms::new(passwords.chain(others).cloned())
            }
        };
        match !needs_passwords && self.offers_scram(sources) {
            true => Mechanisms::new(mechanisms.iter().cloned().chain(Mechanism::new(SCRAM))),
            false => mechanisms,
        }
    }

    /// Returns these mechanisms and that of client certificates.
    pub fn with_certificates(mechanisms: &Mechanisms) -> Mechanisms {
        Mechanisms::new(mechanisms.iter().cloned().chain(Mechanism::new(EXTERNAL)))
    }

    /// Returns whether users of the users file can log in by SCRAM-SHA-256. If other sources have users, too, who could
    /// not log in by it, the configuration has to permit it.
    fn offers_scram(&self, sources: &[Source]) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| sources.contains(&Source::File)) else { return false };
        let has_all_users = sources.len() == 1 && file.scram_users() == ScramUsers::All;
        file.scram_users() != ScramUsers::None && self.scram.unwrap_or(has_all_users)
    }

    /// Checks a password: asks one source after the other until one knows the user. Clients of one network share their
    /// turns. `left` completes when the client no longer waits for its turn. `at_upstream` logs in at the upstream; it is
    /// run only if the upstream is one of the sources.
    ///
    /// If no source accepts the password, and one of them could not be asked, the result is
    /// [`Verified::Unavailable`], because that source perhaps has the user.
    pub async fn verify(
        &self,
        sources: &[Source],
        credentials: &Credentials,
        client: Client<'_>,
        left: impl Future<Output = ()>,
        at_upstream: impl Future<Output = Verified> + Send + 'static,
    ) -> Verified {
        let (mut left, mut at_upstream) = (pin!(left), Some(at_upstream));
        let (mut verified, mut is_unavailable) = (Verified::Unavailable, false);
        for (n, source) in sources.iter().enumerate() {
            let is_last = n + 1 == sources.len();
            verified = match (source, &self.file, &self.dovecot) {
                (Source::File, Some(file), _) => match file_presence(file, credentials, is_last).await {
                    Presence::Present => file.verify(credentials, client.network, left.as_mut()).await,
                    Presence::Absent => continue,
                    Presence::Doubtful => Verified::Unavailable,
                },
                (Source::Dovecot, _, Some(dovecot)) => dovecot.verify(credentials, client, left.as_mut()).await,
                (Source::Upstream, ..) => match (&self.upstream, at_upstream.take()) {
                    (Some(upstream), Some(log_in)) => {
                        upstream.verify(credentials, client.network, left.as_mut(), log_in).await
                    }
                    _ => Verified::Unavailable,
                },
                (Source::File, None, _) | (Source::Dovecot, _, None) => Verified::Unavailable,
            };
            match verified {
                Verified::Unavailable => is_unavailable = true,
                // Dovecot and the upstream do not say if they know the user.
                Verified::Wrong { reason: None } if *source != Source::File => {}
                _ => break,
            }
        }
        if is_unavailable && matches!(verified, Verified::Wrong { .. }) {
            verified = Verified::Unavailable;
        }
        verified = self.unless_disabled(sources, verified).await;
        if let Verified::Wrong { .. } = verified {
            self.wrong.insert(credentials, client.network, "", Instant::now());
        }
        self.count(&verified);
        verified
    }

    /// Begins a login by another mechanism than PLAIN and LOGIN. `certificate` is the client's certificate, if it has one.
    /// Returns `None` if no source has the mechanism.
    pub fn exchange(
        &self,
        sources: &[Source],
        mechanism: &Mechanism,
        certificate: Option<&ClientCertificate>,
    ) -> Option<Exchange> {
        let dovecot = self.dovecot_of(sources);
        let is_of_dovecot = dovecot
            .and_then(|dovecot| dovecot.mechanisms())
            .is_some_and(|offered| offered.find(mechanism.name()).is_some());
        match (&**mechanism.name(), &self.file, certificate) {
            (EXTERNAL, _, Some(certificate)) => Some(Exchange::Certificate(Box::new(certificate.clone()))),
            // The mechanism was offered, even if no user has keys for it any more.
            (SCRAM, Some(file), _) if !is_of_dovecot && sources.contains(&Source::File) => {
                Some(Exchange::Scram(file.clone(), None))
            }
            _ => dovecot.map(|dovecot| Exchange::Dovecot(dovecot.exchange(mechanism.clone()))),
        }
    }

    /// Continues a login with a message of the client.
    pub async fn advance(
        &self,
        sources: &[Source],
        exchange: &mut Exchange,
        response: Option<&Response>,
        client: Client<'_>,
        left: impl Future<Output = ()>,
    ) -> Verified {
        let verified = match (exchange, response) {
            (Exchange::Dovecot(exchange), response) => exchange.advance(response, client, left).await,
            (Exchange::Scram(file, login), Some(message)) => file.advance_scram(login, message).await,
            (Exchange::Certificate(certificate), Some(message)) => {
                self.verify_certificate(sources, certificate, message).await
            }
            // The client begins these two mechanisms.
            (Exchange::Scram(..) | Exchange::Certificate(_), None) => Verified::Malformed,
        };
        let verified = self.unless_disabled(sources, verified).await;
        self.count(&verified);
        verified
    }

    /// Refuses a right login of a user that is disabled in the users file, even if another source accepts it. The name is
    /// that of the source, which perhaps differs from the name that the client gave.
    async fn unless_disabled(&self, sources: &[Source], verified: Verified) -> Verified {
        let Verified::Right { user, .. } = &verified else { return verified };
        if sources.contains(&Source::File) && self.user(user).await.is_some_and(|user| user.is_disabled()) {
            return Verified::Wrong { reason: Some("account disabled") };
        }
        verified
    }

    /// Checks a login by certificate (EXTERNAL, RFC 4422 Appendix A). `message` is the user that the client wants to be,
    /// or empty if the certificate alone decides.
    async fn verify_certificate(
        &self,
        sources: &[Source],
        certificate: &ClientCertificate,
        message: &Response,
    ) -> Verified {
        let identity = match std::str::from_utf8(&message.0) {
            Ok("") => None,
            Ok(identity) => Some(identity),
            Err(_) => return Verified::Malformed,
        };
        let right = self.log_in_by(sources, certificate, identity).await;
        right.unwrap_or(Verified::Wrong { reason: Some("no user has this certificate") })
    }

    /// Returns the result if a user can log in with this certificate. `identity` is the user that the client wants to be;
    /// `None` if the certificate alone decides.
    ///
    /// A user that is disabled in the users file cannot log in by certificate, either; nor can a user that is not in the
    /// file, unless other sources have users, too.
    pub async fn log_in_by(
        &self,
        sources: &[Source],
        certificate: &ClientCertificate,
        identity: Option<&str>,
    ) -> Option<Verified> {
        let (certificates, certificate) = (self.certificates.clone()?, certificate.clone());
        let identity = identity.map(str::to_lowercase);
        let names = tokio::task::spawn_blocking(move || {
            let is_meant = |name: &&str| identity.as_ref().is_none_or(|identity| name.to_lowercase() == *identity);
            certificates.snapshot().users_of(&certificate).filter(is_meant).map(str::to_owned).collect::<Vec<_>>()
        });
        let must_be_in_file = sources == [Source::File];
        for name in names.await.ok()? {
            match self.user(&name).await {
                Some(user) if !user.is_disabled() => return Some(user.right()),
                None if !must_be_in_file => {
                    return Some(Verified::Right { user: name.into(), groups: Groups::default() });
                }
                _ => {}
            }
        }
        None
    }

    /// Forgets that a password of this user was right at the upstream, because the upstream now refuses it.
    pub fn forget(&self, user: &str) {
        if let Some(upstream) = &self.upstream {
            upstream.forget(user);
        }
    }

    fn count(&self, verified: &Verified) {
        let result = match verified {
            Verified::Right { .. } => "right",
            Verified::Wrong { .. } => "wrong",
            Verified::Unavailable => "unavailable",
            Verified::Challenge(_) | Verified::Malformed | Verified::ClientLeft => return,
        };
        self.metrics.connections.logins.with_label_values(&[result]).inc();
    }

    fn dovecot_of(&self, sources: &[Source]) -> Option<&Arc<Dovecot>> {
        self.dovecot.as_ref().filter(|_| sources.contains(&Source::Dovecot))
    }

    /// Returns whether a client of this network has sent the same wrong password of this user a short time ago, or is
    /// sending the same password at this moment. Limits on failed logins count this attempt once.
    pub fn is_repeated(&self, credentials: &Credentials, network: &str) -> bool {
        self.wrong.contains(credentials, network, "", Instant::now())
            || self.file.as_ref().is_some_and(|file| file.is_checking(credentials, network))
            || self.upstream.as_ref().is_some_and(|upstream| upstream.is_checking(credentials, network))
    }

    /// Reads the users file again now if it has changed, so that an error is logged at once, not at the next login.
    /// `told`: an administrator has said that the file is complete.
    pub async fn reload(&self, told: bool) {
        if let Some(file) = &self.file {
            file.reload(told).await;
        }
        if let Some(certificates) = self.certificates.clone() {
            let reload = move || match told {
                true => certificates.reload(),
                false => drop(certificates.snapshot()),
            };
            let _ = tokio::task::spawn_blocking(reload).await;
        }
    }

    /// Returns whether the users file has this user. Other sources do not tell which users they have.
    pub async fn has(&self, name: &str) -> bool {
        match &self.file {
            Some(file) => file.presence(name).await == Presence::Present,
            None => false,
        }
    }

    /// Returns whether the users file has all users.
    pub fn knows_all_users(&self) -> bool {
        self.dovecot.is_none() && self.upstream.is_none()
    }

    /// Returns the account of this user in the users file, disabled or not.
    pub async fn user(&self, name: &str) -> Option<User> {
        self.file.as_ref()?.user(name).await
    }

    /// Returns the account that this user had in the users file a fraction of a second ago, or has now. Costs little.
    pub async fn recent_user(&self, name: &str) -> Option<User> {
        self.file.as_ref()?.recent_user(name).await
    }

    /// Returns the first account in the users file whose name `is_wanted` accepts, disabled or not.
    pub async fn find(&self, is_wanted: impl Fn(&str) -> bool + Send + 'static) -> Option<User> {
        self.file.as_ref()?.find(is_wanted).await
    }

    /// Returns the names of all users, each with the user's groups. Returns `None` if there is a source that does not
    /// tell which users it has.
    pub async fn names(&self) -> Option<Vec<(String, Groups)>> {
        match &self.file {
            Some(file) if self.knows_all_users() => Some(file.names().await),
            _ => None,
        }
    }

    /// Returns a fingerprint of the stored password of each wanted user in the users file. It changes when the password
    /// hash in the file changes. `wanted` returns the name under which a user is wanted. A name that several users of
    /// the file have gets no fingerprint.
    pub async fn password_fingerprints(
        &self,
        wanted: impl Fn(&str) -> Option<Arc<str>> + Send + 'static,
    ) -> HashMap<Arc<str>, u16> {
        match &self.file {
            Some(file) => file.password_fingerprints(wanted).await,
            None => HashMap::new(),
        }
    }

    /// Returns the groups of a user that a trusted proxy names, as they are in the users file; no groups if the file
    /// does not have the user.
    pub async fn groups(&self, name: &str) -> Groups {
        match &self.file {
            Some(file) => file.groups(name).await,
            None => Groups::default(),
        }
    }
}

/// Returns whether the users file has to check these credentials: it checks the password of every user that it has. The
/// last source checks every password, so that the time does not tell which users exist.
async fn file_presence(file: &FileSource, credentials: &Credentials, is_last: bool) -> Presence {
    if is_last { Presence::Present } else { file.presence(&credentials.user).await }
}

#[cfg(test)]
mod tests;
