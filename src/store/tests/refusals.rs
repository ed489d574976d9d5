//! Tests of the records of refusals.

use super::forgetting::until_count;
use super::*;
use crate::policy::UserFilter;
use crate::reference::{Reference, Refusee, Tag};
use crate::store::MissingRefusal;

const DAY: i64 = 86_400;

fn reference(user: &str, second: i64, number: u64) -> Reference {
    Reference::new(at(second), Tag::new("l", "rcpt", Refusee::User(user)), number)
}

fn group(user: &str) -> RefusalGroup<'_> {
    RefusalGroup { is_shadow: false, cause: "l", stage: "rcpt", owner: Refusee::User(user) }
}

fn refusal(user: &str, body: &str) -> Refusal {
    let (owner, limit) = (Some(format!("user={user}")), Some("l".to_owned()));
    let (user, client) = (Some(user.to_owned()), Some("192.0.2.7".to_owned()));
    Refusal { is_shadow: false, owner, user, client, limit, body: body.to_owned() }
}

fn offer(store: &Store, group: &RefusalGroup<'_>, reference: &Reference, build: impl FnOnce() -> Refusal) {
    let recorder = store.refusal_recorder();
    if recorder.count(group, reference) {
        recorder.add(group, reference, build());
    }
}

pub fn record(store: &Store, user: &str, second: i64, number: u64) -> Reference {
    let reference = reference(user, second, number);
    offer(store, &group(user), &reference, || refusal(user, &format!("{{\"{user}\":{number}}}")));
    reference
}

/// Records that the limit would have refused a user, if it were enforced.
fn record_shadow(store: &Store, user: &str, second: i64, number: u64) -> Reference {
    let reference = reference(user, second, number);
    let shadow = RefusalGroup { is_shadow: true, ..group(user) };
    offer(store, &shadow, &reference, || Refusal { is_shadow: true, ..refusal(user, "{}") });
    reference
}

async fn row(store: &Store, reference: Reference) -> Result<RefusalRow, MissingRefusal> {
    store.refusal(reference).await.map(|found| found.row)
}

/// Returns all pages of a list.
async fn pages(store: &Store, filter: &RefusalFilter, at_most: usize) -> Vec<RefusalRow> {
    let (mut all, mut before) = (Vec::new(), filter.before);
    loop {
        let page = store.refusals(RefusalFilter { before, ..filter.clone() }, at_most).await.unwrap();
        before = page.last().map(|row| row.id);
        let is_last = page.len() < at_most;
        all.extend(page);
        if is_last {
            return all;
        }
    }
}

fn open_with_refusals(path: &Path, refusals: RefusalOptions) -> Store {
    let options = Options {
        path: path.to_owned(),
        durability: Durability::Process,
        on_failure: OnFailure::Allow,
        shared: None,
        refusals,
        budget_octets: BUDGET_OCTETS,
        outcomes: None,
    };
    Store::open(&options, policy("100 / 1d"), Arc::new(Metrics::new().unwrap())).unwrap()
}

#[tokio::test]
async fn a_refusal_is_found_by_its_reference_before_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    let [one, other] = [record(&store, "alice", 0, 1), record(&store, "bob", 0, 1)];
    let body = |row: RefusalRow| row.refusal.body;
    assert_eq!(row(&store, one).await.map(body), Ok("{\"alice\":1}".to_owned()));
    store.close().await;
    let store = open(&path).unwrap();
    assert_eq!(row(&store, one).await.map(body), Ok("{\"alice\":1}".to_owned()));
    assert_eq!(row(&store, other).await.map(body), Ok("{\"bob\":1}".to_owned()));
    let unknown = MissingRefusal::Unknown { records: 2, oldest: Some(at(0)) };
    assert_eq!(store.refusal(reference("alice", 0, 2)).await, Err(unknown.clone()));
    assert_eq!(store.refusal(reference("alice", 1, 1)).await, Err(unknown));
}

#[tokio::test]
async fn each_refusal_of_a_flood_leads_to_a_record_and_a_stop_loses_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    let flood: Vec<_> = (1..=1_000).map(|n| record(&store, "alice", 0, n)).collect();
    let coalesced = row(&store, flood[999]).await.unwrap();
    assert_eq!((coalesced.times, coalesced.number, &*coalesced.refusal.body), (990, None, "{\"alice\":11}"));
    store.close().await;
    let store = open(&path).unwrap();
    for reference in &flood {
        let row = row(&store, *reference).await.unwrap();
        let (times, number) = if reference.number <= 10 { (1, Some(reference.number)) } else { (990, None) };
        assert_eq!((row.times, row.number), (times, number));
    }
    assert_eq!(store.refusals(RefusalFilter::default(), 100).await.unwrap().len(), 11);
}

#[tokio::test]
async fn refusals_are_written_while_weir_runs_and_the_list_has_pages() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    for n in 0..25 {
        record(&store, if n % 5 == 0 { "bob" } else { "alice" }, 60 * n, 1);
    }
    until_count(&path, "refusal", 25).await;
    let all = pages(&store, &RefusalFilter::default(), 10).await;
    assert_eq!(all.len(), 25);
    assert!(all.is_sorted_by(|one, next| one.millis > next.millis));
    let of = |filter| async { store.refusals(filter, 100).await.unwrap().len() };
    let bob = Some(UserFilter::new("BOB", &store.policy().normalizer));
    assert_eq!(of(RefusalFilter { user: bob, ..RefusalFilter::default() }).await, 5);
    let client = Some("192.0.2.8".parse().unwrap());
    assert_eq!(of(RefusalFilter { client, ..RefusalFilter::default() }).await, 0);
    assert_eq!(of(RefusalFilter { since: Some(at(20 * 60)), ..RefusalFilter::default() }).await, 5);
    // A record in memory is on the first page.
    record(&store, "carol", 30 * 60, 1);
    assert_eq!(store.refusals(RefusalFilter::default(), 1).await.unwrap()[0].refusal.user.as_deref(), Some("carol"));
}

#[tokio::test]
async fn old_refusals_are_deleted_by_age_and_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let options = RefusalOptions { max_octets: 100_000, ..RefusalOptions::default() };
    let store = open_with_refusals(&path, options);
    let big = |n: i64| (reference(&format!("user{n}"), n, 1), "x".repeat(10_000));
    for n in 0..20 {
        let (reference, body) = big(n);
        offer(&store, &group(&format!("user{n}")), &reference, || refusal("alice", &body));
    }
    until_count(&path, "refusal", 9).await;
    assert!(store.refusal(big(19).0).await.is_ok() && store.refusal(big(5).0).await.is_err());
    // The octets are known after a restart, too.
    store.close().await;
    let store = open_with_refusals(&path, options);
    let last = reference("bob", 15 * DAY, 1);
    offer(&store, &group("bob"), &last, || refusal("bob", &"x".repeat(10_000)));
    until_count(&path, "refusal", 1).await;
    assert!(store.refusal(last).await.is_ok());
    let octets = refusal("bob", &"x".repeat(10_000)).octets() as i64;
    assert_eq!(sums(&path), (1, octets));
}

#[tokio::test]
async fn nothing_is_kept_if_the_time_is_zero() {
    let folder = tempfile::tempdir().unwrap();
    let options = RefusalOptions { keep: Duration::ZERO, ..RefusalOptions::default() };
    let store = open_with_refusals(&folder.path().join("state.db"), options);
    let reference = reference("alice", 0, 1);
    offer(&store, &group("alice"), &reference, || panic!("no record is needed"));
    assert_eq!(store.refusal(reference).await, Err(MissingRefusal::NotKept));
}

#[tokio::test]
async fn refusals_are_in_the_dump_and_are_loaded_once() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("state.db"), folder.path().join("copy.db"));
    let store = open(&path).unwrap();
    let all: Vec<_> = (1..=30).map(|n| record(&store, "alice", 0, n)).collect();
    store.close().await;
    let mut lines = Vec::new();
    dump::dump(&path, None, &mut lines).unwrap();
    for _ in 0..2 {
        assert_eq!(dump::load(&copy, None, &lines[..]).unwrap().refusals, 11);
    }
    assert_eq!(dump::info(&copy, None).unwrap().refusals, (11, Some(at(0))));
    let store = open(&copy).unwrap();
    for reference in all {
        assert!(store.refusal(reference).await.is_ok());
    }
}

/// Returns the number of records of refusals and the octets of all records, as the file knows them.
fn sums(path: &Path) -> (i64, i64) {
    let file = rusqlite::Connection::open(path).unwrap();
    file.query_row("SELECT records, octets FROM refusal_sum", [], |row| row.try_into()).unwrap()
}

#[tokio::test]
async fn a_client_that_pages_in_a_flood_sees_each_record_once_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    for user in 0..30 {
        for number in 0..20 {
            record(&store, &format!("user{user}"), 0, number);
        }
    }
    // Each user has 10 records of their own and a coalesced one. None is written yet.
    let filter = RefusalFilter::default();
    let in_memory = pages(&store, &filter, 7).await;
    assert_eq!(in_memory.len(), 330);
    assert!(in_memory.is_sorted_by(|one, next| one.id > next.id));
    // Some records are written and further records begin while the client pages.
    let first = store.refusals(filter.clone(), 100).await.unwrap();
    record(&store, "carol", 0, 1);
    until_count(&path, "refusal", 301).await;
    record(&store, "carol", 120, 1);
    let rest = RefusalFilter { before: first.last().map(|row| row.id), ..filter };
    let rest = pages(&store, &rest, 100).await;
    let ids = |rows: &[RefusalRow]| rows.iter().map(|row| row.id).collect::<Vec<_>>();
    assert_eq!([ids(&first), ids(&rest)].concat(), ids(&in_memory));
}

#[tokio::test]
async fn a_reference_of_several_records_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    let reference = reference("alice", 0, 1);
    for user in ["alice", "bob"] {
        offer(&store, &group(user), &reference, || refusal(user, &format!("\"{user}\"")));
    }
    let found = store.refusal(reference).await.unwrap();
    assert_eq!((&*found.row.refusal.body, found.others), ("\"alice\"", 1));
    store.close().await;
    let found = open(&path).unwrap().refusal(reference).await.unwrap();
    assert_eq!((&*found.row.refusal.body, found.others), ("\"alice\"", 1));
}

#[tokio::test]
async fn a_reference_of_an_earlier_version_still_finds_its_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    let reference: Reference = "loyw3v5n-k3f7q-2".parse().unwrap();
    store.refusal_recorder().add(&group("alice"), &reference, refusal("alice", "{}"));
    store.close().await;
    let store = open(&path).unwrap();
    assert!(store.refusal(reference).await.is_ok());
    assert!(store.refusal("loyw3v5n-k30f7q-0002".parse().unwrap()).await.is_err());
}

#[tokio::test]
async fn what_a_limit_would_have_refused_is_evidence_and_no_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    for number in 0..50 {
        record_shadow(&store, "alice", 10, number);
    }
    let shadow = record_shadow(&store, "bob", 20, 1);
    let refused = record(&store, "bob", 30, 1);
    for _ in 0..2 {
        let (evidence, _) = store.evidence("l", at(0), 10).await.unwrap();
        assert_eq!((evidence.refused, evidence.would_refuse, evidence.more_owners), (1, 51, 0));
        let [alice, bob] = &evidence.owners[..] else { panic!("{evidence:?}") };
        assert_eq!((&*alice.owner, alice.would_refuse, alice.refused), ("user=alice", 50, 0));
        assert_eq!((&*bob.owner, bob.would_refuse, bob.refused), ("user=bob", 1, 1));
        assert_eq!((alice.reference, bob.reference), (None, Some(refused)));
        let (later, oldest) = store.evidence("l", at(15), 1).await.unwrap();
        assert_eq!((later.would_refuse, later.owners[0].owner.as_str(), oldest), (1, "user=bob", Some(at(10))));
        assert_eq!(store.evidence("other", at(0), 10).await.unwrap().0.owners, []);
        // Nothing is shown as a refusal.
        assert!(matches!(store.refusal(shadow).await, Err(MissingRefusal::Unknown { .. })));
        assert_eq!(store.refusals(RefusalFilter::default(), 10).await.unwrap().len(), 1);
        let asked = RefusalFilter { is_shadow: true, ..RefusalFilter::default() };
        assert_eq!(store.refusals(asked, 10).await.unwrap().len(), 2);
        // Once from memory, and once from the file.
        store.core.refusals.end_period();
        until_count(&path, "refusal", 3).await;
        assert_eq!(sums(&path).0, 1);
    }
}

#[tokio::test]
async fn old_refusals_are_deleted_in_slices_and_each_step_uses_an_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    open(&path).unwrap().close().await;
    let options = super::options(&path);
    let mut file = File::open(&options).unwrap();
    let rows: Vec<_> = (0..3_000)
        .map(|n| RefusalRow::single(n + 1, &reference("alice", n, 1), refusal("alice", &"x".repeat(2_000))))
        .collect();
    file.add_refusals(&rows, u64::MAX).unwrap();
    let all = sums(&path);
    let of_one = rows[0].octets() as i64;
    assert_eq!(all, (3_000, 3_000 * of_one));
    let mut records = sums(&path).0;
    while file.prune_refusals(at(1_000), u64::MAX).unwrap() {
        let rest = sums(&path).0;
        assert!((1..=200).contains(&(records - rest)), "{}", records - rest);
        records = rest;
    }
    assert_eq!(sums(&path), (2_000, 2_000 * of_one));
    // A lower maximum is reached in slices, too, bounded by their octets.
    let max_octets = 500 * of_one as u64;
    let mut before = sums(&path).1;
    while file.prune_refusals(at(1_000), max_octets).unwrap() {
        let after = sums(&path).1;
        assert!((1..=300_000).contains(&(before - after)), "{}", before - after);
        before = after;
    }
    assert_eq!(sums(&path), (500, 500 * of_one));
    let plan = |query: &str| {
        let connection = rusqlite::Connection::open(&path).unwrap();
        let detail = |row: &rusqlite::Row<'_>| row.get::<_, String>(3);
        connection.query_row(&format!("EXPLAIN QUERY PLAN {query}"), [], detail).unwrap()
    };
    let old = plan("SELECT id, octets FROM refusal WHERE at < 5 AND last < 5 ORDER BY at LIMIT 200");
    assert!(old.contains("INDEX refusal_at"), "{old}");
    let evidence =
        plan("SELECT id, owner, shadow, times, at, last, tag, number FROM refusal WHERE of_limit = 'l' AND last > 5");
    assert!(evidence.contains("COVERING INDEX refusal_evidence"), "{evidence}");
}
