//! `[notify.NAME]`: notifications that a limit's ladder sends.

use super::delay::web_address;
use super::section::{Placed, Section};
use super::values::text;
use crate::policy::limit::{Algorithm, Mailbox, Notification, Quota};
use crate::smtp::address::{Path, parse_path};
use crate::time::{Units, parse_rate};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// All notifications.
#[derive(Default)]
pub struct Notifications(BTreeMap<String, Known>);

struct Known {
    /// `None`: the section has an error, which was reported.
    notification: Option<Arc<Notification>>,
    place: Range<usize>,
    is_used: Cell<bool>,
}

impl Notifications {
    /// Finds a notification by name; the error lists the names that exist.
    pub fn get(&self, name: &str) -> Result<Option<Arc<Notification>>, String> {
        let Some(known) = self.0.get(name) else {
            let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
            return Err(match names.is_empty() {
                true => format!("there is no [notify.{name}]: add it, with mail or webhook"),
                false => format!("there is no [notify.{name}]: there are {}", names.join(", ")),
            });
        };
        known.is_used.set(true);
        Ok(known.notification.clone())
    }

    /// Warns of notifications that no limit uses.
    pub fn warn_of_unused(&self, root: &Section<'_>) {
        for (name, known) in self.0.iter().filter(|(_, known)| !known.is_used.get()) {
            root.warn(&known.place, format!("no limit notifies \"{name}\""), None);
        }
    }
}

pub fn notifications(named: Vec<(Placed<&str>, Section<'_>)>) -> Notifications {
    let read = |(name, section): (Placed<&str>, Section<'_>)| {
        let notification = notification(section, &name).map(Arc::new);
        (name.value.to_owned(), Known { notification, place: name.span, is_used: Cell::new(false) })
    };
    Notifications(named.into_iter().map(read).collect())
}

fn notification(mut s: Section<'_>, name: &Placed<&str>) -> Option<Notification> {
    let mail = s.optional("mail", |value| mailbox(&text(value)?));
    let webhook = s.optional("webhook", |value| web_address(&text(value)?));
    let at_most = s.value("at-most", "\"1 / 1d\"", |value| {
        let rate = parse_rate(&text(value)?, Units::Things).map_err(|error| error.to_string())?;
        match Quota::rate(Algorithm::TokenBucket, rate, None).rule() {
            Some(rule) if rate.amount >= 1.0 => Ok(rule),
            _ => Err("at least 1 is needed, as in \"1 / 1d\"".to_owned()),
        }
    });
    let has_any = s.has("mail") || s.has("webhook");
    if !has_any {
        s.error(&name.span, "a notification needs mail or webhook", None);
    }
    s.finish();
    let (mail, webhook) = (mail.map(|mail| mail.value), webhook.map(|webhook| webhook.value.into()));
    has_any.then(|| Notification { name: name.value.into(), mail, webhook, at_most })
}

fn mailbox(text: &str) -> Result<Mailbox, String> {
    match parse_path(&format!("<{text}>")) {
        _ if text == "user" => Ok(Mailbox::User),
        Some((Path::Mailbox(_), "")) => Ok(Mailbox::Address(text.into())),
        _ => Err(format!("\"{text}\" is no address: write one, or \"user\" for the user who exceeds the limit")),
    }
}
