//! Queue ids of one message: a content filter returns a message to the queue under a new id.

use std::collections::{HashMap, VecDeque};

/// Maximum number of later ids. Beyond this number, the oldest ones are forgotten.
const MAX_LINKS: usize = 100_000;

/// First id of each message that has got another id.
#[derive(Default)]
pub struct Links {
    first: HashMap<String, String>,
    /// Later ids, in the order in which they were added.
    order: VecDeque<String>,
}

impl Links {
    /// Returns the first id of the message with this id.
    pub fn first<'a>(&'a self, id: &'a str) -> &'a str {
        self.first.get(id).map_or(id, String::as_str)
    }

    /// Adds that the message with the id `former` also has the id `later`.
    pub fn add(&mut self, former: &str, later: &str) {
        let first = self.first(former).to_owned();
        if first == later || self.first.contains_key(later) {
            return;
        }
        self.first.insert(later.to_owned(), first);
        self.order.push_back(later.to_owned());
        if self.order.len() > MAX_LINKS
            && let Some(oldest) = self.order.pop_front()
        {
            self.first.remove(&oldest);
        }
    }

    /// Returns the later ids, each with the first id.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.order.iter().map(|later| (later.as_str(), self.first(later)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_keeps_its_first_id_through_two_filters() {
        let mut links = Links::default();
        links.add("A1", "B1");
        links.add("B1", "C1");
        // An id is of the message that had it first, and no id leads to itself.
        links.add("X1", "C1");
        links.add("C1", "A1");
        assert_eq!(
            [links.first("C1"), links.first("B1"), links.first("A1"), links.first("X1")],
            ["A1", "A1", "A1", "X1"]
        );
        for number in 0..2 * MAX_LINKS {
            links.add("A1", &number.to_string());
        }
        assert_eq!((links.order.len(), links.first.len()), (MAX_LINKS, MAX_LINKS));
    }
}
