//! Checks of the files that a configuration names: certificates, keys, users file, secrets, the state's folder.

use super::diagnostic::{Diagnostic, Diagnostics, Severity};
use super::{Config, certificates};
use crate::time::Timestamp;
use crate::{accounts, relay, server};
use std::ops::Range;
use std::sync::Arc;

impl Config {
    /// Reads and checks the files that the configuration names.
    pub fn check_files(&self, now: Timestamp) -> Diagnostics {
        let mut problems = self.problems.clone();
        if let Some(tls) = &self.tls {
            problems.found.extend(certificates::check(tls, &self.places.certificates, now));
        }
        let users =
            self.accounts.as_ref().map(|accounts| accounts::users_file::Users::read(&accounts.file)).transpose();
        if let Ok(read) = &users {
            let nobody = accounts::users_file::Users::default();
            let users = read.as_ref().map_or(&nobody, |(users, _)| users);
            problems.found.extend(self.references.check(users, &self.policy.normalizer));
        }
        let mut found = |severity, span: &Range<usize>, message: String, help: Option<&str>| {
            problems.found.push(Diagnostic { severity, span: span.clone(), message, help: help.map(str::to_owned) });
        };
        for (upstream, place) in self.relay.upstreams.iter().zip(&self.places.upstreams) {
            let shown = upstream.tls.client.as_ref();
            if let Some(message) = shown.and_then(|paths| certificates::check_client(paths, now)) {
                found(Severity::Warning, place, message, None);
            }
        }
        let mut error = |span: &Range<usize>, message: String| found(Severity::Error, span, message, None);
        let resolver = Arc::new(relay::Resolver::new(&self.relay.dns));
        if let Ok(metrics) = crate::metrics::Metrics::new() {
            for (upstream, place) in self.relay.upstreams.iter().zip(&self.places.upstreams) {
                if let Err(why) = relay::Upstream::new(&self.relay, upstream, resolver.clone(), &metrics.upstreams) {
                    error(place, why.to_string());
                }
            }
        }
        if let Err(why) = &users {
            error(&self.places.users, why.to_string());
        }
        let folder = self.state.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            let message = format!("there is no folder {} for the state of the limits", folder.display());
            let help = "make it, for the user that Weir runs as alone; \"path\" of [state] names another";
            found(Severity::Error, &self.places.state, message, Some(help));
        }
        let keys = self.tls.iter().flat_map(server::tls::Options::pairs).map(|paths| &paths.key);
        let keys = keys.zip(&self.places.certificates);
        let users = self.accounts.as_ref().map(|accounts| (&accounts.file, &self.places.users));
        let upstreams = self.relay.upstreams.iter().zip(&self.places.upstreams);
        let secrets = upstreams.clone().filter_map(|(upstream, place)| Some((upstream.secret_file()?, place)));
        let shown = upstreams.filter_map(|(upstream, place)| Some((&upstream.tls.client.as_ref()?.key, place)));
        for (path, span) in
            keys.chain(users).chain(secrets).chain(shown).filter(|(path, _)| accounts::file_state::is_exposed(path))
        {
            let message = format!("{} can be read by everybody: chmod o= it", path.display());
            found(Severity::Warning, span, message, None);
        }
        problems
    }
}
