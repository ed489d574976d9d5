//! Spool: the deliveries that wait, in lanes. A lane is one target of one notification. Its deliveries follow one
//! another, so that a target that is down or slow delays no other target.

use crate::back_off::BackOff;
use crate::store::{NoticeKey, NoticeRow};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

/// Kind of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Webhook,
    Command,
    /// Mail to configured addresses.
    Mail,
    /// Mail to the users who are concerned.
    User,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Webhook, Self::Command, Self::Mail, Self::User];

    /// Returns the first word of [`NoticeKey::target`], which is also the label of the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Command => "command",
            Self::Mail => "mail",
            Self::User => "user",
        }
    }

    /// Returns the name for administrators.
    fn text(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Command => "command",
            Self::Mail => "mail",
            Self::User => "mail to users",
        }
    }

    /// Parses [`NoticeKey::target`] into the kind and the mail address.
    pub fn of_target(target: &str) -> Option<(Self, &str)> {
        let (word, address) = target.split_once(' ').unwrap_or((target, ""));
        Self::ALL.into_iter().find(|kind| kind.name() == word).map(|kind| (kind, address))
    }
}

/// Name of a lane: the notification, and the kind of the target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneKey {
    pub notify: String,
    pub kind: Kind,
}

/// Delivery that waits.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub row: NoticeRow,
    /// Number of the change that stores the row; `None` if the state file has the row.
    pub change: Option<u64>,
    failures: u32,
    not_before: Option<Instant>,
    is_under_way: bool,
}

#[derive(Default)]
struct Lane {
    waiting: VecDeque<Waiting>,
    /// Failures in a row.
    failures: u32,
    not_before: Option<Instant>,
    /// Error of the last attempt, if it failed.
    error: Option<String>,
}

/// Deliveries that wait, of all targets.
#[derive(Default)]
pub struct Spool {
    lanes: BTreeMap<LaneKey, Lane>,
    count: usize,
    octets: usize,
}

/// Extent of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The target fails: the other deliveries of the lane wait, too.
    Target,
    /// Only this delivery fails, because its recipient was refused for now.
    Delivery,
}

/// Target that fails at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    pub notify: String,
    pub kind: Kind,
    pub error: String,
    /// Deliveries that wait.
    pub waiting: usize,
}

/// Sentence for administrators: `webhook of [notify.ops] fails: 503 Service Unavailable; 2 notices wait`.
impl fmt::Display for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { notify, kind, error, waiting } = self;
        let noun = if *waiting == 1 { "notice waits" } else { "notices wait" };
        write!(f, "{} of [notify.{notify}] fails: {error}; {waiting} {noun}", kind.text())
    }
}

/// Maximum deliveries that wait, and their maximum octets. If there are more, the oldest delivery of the lane with the
/// most deliveries is dropped: so a target that is down takes no room from the others.
pub const MAX_COUNT: usize = 2_000;
pub const MAX_OCTETS: usize = 4 << 20;

/// Pauses after failures.
const BACK_OFF: BackOff = BackOff { first: Duration::from_secs(1), max: Duration::from_secs(300) };

impl Spool {
    /// Adds a delivery. `change`: see [`Waiting::change`]. Returns the deliveries that are dropped for lack of room.
    pub fn add(&mut self, row: NoticeRow, change: Option<u64>) -> Vec<NoticeRow> {
        let Some((kind, _)) = Kind::of_target(&row.key.target) else { return vec![row] };
        let lane = self.lanes.entry(LaneKey { notify: row.notify.clone(), kind }).or_default();
        (self.count, self.octets) = (self.count + 1, self.octets + row.octets());
        lane.waiting.push_back(Waiting { row, change, failures: 0, not_before: None, is_under_way: false });
        let mut dropped = Vec::new();
        while self.count > MAX_COUNT || self.octets > MAX_OCTETS {
            let Some(row) = self.drop_oldest() else { break };
            dropped.push(row);
        }
        dropped
    }

    /// Begins the next delivery of each lane that is due. Returns these deliveries.
    pub fn begin_due(&mut self, now: Instant) -> Vec<(LaneKey, Waiting)> {
        let is_due = |time: Option<Instant>| time.is_none_or(|time| time <= now);
        let mut begun = Vec::new();
        for (key, lane) in &mut self.lanes {
            if !is_due(lane.not_before) || lane.waiting.iter().any(|waiting| waiting.is_under_way) {
                continue;
            }
            if let Some(next) = lane.waiting.iter_mut().find(|waiting| is_due(waiting.not_before)) {
                next.is_under_way = true;
                begun.push((key.clone(), next.clone()));
            }
        }
        begun
    }

    /// Returns the time when the next delivery is due that is not due yet.
    pub fn next_due(&self) -> Option<Instant> {
        let lane_due = |lane: &Lane| {
            let first =
                lane.waiting.iter().filter(|waiting| !waiting.is_under_way).map(|waiting| waiting.not_before).min()?;
            first.max(lane.not_before)
        };
        self.lanes.values().filter_map(lane_due).min()
    }

    /// Ends a delivery: the target has the notice, or will never have it. Returns true if the target failed before.
    pub fn remove(&mut self, lane: &LaneKey, key: &NoticeKey, is_delivered: bool) -> bool {
        let Some(found) = self.lanes.get_mut(lane) else { return false };
        if let Some(index) = found.waiting.iter().position(|waiting| waiting.row.key == *key)
            && let Some(waiting) = found.waiting.remove(index)
        {
            (self.count, self.octets) = (self.count - 1, self.octets - waiting.row.octets());
        }
        let has_failed = is_delivered && found.error.is_some();
        if is_delivered {
            (found.failures, found.not_before, found.error) = (0, None, None);
        }
        if found.waiting.is_empty() {
            self.lanes.remove(lane);
        }
        has_failed
    }

    /// Ends an attempt that has failed: the delivery is tried again after a pause. Returns true if the target did not
    /// fail before.
    pub fn fail(&mut self, lane: &LaneKey, key: &NoticeKey, error: &str, extent: Extent, now: Instant) -> bool {
        let Some(lane) = self.lanes.get_mut(lane) else { return false };
        let is_first = lane.error.replace(error.to_owned()).is_none();
        if let Some(waiting) = lane.waiting.iter_mut().find(|waiting| waiting.row.key == *key) {
            waiting.is_under_way = false;
            waiting.failures += 1;
            waiting.not_before = Some(now + BACK_OFF.after(waiting.failures));
        }
        if extent == Extent::Target {
            lane.failures += 1;
            lane.not_before = Some(now + BACK_OFF.after(lane.failures));
        }
        is_first
    }

    /// Returns the deliveries that fulfil a condition and are not under way.
    pub fn select(&self, is_selected: impl Fn(&LaneKey, &NoticeRow) -> bool) -> Vec<(LaneKey, NoticeKey)> {
        let of_lane = |(key, lane): (&LaneKey, &Lane)| {
            let selected =
                lane.waiting.iter().filter(|waiting| !waiting.is_under_way && is_selected(key, &waiting.row));
            selected.map(|waiting| (key.clone(), waiting.row.key.clone())).collect::<Vec<_>>()
        };
        self.lanes.iter().flat_map(of_lane).collect()
    }

    /// Returns the targets that fail at present.
    pub fn failing(&self) -> Vec<Failing> {
        let failing = |(key, lane): (&LaneKey, &Lane)| {
            let error = lane.error.clone()?;
            Some(Failing { notify: key.notify.clone(), kind: key.kind, error, waiting: lane.waiting.len() })
        };
        self.lanes.iter().filter_map(failing).collect()
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn octets(&self) -> usize {
        self.octets
    }

    /// Drops the oldest delivery of the lane with the most deliveries. A delivery that is under way stays.
    fn drop_oldest(&mut self) -> Option<NoticeRow> {
        let lane = self.lanes.values_mut().max_by_key(|lane| lane.waiting.len())?;
        let index = lane.waiting.iter().position(|waiting| !waiting.is_under_way)?;
        let row = lane.waiting.remove(index)?.row;
        (self.count, self.octets) = (self.count - 1, self.octets - row.octets());
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn row(notify: &str, target: &str, id: usize) -> NoticeRow {
        let key = NoticeKey { id: id.to_string(), target: target.to_owned() };
        NoticeRow { key, notify: notify.to_owned(), at: Timestamp::from_micros(0), body: "{}".to_owned() }
    }

    #[test]
    fn a_target_that_is_down_takes_no_room_from_another() {
        let mut spool = Spool::default();
        assert!(spool.add(row("other", "webhook", 0), None).is_empty());
        let dropped: Vec<_> = (0..MAX_COUNT + 5).flat_map(|id| spool.add(row("down", "webhook", id), None)).collect();
        let ids: Vec<_> = dropped.iter().map(|row| (row.notify.as_str(), row.key.id.as_str())).collect();
        assert_eq!(ids, ["0", "1", "2", "3", "4", "5"].map(|id| ("down", id)));
        assert_eq!(spool.count(), MAX_COUNT);
        let large = NoticeRow { body: "x".repeat(MAX_OCTETS - 1_000), ..row("large", "webhook", 0) };
        spool.add(large, None);
        assert!(spool.octets() <= MAX_OCTETS);
    }

    #[test]
    fn deliveries_of_a_lane_follow_one_another_and_lanes_are_independent() {
        let (mut spool, now) = (Spool::default(), Instant::now());
        for (notify, target, id) in
            [("a", "webhook", 1), ("a", "webhook", 2), ("a", "mail x@example.org", 1), ("b", "webhook", 3)]
        {
            spool.add(row(notify, target, id), None);
        }
        let begun = spool.begin_due(now);
        let ids: Vec<_> = begun.iter().map(|(lane, waiting)| (&*lane.notify, &*waiting.row.key.id)).collect();
        assert_eq!(ids, [("a", "1"), ("a", "1"), ("b", "3")]);
        assert!(spool.begin_due(now).is_empty());
        let (lane, first) = &begun[0];
        assert!(spool.fail(lane, &first.row.key, "down", Extent::Target, now));
        assert!(spool.begin_due(now).is_empty(), "the whole lane waits");
        assert_eq!(spool.next_due(), Some(now + Duration::from_secs(1)));
        let later = now + Duration::from_secs(1);
        assert_eq!(spool.begin_due(later)[0].1.row.key.id, "1");
        assert!(spool.remove(lane, &first.row.key, true), "the target has recovered");
        assert_eq!(spool.begin_due(later)[0].1.row.key.id, "2");
        assert!(spool.failing().is_empty());
    }

    #[test]
    fn a_refused_recipient_delays_no_other_recipient() {
        let (mut spool, now) = (Spool::default(), Instant::now());
        spool.add(row("a", "mail x@example.org", 1), None);
        spool.add(row("a", "mail y@example.org", 1), None);
        let (lane, first) = spool.begin_due(now).remove(0);
        spool.fail(&lane, &first.row.key, "452 full", Extent::Delivery, now);
        assert_eq!(spool.begin_due(now)[0].1.row.key.target, "mail y@example.org");
    }
}
