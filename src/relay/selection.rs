//! Which upstream to ask first. Pure.

use std::cmp::Reverse;

/// What speaks for an upstream.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Lower numbers come first, as in MX and SRV records.
    pub priority: u16,
    /// Its share among those of its priority; at least 1.
    pub weight: u16,
    /// It was not found to be of no use.
    pub is_well: bool,
    /// It offers what the message needs, as far as is known.
    pub is_able: bool,
}

/// All upstreams in the order in which to ask them: those that are able and well by priority, within a priority by chance
/// according to their weights (RFC 2782 has it so for SRV); then those that are not well, since what was wrong may be over.
/// `draw` gives a number below its argument, each as likely as any other.
pub fn order(standings: &[Standing], mut draw: impl FnMut(u32) -> u32) -> Vec<usize> {
    let rank = |index: &usize| {
        let Standing { priority, is_well, is_able, .. } = standings[*index];
        (Reverse(is_able), Reverse(is_well), priority)
    };
    let mut order: Vec<usize> = (0..standings.len()).collect();
    order.sort_by_key(rank);
    for equal in order.chunk_by_mut(|one, other| rank(one) == rank(other)) {
        for begin in 0..equal.len().saturating_sub(1) {
            let rest = &mut equal[begin..];
            let total = rest.iter().map(|index| u32::from(standings[*index].weight)).sum();
            let mut drawn = draw(total);
            let chosen = rest.iter().position(|index| {
                let weight = u32::from(standings[*index].weight);
                let is_it = drawn < weight;
                drawn = drawn.saturating_sub(weight);
                is_it
            });
            rest.swap(0, chosen.unwrap_or(0));
        }
    }
    order
}

/// Those that get the mail at present: of the lowest priority among the well ones; among all, if none is well.
pub fn in_use(standings: &[Standing]) -> impl Iterator<Item = usize> {
    let any_well = standings.iter().any(|standing| standing.is_well);
    let candidates = move |standing: &&Standing| standing.is_well || !any_well;
    let lowest = standings.iter().filter(candidates).map(|standing| standing.priority).min();
    let of_lowest = move |standing: &Standing| candidates(&standing) && Some(standing.priority) == lowest;
    standings.iter().enumerate().filter(move |(_, standing)| of_lowest(standing)).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(priority: u16, weight: u16) -> Standing {
        Standing { priority, weight, is_well: true, is_able: true }
    }

    #[test]
    fn priorities_come_first_then_weights_and_the_unwell_last() {
        let [a, b, c] = [standing(20, 1), standing(10, 1), standing(10, 3)];
        let down = Standing { is_well: false, ..standing(0, 9) };
        let unable = Standing { is_able: false, ..standing(0, 9) };
        let all = [a, b, c, down, unable];
        assert_eq!(order(&all, |_| 0), [1, 2, 0, 3, 4]);
        assert_eq!(order(&all, |total| total - 1), [2, 1, 0, 3, 4]);
        assert!(order(&[], |_| 0).is_empty());
    }

    #[test]
    fn shares_are_as_the_weights() {
        let all = [standing(0, 1), standing(0, 3), standing(0, 4)];
        let mut firsts = [0; 3];
        // Every draw there is, once.
        for number in 0..8 {
            let mut first = true;
            let order = order(&all, |total| if std::mem::take(&mut first) { number % total } else { 0 });
            firsts[order[0]] += 1;
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2]);
        }
        assert_eq!(firsts, [1, 3, 4]);
    }

    #[test]
    fn in_use_are_the_well_ones_of_the_lowest_priority() {
        let down = |priority| Standing { is_well: false, ..standing(priority, 1) };
        let of = |standings: &[Standing]| in_use(standings).collect::<Vec<_>>();
        assert_eq!(of(&[standing(20, 1), standing(10, 1), standing(10, 3), down(0)]), [1, 2]);
        assert_eq!(of(&[down(20), down(10), down(10)]), [1, 2]);
    }
}
