//! Row of the table of queue ids.

use crate::time::Timestamp;
use md5::{Digest as _, Md5};
use std::net::IpAddr;

/// Name of a row. A server can use a short queue id again for a later message, so the time belongs to the name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueIdKey {
    pub queue_id: Box<str>,
    /// Name of the upstream in the configuration.
    pub upstream: Box<str>,
    /// Time when Weir got the upstream's reply to the message.
    pub at: Timestamp,
}

/// Message that an upstream has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentMessage {
    pub key: QueueIdKey,
    pub message_id: Option<Box<str>>,
    pub user: Option<Box<str>>,
    pub client: IpAddr,
    /// Envelope sender; empty for bounces.
    pub sender: Box<str>,
    /// Name of the listener.
    pub listener: Box<str>,
    /// Hashes of the first [`MAX_RECIPIENTS`] recipients.
    pub recipients: Vec<AddressHash>,
    /// Outcomes that have been counted.
    pub marks: Marks,
}

/// Maximum number of recipients of one message that are stored: 8 octets each.
pub const MAX_RECIPIENTS: usize = 1000;

/// Hash of an address. A user chooses the recipients, so a cheaper hash would allow a user to find two recipients that
/// count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressHash(pub u64);

impl AddressHash {
    pub fn of(address: &str) -> Self {
        Self(hash(address.to_ascii_lowercase().as_bytes()))
    }
}

/// Outcomes of a message that have been counted, as hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks(pub Vec<u64>);

impl Marks {
    /// Returns the mark of an outcome.
    pub fn mark(kind: &str, recipient: Option<&str>) -> u64 {
        hash(format!("{kind} {}", recipient.unwrap_or_default().to_ascii_lowercase()).as_bytes())
    }
}

fn hash(octets: &[u8]) -> u64 {
    let digest: [u8; 16] = Md5::digest(octets).into();
    digest[..8].iter().fold(0, |number, octet| number << 8 | u64::from(*octet))
}
