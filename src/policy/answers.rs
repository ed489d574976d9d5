//! What conditions say of a run of events: each is asked once, however many limits have it.

use super::field::Field;
use super::key::Owners;
use super::overrides::{Row, Rows};
use super::whom::{Condition, Conditions, Subject, Whom};
use super::why::Why;
use std::cell::{Cell, OnceCell};
use std::sync::Arc;

/// What the limits of a policy ask about events: each thing once.
#[derive(Debug, Default)]
pub struct Asking {
    conditions: Vec<Condition>,
    rows: Vec<Arc<Rows>>,
    /// Whose budgets there are.
    owners: Vec<Owners>,
}

impl Asking {
    /// Adds for whom a limit is.
    pub fn number(&mut self, whom: &Whom) -> Numbered {
        let mut steps = Vec::new();
        let mut add = |steps: &mut Vec<Step>, table: &Conditions, end| {
            steps.extend(table.0.iter().map(|condition| self.step(condition)));
            steps.push(end);
        };
        whom.matches.iter().for_each(|table| add(&mut steps, table, Step::Match));
        if !whom.matches.is_empty() {
            steps.push(Step::Matched);
        }
        whom.except.iter().for_each(|table| add(&mut steps, table, Step::Except));
        Numbered(steps.into())
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
        self.owners.iter().position(|known| *known.fields() == *per).unwrap_or_else(|| {
            self.owners.push(Owners::new(per));
            self.owners.len() - 1
        })
    }

    /// Adds whom numbers are for: the number of these rows.
    pub fn place(&mut self, rows: &Arc<Rows>) -> usize {
        self.rows.iter().position(|known| Arc::ptr_eq(known, rows)).unwrap_or_else(|| {
            self.rows.push(rows.clone());
            self.rows.len() - 1
        })
    }
}

/// A [`Whom`] with numbers for its conditions: equal ones have the same in the whole policy.
///
/// In one piece, as what many limits refer to each for itself is far apart in memory.
#[derive(Clone, Debug, Default)]
pub struct Numbered(Box<[Step]>);

/// How it is gone through.
#[derive(Clone, Copy, Debug)]
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

impl Numbered {
    /// Whether the limit is for this; if not, why. What names something absent does not hold.
    fn check(&self, holds: impl Fn(usize, bool) -> bool) -> Result<(), Why> {
        let (mut all_hold, mut is_matched, mut excepts) = (true, false, 0);
        for step in &self.0 {
            match *step {
                Step::And { number, is_of_event } => all_hold = all_hold && holds(number as usize, is_of_event),
                Step::Match => {
                    is_matched |= all_hold;
                    all_hold = true;
                }
                Step::Matched if !is_matched => return Err(Why::NoMatch),
                Step::Matched => {}
                Step::Except if all_hold => return Err(Why::Except(excepts)),
                Step::Except => {
                    excepts += 1;
                    all_hold = true;
                }
            }
        }
        Ok(())
    }
}

/// The answers to what a policy asks.
pub struct Answers<'a> {
    asking: &'a Asking,
    /// One for each event and condition. An answer that is the same for all events stands with the first.
    given: Vec<Cell<Option<bool>>>,
    /// One for each event and table of numbers.
    rows: Vec<Cell<Option<Option<Row>>>>,
    /// One for each event and set of owners.
    owners: Vec<OnceCell<Result<String, Field>>>,
}

impl<'a> Answers<'a> {
    pub fn new(asking: &'a Asking, events: usize) -> Self {
        let given = vec![Cell::new(None); asking.conditions.len() * events];
        let rows = vec![Cell::new(None); asking.rows.len() * events];
        Self { asking, given, rows, owners: vec![OnceCell::new(); asking.owners.len() * events] }
    }

    /// Whether a limit is for the event at this place of the run, which is `subject`; if not, why.
    pub fn check(&self, whom: &Numbered, at: usize, subject: Subject<'_, '_>) -> Result<(), Why> {
        let conditions = &self.asking.conditions;
        whom.check(|number, is_of_event| {
            let row = if is_of_event { at } else { 0 };
            let answer = &self.given[row * conditions.len() + number];
            answer.get().unwrap_or_else(|| {
                let holds = conditions[number].holds(subject);
                answer.set(Some(holds));
                holds
            })
        })
    }

    /// Whether a limit is for something that is no event of the run.
    pub fn hold(&self, whom: &Numbered, subject: Subject<'_, '_>) -> bool {
        whom.check(|number, _| self.asking.conditions[number].holds(subject)).is_ok()
    }

    /// The row that is for the event at this place of the run, of the rows with this number.
    pub fn row(&self, number: usize, at: usize, subject: Subject<'_, '_>) -> Option<Row> {
        let rows = &self.asking.rows;
        let event = if rows[number].is_by_recipient() { at } else { 0 };
        let answer = &self.rows[event * rows.len() + number];
        answer.get().unwrap_or_else(|| {
            let row = rows[number].find(subject);
            answer.set(Some(row));
            row
        })
    }

    /// The owners with this number, as keys name them; the error is what is not known of them.
    pub fn owners(&self, number: usize, at: usize, subject: Subject<'_, '_>) -> Result<&str, Field> {
        let owners = &self.asking.owners;
        let event = if owners[number].is_of_recipient() { at } else { 0 };
        let answer = &self.owners[event * owners.len() + number];
        answer.get_or_init(|| owners[number].name(subject)).as_deref().map_err(|field| *field)
    }
}
