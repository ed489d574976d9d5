//! Tests of the records of refusals.

use super::forgetting::until_count;
use super::*;
use crate::policy::UserFilter;
use crate::reference::{Reference, Refusee, Tag};
use crate::store::MissingRefusal;

const DAY: i64 = 86_400;

fn reference(user: &str, second: i64, number: u32) -> Reference {
    Reference::new(at(second), Tag::new("l", "rcpt", Refusee::User(user)), number)
}

fn refusal(user: &str, body: &str) -> Refusal {
    let (user, limit) = (Some(user.to_owned()), Some("l".to_owned()));
    Refusal { user, client: Some("192.0.2.7".to_owned()), limit, body: body.to_owned() }
}

fn offer(store: &Store, reference: &Reference, build: impl FnOnce() -> Refusal) {
    let recorder = store.refusal_recorder();
    if recorder.count(reference) {
        recorder.add(reference, build());
    }
}

fn record(store: &Store, user: &str, second: i64, number: u32) -> Reference {
    let reference = reference(user, second, number);
    offer(store, &reference, || refusal(user, &format!("{{\"{user}\":{number}}}")));
    reference
}

fn open_with_refusals(path: &Path, refusals: RefusalOptions) -> Store {
    let options =
        Options { path: path.to_owned(), durability: Durability::Process, on_failure: OnFailure::Allow, refusals };
    Store::open(&options, policy("100 / 1d"), Arc::new(Metrics::new().unwrap())).unwrap()
}

#[tokio::test]
async fn a_refusal_is_found_by_its_reference_before_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    let [one, other] = [record(&store, "alice", 0, 1), record(&store, "bob", 0, 1)];
    let body = |row: RefusalRow| row.refusal.body;
    assert_eq!(store.refusal(one).await.map(body), Ok("{\"alice\":1}".to_owned()));
    store.close().await;
    let store = open(&path).unwrap();
    assert_eq!(store.refusal(one).await.map(body), Ok("{\"alice\":1}".to_owned()));
    assert_eq!(store.refusal(other).await.map(body), Ok("{\"bob\":1}".to_owned()));
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
    let row = store.refusal(flood[999]).await.unwrap();
    assert_eq!((row.times, row.number, &*row.refusal.body), (990, None, "{\"alice\":11}"));
    store.close().await;
    let store = open(&path).unwrap();
    for reference in &flood {
        let row = store.refusal(*reference).await.unwrap();
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
    let (mut all, mut before) = (Vec::new(), None);
    loop {
        let page = store.refusals(RefusalFilter { before, ..RefusalFilter::default() }, 10).await.unwrap();
        let Some(last) = page.last() else { break };
        before = last.id;
        all.extend(page.into_iter().map(|found| found.row.millis));
    }
    assert_eq!(all.len(), 25);
    assert!(all.is_sorted_by(|one, next| one > next));
    let of = |filter| async { store.refusals(filter, 100).await.unwrap().len() };
    let bob = Some(UserFilter::new("BOB", &store.policy().normalizer));
    assert_eq!(of(RefusalFilter { user: bob, ..RefusalFilter::default() }).await, 5);
    let client = Some("192.0.2.8".parse().unwrap());
    assert_eq!(of(RefusalFilter { client, ..RefusalFilter::default() }).await, 0);
    assert_eq!(of(RefusalFilter { since: Some(at(20 * 60)), ..RefusalFilter::default() }).await, 5);
    // A record in memory is on the first page.
    record(&store, "carol", 30 * 60, 1);
    assert_eq!(
        store.refusals(RefusalFilter::default(), 1).await.unwrap()[0].row.refusal.user.as_deref(),
        Some("carol")
    );
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
        offer(&store, &reference, || refusal("alice", &body));
    }
    until_count(&path, "refusal", 9).await;
    assert!(store.refusal(big(19).0).await.is_ok() && store.refusal(big(5).0).await.is_err());
    // The octets are known after a restart, too.
    store.close().await;
    let store = open_with_refusals(&path, options);
    let last = reference("bob", 15 * DAY, 1);
    offer(&store, &last, || refusal("bob", &"x".repeat(10_000)));
    until_count(&path, "refusal", 1).await;
    assert!(store.refusal(last).await.is_ok());
    assert_eq!(File::open_to_read(&path).unwrap().refusal_octets().unwrap(), 10_000 + 93);
}

#[tokio::test]
async fn nothing_is_kept_if_the_time_is_zero() {
    let folder = tempfile::tempdir().unwrap();
    let options = RefusalOptions { keep: Duration::ZERO, ..RefusalOptions::default() };
    let store = open_with_refusals(&folder.path().join("state.db"), options);
    let reference = reference("alice", 0, 1);
    offer(&store, &reference, || panic!("no record is needed"));
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
    dump::dump(&path, &mut lines).unwrap();
    for _ in 0..2 {
        assert_eq!(dump::load(&copy, &lines[..]).unwrap().refusals, 11);
    }
    assert_eq!(dump::info(&copy).unwrap().refusals, (11, Some(at(0))));
    let store = open(&copy).unwrap();
    for reference in all {
        assert!(store.refusal(reference).await.is_ok());
    }
}
