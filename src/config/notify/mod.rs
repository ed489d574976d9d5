//! `[notify.NAME]`: notifications, which limits send with the action `notify`. Each notice is a line in the log, and goes
//! to the targets of the notification.

mod targets;

use super::files::Files;
use super::section::{Placed, Section};
use super::values::text;
use crate::notify::Options;
use crate::policy::limit::{Algorithm, Notification, Quota};
use crate::time::{Units, parse_rate};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use targets::Targets;

/// Files that notifications name, with the positions of their names.
#[derive(Default)]
pub struct NotifyFiles {
    pub secrets: Vec<Placed<PathBuf>>,
    pub commands: Vec<Placed<PathBuf>>,
}

/// All notifications.
#[derive(Default)]
pub struct Notifications(BTreeMap<String, Known>);

struct Known {
    notification: Arc<Notification>,
    targets: Targets,
    place: Range<usize>,
    is_used: Cell<bool>,
}

impl Notifications {
    /// Finds a notification by its name, and marks it as used; the error lists the names that exist.
    pub fn get(&self, name: &str) -> Result<Arc<Notification>, String> {
        let Some(known) = self.0.get(name) else {
            let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
            return Err(match names.is_empty() {
                true => format!("there is no [notify.{name}]: add this section, with a target such as mail"),
                false => format!("there is no [notify.{name}]; known: {}", names.join(", ")),
            });
        };
        known.is_used.set(true);
        Ok(known.notification.clone())
    }

    /// Returns the names of the notifications that limits use and that have no target, with their positions.
    pub fn without_target(&self) -> Vec<(String, Range<usize>)> {
        let is_bare = |known: &Known| known.is_used.get() && !known.targets.options.has_targets();
        let bare = self.0.iter().filter(|(_, known)| is_bare(known));
        bare.map(|(name, known)| (name.clone(), known.place.clone())).collect()
    }

    /// Returns the files with secrets, and the programs, with the positions of their names.
    pub fn files(&self) -> NotifyFiles {
        let all = || self.0.values().map(|known| &known.targets);
        NotifyFiles {
            secrets: all().filter_map(|targets| targets.secret_file.clone()).collect(),
            commands: all().filter_map(|targets| targets.program.clone()).collect(),
        }
    }

    /// Returns the options of all notifications.
    pub fn options(&self, hostname: &str, contact: Option<Arc<str>>, help_url: Option<Arc<str>>) -> Options {
        let of = |(name, known): (&String, &Known)| (name.as_str().into(), known.targets.options.clone());
        let notifications = self.0.iter().map(of).collect();
        Options { hostname: hostname.into(), contact, help_url, notifications }
    }

    /// Warns of notifications that no limit uses.
    pub fn warn_of_unused(&self, root: &Section<'_>) {
        for (name, known) in self.0.iter().filter(|(_, known)| !known.is_used.get()) {
            root.source().warn_unless(&["limit"], &known.place, format!("no limit notifies \"{name}\""), None);
        }
    }
}

/// Reads all sections. `hostname` is Weir's name.
pub fn notifications(named: Vec<(Placed<&str>, Section<'_>)>, files: &mut Files, hostname: &str) -> Notifications {
    let read = |(name, section): (Placed<&str>, Section<'_>)| {
        let (notification, targets) = notification(section, name.value, files, hostname);
        let known =
            Known { notification: Arc::new(notification), targets, place: name.span, is_used: Cell::new(false) };
        (name.value.to_owned(), known)
    };
    Notifications(named.into_iter().map(read).collect())
}

fn notification(mut s: Section<'_>, name: &str, files: &mut Files, hostname: &str) -> (Notification, Targets) {
    let at_most = s.optional("at-most", |value| {
        let rate = parse_rate(&text(value)?, Units::Things).map_err(|error| error.to_string())?;
        match Quota::rate(Algorithm::TokenBucket, rate, None).rule() {
            Some(rule) if rate.amount >= 1.0 => Ok(rule),
            _ => Err("at least 1 is needed, as in \"1 / 1d\"".to_owned()),
        }
    });
    let targets = targets::read(&mut s, files, hostname);
    s.finish();
    (Notification { name: name.into(), at_most: at_most.map(|at_most| at_most.value) }, targets)
}
