//! Tests of limits on blocked connections.

use super::tests::CLIENT;
use crate::policy::address::AddressNormalizer;
use crate::policy::budgets::SessionCounters;
use crate::policy::exception::Length;
use crate::policy::limit::{Action, Algorithm, Count, Distinct, Ladder, Limit, Quota, Rung};
use crate::policy::matching::{Field, Zone};
use crate::policy::request::{Event, Facts, PolicyRequest};
use crate::policy::verdict::{Ruling, Verdict};
use crate::policy::{InMemoryStore, Policy};
use crate::time::{Timestamp, Units, parse_rate};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const DAY: Duration = Duration::from_secs(86_400);

/// Returns a limit "30 / 1h" per client.
fn limit(distinct: Option<Distinct>, rungs: Vec<Rung>) -> Limit {
    let quota = Quota::rate(Algorithm::Ewma, parse_rate("30 / 1h", Units::Things).unwrap(), None);
    let mut limit = Limit::new("scan", Count::BlockedConnections, vec![CLIENT], quota);
    limit.distinct = distinct;
    if !rungs.is_empty() {
        limit.ladder = Ladder::new(rungs);
    }
    limit
}

fn store(limit: Limit) -> InMemoryStore {
    InMemoryStore::new(Policy::new(vec![limit], AddressNormalizer::new(None, None), Zone::default()))
}

fn admit(store: &mut InMemoryStore, at: Timestamp, events: Vec<Event>) -> Vec<Verdict> {
    let facts = Facts { client: "10.0.0.5".parse().ok(), ..Facts::default() };
    let request = PolicyRequest { facts, events, ..PolicyRequest::default() };
    store.admit(at, &request, &mut SessionCounters::default())
}

/// Connections to as many destinations, from the address 203.0.113.`first` on.
fn scan(first: u8, count: u8) -> Vec<Event> {
    (first..first + count).map(|last| Event::Blocked(IpAddr::V4(Ipv4Addr::new(203, 0, 113, last)))).collect()
}

fn suspensions(verdicts: &[Verdict]) -> usize {
    verdicts.iter().map(|verdict| verdict.suspensions.len()).sum()
}

/// Returns what becomes of MAIL.
fn mail(store: &mut InMemoryStore, at: Timestamp) -> &'static str {
    word(&admit(store, at, vec![Event::Mail])[0])
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict.ruling {
        Ruling::Pass => "pass",
        Ruling::Refuse(_) => "refuse",
        Ruling::Suspended(_) => "suspended",
        Ruling::Skipped => "skipped",
    }
}

#[test]
fn a_scan_suspends_its_client_once_and_many_connections_to_one_destination_do_not() {
    let suspend = Rung { at: 1.0, action: Action::Suspend { time: Length::For(DAY), is_strict: false } };
    let limit = limit(Some(Distinct::new(Field::Destination)), vec![suspend]);
    let mut calm = store(limit.clone());
    let verdicts = admit(&mut calm, NOW, (0..200).flat_map(|_| scan(1, 1)).collect());
    assert!(suspensions(&verdicts) == 0 && verdicts.iter().all(|verdict| word(verdict) == "pass"));
    assert_eq!(mail(&mut calm, NOW), "pass");
    let mut scanned = store(limit);
    assert_eq!(suspensions(&admit(&mut scanned, NOW, scan(1, 29))), 0);
    assert_eq!(suspensions(&admit(&mut scanned, NOW, scan(1, 29))), 0, "no destination is new");
    assert_eq!(suspensions(&admit(&mut scanned, NOW, scan(30, 21))), 1);
    assert_eq!(suspensions(&admit(&mut scanned, NOW, scan(60, 50))), 0, "the client is suspended already");
    assert_eq!(mail(&mut scanned, NOW), "suspended");
    // The suspension has ended, and the client still scans.
    let later = NOW.after(DAY);
    assert_eq!(mail(&mut scanned, later), "pass");
    assert_eq!(suspensions(&admit(&mut scanned, later, scan(120, 50))), 1);
}

#[test]
fn a_full_limit_refuses_the_mail_that_follows_and_not_the_connection() {
    for distinct in [None, Some(Distinct::new(Field::Destination))] {
        let mut store = store(limit(distinct, Vec::new()));
        assert!(admit(&mut store, NOW, scan(1, 28)).iter().all(|verdict| word(verdict) == "pass"));
        assert_eq!(mail(&mut store, NOW), "pass");
        let verdicts = admit(&mut store, NOW, scan(100, 50));
        assert!(verdicts.iter().all(|verdict| word(verdict) == "pass"));
        assert_eq!(mail(&mut store, NOW), "refuse");
        // Mail is only checked: the level decays, and then the mail passes.
        assert_eq!(mail(&mut store, NOW.after(DAY)), "pass");
    }
}
