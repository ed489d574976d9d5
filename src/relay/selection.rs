//! Order in which the upstreams are tried for a message. Does no input or output.

use std::cmp::Reverse;

/// Properties of an upstream that determine its position in the order.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Upstreams with lower numbers come first, as in MX and SRV records.
    pub priority: u16,
    /// Weight of the upstream among the upstreams of the same priority; at least 1.
    pub weight: u16,
    /// True if the upstream is healthy, as far as Weir knows.
    pub is_well: bool,
    /// True if the upstream offers the extensions that the message needs, as far as Weir knows.
    pub is_able: bool,
}

/// Returns the indices of all upstreams in the order in which to try them. Upstreams that offer the extensions that the
/// message needs come before upstreams that lack them. Within these two groups, healthy upstreams come before unhealthy
/// upstreams. Then the priority decides. Upstreams of the same priority are in random order, by weight (as RFC 2782
/// does for SRV). Unhealthy upstreams are in the order, too, because they perhaps work again. `draw` returns a uniform
/// random number below its argument.
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

/// Returns the indices of the upstreams in use: the healthy upstreams with the lowest priority number. If no upstream
/// is healthy, returns all upstreams with the lowest priority number.
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
    fn upstreams_are_ordered_by_health_then_priority_then_weight() {
        let [a, b, c] = [standing(20, 1), standing(10, 1), standing(10, 3)];
        let down = Standing { is_well: false, ..standing(0, 9) };
        let unable = Standing { is_able: false, ..standing(0, 9) };
        let all = [a, b, c, down, unable];
        assert_eq!(order(&all, |_| 0), [1, 2, 0, 3, 4]);
        assert_eq!(order(&all, |total| total - 1), [2, 1, 0, 3, 4]);
        assert!(order(&[], |_| 0).is_empty());
    }

    #[test]
    fn each_upstream_gets_a_share_of_the_mail_by_its_weight() {
        let all = [standing(0, 1), standing(0, 3), standing(0, 4)];
        let mut firsts = [0; 3];
        // Try every possible first draw once.
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
    fn healthy_upstreams_of_the_lowest_priority_are_in_use() {
        let down = |priority| Standing { is_well: false, ..standing(priority, 1) };
        let of = |standings: &[Standing]| in_use(standings).collect::<Vec<_>>();
        assert_eq!(of(&[standing(20, 1), standing(10, 1), standing(10, 3), down(0)]), [1, 2]);
        assert_eq!(of(&[down(20), down(10), down(10)]), [1, 2]);
    }
}
