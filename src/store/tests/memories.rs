//! Tests of memories in the state file.

use super::*;
use crate::policy::{InMemoryStore, KnownTo, Lessons, MemoryRules, PastRecipient};

/// Returns a policy that refuses all recipients that one of these memories does not know.
fn strangers_refused(memories: &[KnownTo]) -> Policy {
    let refused = |known_to: &KnownTo| {
        let mut limit = limit(known_to.name(), Field::User, "1 / 1d");
        limit.quota = Quota::Never;
        let known_to = Some(MemoryRules::default().memory(*known_to));
        limit.distinct = Some(Distinct { known_to, ..Distinct::new(Field::Recipient) });
        limit
    };
    of(memories.iter().map(refused).collect())
}

fn facts(user: &str, recipients: Vec<Arc<str>>) -> Facts {
    Facts { user: Some(user.into()), authenticated: true, recipients, ..Facts::default() }
}

fn delivered(user: &str, recipient: &str) -> PolicyRequest {
    PolicyRequest::delivered(facts(user, Vec::new()), std::iter::once(recipient.into()))
}

fn attempted(user: &str, recipient: &str) -> PolicyRequest {
    let events = vec![Event::Recipient(recipient.into())];
    PolicyRequest { facts: facts(user, Vec::new()), events, ..PolicyRequest::default() }
}

fn open(path: &Path, policy: &Policy) -> Store {
    Store::open(&options(path), policy.clone(), Arc::new(Metrics::new().unwrap())).unwrap()
}

#[tokio::test]
async fn a_memory_in_the_file_decides_like_one_in_memory_also_after_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let policy = strangers_refused(&[KnownTo::Each(Field::User), KnownTo::Each(Field::UserDomain), KnownTo::All]);
    let (mut store, mut model) = (open(&path, &policy), InMemoryStore::new(policy.clone()));
    let mut random = 7u64;
    let mut below = |end: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % end
    };
    let (mut passes, mut now) = ([0, 0], 0);
    for step in 0..2_000 {
        now += below(40_000) as i64;
        let user = format!("u{}@example{}.org", below(4), below(2));
        let recipient = format!("r{}@example.net", below(300));
        match below(10) {
            0 => {
                let past = |age: u64| PastRecipient {
                    at: at(now - age as i64),
                    user: Some((*user).into()),
                    client: None,
                    sender: None,
                    recipient: format!("r{}@example.net", age % 300).into(),
                };
                let rows: Vec<PastRecipient> = (0..20).map(|_| past(below(250 * 86_400))).collect();
                let lessons = Lessons::new(&policy, rows.iter(), at(now));
                assert_eq!(store.teach(at(now), &lessons).await.unwrap(), model.teach(&lessons));
            }
            1..4 => {
                let asked = delivered(&user, &recipient);
                store.admit(at(now), &asked, &mut SessionCounters::default()).await.unwrap();
                model.admit(at(now), &asked, &mut SessionCounters::default());
            }
            _ => {
                let asked = attempted(&user, &recipient);
                let found = store.admit(at(now), &asked, &mut SessionCounters::default()).await.unwrap().verdicts;
                let expected = model.admit(at(now), &asked, &mut SessionCounters::default());
                assert_eq!(format!("{found:?}"), format!("{expected:?}"), "step {step}");
                passes[usize::from(matches!(found[0].ruling, Ruling::Pass))] += 1;
            }
        }
        if step % 250 == 249 {
            store.close().await;
            store = open(&path, &policy);
        }
    }
    assert!(passes.iter().all(|count| *count > 100), "{passes:?}");
}

#[tokio::test]
async fn nothing_is_written_when_there_is_nothing_to_learn() {
    let folder = tempfile::tempdir().unwrap();
    let policy = strangers_refused(&[KnownTo::Each(Field::User), KnownTo::All]);
    let store = open(&folder.path().join("state.db"), &policy);
    let commits = || store.core.metrics.state.commit_seconds.get_sample_count();
    let asked = delivered("alice", "r@example.net");
    store.admit(at(0), &asked, &mut SessionCounters::default()).await.unwrap();
    let before = commits();
    assert!(before > 0);
    for second in 1..20 {
        store.admit(at(second), &asked, &mut SessionCounters::default()).await.unwrap();
    }
    assert_eq!(commits(), before);
}

#[tokio::test]
async fn a_dump_carries_memories_to_another_file() {
    let (folder, policy) =
        (tempfile::tempdir().unwrap(), strangers_refused(&[KnownTo::Each(Field::User), KnownTo::All]));
    let [old, new] = ["old.db", "new.db"].map(|name| folder.path().join(name));
    let store = open(&old, &policy);
    for n in 0..100 {
        let asked = delivered("alice", &format!("r{n}@example.net"));
        store.admit(at(n), &asked, &mut SessionCounters::default()).await.unwrap();
    }
    store.close().await;
    let mut text = Vec::new();
    dump::dump(&old, None, &mut text).unwrap();
    dump::load(&new, None, &text[..]).unwrap();
    let store = open(&new, &policy);
    for (recipient, is_known) in [("r0@example.net", true), ("r99@example.net", true), ("r100@example.net", false)] {
        let asked = attempted("alice", recipient);
        let admitted = store.admit(at(200), &asked, &mut SessionCounters::default()).await.unwrap();
        assert_eq!(passed(&admitted) == 1, is_known, "{recipient}");
    }
}
