//! Top senders: the users, and the clients without a login, that send or are refused most at present.
//!
//! The memory is bounded, however many senders there are: see [`space_saving`].

mod activity;
mod last_hour;
mod level_history;
mod space_saving;

pub use activity::{Activity, Amounts, LastRefusal, Rates, TIME_CONSTANT};
pub use last_hour::{HourSums, MINUTES};
pub use level_history::{Level, LevelHistory, LevelSeries, Span};

use crate::time::Timestamp;
use clap::ValueEnum;
use last_hour::LastHour;
use serde::{Deserialize, Serialize};
use space_saving::SpaceSaving;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use utoipa::ToSchema;

/// Maximum number of users, and maximum number of clients, that are remembered.
pub const CAPACITY: usize = 1_000;

/// Kind of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SenderKind {
    /// User who has logged in, or whom a trusted proxy has named.
    User,
    /// Network of a client without a login.
    Client,
}

/// Quantity by which senders are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SortBy {
    Messages,
    #[default]
    Recipients,
    Refusals,
    Octets,
}

/// Sender, with its activity.
#[derive(Clone, Debug, PartialEq)]
pub struct TopSender {
    pub kind: SenderKind,
    pub name: Arc<str>,
    /// Amounts per minute, averaged over about ten minutes.
    pub rates: Rates,
    /// Amounts since `since`.
    pub sums: Amounts,
    /// Time since which the sender is active. The sender may have been active before that time, but sent so little that
    /// it was not remembered.
    pub since: Timestamp,
    pub last: Timestamp,
    pub last_refusal: Option<LastRefusal>,
}

/// The senders that send or are refused most. Users and clients have separate summaries, so that a flood of strangers
/// does not hide the users.
pub struct TopSenders {
    /// The lock is held while one batch is counted or while the senders are sorted, never across an `.await`.
    summaries: Mutex<Summaries>,
}

/// Active sender, with the times of its first and last event, and its rates.
type Ranked<'a> = (SenderKind, (Timestamp, Timestamp), Rates, space_saving::Heavy<'a, Activity>);

struct Summaries {
    users: SpaceSaving<Activity>,
    clients: SpaceSaving<Activity>,
    hour: LastHour,
}

impl Default for TopSenders {
    fn default() -> Self {
        let summary = || SpaceSaving::new(CAPACITY, TIME_CONSTANT);
        let summaries = Summaries { users: summary(), clients: summary(), hour: LastHour::default() };
        Self { summaries: Mutex::new(summaries) }
    }
}

impl TopSenders {
    /// Counts what a sender did.
    pub fn add(
        &self,
        (kind, name): (SenderKind, &str),
        now: Timestamp,
        amounts: &Amounts,
        last_refusal: Option<LastRefusal>,
    ) {
        let mut summaries = self.lock();
        let Amounts { messages, recipients, refusals, .. } = *amounts;
        summaries.hour.add(now, HourSums { messages, recipients, refusals, delays: 0 });
        let summary = summaries.of_mut(kind);
        summary.add(name, now, amounts.weight()).add(now, amounts, last_refusal);
    }

    /// Returns at most `count` active senders of one kind or of both kinds, those with the highest rate first.
    pub fn senders(&self, now: Timestamp, kind: Option<SenderKind>, by: SortBy, count: usize) -> Vec<TopSender> {
        let kinds = [SenderKind::User, SenderKind::Client];
        let summaries = self.lock();
        let mut ranked: Vec<Ranked<'_>> = Vec::new();
        for kind in kinds.into_iter().filter(|one| kind.is_none_or(|kind| kind == *one)) {
            for heavy in summaries.of(kind).iter(now) {
                let Some(span) = heavy.value.span(now) else { continue };
                ranked.push((kind, span, heavy.value.rates(now), heavy));
            }
        }
        // With equal rates, the sender with the larger weight comes first; the name makes the order definite.
        let order = |(_, _, one, first): &Ranked<'_>, (_, _, other, second): &Ranked<'_>| {
            let order = other.of(by).total_cmp(&one.of(by)).then(second.weight.total_cmp(&first.weight));
            order.then_with(|| first.key.cmp(second.key))
        };
        // Messages wait for the lock, so only the senders of the answer are sorted.
        if count < ranked.len() && count > 0 {
            ranked.select_nth_unstable_by(count - 1, order);
        }
        ranked.truncate(count);
        ranked.sort_unstable_by(order);
        let sender = |(kind, (since, last), rates, heavy): Ranked<'_>| TopSender {
            kind,
            name: heavy.key.clone(),
            rates,
            sums: heavy.value.sums(),
            since,
            last,
            last_refusal: heavy.value.last_refusal().cloned(),
        };
        ranked.into_iter().map(sender).collect()
    }

    /// Returns at most `count` active senders: those that send or are refused most, in all quantities together, come
    /// first. Holds the lock for less time than [`Self::senders`].
    pub fn busiest(&self, now: Timestamp, count: usize) -> Vec<(SenderKind, Arc<str>)> {
        let mut weighted = Vec::with_capacity(2 * CAPACITY);
        {
            let summaries = self.lock();
            for kind in [SenderKind::User, SenderKind::Client] {
                let active = summaries.of(kind).iter(now).filter(|heavy| heavy.value.span(now).is_some());
                weighted.extend(active.map(|heavy| (heavy.weight, kind, heavy.key.clone())));
            }
        }
        weighted.sort_unstable_by(|(one, ..), (other, ..)| other.total_cmp(one));
        weighted.into_iter().take(count).map(|(_, kind, name)| (kind, name)).collect()
    }

    /// Returns the sums over all senders of the last hour.
    pub fn last_hour(&self, now: Timestamp) -> HourSums {
        self.lock().hour.sums(now)
    }

    /// Counts a reply that limits delay.
    pub fn add_delay(&self, now: Timestamp) {
        self.lock().hour.add(now, HourSums { delays: 1, ..HourSums::default() });
    }

    /// Returns the sums over all senders of each of the last `count` minutes, at most [`MINUTES`], with the begin of the
    /// minute: the oldest first, and the present minute last.
    pub fn minutes(&self, now: Timestamp, count: usize) -> Vec<(Timestamp, HourSums)> {
        self.lock().hour.minutes(now, count).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Summaries> {
        self.summaries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Summaries {
    fn of(&self, kind: SenderKind) -> &SpaceSaving<Activity> {
        match kind {
            SenderKind::User => &self.users,
            SenderKind::Client => &self.clients,
        }
    }

    fn of_mut(&mut self, kind: SenderKind) -> &mut SpaceSaving<Activity> {
        match kind {
            SenderKind::User => &mut self.users,
            SenderKind::Client => &mut self.clients,
        }
    }
}

impl Rates {
    pub fn of(&self, by: SortBy) -> f64 {
        match by {
            SortBy::Messages => self.messages,
            SortBy::Recipients => self.recipients,
            SortBy::Refusals => self.refusals,
            SortBy::Octets => self.octets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros((1_700_000_000 + seconds) * 1_000_000)
    }

    fn names(senders: &[TopSender]) -> Vec<&str> {
        senders.iter().map(|sender| &*sender.name).collect()
    }

    #[test]
    fn each_quantity_has_its_own_order() {
        let top = TopSenders::default();
        let amounts = |messages, recipients, refusals, octets| Amounts { messages, recipients, refusals, octets };
        for (name, amounts) in [
            ("many-messages", amounts(90, 90, 0, 1_000)),
            ("many-recipients", amounts(1, 900, 0, 1_000)),
            ("large", amounts(2, 2, 0, 90_000_000)),
        ] {
            top.add((SenderKind::User, name), at(0), &amounts, None);
        }
        top.add((SenderKind::Client, "192.0.2.7"), at(0), &amounts(0, 0, 70, 0), None);
        for (by, first) in [
            (SortBy::Messages, "many-messages"),
            (SortBy::Recipients, "many-recipients"),
            (SortBy::Refusals, "192.0.2.7"),
            (SortBy::Octets, "large"),
        ] {
            assert_eq!(names(&top.senders(at(1), None, by, 1)), [first]);
        }
        assert_eq!(names(&top.senders(at(1), Some(SenderKind::Client), SortBy::Octets, 9)), ["192.0.2.7"]);
        assert_eq!(top.last_hour(at(1)), HourSums { messages: 93, recipients: 992, refusals: 70, delays: 0 });
        let busiest: Vec<_> = top.busiest(at(1), 2).into_iter().map(|(_, name)| name).collect();
        assert_eq!(busiest, ["large".into(), Arc::<str>::from("many-recipients")]);
        assert!(top.busiest(at(4_000), 9).is_empty());
        assert!(top.senders(at(4_000), None, SortBy::Octets, 9).is_empty(), "nobody is active any more");
    }

    #[test]
    fn a_flood_of_strangers_and_of_rare_users_does_not_hide_a_busy_user() {
        let top = TopSenders::default();
        let one = Amounts { messages: 1, recipients: 1, refusals: 0, octets: 1_000 };
        for n in 0..200_000 {
            let kind = if n % 2 == 0 { SenderKind::Client } else { SenderKind::User };
            top.add((kind, &format!("x{n}")), at(n / 1_000), &one, None);
            if n % 500 == 0 {
                top.add((SenderKind::User, "alice"), at(n / 1_000), &one, None);
            }
        }
        // Users send 100,000 messages in 200 s, and 400 of them are alice's.
        let first = &top.senders(at(200), None, SortBy::Messages, 1)[0];
        assert_eq!((&*first.name, first.sums.messages), ("alice", 400));
        let summaries = top.lock();
        assert_eq!(summaries.users.iter(at(200)).count(), CAPACITY);
        assert_eq!(summaries.clients.iter(at(200)).count(), CAPACITY);
    }
}
