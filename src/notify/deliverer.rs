//! Task that delivers notices, tries again after failures, and ends episodes.

use super::delivery::{Failure, Mailer, deliver};
use super::notice::Notice;
use super::notifier::{Inner, Notifier};
use super::options::Options;
use super::spool::{Kind, LaneKey, MAX_COUNT, Waiting};
use crate::clock;
use crate::store::{NoticeKey, NoticeRow, StoredNotices};
use crate::time::format_duration;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{Id, JoinSet};

/// Interval at which episodes are examined.
const TICK: Duration = Duration::from_secs(1);

/// Time for which the first attempt waits until the notice is in the state file. So a kill of the process after the
/// attempt makes no second notice with another ID. While the file cannot be written, the notice is delivered all the
/// same.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time that deliveries under way have to end when Weir stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Function that reads the notices and episodes in the state file.
pub type Reader = Arc<dyn Fn() -> Reading + Send + Sync>;

/// Future of the notices and episodes in the state file.
pub type Reading = Pin<Box<dyn Future<Output = Result<StoredNotices, String>> + Send>>;

/// Deliveries under way.
#[derive(Default)]
struct Deliveries {
    tasks: JoinSet<Result<(), Failure>>,
    rows: HashMap<Id, (LaneKey, NoticeRow)>,
}

impl Deliveries {
    /// Waits for the next delivery that ends. Returns `None` if none is under way.
    async fn next(&mut self) -> Option<(LaneKey, NoticeRow, Result<(), Failure>)> {
        let (id, outcome) = match self.tasks.join_next_with_id().await? {
            Ok(ended) => ended,
            // A panic must not keep the lane busy.
            Err(error) => (error.id(), Err(Failure::of_target("a fault of Weir's own".to_owned()))),
        };
        self.rows.remove(&id).map(|(lane, row)| (lane, row, outcome))
    }
}

impl Notifier {
    /// Delivers notices until [`Notifier::stop`] is called. `is_loaded`: the result of [`Notifier::load`].
    pub async fn run(self: Arc<Self>, mailer: Mailer, read: Reader, mut is_loaded: bool) {
        let mut deliveries = Deliveries::default();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            if self.lock().is_stopping {
                break;
            }
            self.begin_due(&mailer, &mut deliveries);
            let due = self.lock().spool.next_due().filter(|due| *due > Instant::now());
            let due = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.work.notified() => {}
                () = due => {}
                Some((lane, row, outcome)) = deliveries.next() => self.end(lane, row, outcome),
                _ = ticks.tick() => {
                    self.advance();
                    is_loaded = is_loaded || self.load(&read).await;
                }
            }
        }
        let all = async {
            while let Some((lane, row, outcome)) = deliveries.next().await {
                self.end(lane, row, outcome);
            }
        };
        let _ = tokio::time::timeout(STOP_TIMEOUT, all).await;
        // The tasks use the server, which the daemon closes next.
        deliveries.tasks.shutdown().await;
    }

    /// Adds the notices and episodes that the state file has. Returns false if the file cannot be read at present.
    pub async fn load(&self, read: &Reader) -> bool {
        let Ok(StoredNotices { notices, episodes }) = read().await else { return false };
        let mut inner = self.lock();
        episodes.into_iter().for_each(|row| inner.episodes.add_stored(row));
        inner.episodes.remove_forgotten(&self.recorder);
        let made = inner.made_before_load.take().unwrap_or_default();
        let notices: Vec<NoticeRow> = notices.into_iter().filter(|row| !made.contains(&row.key.id)).collect();
        let found = notices.len();
        for row in notices {
            let dropped = inner.spool.add(row, None);
            self.drop_rows(&mut inner, &dropped);
        }
        if found > 0 {
            tracing::info!(notices = found, "notices that were not delivered before the last stop are delivered now");
        }
        self.show(&inner);
        true
    }

    /// Begins the deliveries that are due.
    fn begin_due(self: &Arc<Self>, mailer: &Mailer, deliveries: &mut Deliveries) {
        let (due, options) = {
            let mut inner = self.lock();
            (inner.spool.begin_due(Instant::now()), inner.options.clone())
        };
        for (lane, waiting) in due {
            let (notifier, mailer, options) = (self.clone(), mailer.clone(), options.clone());
            let row = waiting.row.clone();
            let task = deliveries.tasks.spawn(async move { notifier.attempt(&options, &mailer, waiting).await });
            deliveries.rows.insert(task.id(), (lane, row));
        }
    }

    async fn attempt(&self, options: &Options, mailer: &Mailer, waiting: Waiting) -> Result<(), Failure> {
        let permanent = |why: &str| Failure { is_permanent: true, ..Failure::of_target(why.to_owned()) };
        if let Some(change) = waiting.change {
            self.recorder.is_written(change, WRITE_TIMEOUT).await;
        }
        let row = &waiting.row;
        let notice =
            serde_json::from_str::<Notice>(&row.body).map_err(|_| permanent("the stored notice is damaged"))?;
        let target = Kind::of_target(&row.key.target).ok_or_else(|| permanent("the target is not known"))?;
        deliver(options, mailer, &notice, target, clock::now()).await
    }

    /// Takes the outcome of a delivery.
    fn end(&self, lane: LaneKey, row: NoticeRow, outcome: Result<(), Failure>) {
        let mut inner = self.lock();
        let (notify, target, id) = (&*row.notify, &*row.key.target, &*row.key.id);
        match outcome {
            Ok(()) => {
                self.count(lane.kind, "delivered");
                self.recorder.remove(&row.key);
                if inner.spool.remove(&lane, &row.key, true) {
                    tracing::info!(notify, target, notice = id, "notices are delivered again");
                }
            }
            Err(Failure { why, is_permanent: true, .. }) => {
                self.count(lane.kind, "failed");
                self.lose(&mut inner, &lane, &row.key, &why);
            }
            Err(Failure { why, extent, .. }) => {
                self.count(lane.kind, "failed");
                if inner.spool.fail(&lane, &row.key, &why, extent, Instant::now()) {
                    let kept =
                        inner.options.notifications.get(notify).map(|of_name| format_duration(of_name.retry_for));
                    tracing::warn!(
                        notify,
                        target,
                        notice = id,
                        error = why,
                        retry_for = kept,
                        "a notice is not delivered: it is tried again"
                    );
                }
            }
        }
        self.show(&inner);
    }

    /// Gives up a delivery.
    fn lose(&self, inner: &mut Inner, lane: &LaneKey, key: &NoticeKey, why: &str) {
        self.count(lane.kind, "lost");
        self.recorder.remove(key);
        inner.spool.remove(lane, key, false);
        tracing::error!(notify = lane.notify, target = key.target, notice = key.id, error = why, "a notice is lost");
    }

    /// Ends episodes, and gives up deliveries that have been tried for too long.
    fn advance(&self) {
        let (mut inner, now) = (self.lock(), clock::now());
        for notice in inner.episodes.advance(&self.recorder, now) {
            let options = inner.options.clone();
            if let Some(of_name) = options.notifications.get(notice.notify.as_str()) {
                self.spool(&mut inner, of_name, &notice);
            }
        }
        let options = inner.options.clone();
        let is_late = |lane: &LaneKey, row: &NoticeRow| {
            let of_name = options.notifications.get(lane.notify.as_str());
            of_name.is_none_or(|of_name| now.since(row.at) > of_name.retry_for)
        };
        let failing = inner.spool.failing();
        for (lane, key) in inner.spool.select(is_late) {
            let last = failing.iter().find(|failing| failing.notify == lane.notify && failing.kind == lane.kind);
            let why = last.map_or("it was not delivered in time", |failing| &*failing.error);
            self.lose(&mut inner, &lane, &key, why);
        }
        if inner.spool.count() < MAX_COUNT / 2 {
            inner.is_full.changes_to(false);
        }
        self.show(&inner);
    }
}
