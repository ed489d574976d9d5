//! Points of signs in the store: they outlive a restart, and are deleted when nothing is left of them.

use super::forgetting::until_count;
use super::*;
use crate::policy::Suspect;
use crate::policy::SuspicionScore;
use crate::policy::limit::{Action, Ladder, Rung};

const DAY: i64 = 86_400;

/// Returns a policy with a sign: each recipient above one an hour adds 30 points, up to 60, with a half-life of a day.
fn sign() -> Policy {
    let mut sign = limit("sign", Field::User, "1 / 1h");
    let suspect = Suspect { points: 30.0, most: 60.0, half_life: Duration::from_secs(86_400) };
    sign.ladder = Ladder::new(vec![Rung { at: 1.0, action: Action::Suspect(suspect) }]);
    of(vec![sign])
}

fn start(path: &Path) -> Store {
    Store::open(&options(path), sign(), Arc::new(Metrics::new().unwrap())).unwrap()
}

async fn send(store: &Store, now: Timestamp, user: &str, recipients: usize) {
    let mut request = asked(user, recipients);
    request.facts.authenticated = true;
    store.admit(now, &request, &mut SessionCounters::default()).await.unwrap();
}

async fn score(store: &Store, user: &str, now: Timestamp) -> SuspicionScore {
    store.suspicion(user, now).await.unwrap()
}

#[tokio::test]
async fn a_score_outlives_a_restart_and_falls_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = start(&path);
    send(&store, at(0), "alice", 5).await;
    assert_eq!(score(&store, "alice", at(0)).await.points, 60.0);
    assert_eq!(score(&store, "bob", at(0)).await, SuspicionScore::default());
    store.close().await;
    let store = start(&path);
    let after = score(&store, "alice", at(DAY)).await;
    assert_eq!((after.points, after.signs[0].at), (30.0, at(0)));
    send(&store, at(DAY), "alice", 1).await;
    assert_eq!(score(&store, "alice", at(DAY)).await.points, 60.0, "the decision has read the points of before");
}

#[tokio::test]
async fn the_store_in_memory_scores_alike() {
    let folder = tempfile::tempdir().unwrap();
    let store = start(&folder.path().join("state.db"));
    let mut in_memory = crate::policy::InMemoryStore::new(sign());
    for (day, recipients) in [(0, 1), (0, 2), (1, 1), (4, 3), (5, 0), (9, 1)] {
        let now = at(day * DAY);
        send(&store, now, "alice", recipients).await;
        let mut request = asked("alice", recipients);
        request.facts.authenticated = true;
        in_memory.admit(now, &request, &mut SessionCounters::default());
        let keys = in_memory.policy.sign_keys("alice");
        let expected = in_memory.policy.suspicion_score(keys.iter().map(|key| in_memory.state(key)), now);
        assert_eq!(score(&store, "alice", now).await, expected, "day {day}");
    }
}

#[tokio::test]
async fn points_of_which_nothing_is_left_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = start(&path);
    send(&store, at(0), "alice", 5).await;
    // The budget of the limit, and the points of the sign.
    until_count(&path, "budget", 2).await;
    // 60 points are below a hundredth after 13 half-lives.
    send(&store, at(10 * DAY), "bob", 1).await;
    until_count(&path, "budget", 3).await;
    send(&store, at(13 * DAY), "bob", 1).await;
    until_count(&path, "budget", 2).await;
}
