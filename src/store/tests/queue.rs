use super::*;
use crate::engine::State;
use crate::policy::budgets::Change;
use crate::store::commit_queue::{Commit, NEVER_WRITTEN};
use crate::store::journal::Entry;

/// Appends a change to a budget, as a transaction does.
fn append(queue: &Queue, user: &str) -> Commit {
    let hashed_key = HashedKey::of(Key::from_stored(user));
    let budget = Budget::new(State { at: at(0), level: 1.0 });
    let mut appending = queue.append().unwrap();
    appending.push(hashed_key.borrowed(), &budget, &Change::default(), &mut { NEVER_WRITTEN });
    appending.finish(Instant::now())
}

#[tokio::test]
async fn a_hanging_writer_frees_waiting_transactions_and_writes_their_changes_later() {
    let (queue, began) = (Queue::default(), Instant::now());
    let taken = append(&queue, "alice");
    assert_eq!(queue.take(Duration::ZERO, Entry::default()).await.entry.records(), 1);
    let waiting = append(&queue, "bob");
    let patience = Duration::from_millis(50);
    drop(queue.wait_for_stall(patience).unwrap());
    assert!(began.elapsed() >= patience);
    assert_eq!((taken.done().await, waiting.done().await), (false, false));
    // No transaction waits any more, but the writer still writes bob's change.
    queue.complete(|_| panic!("no transaction waits"));
    assert_eq!(queue.take(Duration::from_secs(60), Entry::default()).await.entry.records(), 1);
}

#[tokio::test]
async fn only_transactions_of_the_taken_entry_complete() {
    let queue = Queue::default();
    let alice = append(&queue, "alice");
    queue.take(Duration::ZERO, Entry::default()).await;
    let bob = append(&queue, "bob");
    let mut answered = 0;
    queue.complete(|_| answered += 1);
    assert_eq!(answered, 1);
    assert!(alice.done().await);
    // Changes made after the failed entry was taken are discarded, too.
    queue.discard();
    assert!(!bob.done().await);
}

#[test]
fn the_stall_watcher_ends_with_the_writer() {
    let queue = Queue::default();
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| queue.wait_for_stall(Duration::from_secs(3600)).is_none());
        let commit = append(&queue, "alice");
        queue.close();
        assert!(watch.join().unwrap());
        drop(commit);
    });
}

#[tokio::test]
async fn one_commit_contains_the_changes_of_all_sessions_that_are_ready() {
    let queue = Arc::new(Queue::default());
    let writer = tokio::spawn({
        let queue = queue.clone();
        async move { queue.take(Duration::from_secs(60), Entry::default()).await.entry.records() }
    });
    // The writer waits. The first of these sessions wakes it.
    tokio::task::yield_now().await;
    for user in ["alice", "bob", "carol"] {
        let queue = queue.clone();
        tokio::spawn(async move { append(&queue, user).done().await });
    }
    assert_eq!(writer.await.unwrap(), 3);
}

#[tokio::test]
async fn transactions_on_unread_budgets_do_not_wait_or_wake_the_writer() {
    let (queue, cache) = (Queue::default(), BudgetCache::new(BUDGET_OCTETS));
    let (policy, asked) = (policy("100 / 1d"), asked("alice", 60));
    let plan = Plan::new(&policy, &asked, at(0));
    let hashed_keys: Vec<_> = plan.keys().map(HashedKey::of).collect();
    // The row could not be read: the budget counts in memory only.
    cache.insert_unread(hashed_keys.iter().copied());
    let decide =
        |now, loaded: &mut Loaded| policy::decide(&policy, now, &asked, &plan, loaded, &mut SessionCounters::default());
    let Transacted::Changed(verdicts, commit) =
        cache.transact((at(0), Instant::now()), &hashed_keys, &queue, false, decide)
    else {
        panic!("it is charged")
    };
    assert_eq!(passed(&Decided { verdicts, ..Decided::default() }), 60);
    assert!(!commit.done().await);
    assert!(queue.take(Duration::ZERO, Entry::default()).await.idle);
}

#[tokio::test]
async fn the_database_writer_waits_for_changes_that_are_queued_or_taken() {
    let queue = Queue::default();
    assert!(queue.pending().is_none());
    let alice = append(&queue, "alice");
    let while_queued = queue.pending().unwrap();
    queue.take(Duration::ZERO, Entry::default()).await;
    queue.complete(|_| {});
    assert!(alice.done().await && while_queued.done().await);
    assert!(queue.pending().is_none());
    let bob = append(&queue, "bob");
    queue.take(Duration::ZERO, Entry::default()).await;
    let while_taken = queue.pending().unwrap();
    queue.discard();
    assert!(!bob.done().await && !while_taken.done().await);
    assert!(queue.pending().is_none());
}
