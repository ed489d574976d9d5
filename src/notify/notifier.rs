//! Notifier: takes the events that have reached an action `notify`, and makes their notices.

use super::episode::Episodes;
use super::notice::{Event, Excess, Notice, Session};
use super::options::{MailTarget, NotificationOptions, Options};
use super::spool::{Failing, Kind, Spool};
use crate::log::LoggedState;
use crate::metrics::Metrics;
use crate::policy::budgets::Owner;
use crate::policy::verdict;
use crate::store::{NoticeKey, NoticeRecorder, NoticeRow};
use crate::time::Timestamp;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Notifier. Sessions give it the events; [`Notifier::run`](super::Notifier::run) delivers the notices.
pub struct Notifier {
    /// The lock is confined to this module's files `notifier.rs` and `deliverer.rs`. It is never held across `.await`,
    /// a delivery or an access to the disk.
    inner: Mutex<Inner>,
    /// Wakes the deliverer.
    pub(super) work: Notify,
    pub(super) recorder: NoticeRecorder,
    pub(super) metrics: Arc<Metrics>,
}

pub(super) struct Inner {
    pub options: Arc<Options>,
    pub episodes: Episodes,
    pub spool: Spool,
    /// Logged once while the spool is full.
    pub is_full: LoggedState<bool>,
    pub is_stopping: bool,
    /// IDs of the notices made before the notices in the state file are loaded; `None` afterwards. The file perhaps has
    /// these notices, too.
    pub made_before_load: Option<HashSet<String>>,
}

/// Maximum IDs of notices made before the load: the state file cannot be read at that time.
const MAX_MADE: usize = 10_000;

impl Notifier {
    pub fn new(options: Options, recorder: NoticeRecorder, metrics: Arc<Metrics>) -> Self {
        let inner = Inner {
            options: Arc::new(options),
            episodes: Episodes::default(),
            spool: Spool::default(),
            is_full: LoggedState::default(),
            is_stopping: false,
            made_before_load: Some(HashSet::new()),
        };
        Self { inner: Mutex::new(inner), work: Notify::new(), recorder, metrics }
    }

    /// Replaces the options. A notice that waits is delivered as the new options say.
    pub fn set_options(&self, options: Options) {
        self.lock().options = Arc::new(options);
        self.work.notify_one();
    }

    /// Takes an event that has reached an action `notify`. Returns true if an episode begins with the event: then the
    /// notice is on its way to its targets.
    pub fn take(&self, event: &verdict::Notice, session: &Session<'_>, now: Timestamp) -> bool {
        let mut inner = self.lock();
        let is_new = inner.episodes.begins(event, now);
        inner.episodes.remove_forgotten(&self.recorder);
        if is_new {
            let options = inner.options.clone();
            let name = &*event.notification.name;
            if let Some(of_name) = options.notifications.get(name).filter(|of_name| of_name.has_targets()) {
                let excess = Excess::new(event, session);
                if of_name.at_end {
                    inner.episodes.announce_end(event, &options.hostname, &excess);
                }
                let notice = Notice::new(Event::Begin, &options.hostname, name, excess, now);
                self.spool(&mut inner, of_name, &notice);
            }
            inner.episodes.store(&self.recorder, event);
            self.show(&inner);
        }
        is_new
    }

    /// Ends the episodes of an owner's budgets of a limit, because an administrator has emptied them.
    pub fn end_episodes(&self, limit: &str, owner: &Owner, now: Timestamp) {
        self.lock().episodes.end(limit, owner, now);
    }

    /// Returns the targets that fail at present.
    pub fn failing(&self) -> Vec<Failing> {
        self.lock().spool.failing()
    }

    /// Makes the deliverer end: no further delivery begins.
    pub fn stop(&self) {
        self.lock().is_stopping = true;
        self.work.notify_one();
    }

    /// Adds a notice to the spool, once for each target.
    pub(super) fn spool(&self, inner: &mut Inner, options: &NotificationOptions, notice: &Notice) {
        if let Some(made) = inner.made_before_load.as_mut().filter(|made| made.len() < MAX_MADE) {
            made.insert(notice.id.clone());
        }
        let body = notice.stored();
        let row = |target: String| NoticeRow {
            key: NoticeKey { id: notice.id.clone(), target },
            notify: notice.notify.clone(),
            at: notice.time,
            body: body.clone(),
        };
        let rows: Vec<NoticeRow> = self.targets(options, notice).into_iter().map(row).collect();
        let change = self.recorder.add(rows.clone());
        for row in rows {
            let dropped = inner.spool.add(row, Some(change));
            self.drop_rows(inner, &dropped);
        }
        self.work.notify_one();
    }

    /// Counts and logs deliveries that are dropped because the spool is full.
    pub(super) fn drop_rows(&self, inner: &mut Inner, dropped: &[NoticeRow]) {
        for row in dropped {
            self.recorder.remove(&row.key);
            if let Some((kind, _)) = Kind::of_target(&row.key.target) {
                self.count(kind, "dropped");
            }
        }
        if let Some(row) = dropped.first()
            && inner.is_full.changes_to(true)
        {
            let waiting = inner.spool.count();
            tracing::error!(
                notify = row.notify,
                waiting,
                "too many notices wait: the oldest ones of the target with the most are dropped"
            );
        }
    }

    /// Shows sizes in the metrics.
    pub(super) fn show(&self, inner: &Inner) {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let metrics = &self.metrics.notices;
        metrics.waiting.set(gauge(inner.spool.count()));
        metrics.waiting_octets.set(gauge(inner.spool.octets()));
        metrics.episodes.set(gauge(inner.episodes.len()));
    }

    pub(super) fn count(&self, kind: Kind, outcome: &str) {
        self.metrics.notices.deliveries.with_label_values(&[kind.name(), outcome]).inc();
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the targets of a notice, as in [`NoticeKey::target`].
    fn targets(&self, options: &NotificationOptions, notice: &Notice) -> Vec<String> {
        let (targets, skipped) = targets(options, notice);
        if skipped {
            self.count(Kind::User, "skipped");
            let (notify, limit, user) = (&notice.notify, &notice.excess.limit, notice.excess.login());
            let why = match notice.excess.user {
                Some(_) => "the mail address is not known",
                None => "the client has not logged in",
            };
            tracing::info!(notify, limit, user, reason = why, "no notice to the user");
        }
        targets
    }
}

/// Returns the targets of a notice, as in [`NoticeKey::target`], and whether the user gets no mail because no user has
/// logged in, or because the address is not known.
pub(super) fn targets(options: &NotificationOptions, notice: &Notice) -> (Vec<String>, bool) {
    let (mut targets, mut skipped) = (Vec::new(), false);
    targets.extend(options.webhook.as_ref().map(|_| Kind::Webhook.name().to_owned()));
    targets.extend(options.command.as_ref().map(|_| Kind::Command.name().to_owned()));
    for target in &options.mail {
        let target = match target {
            MailTarget::Address(address) => Some(format!("{} {address}", Kind::Mail.name())),
            MailTarget::User => {
                // Before the login, the client can name any address, also one of another organization.
                let address = notice.excess.user.as_deref().and_then(|login| options.address_of(login));
                skipped |= address.is_none();
                address.map(|address| format!("{} {address}", Kind::User.name()))
            }
        };
        targets.extend(target);
    }
    (targets, skipped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::options::tests::plain;

    #[test]
    fn a_name_that_has_not_logged_in_gets_no_mail() {
        let options = NotificationOptions { mail: vec![MailTarget::User], ..plain() };
        let mut notice = Notice::test("weir.example", "n", "victim@example.net", Timestamp::from_micros(0));
        assert_eq!(targets(&options, &notice), (vec!["user victim@example.net".to_owned()], false));
        notice.excess.user = None;
        assert_eq!(targets(&options, &notice), (Vec::new(), true));
    }
}
