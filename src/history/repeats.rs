//! Detection of repeated lines. Several logs have the same line if a log was given twice (plain and gzipped), or if
//! syslog writes to several files. Such a line must count once; so must a refusal that Exim writes to syslog twice.

use crate::time::Timestamp;
use std::collections::hash_map::RandomState;
use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasher as _;
use std::time::Duration;

/// Memory of recent lines, to recognize the lines that another log repeats.
#[derive(Default)]
pub struct Repeats {
    /// Whether there are several logs. A line that one log has twice reports two events, because clients repeat
    /// commands.
    is_active: bool,
    hasher: RandomState,
    /// Two hashes of each line: one that includes the number of the log, and one that does not.
    known: HashSet<u64>,
    /// Both hashes of each line, with the time of the line, in the order of reading.
    order: VecDeque<(Timestamp, [u64; 2])>,
}

/// Time for which a line is remembered. It is longer than the hour that occurs twice in a log when summer time ends.
const MEMORY: Duration = Duration::from_secs(65 * 60);

/// Maximum number of lines that are remembered: about 60 MiB.
const MAX_LINES: usize = if cfg!(test) { 8 } else { 1_000_000 };

/// Maximum number of equal lines in one second of one log that count as separate lines.
const MAX_EQUAL: u64 = 1000;

impl Repeats {
    pub fn new(logs: usize) -> Self {
        Self { is_active: logs > 1, ..Self::default() }
    }

    /// Returns whether another log already had this line. Compares the times in whole seconds, because syslog can write
    /// the same line into several files with different precisions. The n-th equal line of one log repeats the n-th
    /// equal line of the other log.
    pub fn is_repeated(&mut self, at: Timestamp, body: &str, log: usize) -> bool {
        if !self.is_active {
            return false;
        }
        self.forget(at);
        let line = self.hasher.hash_one((at.micros().div_euclid(1_000_000), body));
        for count in 0..MAX_EQUAL {
            let own = self.hasher.hash_one((line, count, log));
            if self.known.insert(own) {
                let shared = self.hasher.hash_one((line, count));
                self.order.push_back((at, [own, shared]));
                return !self.known.insert(shared);
            }
        }
        false
    }

    /// Forgets lines that are too old, and the oldest lines if there are too many.
    fn forget(&mut self, now: Timestamp) {
        while self.order.len() >= MAX_LINES || self.order.front().is_some_and(|(at, _)| now.since(*at) > MEMORY) {
            let Some((_, hashes)) = self.order.pop_front() else { return };
            for hash in hashes {
                self.known.remove(&hash);
            }
        }
    }
}

/// Memory of the last refusals, to recognize the copies that Exim writes to syslog for its reject log.
#[derive(Default)]
pub struct RefusalCopies(VecDeque<(Timestamp, Box<str>)>);

/// Maximum number of refusals that other processes log between a refusal and its copy.
const MAX_BETWEEN: usize = 32;

impl RefusalCopies {
    /// Returns whether a refusal is the copy of an earlier refusal. The earlier refusal is then forgotten, because a
    /// third line with the same text is a new refusal.
    pub fn is_copy(&mut self, at: Timestamp, refusal: &str) -> bool {
        let is_original = |(then, text): &(Timestamp, Box<str>)| at.since(*then) < MAX_DELAY && **text == *refusal;
        if let Some(original) = self.0.iter().position(is_original) {
            self.0.remove(original);
            return true;
        }
        if self.0.len() == MAX_BETWEEN {
            self.0.pop_front();
        }
        self.0.push_back((at, refusal.into()));
        false
    }
}

/// Maximum time from a refusal to its copy.
const MAX_DELAY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn second(n: i64) -> Timestamp {
        Timestamp::from_micros(n * 1_000_000)
    }

    #[test]
    fn only_lines_of_another_log_are_repeated() {
        let mut repeats = Repeats::new(3);
        for (log, body, expected) in [
            (0, "a", false),
            (0, "a", false),
            (1, "a", true),
            (1, "a", true),
            (1, "a", false),
            (2, "a", true),
            (2, "b", false),
        ] {
            assert_eq!(repeats.is_repeated(second(1), body, log), expected, "{log} {body}");
        }
        let mut repeats = Repeats::new(2);
        assert!(!repeats.is_repeated(second(1), "a", 0));
        assert!(
            repeats.is_repeated(Timestamp::from_micros(1_900_000), "a", 1),
            "the other log has fractions of seconds"
        );
        assert!(!repeats.is_repeated(second(2), "a", 1));
    }

    #[test]
    fn the_number_of_remembered_lines_is_bounded() {
        let mut repeats = Repeats::new(2);
        for n in 0..100 {
            assert!(!repeats.is_repeated(second(0), &n.to_string(), 0));
        }
        assert_eq!(repeats.order.len(), MAX_LINES);
        repeats.is_repeated(second(4000), "later", 0);
        assert_eq!((repeats.order.len(), repeats.known.len()), (1, 2));
    }
}
