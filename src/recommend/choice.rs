//! Choice of the number of a family: the smallest number that keeps the promise on the training, made looser by the
//! margin that cross-validation finds.

use super::family::{Family, SpecialUsers};
use super::policy_text::Number;
use super::trial::{CandidateRefusals, FamilyRefusals, PARTS, refused};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Recipients to whom the promise applies: the counted mail of the training.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promise {
    /// Maximum share of refused recipients.
    pub share: f64,
    /// Counted recipients of each part.
    pub recipients: [u64; PARTS],
    /// Number of users who sent counted mail.
    pub users: usize,
}

/// A user who is refused on so many different days sends bulk mail regularly, and needs a row in the overrides.
const BULK_DAYS: usize = 3;

/// Maximum share of the users that may have a row in the overrides of one limit.
const MAX_SPECIAL_SHARE: f64 = 0.01;

/// Maximum margin that cross-validation gives, in steps of the numbers.
const MAX_MARGIN: usize = 3;

impl Promise {
    /// Returns the number of refused recipients that this share of the promise permits in these parts.
    pub fn permitted(&self, of_share: f64, selected: impl Fn(usize) -> bool) -> u64 {
        let recipients: u64 = (0..PARTS).filter(|part| selected(*part)).map(|part| self.recipients[part]).sum();
        (self.share * of_share * recipients as f64) as u64
    }

    fn max_special(&self) -> usize {
        ((self.users as f64 * MAX_SPECIAL_SHARE) as usize).max(1)
    }
}

/// Chooses a number of a family; `None` if even the loosest number refuses too much.
pub fn choose(family: &Family, refusals: &FamilyRefusals, promise: &Promise) -> Option<Number> {
    let smallest = first_fitting(family, refusals, promise, |_| true, 1.0)?;
    let margins = (0..PARTS).map(|part| {
        let trained = first_fitting(family, refusals, promise, |other| other != part, 1.0)?;
        let needed = first_fitting(family, refusals, promise, |other| other == part, 2.0)?;
        Some(needed.saturating_sub(trained))
    });
    let margin = margins.map(|margin| margin.unwrap_or(MAX_MARGIN)).max().unwrap_or(MAX_MARGIN);
    let index = (smallest + margin.clamp(family.min_margin, MAX_MARGIN)).min(family.numbers.len() - 1);
    Some(Number { index, special: special_users(family, refusals, smallest, index) })
}

/// Returns the index of the first number that refuses no more than the promise permits in the selected parts, times
/// `factor`. Users who send bulk mail do not count, because they get a row in the overrides.
fn first_fitting(
    family: &Family,
    refusals: &FamilyRefusals,
    promise: &Promise,
    selected: impl Fn(usize) -> bool + Copy,
    factor: f64,
) -> Option<usize> {
    let permitted = promise.permitted(family.share * factor, selected);
    refusals.iter().position(|candidate| {
        let bulk = bulk_users(candidate);
        bulk.len() <= promise.max_special() && refused(candidate, selected, |user| bulk.contains(user)) <= permitted
    })
}

fn bulk_users(candidate: &CandidateRefusals) -> BTreeSet<Arc<str>> {
    let bulk = candidate.iter().filter(|(_, refusals)| refusals.days.len() >= BULK_DAYS);
    bulk.map(|(user, _)| user.clone()).collect()
}

/// Returns the users who send bulk mail: those whom the number `smallest` refuses on several days, and whom the looser
/// number `index` still refuses. The number of each row is the first that refuses the user nothing, made looser by one
/// step.
fn special_users(family: &Family, refusals: &FamilyRefusals, smallest: usize, index: usize) -> SpecialUsers {
    let mut special = SpecialUsers::default();
    for user in bulk_users(&refusals[smallest]).iter().filter(|user| refusals[index].contains_key(*user)) {
        let peak = refusals.iter().skip(index).position(|candidate| !candidate.contains_key(user));
        let row = peak.map(|peak| (index + peak + 1).min(family.numbers.len() - 1));
        match row.filter(|_| family.has_overrides) {
            Some(row) => special.overrides.push((user.to_string(), family.numbers[row])),
            None => special.exempt.push(user.to_string()),
        }
    }
    special
}

#[cfg(test)]
mod tests {
    use super::super::family::FAMILIES;
    use super::super::trial::UserRefusals;
    use super::*;

    /// Returns the refusals of the first family, in which each user has a peak (an index of the numbers) in some parts and
    /// on some days.
    fn refusals(users: &[(&str, usize, [u64; PARTS], i64)]) -> FamilyRefusals {
        let of_number = |index: usize| {
            let refused = users.iter().filter(move |(_, peak, ..)| index < *peak);
            refused.map(|(user, _, parts, days)| {
                ((*user).into(), UserRefusals { parts: *parts, days: (0..*days).collect() })
            })
        };
        (0..FAMILIES[0].numbers.len()).map(|index| of_number(index).collect()).collect()
    }

    fn promise() -> Promise {
        Promise { share: 0.000_05, recipients: [10_000; PARTS], users: 100 }
    }

    #[test]
    fn margin_follows_the_part_that_needs_most() {
        for (peaks, index) in [
            (&[("a", 2, [1, 1, 1, 1], 1)][..], 3),
            (&[("a", 2, [1, 0, 1, 1], 1), ("b", 4, [0, 1, 0, 0], 1)], 6),
            (&[("a", 1, [1, 0, 1, 1], 1), ("b", 9, [0, 1, 0, 0], 1)], 12),
        ] {
            let number = choose(&FAMILIES[0], &refusals(peaks), &promise()).unwrap();
            assert_eq!((number.index, number.special), (index, SpecialUsers::default()), "{peaks:?}");
        }
    }

    #[test]
    fn a_sender_of_bulk_mail_gets_a_row_and_does_not_loosen_the_limit() {
        let number = choose(&FAMILIES[0], &refusals(&[("news", 8, [9, 9, 9, 9], 30)]), &promise()).unwrap();
        assert_eq!(number.index, 1);
        assert_eq!(number.special.overrides, [("news".to_owned(), FAMILIES[0].numbers[9])]);
    }

    #[test]
    fn a_sender_beyond_all_numbers_is_exempt() {
        let number = choose(&FAMILIES[0], &refusals(&[("news", 99, [9, 9, 9, 9], 30)]), &promise()).unwrap();
        assert_eq!(number.special, SpecialUsers { exempt: vec!["news".to_owned()], ..SpecialUsers::default() });
    }

    #[test]
    fn many_users_beyond_all_numbers_leave_no_number() {
        let users = ["a", "b", "c", "d"].map(|user| (user, 99, [9; PARTS], 30));
        assert_eq!(choose(&FAMILIES[0], &refusals(&users), &promise()), None);
    }
}
