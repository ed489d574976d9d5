//! Cache of match conditions for a run of events. Each condition, matcher, owner and override is evaluated once,
//! even if many limits use it.

use crate::policy::limit::{OverrideRow, OverrideRows, OwnerFields};
use crate::policy::matching::{AllOf, Condition, Field, Matcher, SkipReason, Subject};
use smallvec::{SmallVec, smallvec};
use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::sync::Arc;

/// Distinct conditions, matchers, owners and overrides of all limits of a policy.
#[derive(Debug, Default)]
pub struct MatcherSet {
    conditions: Vec<Condition>,
    /// Matchers, each a range of `steps`.
    matchers: Vec<ByEvent<Range<usize>>>,
    steps: Vec<Step>,
    rows: Vec<ByEvent<Arc<OverrideRows>>>,
    /// Fields of owners.
    owners: Vec<ByEvent<OwnerFields>>,
    /// Whether the result of any entry can differ between the events of a run.
    is_of_event: bool,
}

/// Entry, and whether the entry's result can differ between the events of a run.
#[derive(Debug)]
struct ByEvent<T> {
    entry: T,
    is_of_event: bool,
}

impl<T> ByEvent<T> {
    /// Returns the index in the cache of this entry's result for the event at index `at`. `number` is the index of the
    /// entry among `count` entries.
    fn index(&self, number: usize, count: usize, at: usize) -> usize {
        // Most runs have one event: compare `at` first, which needs no memory.
        number + if at > 0 && self.is_of_event { at * count } else { 0 }
    }
}

impl MatcherSet {
    /// Adds a matcher, and returns its index.
    pub fn matcher(&mut self, matcher: &Matcher) -> usize {
        let mut steps = Vec::new();
        let mut add = |steps: &mut Vec<Step>, table: &AllOf, end| {
            steps.extend(table.0.iter().map(|condition| self.step(condition)));
            steps.push(end);
        };
        matcher.matches.iter().for_each(|table| add(&mut steps, table, Step::Match));
        if !matcher.matches.is_empty() {
            steps.push(Step::Matched);
        }
        matcher.except.iter().for_each(|table| add(&mut steps, table, Step::Except));
        let known = self.matchers.iter().position(|known| self.steps[known.entry.clone()] == *steps);
        known.unwrap_or_else(|| {
            let began = self.steps.len();
            self.steps.extend(&steps);
            let is_of_event = steps.iter().any(|step| matches!(step, Step::And { is_of_event: true, .. }));
            self.is_of_event |= is_of_event;
            self.matchers.push(ByEvent { entry: began..self.steps.len(), is_of_event });
            self.matchers.len() - 1
        })
    }

    fn step(&mut self, condition: &Condition) -> Step {
        let index = self.conditions.iter().position(|known| known == condition).unwrap_or_else(|| {
            self.conditions.push(condition.clone());
            self.conditions.len() - 1
        });
        // No configuration has this many conditions.
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        Step::And { number, is_of_event: condition.is_of_event() }
    }

    /// Adds the owner fields of a limit, and returns their index.
    pub fn owners(&mut self, per: &[Field]) -> usize {
        self.owners.iter().position(|known| *known.entry.fields() == *per).unwrap_or_else(|| {
            let is_of_event = per.iter().any(|field| field.is_of_recipient());
            self.is_of_event |= is_of_event;
            self.owners.push(ByEvent { entry: OwnerFields::new(per), is_of_event });
            self.owners.len() - 1
        })
    }

    /// Adds a table of overrides, and returns its index.
    pub fn rows(&mut self, rows: &Arc<OverrideRows>) -> usize {
        self.rows.iter().position(|known| Arc::ptr_eq(&known.entry, rows)).unwrap_or_else(|| {
            let is_of_event = rows.is_by_recipient();
            self.is_of_event |= is_of_event;
            self.rows.push(ByEvent { entry: rows.clone(), is_of_event });
            self.rows.len() - 1
        })
    }
}

/// Step in the evaluation of a [`Matcher`]. Equal conditions have the same index in the whole policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Condition of a table. `number` is its index among the conditions of the policy.
    And { number: u32, is_of_event: bool },
    /// End of a table of `match`.
    Match,
    /// End of all tables of `match`.
    Matched,
    /// End of a table of `except`.
    Except,
}

/// Evaluates a matcher. If the matcher does not match, returns an error with the reason. A condition on an unknown
/// field is false.
fn check(steps: &[Step], holds: impl Fn(usize, bool) -> bool) -> Result<(), SkipReason> {
    let (mut all_hold, mut is_matched, mut excepts) = (true, false, 0);
    for step in steps {
        match *step {
            Step::And { number, is_of_event } => all_hold = all_hold && holds(number as usize, is_of_event),
            Step::Match => {
                is_matched |= all_hold;
                all_hold = true;
            }
            Step::Matched if !is_matched => return Err(SkipReason::NoMatch),
            Step::Matched => {}
            Step::Except if all_hold => return Err(SkipReason::Except(excepts)),
            Step::Except => {
                excepts += 1;
                all_hold = true;
            }
        }
    }
    Ok(())
}

/// Numbers of conditions, matchers, tables of overrides and sets of owner fields of a usual policy. Up to these numbers, the
/// lists of the cache of one event need no allocation.
const USUAL_CONDITIONS: usize = 32;
const USUAL_MATCHERS: usize = 32;
const USUAL_ROWS: usize = 2;
const USUAL_OWNERS: usize = 6;

/// Cached results for a run of events.
pub struct MatchCache<'a> {
    matcher_set: &'a MatcherSet,
    /// Results of conditions, one for each event and condition. A result that is the same for all events is stored with
    /// the first event. Without any entry that depends on the event, all lists have room for one event.
    given: SmallVec<[Cell<Option<bool>>; USUAL_CONDITIONS]>,
    /// Results of matchers, one for each event and matcher.
    matchers: SmallVec<[Cell<Option<bool>>; USUAL_MATCHERS]>,
    /// Override rows, one for each event and table of overrides.
    rows: SmallVec<[Cell<Option<Option<OverrideRow>>>; USUAL_ROWS]>,
    /// Owner parts of keys, one for each event and set of owner fields.
    owners: SmallVec<[OnceCell<Result<String, Field>>; USUAL_OWNERS]>,
}

impl<'a> MatchCache<'a> {
    pub fn new(matcher_set: &'a MatcherSet, events: usize) -> Self {
        let events = if matcher_set.is_of_event { events } else { 1 };
        let given = smallvec![Cell::new(None); matcher_set.conditions.len() * events];
        let matchers = smallvec![Cell::new(None); matcher_set.matchers.len() * events];
        let rows = smallvec![Cell::new(None); matcher_set.rows.len() * events];
        let owners = smallvec![OnceCell::new(); matcher_set.owners.len() * events];
        Self { matcher_set, given, matchers, rows, owners }
    }

    /// Returns whether the matcher at index `number` matches `subject`, the facts of the event at index `at`.
    pub fn matches(&self, number: usize, at: usize, subject: &Subject<'_, '_>) -> bool {
        let matchers = &self.matcher_set.matchers;
        let cached = &self.matchers[matchers[number].index(number, matchers.len(), at)];
        cached.get().unwrap_or_else(|| {
            let matches = self.check(number, at, subject).is_ok();
            cached.set(Some(matches));
            matches
        })
    }

    /// Evaluates the matcher at index `number` for `subject`, the facts of the event at index `at`. If the matcher does
    /// not match, returns an error with the reason.
    pub fn check(&self, number: usize, at: usize, subject: &Subject<'_, '_>) -> Result<(), SkipReason> {
        check(self.steps(number), |number, is_of_event| self.holds(number, if is_of_event { at } else { 0 }, subject))
    }

    /// Returns whether the matcher at index `number` matches no event of the run, whose first event has the facts
    /// `subject`. False if the result can differ between events.
    pub fn fails_for_all(&self, number: usize, subject: &Subject<'_, '_>) -> bool {
        !self.matcher_set.matchers[number].is_of_event && !self.matches(number, 0, subject)
    }

    fn holds(&self, number: usize, event: usize, subject: &Subject<'_, '_>) -> bool {
        let conditions = &self.matcher_set.conditions;
        let cached = &self.given[event * conditions.len() + number];
        cached.get().unwrap_or_else(|| {
            let holds = conditions[number].holds(*subject);
            cached.set(Some(holds));
            holds
        })
    }

    /// Evaluates the matcher at index `number` for a subject that is not an event of the run. The result is not cached.
    pub fn matches_other(&self, number: usize, subject: Subject<'_, '_>) -> bool {
        check(self.steps(number), |number, _| self.matcher_set.conditions[number].holds(subject)).is_ok()
    }

    fn steps(&self, number: usize) -> &[Step] {
        &self.matcher_set.steps[self.matcher_set.matchers[number].entry.clone()]
    }

    /// Returns the override row for the event at index `at`, from the table at index `number`.
    pub fn row(&self, number: usize, at: usize, subject: &Subject<'_, '_>) -> Option<OverrideRow> {
        let rows = &self.matcher_set.rows;
        let cached = &self.rows[rows[number].index(number, rows.len(), at)];
        cached.get().unwrap_or_else(|| {
            let row = rows[number].entry.find(*subject);
            cached.set(Some(row));
            row
        })
    }

    /// Returns the owner part of keys for the event at index `at`, with the owner fields at index `number`. Returns an
    /// error that names the field if a field is unknown.
    pub fn owners(&self, number: usize, at: usize, subject: &Subject<'_, '_>) -> Result<&str, Field> {
        let owners = &self.matcher_set.owners;
        let cached = &self.owners[owners[number].index(number, owners.len(), at)];
        cached.get_or_init(|| owners[number].entry.name(*subject)).as_deref().map_err(|field| *field)
    }
}
