//! What conditions say of a run of events: each is asked once, however many limits have it.

use super::whom::{Condition, Conditions, Subject, Whom};
use super::why::Why;
use std::cell::Cell;

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
    /// Numbers the conditions by their places in `known`, where new ones are added.
    pub fn new(whom: &Whom, known: &mut Vec<Condition>) -> Self {
        let mut steps = Vec::new();
        let mut add = |steps: &mut Vec<Step>, table: &Conditions, end| {
            steps.extend(table.0.iter().map(|condition| Step::of(condition, known)));
            steps.push(end);
        };
        whom.matches.iter().for_each(|table| add(&mut steps, table, Step::Match));
        if !whom.matches.is_empty() {
            steps.push(Step::Matched);
        }
        whom.except.iter().for_each(|table| add(&mut steps, table, Step::Except));
        Self(steps.into())
    }

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

impl Step {
    fn of(condition: &Condition, known: &mut Vec<Condition>) -> Self {
        let place = known.iter().position(|one| one == condition).unwrap_or_else(|| {
            known.push(condition.clone());
            known.len() - 1
        });
        // No configuration has more.
        let number = u32::try_from(place).unwrap_or(u32::MAX);
        Self::And { number, is_of_event: condition.is_of_event() }
    }
}

/// The answers of a policy's conditions.
pub struct Answers<'a> {
    conditions: &'a [Condition],
    /// One for each event and condition. An answer that is the same for all events stands with the first.
    given: Vec<Cell<Option<bool>>>,
}

impl<'a> Answers<'a> {
    pub fn new(conditions: &'a [Condition], events: usize) -> Self {
        Self { conditions, given: vec![Cell::new(None); conditions.len() * events] }
    }

    /// Whether a limit is for the event at this place of the run, which is `subject`; if not, why.
    pub fn check(&self, whom: &Numbered, at: usize, subject: Subject<'_, '_>) -> Result<(), Why> {
        whom.check(|number, is_of_event| {
            let row = if is_of_event { at } else { 0 };
            let answer = &self.given[row * self.conditions.len() + number];
            answer.get().unwrap_or_else(|| {
                let holds = self.conditions[number].holds(subject);
                answer.set(Some(holds));
                holds
            })
        })
    }

    /// Whether a limit is for something that is no event of the run.
    pub fn hold(&self, whom: &Numbered, subject: Subject<'_, '_>) -> bool {
        whom.check(|number, _| self.conditions[number].holds(subject)).is_ok()
    }
}
