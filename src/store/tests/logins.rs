//! Tests of the login history.

use super::faults::until;
use super::forgetting::{count, until_count};
use super::*;
use crate::policy::limit::Mode;
use crate::policy::matching::{AllOf, Condition};
use crate::policy::request::{LoginTrait, Novelty};
use crate::store::file::File;
use crate::store::login_history::{LoginKey, LoginRow, MAX_ROWS_PER_USER};

const DAY: i64 = 86_400;

/// Returns a policy whose only limit needs the novelty of logins.
fn policy_with_novelty() -> Policy {
    let mut limit = limit("l", Field::User, "100 / 1d");
    limit.mode = Mode::Shadow;
    limit.matcher.matches = vec![AllOf(vec![Condition::New(LoginTrait::Network, true)])];
    of(vec![limit])
}

fn open_with_novelty(path: &Path) -> Store {
    let options = super::options(path);
    Store::open(&options, policy_with_novelty(), Arc::new(Metrics::new().unwrap())).unwrap()
}

fn login(user: &str, client: &str, helo: &str) -> Facts {
    Facts {
        client: Some(client.parse().unwrap()),
        user: Some(user.into()),
        helo: Some(helo.into()),
        ..Facts::default()
    }
}

fn record(store: &Store, second: i64, facts: &Facts) {
    store.record_login(at(second), facts, Some("TLSv1.3".into()), Some("PLAIN".into()));
}

#[tokio::test]
async fn the_history_outlives_the_store_and_tells_new_places() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open_with_novelty(&path);
    let (home, work) = (login("Alice", "192.0.2.7", "laptop"), login("alice", "198.51.100.1", "laptop"));
    assert_eq!(store.novelty(at(0), &home).await, Novelty::default());
    record(&store, 0, &home);
    record(&store, 60, &login("alice", "192.0.2.99", "PHONE"));
    assert_eq!(store.novelty(at(60), &home).await.network, Some(false));
    assert_eq!(store.novelty(at(60), &work).await, Novelty { helo: Some(false), ..Novelty::default() });
    store.close().await;

    let store = open_with_novelty(&path);
    let rows = store.logins("ALICE", at(60)).await.unwrap();
    let (key, row) = rows.first().unwrap();
    assert_eq!((rows.len(), &*key.user, &*key.network), (1, "alice", "192.0.2.0/24"));
    assert_eq!((row.first, row.last, row.logins), (at(0), at(60), 2));
    assert_eq!((row.helo.join(" "), row.mechanism.as_deref()), ("phone laptop".to_owned(), Some("PLAIN")));
    let new = store.novelty(at(2 * DAY), &work).await;
    assert_eq!((new.network, new.country, new.helo), (Some(true), None, Some(false)));
    // The place stays new for a day, also after a restart.
    record(&store, 2 * DAY, &work);
    assert_eq!(store.novelty(at(2 * DAY + 1), &work).await.network, Some(true));
    store.close().await;
    let store = open_with_novelty(&path);
    assert_eq!(store.novelty(at(2 * DAY + 1), &work).await.network, Some(true));
    assert_eq!(store.novelty(at(3 * DAY), &work).await.network, Some(false));
    assert_eq!(store.novelty(at(3 * DAY), &login("bob", "192.0.2.7", "laptop")).await, Novelty::default());
}

#[tokio::test]
async fn logins_are_written_while_weir_runs_and_a_crash_loses_seconds_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    for n in 0..600 {
        record(&store, n, &login(&format!("user{n}"), "192.0.2.7", "a"));
    }
    until_count(&path, "login", 600).await;
    record(&store, 700, &login("user7", "192.0.2.7", "b"));
    let rows = store.logins("user7", at(700)).await.unwrap();
    assert_eq!(rows.first().map(|(_, row)| (row.logins, row.helo.len())), Some((2, 2)));
}

#[tokio::test]
async fn a_user_has_fifty_networks_and_old_ones_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    for n in 0..60 {
        record(&store, n, &login("alice", &format!("10.0.{n}.1"), "a"));
    }
    record(&store, 20 * DAY, &login("bob", "10.0.0.1", "a"));
    until_count(&path, "login", MAX_ROWS_PER_USER as i64 + 1).await;
    let rows = store.logins("alice", at(60)).await.unwrap();
    assert_eq!(rows.len(), MAX_ROWS_PER_USER);
    assert_eq!(rows.last().map(|(key, _)| &*key.network), Some("10.0.10.0/24"));
    record(&store, 31 * DAY, &login("carol", "10.0.0.1", "a"));
    until_count(&path, "login", 2).await;
    // Without a history, the rows are deleted, and nothing is remembered.
    let mut policy = policy("100 / 1d");
    policy.login_history.keep = Duration::ZERO;
    store.set_policy(policy);
    record(&store, 31 * DAY, &login("dave", "10.0.0.1", "a"));
    store.admit(at(32 * DAY), &asked("alice", 1), &mut SessionCounters::default()).await.unwrap();
    until_count(&path, "login", 0).await;
}

#[tokio::test]
async fn a_dump_carries_the_history() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("state.db"), folder.path().join("other.db"));
    let store = open(&path).unwrap();
    for n in 0..2_500 {
        record(&store, n, &login(&format!("user{n}"), "2001:db8::1", "[192.0.2.7]"));
    }
    let long = "long.example".repeat(20);
    record(&store, 1, &login("alice", "192.0.2.7", &long));
    record(&store, 2, &login("alice", "192.0.2.7", "b"));
    store.close().await;
    let mut lines = Vec::new();
    dump::dump(&path, None, &mut lines).unwrap();
    assert_eq!(dump::load(&other, None, &lines[..]).unwrap().logins, 2_501);
    let mut again = Vec::new();
    dump::dump(&other, None, &mut again).unwrap();
    assert_eq!(lines, again);
    let line = String::from_utf8(lines).unwrap().lines().next().unwrap().to_owned();
    let first = "{\"first\":\"2023-11-14T22:13:21Z\",\"helo\":[\"b\",\"";
    assert!(line.starts_with(first) && line.contains("\"login\":\"alice\""), "{line}");
    for (from, to, words) in [
        ("\"logins\":2", "\"logins\":0", "at least 1"),
        ("\"b\"", "\"\\u0007\"", "no name"),
        ("\"b\"", "\"b\",\"c\",\"d\",\"e\"", "at most 4"),
        ("\"alice\"", "\"a\\u001fb\"", "control character"),
        ("\"logins\"", "\"count\"", "\"count\" is not known"),
    ] {
        let error = dump::load(&other, None, line.replace(from, to).as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("line 1 is not a login") && error.contains(words), "{to}: {error}");
    }
}

#[tokio::test]
async fn while_the_file_cannot_be_written_logins_wait_in_bounded_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    std::fs::create_dir(&path).unwrap();
    let store = open_with_novelty(&path);
    until(&store, false).await;
    for n in 0..12_000 {
        record(&store, n, &login(&format!("user{n}"), "192.0.2.7", "a"));
    }
    assert_eq!(store.novelty(at(0), &login("user1", "192.0.2.7", "a")).await, Novelty::default());
    assert!(store.logins("user1", at(0)).await.is_err());
    std::fs::remove_dir(&path).unwrap();
    until(&store, true).await;
    until_count(&path, "login", 10_000).await;
    assert_eq!(store.novelty(at(0), &login("user1", "192.0.2.7", "a")).await.network, Some(false));
}

#[tokio::test]
async fn a_file_of_version_4_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    open(&path).unwrap().close().await;
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(&format!("DROP TABLE login; {JOURNAL_BEFORE_9}; PRAGMA user_version = 4")).unwrap();
    drop(old);
    let store = open(&path).unwrap();
    record(&store, 0, &login("alice", "192.0.2.7", "a"));
    store.close().await;
    assert_eq!(count(&path, "login"), 1);
}

#[test]
fn a_hundred_thousand_users_take_at_most_200_octets_per_user_and_network() {
    const USERS: u64 = 100_000;
    const NETWORKS: u64 = 3;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let options = super::options(&path);
    let mut file = File::open(&options).unwrap();
    // The users log in in no order, so that the pages of the table are split at random places.
    let rows: Vec<_> = (0..USERS * NETWORKS).map(|n| (n * 7_919 * 104_729) % (USERS * NETWORKS)).collect();
    for batch in rows.chunks(10_000) {
        let mut batch: Vec<_> = batch.iter().map(|n| row(n % USERS, n / USERS)).collect();
        batch.sort_by(|(one, _), (other, _)| one.cmp(other));
        file.add_logins(&batch).unwrap();
    }
    assert_eq!(file.count_logins().unwrap(), USERS * NETWORKS);
    file.checkpoint().unwrap();
    drop(file);
    let octets = std::fs::metadata(&path).unwrap().len();
    let each = octets as f64 / (USERS * NETWORKS) as f64;
    println!("{USERS} users with {NETWORKS} networks each: {octets} octets, {each:.1} per user and network");
    assert!(each <= 200.0, "{each}");
}

/// Returns a row with names of a usual length.
fn row(user: u64, network: u64) -> (LoginKey, LoginRow) {
    let key = LoginKey {
        user: format!("u{user:07}@students.example.ac.at").into(),
        network: format!("{}.{}.{}.0/24", 128 + user % 100, network, user % 251).into(),
    };
    let row = LoginRow {
        first: at(user as i64),
        last: at(DAY + user as i64),
        logins: 1 + user % 300,
        country: Some("AT".into()),
        tls: Some("TLSv1.3".into()),
        mechanism: Some("PLAIN".into()),
        helo: vec![format!("[192.168.{}.{}]", network, user % 255).into(), "laptop.home.example".into()],
    };
    (key, row)
}

#[tokio::test]
async fn a_damaged_text_of_a_row_is_left_out_and_the_row_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open_with_novelty(&path);
    record(&store, 0, &login("alice", "192.0.2.7", "laptop"));
    store.close().await;
    let damage =
        "UPDATE login SET country = CAST(x'ff' AS TEXT), tls = CAST(x'ff' AS TEXT), helo = CAST(x'ff' AS TEXT)";
    assert_eq!(rusqlite::Connection::open(&path).unwrap().execute(damage, []).unwrap(), 1);

    let store = open_with_novelty(&path);
    let rows = store.logins("alice", at(60)).await.unwrap();
    assert_eq!(rows.iter().map(|(_, row)| (row.country.clone(), row.helo.len())).collect::<Vec<_>>(), [(None, 0)]);
    record(&store, 60, &login("alice", "192.0.2.7", "phone"));
    record(&store, 60, &login("bob", "192.0.2.7", "phone"));
    store.close().await;
    let file = File::open_to_read(&path).unwrap();
    for (user, logins) in [("alice", 2), ("bob", 1)] {
        let rows = file.logins_of(user).unwrap();
        let found: Vec<_> = rows.iter().map(|(_, row)| (row.logins, row.helo.join(" "))).collect();
        assert_eq!(found, [(logins, "phone".to_owned())], "{user}");
    }
    let mut dumped = Vec::new();
    dump::dump(&path, None, &mut dumped).unwrap();
    assert_eq!(String::from_utf8(dumped).unwrap().matches("\"login\"").count(), 2);
}
