//! Checks of the files that a configuration names: certificates, keys, users file, secrets, and the folder of the state
//! file.

use super::diagnostic::{Diagnostic, Diagnostics, Severity};
use super::service_user::{Obstacle, ServiceUser};
use super::{Config, certificates};
use crate::accounts::certificate_users::CertificateUsers;
use crate::accounts::users_file::{ScramUsers, Users};
use crate::admin::tokens::{ReadError as TokensError, Tokens};
use crate::time::Timestamp;
use crate::{accounts, notify, relay, server};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read as _};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Config {
    /// Reads and checks the files that the configuration names.
    pub fn check_files(&self, now: Timestamp) -> Diagnostics {
        let mut problems = self.problems.clone();
        let found = &mut problems.found;
        if let Some(tls) = &self.tls {
            found.extend(certificates::check(tls, &self.places.certificates, now));
        }
        self.check_users(found);
        self.check_certificate_users(found);
        self.check_dovecot(found);
        self.check_upstreams(now, found);
        self.check_state(found);
        self.check_tokens(found);
        self.check_secrets(found);
        self.check_service_user(found);
        self.warn_of_notifications(found);
        self.check_notify_files(found);
        problems
    }

    /// Returns the names of the notifications that limits use and that have no target.
    pub fn notifications_without_target(&self) -> impl Iterator<Item = &str> {
        self.places.notifications.iter().map(|(name, _)| name.as_str())
    }

    /// Warns if the name of a notification without a target looks like a mail address, because Weir sends no mail to
    /// this address.
    fn warn_of_notifications(&self, found: &mut Vec<Diagnostic>) {
        for (name, place) in self.places.notifications.iter().filter(|(name, _)| name.contains('@')) {
            let message = format!("[notify.\"{name}\"] is a name and no recipient");
            let help = format!("add mail = [\"{name}\"]");
            found.push(problem(Severity::Warning, place, message, Some(&help)));
        }
    }

    /// Reads the secrets of webhooks, and checks that the commands of notifications can be executed.
    fn check_notify_files(&self, found: &mut Vec<Diagnostic>) {
        for file in &self.places.notify_files.secrets {
            if let Err(why) = notify::read_secret(&file.value) {
                found.push(problem(Severity::Error, &file.span, why, None));
            }
        }
        for program in &self.places.notify_files.commands {
            let path = program.value.display();
            let why = match std::fs::metadata(&program.value) {
                Err(error) => format!("command {path}: {error}"),
                Ok(file) if !file.is_file() => format!("command {path}: it is no file"),
                Ok(file) if file.mode() & 0o111 == 0 => format!("command {path}: it cannot be executed: chmod +x it"),
                Ok(_) => continue,
            };
            found.push(problem(Severity::Error, &program.span, why, None));
        }
    }

    /// Reads the users file. Warns if a limit names a user or a group that is not in this file, unless there is another
    /// source of users, too.
    fn check_users(&self, found: &mut Vec<Diagnostic>) {
        let users = self.users_file().map(|file| Users::read(file));
        match users.transpose() {
            Ok(read) => {
                let nobody = Users::default();
                let users = read.as_ref().map_or(&nobody, |(users, _)| users);
                self.check_scram(users, found);
                if !self.has_other_sources() {
                    found.extend(self.references.check(users, &self.policy.normalizer));
                }
                found.extend(self.login_without_address(users));
            }
            Err(why) => found.push(problem(Severity::Error, &self.places.accounts.file, why.to_string(), None)),
        }
    }

    /// Reads the tokens file. Warns if it does not exist.
    fn check_tokens(&self, found: &mut Vec<Diagnostic>) {
        let Some(path) = &self.admin.tokens else { return };
        match Tokens::read(path) {
            Ok(_) => {}
            Err(TokensError::Io(_, error)) if error.kind() == ErrorKind::NotFound => {
                let message = format!("tokens file {}: there is none, so no token is accepted", path.display());
                found.push(problem(Severity::Warning, &self.places.tokens, message, Some("weir token add NAME")));
            }
            Err(why) => found.push(problem(Severity::Error, &self.places.tokens, why.to_string(), None)),
        }
    }

    /// Warns if the configuration offers SCRAM-SHA-256 to users who cannot log in by it.
    fn check_scram(&self, users: &Users, found: &mut Vec<Diagnostic>) {
        let is_offered = self.accounts.as_ref().and_then(|accounts| accounts.scram) == Some(true);
        if !is_offered || self.users_file().is_none() {
            return;
        }
        let (message, help) = match users.scram_users() {
            ScramUsers::All => return,
            ScramUsers::None => {
                ("scram: it is not offered, since no user has keys for it", "weir user passwd --scram NAME")
            }
            ScramUsers::Some => (
                "scram: some users have no keys for it, and cannot log in with programs that prefer it",
                "weir user passwd --scram NAME, for each of them; or leave scram out",
            ),
        };
        found.push(problem(Severity::Warning, &self.places.accounts.scram, message.to_owned(), Some(help)));
    }

    /// Reads the files of client certificates and their authorities. Warns of certificates of users who are not in the
    /// users file.
    fn check_certificate_users(&self, found: &mut Vec<Diagnostic>) {
        for file in &self.places.authorities {
            if let Err(why) = server::client_authorities::authorities(&file.value) {
                found.push(problem(Severity::Error, &file.span, why.to_string(), None));
            }
        }
        let Some(path) = self.accounts.as_ref().and_then(|accounts| accounts.certificates.as_ref()) else { return };
        let place = &self.places.accounts.certificates;
        let allowed = match CertificateUsers::read(path) {
            Ok(allowed) => allowed,
            Err(why) => return found.push(problem(Severity::Error, place, why.to_string(), None)),
        };
        let Some(Ok((users, _))) = self.users_file().map(|file| Users::read(file)) else { return };
        if self.has_other_sources() {
            return;
        }
        let unknown: BTreeSet<&str> = allowed.users().filter(|name| !users.contains(name)).collect();
        for name in unknown {
            let message = format!("certificates file {}: there is no user \"{name}\"", path.display());
            let help = "add a line with this name to the users file; with \"*\" as its hash the user has no password";
            found.push(problem(Severity::Warning, place, message, Some(help)));
        }
    }

    /// Returns whether there are sources of users other than the users file.
    fn has_other_sources(&self) -> bool {
        self.accounts.as_ref().is_some_and(|accounts| accounts.dovecot.is_some() || accounts.upstream)
    }

    fn users_file(&self) -> Option<&PathBuf> {
        self.accounts.as_ref()?.file.as_ref()
    }

    /// Warns if Dovecot's socket does not exist. Dovecot perhaps makes it later.
    fn check_dovecot(&self, found: &mut Vec<Diagnostic>) {
        let Some(accounts::dovecot::Address::Unix(path)) = self.dovecot() else { return };
        let is_socket = std::fs::metadata(path).map(|metadata| metadata.file_type().is_socket());
        let (message, help) = match is_socket {
            Ok(true) => return,
            Ok(false) => {
                (format!("{} is no socket", path.display()), "name the unix_listener of Dovecot's service auth")
            }
            Err(error) => {
                let help =
                    "nobody can log in by Dovecot until it makes this socket (unix_listener of its service auth)";
                (format!("Dovecot's socket {}: {error}", path.display()), help)
            }
        };
        found.push(problem(Severity::Warning, &self.places.accounts.dovecot, message, Some(help)));
    }

    fn dovecot(&self) -> Option<&accounts::dovecot::Address> {
        self.accounts.as_ref()?.dovecot.as_ref()
    }

    /// Returns a warning if senders are checked, and a user has no address, because the login has no domain.
    fn login_without_address(&self, users: &accounts::users_file::Users) -> Option<Diagnostic> {
        let place = self.places.checks_senders.as_ref()?;
        let policy = &self.policy;
        if !policy.senders.is_of_logins_alone() || !policy.normalizer.is_default_domain(None) {
            return None;
        }
        let user = users.iter().find(|user| !user.name.contains('@'))?;
        let message = format!("no address belongs to the user \"{}\", whose login has no domain", user.name);
        let help = "add default-domain to [addresses], or say in [senders] as which addresses users may send";
        Some(problem(Severity::Warning, place, message, Some(help)))
    }

    fn check_upstreams(&self, now: Timestamp, found: &mut Vec<Diagnostic>) {
        let resolver = Arc::new(relay::Resolver::new(&self.relay.dns));
        let Ok(metrics) = crate::metrics::Metrics::new() else { return };
        for (upstream, place) in self.relay.upstreams.iter().zip(&self.places.upstreams) {
            let client = upstream.tls.client.as_ref();
            if let Some(message) = client.and_then(|paths| certificates::check_client(paths, now)) {
                found.push(problem(Severity::Warning, place, message, None));
            }
            if let Some(error) = client.and_then(|paths| certificates::encrypted(&paths.key, place)) {
                found.push(error);
            } else if let Err(why) = relay::Upstream::new(&self.relay, upstream, resolver.clone(), &metrics.upstreams) {
                found.push(problem(Severity::Error, place, why.to_string(), None));
            }
        }
    }

    fn check_state(&self, found: &mut Vec<Diagnostic>) {
        let path = &self.state.path;
        if path.is_dir() {
            let message = format!("{} is a folder, and the state is a file", path.display());
            let help = format!("path = \"{}\"", path.join("state.db").display());
            // A warning only: Weir serves mail even if it cannot use its state file.
            found.push(problem(Severity::Warning, &self.places.state_path, message, Some(&help)));
        } else if path.exists() && !is_database(path) {
            let message = format!("{} is no state file: the state would be in memory alone", path.display());
            let help = "move it away, and Weir makes a new one; or \"path\" of [state] names another";
            found.push(problem(Severity::Warning, &self.places.state_path, message, Some(help)));
        }
        let socket_folder = self.admin.socket.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = socket_folder.filter(|folder| Some(*folder) != self.state_folder() && !folder.is_dir()) {
            let message = format!("there is no folder {} for the socket: no commands are taken", folder.display());
            let help = "make it, for the user that Weir runs as alone; \"socket\" of [admin] names another";
            found.push(problem(Severity::Warning, &self.places.socket, message, Some(help)));
        }
        if let Some(folder) = self.state_folder().filter(|folder| !folder.is_dir()) {
            let message = format!("there is no folder {} for the state of the limits", folder.display());
            let help = "make it, for the user that Weir runs as alone; \"path\" of [state] names another";
            found.push(problem(Severity::Error, &self.places.state, message, Some(help)));
        }
        if let Some(shared) = &self.state.shared {
            let read = [shared.secret().map(drop), shared.password().map(drop)];
            for why in read.into_iter().filter_map(Result::err) {
                found.push(problem(Severity::Error, &self.places.state, why, None));
            }
        }
    }

    /// Returns the folder of the state file; `None` for the working directory.
    fn state_folder(&self) -> Option<&Path> {
        self.state.path.parent().filter(|folder| !folder.as_os_str().is_empty())
    }

    fn check_secrets(&self, found: &mut Vec<Diagnostic>) {
        let is_exposed = |path: &Path| path.is_file() && accounts::file_metadata::is_exposed(path);
        for (path, span) in self.secrets().into_iter().filter(|(path, _)| is_exposed(path)) {
            let message = format!("{} can be read by everybody: chmod o= it", path.display());
            found.push(problem(Severity::Warning, span, message, None));
        }
    }

    /// Returns the files that only Weir should be able to read, with the positions of their names in the configuration.
    fn secrets(&self) -> Vec<(&PathBuf, &Range<usize>)> {
        let keys = self.tls.iter().flat_map(server::tls::Options::pairs).map(|paths| &paths.key);
        let keys = keys.zip(self.places.certificates.iter().map(|(_, key)| key));
        let users = self.users_file().map(|file| (file, &self.places.accounts.file));
        let upstreams = self.relay.upstreams.iter().zip(&self.places.upstreams);
        let secrets = upstreams.clone().filter_map(|(upstream, place)| Some((upstream.secret_file()?, place)));
        let shown = upstreams.filter_map(|(upstream, place)| Some((&upstream.tls.client.as_ref()?.key, place)));
        let tokens = self.admin.tokens.as_ref().filter(|path| path.exists()).map(|path| (path, &self.places.tokens));
        let webhooks = self.places.notify_files.secrets.iter().map(|file| (&file.value, &file.span));
        let of_state = self.places.state_secrets.iter().map(|file| (&file.value, &file.span));
        keys.chain(users).chain(secrets).chain(shown).chain(tokens).chain(webhooks).chain(of_state).collect()
    }

    /// Returns the other files that Weir reads, with the positions of their names in the configuration. The position is
    /// empty for the configuration file, lists and override tables.
    fn public_files(&self) -> Vec<(&PathBuf, &Range<usize>)> {
        let certificates = self.tls.iter().flat_map(server::tls::Options::pairs).map(|paths| &paths.certificate);
        let certificates = certificates.zip(self.places.certificates.iter().map(|(certificate, _)| certificate));
        let upstreams = self.relay.upstreams.iter().zip(&self.places.upstreams);
        let authorities = upstreams.clone().filter_map(|(upstream, place)| Some((upstream.tls.ca.as_ref()?, place)));
        let shown = upstreams.filter_map(|(upstream, place)| Some((&upstream.tls.client.as_ref()?.certificate, place)));
        let watched = self.watched.iter().map(|(path, _)| (path, &(0..0)));
        let of_clients = self.places.authorities.iter().map(|file| (&file.value, &file.span));
        let users = self.accounts.iter().filter_map(|accounts| accounts.certificates.as_ref());
        let users = users.map(|path| (path, &self.places.accounts.certificates));
        certificates.chain(authorities).chain(shown).chain(of_clients).chain(users).chain(watched).collect()
    }

    /// Warns of files that the user of the service cannot read, and of a state file that this user cannot write. Root,
    /// who runs this check, can read all files, so the other checks do not find this problem.
    fn check_service_user(&self, found: &mut Vec<Diagnostic>) {
        let Some(user) = self.state_folder().and_then(ServiceUser::of) else { return };
        let mut closed: Vec<Obstacle> = Vec::new();
        for (path, span) in self.secrets().into_iter().chain(self.public_files()) {
            // A folder that the user may not enter is reported once, and not again for each file in it.
            let Some(obstacle) = user.obstacle(path).filter(|obstacle| !closed.contains(obstacle)) else { continue };
            let message = format!("the user {} cannot read {}", user.name, path.display());
            let owner = "this user owns the state's folder, and so is the user of the service";
            let help = format!("{}; {owner}", obstacle.help(&user));
            found.push(problem(Severity::Warning, span, message, Some(&help)));
            closed.push(obstacle);
        }
        if let Some(accounts::dovecot::Address::Unix(path)) = self.dovecot()
            && (user.cannot_write(path) || user.obstacle(path).is_some())
        {
            let message = format!("the user {} cannot connect to {}", user.name, path.display());
            let help = "give its group the unix_listener in Dovecot: mode = 0660, group = GROUP";
            found.push(problem(Severity::Warning, &self.places.accounts.dovecot, message, Some(help)));
        }
        if user.cannot_write(&self.state.path) {
            let message = format!("the user {} cannot write {}", user.name, self.state.path.display());
            let help = format!("chown {} {}", user.name, self.state.path.display());
            found.push(problem(Severity::Warning, &self.places.state_path, message, Some(&help)));
        }
    }
}

/// Returns whether a file is an SQLite database, or is empty. Also returns true for a file that cannot be read, because
/// this error is reported elsewhere.
fn is_database(path: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else { return true };
    let mut begin = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(16).read_to_end(&mut begin));
    metadata.is_file() && (read.is_err() || begin.is_empty() || begin == b"SQLite format 3\0")
}

fn problem(severity: Severity, span: &Range<usize>, message: String, help: Option<&str>) -> Diagnostic {
    Diagnostic { severity, span: span.clone(), message, help: help.map(str::to_owned) }
}
