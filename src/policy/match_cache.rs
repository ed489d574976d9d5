//! What conditions say of a run of events: each is asked once, however many limits have it, and so is what several limits have in common.

use super::field::Field;
use super::key::Owners;
use super::matcher::{AllOf, Condition, Matcher, Subject};
use super::overrides::{Row, Rows};
use super::skip_reason::SkipReason;
use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::sync::Arc;

/// What the limits of a policy ask about events: each thing once.
#[derive(Debug, Default)]
pub struct MatcherSet {
    conditions: Vec<Condition>,
    /// For whom limits are; how that is gone through stands one after the other in `steps`.
    whoms: Vec<ByEvent<Range<usize>>>,
    steps: Vec<Step>,
    rows: Vec<ByEvent<Arc<Rows>>>,
    /// Whose budgets there are.
    owners: Vec<ByEvent<Owners>>,
}

/// Something that is asked, and whether the answer may be another one for each event of a run.
#[derive(Debug)]
struct ByEvent<T> {
    asked: T,
    is_of_event: bool,
}

impl<T> ByEvent<T> {
    /// Where the answer for the event at this place of the run stands. `number` says which of `count` things is asked.
    fn place(&self, number: usize, count: usize, at: usize) -> usize {
        number + if self.is_of_event { at * count } else { 0 }
    }
}

impl MatcherSet {
    /// Adds for whom a limit is: the number of that.
    pub fn whom(&mut self, whom: &Matcher) -> usize {
        let mut steps = Vec::new();
        let mut add = |steps: &mut Vec<Step>, table: &AllOf, end| {
            steps.extend(table.0.iter().map(|condition| self.step(condition)));
            steps.push(end);
        };
        whom.matches.iter().for_each(|table| add(&mut steps, table, Step::Match));
        if !whom.matches.is_empty() {
            steps.push(Step::Matched);
        }
        whom.except.iter().for_each(|table| add(&mut steps, table, Step::Except));
        let known = self.whoms.iter().position(|known| self.steps[known.asked.clone()] == *steps);
        known.unwrap_or_else(|| {
            let began = self.steps.len();
            self.steps.extend(&steps);
            let is_of_event = steps.iter().any(|step| matches!(step, Step::And { is_of_event: true, .. }));
            self.whoms.push(ByEvent { asked: began..self.steps.len(), is_of_event });
            self.whoms.len() - 1
        })
    }

    fn step(&mut self, condition: &Condition) -> Step {
        let place = self.conditions.iter().position(|known| known == condition).unwrap_or_else(|| {
            self.conditions.push(condition.clone());
            self.conditions.len() - 1
        });
        // No configuration has more.
        let number = u32::try_from(place).unwrap_or(u32::MAX);
        Step::And { number, is_of_event: condition.is_of_event() }
    }

    /// Adds whose budgets a limit has: the number of these owners.
    pub fn owners(&mut self, per: &[Field]) -> usize {
        self.owners.iter().position(|known| *known.asked.fields() == *per).unwrap_or_else(|| {
            let is_of_event = per.iter().any(|field| field.is_of_recipient());
            self.owners.push(ByEvent { asked: Owners::new(per), is_of_event });
            self.owners.len() - 1
        })
    }

    /// Adds whom numbers are for: the number of these rows.
    pub fn place(&mut self, rows: &Arc<Rows>) -> usize {
        self.rows.iter().position(|known| Arc::ptr_eq(&known.asked, rows)).unwrap_or_else(|| {
            self.rows.push(ByEvent { asked: rows.clone(), is_of_event: rows.is_by_recipient() });
            self.rows.len() - 1
        })
    }
}

/// How a [`Matcher`] is gone through. Equal conditions have the same number in the whole policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// One more condition of a table.
    And { number: u32, is_of_event: bool },
    /// A table of `match` ends.
    Match,
    /// All tables of `match` have been seen.
    Matched,
    /// A table of `except` ends.
    Except,
}

/// Whether this is for somebody; if not, why. What names something absent does not hold.
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

/// The answers to what a policy asks.
pub struct MatchCache<'a> {
    asking: &'a MatcherSet,
    /// One for each event and condition. An answer that is the same for all events stands with the first.
    given: Vec<Cell<Option<bool>>>,
    /// One for each event and all those for whom limits are.
    whoms: Vec<Cell<Option<Result<(), SkipReason>>>>,
    /// One for each event and table of numbers.
    rows: Vec<Cell<Option<Option<Row>>>>,
    /// One for each event and set of owners.
    owners: Vec<OnceCell<Result<String, Field>>>,
}

impl<'a> MatchCache<'a> {
    pub fn new(asking: &'a MatcherSet, events: usize) -> Self {
        let given = vec![Cell::new(None); asking.conditions.len() * events];
        let whoms = vec![Cell::new(None); asking.whoms.len() * events];
        let rows = vec![Cell::new(None); asking.rows.len() * events];
        Self { asking, given, whoms, rows, owners: vec![OnceCell::new(); asking.owners.len() * events] }
    }

    /// Whether limits for those with this number are for the event at this place of the run, which is `subject`; if not, why.
    pub fn check(&self, number: usize, at: usize, subject: &Subject<'_, '_>) -> Result<(), SkipReason> {
        let whoms = &self.asking.whoms;
        let whom = &whoms[number];
        let answer = &self.whoms[whom.place(number, whoms.len(), at)];
        answer.get().unwrap_or_else(|| {
            let said = check(&self.asking.steps[whom.asked.clone()], |number, is_of_event| {
                self.holds(number, if is_of_event { at } else { 0 }, subject)
            });
            answer.set(Some(said));
            said
        })
    }

    fn holds(&self, number: usize, event: usize, subject: &Subject<'_, '_>) -> bool {
        let conditions = &self.asking.conditions;
        let answer = &self.given[event * conditions.len() + number];
        answer.get().unwrap_or_else(|| {
            let holds = conditions[number].holds(*subject);
            answer.set(Some(holds));
            holds
        })
    }

    /// Whether limits for those with this number are for something that is no event of the run.
    pub fn hold(&self, number: usize, subject: Subject<'_, '_>) -> bool {
        let steps = &self.asking.steps[self.asking.whoms[number].asked.clone()];
        check(steps, |number, _| self.asking.conditions[number].holds(subject)).is_ok()
    }

    /// The row that is for the event at this place of the run, of the rows with this number.
    pub fn row(&self, number: usize, at: usize, subject: &Subject<'_, '_>) -> Option<Row> {
        let rows = &self.asking.rows;
        let answer = &self.rows[rows[number].place(number, rows.len(), at)];
        answer.get().unwrap_or_else(|| {
            let row = rows[number].asked.find(*subject);
            answer.set(Some(row));
            row
        })
    }

    /// The owners with this number, as keys name them; the error is what is not known of them.
    pub fn owners(&self, number: usize, at: usize, subject: &Subject<'_, '_>) -> Result<&str, Field> {
        let owners = &self.asking.owners;
        let answer = &self.owners[owners[number].place(number, owners.len(), at)];
        answer.get_or_init(|| owners[number].asked.name(*subject)).as_deref().map_err(|field| *field)
    }
}
