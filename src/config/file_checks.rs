//! Checks of the files that a configuration names: certificates, keys, users file, secrets, and the folder of the state
//! file.

use super::diagnostic::{Diagnostic, Diagnostics, Severity};
use super::service_user::{Obstacle, ServiceUser};
use super::{Config, certificates};
use crate::time::Timestamp;
use crate::{accounts, relay, server};
use std::io::Read as _;
use std::ops::Range;
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
        self.check_upstreams(now, found);
        self.check_state(found);
        self.check_secrets(found);
        self.check_service_user(found);
        self.warn_of_notifications(found);
        problems
    }

    /// Returns whether any limit has the action `notify`.
    pub fn has_notifications(&self) -> bool {
        !self.places.notifications.is_empty()
    }

    /// Warns if the name of a notification looks like a mail address, because Weir sends no mail to this address.
    fn warn_of_notifications(&self, found: &mut Vec<Diagnostic>) {
        for (name, place) in self.places.notifications.iter().filter(|(name, _)| name.contains('@')) {
            let message = format!("[notify.\"{name}\"] is a name and no recipient: Weir sends no mail yet");
            let help = "watch the log for \"notice\", or the metric weir_notices_total";
            found.push(problem(Severity::Warning, place, message, Some(help)));
        }
    }

    /// Reads the users file. Warns if a limit names a user or a group that is not in this file.
    fn check_users(&self, found: &mut Vec<Diagnostic>) {
        let users = self.accounts.as_ref().map(|accounts| accounts::users_file::Users::read(&accounts.file));
        match users.transpose() {
            Ok(read) => {
                let nobody = accounts::users_file::Users::default();
                let users = read.as_ref().map_or(&nobody, |(users, _)| users);
                found.extend(self.references.check(users, &self.policy.normalizer));
            }
            Err(why) => found.push(problem(Severity::Error, &self.places.users, why.to_string(), None)),
        }
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
        let users = self.accounts.as_ref().map(|accounts| (&accounts.file, &self.places.users));
        let upstreams = self.relay.upstreams.iter().zip(&self.places.upstreams);
        let secrets = upstreams.clone().filter_map(|(upstream, place)| Some((upstream.secret_file()?, place)));
        let shown = upstreams.filter_map(|(upstream, place)| Some((&upstream.tls.client.as_ref()?.key, place)));
        keys.chain(users).chain(secrets).chain(shown).collect()
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
        certificates.chain(authorities).chain(shown).chain(watched).collect()
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
