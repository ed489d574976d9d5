use super::*;
use crate::engine::State;
use crate::policy::Change;
use crate::store::journal::Entry;
use crate::store::queue::{Commit, NEVER};

/// A change to a budget, appended by an act.
fn append(queue: &Queue, user: &str) -> Commit {
    let place = HashedKey::of(Key::from_stored(user));
    let budget = Budget { state: State { at: at(0), level: 1.0 }, seen: None };
    let mut appending = queue.append().unwrap();
    appending.push(place.borrowed(), &budget, &Change::default(), &mut { NEVER });
    appending.finish(Instant::now())
}

#[tokio::test]
async fn whoever_waits_for_a_writer_that_hangs_is_freed_and_what_it_changed_is_still_written() {
    let (queue, began) = (Queue::default(), Instant::now());
    let taken = append(&queue, "alice");
    assert_eq!(queue.take(Duration::ZERO, Entry::default()).entry.records(), 1);
    let waiting = append(&queue, "bob");
    let patience = Duration::from_millis(50);
    drop(queue.watch(patience).unwrap());
    assert!(began.elapsed() >= patience);
    assert_eq!((taken.done().await, waiting.done().await), (false, false));
    // The writer goes on: nobody waits, and what bob has changed is written though.
    queue.answer(|_| panic!("nobody is there to be answered"));
    assert_eq!(queue.take(Duration::from_secs(60), Entry::default()).entry.records(), 1);
}

#[tokio::test]
async fn only_those_are_answered_whose_changes_were_taken() {
    let queue = Queue::default();
    let alice = append(&queue, "alice");
    queue.take(Duration::ZERO, Entry::default());
    let bob = append(&queue, "bob");
    let mut answered = 0;
    queue.answer(|_| answered += 1);
    assert_eq!(answered, 1);
    assert!(alice.done().await);
    // What comes after that is lost with what was taken.
    queue.lose();
    assert!(!bob.done().await);
}

#[test]
fn whoever_looks_after_those_that_wait_ends_with_the_writer() {
    let queue = Queue::default();
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| queue.watch(Duration::from_secs(3600)).is_none());
        let commit = append(&queue, "alice");
        queue.end();
        assert!(watch.join().unwrap());
        drop(commit);
    });
}

#[test]
fn a_writer_that_waits_for_more_takes_what_there_is_though_no_more_comes() {
    let queue = Queue::default();
    std::thread::scope(|scope| {
        // Asleep until there is something: that is taken as it comes.
        let first = scope.spawn(|| queue.take(Duration::from_secs(60), Entry::default()));
        append(&queue, "alice");
        assert_eq!(first.join().unwrap().entry.records(), 1);
        // Two came during the commit that answered one: it waits for a third, but not for ever.
        append(&queue, "alice");
        append(&queue, "bob");
        queue.answer(|_| ());
        assert_eq!(queue.take(Duration::from_secs(60), Entry::default()).entry.records(), 2);
    });
}

#[tokio::test]
async fn nobody_waits_and_the_writer_sleeps_where_nothing_can_be_written() {
    let (queue, hot) = (Queue::default(), BudgetCache::default());
    let (policy, asked) = (policy("100 / 1d"), asked("alice", 60));
    let question = Plan::new(&policy, &asked, at(0));
    let places: Vec<_> = question.keys().map(HashedKey::of).collect();
    // The file could not be asked for it: it counts in memory alone.
    hot.insert_unread(places.iter().copied());
    let decide = |now, loaded: &mut Loaded| {
        policy::decide(&policy, now, &asked, &question, loaded, &mut SessionCounters::default())
    };
    let Acted::Changed(verdicts, commit) = hot.act((at(0), Instant::now()), &places, &queue, false, decide) else {
        panic!("it is charged")
    };
    assert_eq!(passed(&Admitted { verdicts, slots: None }), 60);
    assert!(!commit.done().await);
    assert!(queue.take(Duration::ZERO, Entry::default()).idle);
}
