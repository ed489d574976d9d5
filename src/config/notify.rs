//! `[notify.NAME]`: notifications, which limits send with the action `notify`. Each notification that is sent is a line
//! in the log.

use super::section::{Placed, Section};
use super::values::text;
use crate::policy::limit::{Algorithm, Notification, Quota};
use crate::time::{Units, parse_rate};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// All notifications.
#[derive(Default)]
pub struct Notifications(BTreeMap<String, Known>);

struct Known {
    notification: Arc<Notification>,
    place: Range<usize>,
    is_used: Cell<bool>,
}

impl Notifications {
    /// Finds a notification by its name, and marks it as used; the error lists the names that exist.
    pub fn get(&self, name: &str) -> Result<Arc<Notification>, String> {
        let Some(known) = self.0.get(name) else {
            let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
            return Err(match names.is_empty() {
                true => format!("there is no [notify.{name}]: add this section, with or without at-most"),
                false => format!("there is no [notify.{name}]; known: {}", names.join(", ")),
            });
        };
        known.is_used.set(true);
        Ok(known.notification.clone())
    }

    /// Returns the names of the notifications that limits use, with their positions.
    pub fn used(&self) -> Vec<(String, Range<usize>)> {
        let used = self.0.iter().filter(|(_, known)| known.is_used.get());
        used.map(|(name, known)| (name.clone(), known.place.clone())).collect()
    }

    /// Warns of notifications that no limit uses.
    pub fn warn_of_unused(&self, root: &Section<'_>) {
        for (name, known) in self.0.iter().filter(|(_, known)| !known.is_used.get()) {
            root.source().warn_unless(&["limit"], &known.place, format!("no limit notifies \"{name}\""), None);
        }
    }
}

pub fn notifications(named: Vec<(Placed<&str>, Section<'_>)>) -> Notifications {
    let read = |(name, section): (Placed<&str>, Section<'_>)| {
        let notification = Arc::new(notification(section, name.value));
        (name.value.to_owned(), Known { notification, place: name.span, is_used: Cell::new(false) })
    };
    Notifications(named.into_iter().map(read).collect())
}

fn notification(mut s: Section<'_>, name: &str) -> Notification {
    let at_most = s.value("at-most", "\"1 / 1d\"", |value| {
        let rate = parse_rate(&text(value)?, Units::Things).map_err(|error| error.to_string())?;
        match Quota::rate(Algorithm::TokenBucket, rate, None).rule() {
            Some(rule) if rate.amount >= 1.0 => Ok(rule),
            _ => Err("at least 1 is needed, as in \"1 / 1d\"".to_owned()),
        }
    });
    refuse_delivery(&mut s);
    s.finish();
    Notification { name: name.into(), at_most }
}

/// Reports the keys for delivery by mail or webhook, because Weir does not have such deliveries. Accepting and ignoring
/// these keys would mislead the administrator.
fn refuse_delivery(s: &mut Section<'_>) {
    for (key, lacking) in [("mail", "sends no mail"), ("webhook", "calls no webhook")] {
        if s.has(key) {
            let why = format!(
                "Weir {lacking} yet; remove this key: the log line \"notice\" and the metric weir_notices_total report each notification"
            );
            s.optional(key, |_| Err::<(), _>(why));
        }
    }
}
