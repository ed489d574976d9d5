use super::*;
use crate::engine::State;
use crate::policy::budgets::Change;
use crate::store::append_turn::AppendTurn;
use crate::store::commit_queue::{Commit, NEVER_WRITTEN, Work};

/// Returns a queue with the turn to append.
fn queue() -> Queue {
    let queue = Queue::default();
    queue.give_turn(AppendTurn::default());
    queue
}

/// Appends a change to a budget, as a transaction does.
fn append(queue: &Queue, user: &str) -> Commit {
    let hashed_key = HashedKey::of(Key::from_stored(user));
    let budget = Budget::new(State { at: at(0), level: 1.0 });
    let mut appending = queue.append().unwrap();
    appending.push(hashed_key.borrowed(), &budget, &Change::default(), &mut { NEVER_WRITTEN });
    appending.finish()
}

/// Takes the changes, as the journal writer does.
async fn take(queue: &Queue) -> Work<'_> {
    queue.take(Duration::ZERO).await.1.unwrap()
}

/// Waits for a commit that ends soon.
async fn is_durable(mut commit: Commit) -> bool {
    tokio::time::timeout(Duration::from_secs(60), commit.done()).await.unwrap()
}

#[tokio::test]
async fn a_hanging_commit_frees_waiting_transactions_and_their_changes_are_written_later() {
    let (queue, began) = (queue(), Instant::now());
    let taken = append(&queue, "alice");
    let work = take(&queue).await;
    assert_eq!(work.entry.records(), 1);
    let waiting = append(&queue, "bob");
    // The session of bob waits. It cannot commit meanwhile.
    assert!(queue.take_now(&waiting, true).is_none());
    let patience = Duration::from_millis(50);
    drop(queue.wait_for_stall(patience).unwrap());
    assert!(began.elapsed() >= patience);
    assert_eq!((is_durable(taken).await, is_durable(waiting).await), (false, false));
    // No transaction waits any more, but the writer still writes bob's change.
    work.end(true);
    let (is_idle, work) = queue.take(Duration::from_secs(60)).await;
    assert!(!is_idle);
    assert_eq!(work.unwrap().entry.records(), 1);
}

#[tokio::test]
async fn only_transactions_of_the_taken_entry_complete() {
    let queue = queue();
    let alice = append(&queue, "alice");
    let work = take(&queue).await;
    let mut bob = append(&queue, "bob");
    work.end(true);
    assert!(is_durable(alice).await);
    assert_eq!(bob.outcome(), None);
    let work = take(&queue).await;
    let carol = append(&queue, "carol");
    work.end(false);
    assert!(!is_durable(bob).await);
    // Changes made after the failed entry was taken are discarded, too.
    assert!(!is_durable(carol).await);
    assert_eq!(take(&queue).await.entry.records(), 0);
}

#[test]
fn the_stall_watcher_ends_with_the_writer() {
    let queue = queue();
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| queue.wait_for_stall(Duration::from_secs(3600)).is_none());
        let commit = append(&queue, "alice");
        queue.close();
        assert!(watch.join().unwrap());
        drop(commit);
    });
}

/// Work that is dropped without an end has failed, for example by a panic.
#[tokio::test]
async fn a_commit_that_is_given_up_discards_its_changes_and_gives_the_turn_back() {
    let queue = queue();
    let alice = append(&queue, "alice");
    let epoch = queue.epoch();
    drop(take(&queue).await);
    assert!(!is_durable(alice).await);
    assert_eq!(queue.epoch(), epoch + 1);
    let bob = append(&queue, "bob");
    take(&queue).await.end(true);
    assert!(is_durable(bob).await);
}

/// Decides on a message of each user. Returns the commit of the last charge.
async fn decide_on(store: &Store, users: &[&str]) -> Option<PendingCommit> {
    let mut last = None;
    for user in users {
        let decided = store.decide(at(0), &asked(user, 1), &mut SessionCounters::default()).await.unwrap();
        last = decided.commit.or(last);
    }
    last
}

/// Returns the level of each user's budget in a copy of the folder.
async fn levels_in_copy(folder: &Path, users: &[&str]) -> Vec<f64> {
    let there = tempfile::tempdir().unwrap();
    copy(folder, there.path());
    let again = open(&there.path().join("state.db")).unwrap();
    let mut levels = Vec::new();
    for user in users {
        levels.push(level(&again, &asked(user, 1)).await);
    }
    levels
}

#[tokio::test]
async fn a_session_commits_the_charges_of_all_sessions_so_far() {
    let (folder, users) = (tempfile::tempdir().unwrap(), ["alice", "bob", "carol"]);
    let store = open(&folder.path().join("state.db")).unwrap();
    let last = decide_on(&store, &users).await;
    let before = store.core.metrics.state.commit_seconds.get_sample_count();
    assert!(store.commit(last).await);
    assert_eq!(store.core.metrics.state.commit_seconds.get_sample_count() - before, 1);
    assert_eq!(levels_in_copy(folder.path(), &users).await, [1.0; 3]);
}

#[tokio::test]
async fn charges_for_which_no_session_waits_are_written_soon() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("state.db")).unwrap();
    drop(decide_on(&store, &["alice"]).await);
    let commits = || store.core.metrics.state.commit_seconds.get_sample_count();
    tokio::time::timeout(Duration::from_secs(60), async {
        while commits() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(levels_in_copy(folder.path(), &["alice"]).await, [1.0]);
}

#[tokio::test]
async fn a_session_leaves_its_changes_to_the_journal_writer_if_another_commit_runs() {
    let (folder, queue) = (tempfile::tempdir().unwrap(), queue());
    let store = open(&folder.path().join("state.db")).unwrap();
    let bob = append(&queue, "bob");
    // Without a journal no session commits.
    assert!(queue.take_now(&bob, true).is_none());
    take(&queue).await.end(true);
    assert!(is_durable(bob).await);
    let mut alice = decide_on(&store, &["alice"]).await.unwrap().commit;
    assert!(store.core.queue.take_now(&alice, false).is_none(), "the journal writer has to commit it");
    assert!(store.core.queue.take_now(&alice, true).is_none(), "it is left to the journal writer");
    assert!(alice.done().await);
    let mut bob = decide_on(&store, &["bob"]).await.unwrap().commit;
    let work = store.core.queue.take_now(&bob, true).unwrap();
    let carol = append(&store.core.queue, "carol");
    assert!(store.core.queue.take_now(&bob, true).is_none(), "its changes were taken");
    assert!(store.core.queue.take_now(&carol, true).is_none());
    assert_eq!(bob.outcome(), None);
    work.end(true);
    assert_eq!(bob.outcome(), Some(true));
    assert!(is_durable(carol).await, "the journal writer commits it");
}

#[tokio::test]
async fn a_session_that_commits_can_take_what_other_sessions_leave_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("state.db")).unwrap();
    let queue = &store.core.queue;
    // The first commit is left to the journal writer, which opens the journal.
    let commit = decide_on(&store, &["alice"]).await;
    assert!(store.commit(commit).await);
    let mut bob = decide_on(&store, &["bob"]).await.unwrap().commit;
    let work = queue.take_now(&bob, true).unwrap();
    assert!(work.end_and_take_left().is_none(), "no session has left any");
    assert_eq!(bob.outcome(), Some(true));
    let mut carol = decide_on(&store, &["carol"]).await.unwrap().commit;
    let work = queue.take_now(&carol, true).unwrap();
    let (mut dora, mut emil) = (append(queue, "dora"), append(queue, "emil"));
    assert!(queue.take_now(&dora, true).is_none(), "another session commits at present");
    let next = work.end_and_take_left().unwrap();
    assert_eq!((carol.outcome(), dora.outcome(), next.entry.records()), (Some(true), None, 2));
    // If that commit fails, both sessions are told.
    next.end(false);
    assert_eq!((dora.outcome(), emil.outcome()), (Some(false), Some(false)));
}

#[tokio::test]
async fn one_commit_contains_the_changes_of_all_sessions_that_are_ready() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(&folder.path().join("state.db")).unwrap());
    let users: Vec<String> = (0..10).map(|n| format!("user{n}")).collect();
    let commits = || store.core.metrics.state.commit_seconds.get_sample_count();
    // Load the budgets, and let the store see that several sessions are ready.
    for _ in 0..2 {
        let names: Vec<&str> = users.iter().map(String::as_str).collect();
        let last = decide_on(&store, &names).await;
        assert!(store.commit(last).await);
    }
    let before = commits();
    let tasks = users.iter().cloned().map(|user| {
        let store = store.clone();
        tokio::spawn(async move {
            store.admit(at(0), &asked(&user, 1), &mut SessionCounters::default()).await.unwrap();
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(commits() - before, 1);
}

/// The thread on which a commit hangs also has the sessions that have let others run. They must continue elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_gathers_does_not_hang_with_its_thread() {
    let queue = Arc::new(queue());
    // Many transactions in one commit show that gathering is worth it.
    for n in 0..9 {
        drop(append(&queue, &format!("user{n}")));
    }
    take(&queue).await.end(true);
    let (hang, hanging) = std::sync::mpsc::channel::<()>();
    let (begin, has_begun) = tokio::sync::oneshot::channel();
    let gathering = tokio::spawn({
        let queue = queue.clone();
        async move {
            let mut commit = append(&queue, "alice");
            // This task runs on this thread while the first one lets others run.
            let _hanging = tokio::spawn(async move {
                begin.send(()).unwrap();
                hanging.recv()
            });
            match queue.gather(&mut commit).await {
                Some(is_durable) => is_durable,
                None => commit.done().await,
            }
        }
    });
    has_begun.await.unwrap();
    let work = take(&queue).await;
    drop(queue.wait_for_stall(Duration::ZERO).unwrap());
    let is_durable = tokio::time::timeout(Duration::from_secs(60), gathering).await;
    drop(hang);
    drop(work);
    assert!(!is_durable.unwrap().unwrap());
}

#[tokio::test]
async fn transactions_on_unread_budgets_do_not_wait_or_wake_the_writer() {
    let (queue, cache) = (queue(), BudgetCache::new(BUDGET_OCTETS));
    let (policy, asked) = (policy("100 / 1d"), asked("alice", 60));
    let plan = Plan::new(&policy, &asked, at(0));
    let hashed_keys: Vec<_> = plan.keys().map(HashedKey::of).collect();
    // The row could not be read: the budget counts in memory only.
    cache.insert_unread(hashed_keys.iter().copied());
    let decide =
        |now, loaded: &mut Loaded| policy::decide(&policy, now, &asked, &plan, loaded, &mut SessionCounters::default());
    let Transacted::Changed(verdicts, mut commit) =
        cache.transact((at(0), Instant::now()), &hashed_keys, &queue, false, decide)
    else {
        panic!("it is charged")
    };
    assert_eq!(passed(&Decided { verdicts, ..Decided::default() }), 60);
    assert!(!commit.done().await);
    assert_eq!(take(&queue).await.entry.records(), 0);
}

#[tokio::test]
async fn the_database_writer_waits_for_changes_that_are_queued_or_taken() {
    let queue = queue();
    assert!(queue.pending().is_none());
    let alice = append(&queue, "alice");
    let while_queued = queue.pending().unwrap();
    take(&queue).await.end(true);
    assert!(is_durable(alice).await && is_durable(while_queued).await);
    assert!(queue.pending().is_none());
    let bob = append(&queue, "bob");
    let work = take(&queue).await;
    let while_taken = queue.pending().unwrap();
    work.end(false);
    assert!(!is_durable(bob).await && !is_durable(while_taken).await);
    assert!(queue.pending().is_none());
}

#[test]
fn threads_commit_their_own_charges_and_those_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let store = runtime.block_on(async { open(&folder.path().join("state.db")).unwrap() });
    let names: Vec<String> = (0..8).map(|n| format!("user{n}")).collect();
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| {
                // As the threads of policy connections do.
                let _context = runtime.enter();
                for _ in 0..90 {
                    let pending = runtime.block_on(decide_on(&store, &[name]));
                    assert!(store.commit_in_thread(pending));
                }
            });
        }
    });
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(runtime.block_on(levels_in_copy(folder.path(), &names)), [90.0; 8]);
}
