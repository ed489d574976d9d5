//! Judge: compares, for each message, the reply that the client read with the messages that the upstreams accepted.

use super::client::Sent;
use super::message::{Message, Token, without_received};
use super::upstream::Accepted;
use std::collections::HashMap;
use std::net::Ipv4Addr;

/// Counts of a run. `lost`, `doubled` and `leaked` must be 0; the others are for information.
#[derive(Default)]
pub struct Counts {
    pub messages: u64,
    pub delivered: u64,
    pub refused: u64,
    /// Messages whose client left before it read the outcome.
    pub left: u64,
    /// Lost messages: the client read 2xx, but no upstream has accepted the whole message for exactly its recipients. A
    /// message that an upstream accepted incomplete also counts as lost.
    pub lost: u64,
    /// Doubled messages: accepted twice; or accepted once although the client read a refusal, so that the client will
    /// send the message again.
    pub doubled: u64,
    /// Leaked: sessions, connections, file descriptors, entries in limits on concurrent sessions, or charges that were
    /// not refunded.
    pub leaked: u64,
}

/// A lost or doubled message or a leak, with the token of the message.
pub struct Finding {
    pub token: Option<Token>,
    pub what: String,
}

/// Lowest and highest correct level of the budgets of one client.
#[derive(Clone, Copy, Default, PartialEq)]
pub struct Charges {
    /// charge = "sent": recipients of messages that an upstream accepted. Both levels are equal, unless a reply is
    /// perhaps lost because the connection was reset.
    pub sent: [u64; 2],
    /// charge = "accepted": the lowest level is the number of recipients for which the client read 250, the highest
    /// level is the number of recipients that the client named.
    pub accepted: [u64; 2],
}

#[derive(Default)]
pub struct Judge {
    pub counts: Counts,
    pub charges: HashMap<Ipv4Addr, Charges>,
    seed: u64,
}

impl Judge {
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Judges a round in which all sessions have ended.
    pub fn round(&mut self, sent: &[Sent], accepted: &[Accepted]) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut by_token = HashMap::<Token, Vec<&Accepted>>::new();
        for one in accepted {
            match one.token {
                Some(token) => by_token.entry(token).or_default().push(one),
                None => findings.push(self.lost(None, "accepted from a sender that no client named")),
            }
        }
        for message in sent {
            self.counts.messages += 1;
            let times = by_token.remove(&message.token).unwrap_or_default();
            findings.extend(self.message(message, &times));
            self.charge(message, &times);
        }
        for token in by_token.into_keys() {
            findings.push(self.lost(Some(token), "accepted, and no client sent it in this round"));
        }
        findings
    }

    fn message(&mut self, sent: &Sent, times: &[&Accepted]) -> Option<Finding> {
        let token = Some(sent.token);
        let wrong = times.iter().find_map(|accepted| self.compare(sent, accepted));
        if let Some(wrong) = wrong {
            return Some(self.lost(token, &wrong));
        }
        if times.len() > 1 {
            return Some(self.doubled(token, &format!("accepted {} times", times.len())));
        }
        let is_good = sent.told.as_ref().map(|reply| reply.starts_with('2'));
        match (is_good, times) {
            (Some(true), []) => Some(self.lost(token, "2xx to the client, and no upstream has accepted it")),
            (Some(true), _) => {
                self.counts.delivered += 1;
                None
            }
            (Some(false), [accepted]) if !accepted.is_unsure => {
                Some(self.doubled(token, "accepted, and the client was told that it failed"))
            }
            (Some(false), _) => {
                self.counts.refused += 1;
                None
            }
            (None, _) => {
                self.counts.left += 1;
                None
            }
        }
    }

    /// Returns the difference between an accepted message and the client's message.
    fn compare(&self, sent: &Sent, accepted: &Accepted) -> Option<String> {
        if !sent.is_whole {
            return Some(
                "accepted, and the client never sent the whole message, or one that must be refused".to_owned(),
            );
        }
        let meant = Message::new(self.seed, sent.token);
        if accepted.recipients != sent.accepted {
            return Some(format!("accepted for {:?}; 250 for {:?}", accepted.recipients, sent.accepted));
        }
        let Some(octets) = without_received(&accepted.octets) else {
            return Some("accepted without Received: on top".to_owned());
        };
        if octets == meant.octets {
            return None;
        }
        let at = octets.iter().zip(&meant.octets).take_while(|(one, other)| one == other).count();
        Some(format!("{} octets accepted, {} sent; they differ from octet {at} on", octets.len(), meant.octets.len()))
    }

    fn charge(&mut self, sent: &Sent, times: &[&Accepted]) {
        let charges = self.charges.entry(sent.client).or_default();
        for accepted in times {
            let recipients = accepted.recipients.len() as u64;
            charges.sent[0] += if accepted.is_unsure { 0 } else { recipients };
            charges.sent[1] += recipients;
        }
        charges.accepted[0] += sent.accepted.len() as u64;
        charges.accepted[1] += sent.asked as u64;
    }

    fn lost(&mut self, token: Option<Token>, what: &str) -> Finding {
        self.counts.lost += 1;
        Finding { token, what: format!("lost: {what}") }
    }

    fn doubled(&mut self, token: Option<Token>, what: &str) -> Finding {
        self.counts.doubled += 1;
        Finding { token, what: format!("doubled: {what}") }
    }

    pub fn leaked(&mut self, what: String) -> Finding {
        self.counts.leaked += 1;
        Finding { token: None, what: format!("leaked: {what}") }
    }
}
