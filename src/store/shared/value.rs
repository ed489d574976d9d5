//! Format of a budget's state in Redis.
//!
//! The octets are: the version (u64), flags (u8), the time (i64, microseconds) and the level (f64) of the state; if the
//! budget has a filter, the version at which the filter was last written as a whole (u64) and the octets of its log that
//! belong to this state (u32); if the limit measures regularity, the number of times (u16) and the times (i64); if nodes
//! take leases, the version with which the bucket began (u64), and the rests that nodes have returned: their amount and
//! their end as a level (two f64), valid at the time of the state; at last the text of the key, perhaps sealed. All
//! numbers are little-endian.
//!
//! The version changes with every write, so that two different writes never look alike, even if they write the same
//! state; see also `step` in `cells::batch`. It begins with the time of the first write in microseconds, so that a
//! budget that has expired and begins anew does not repeat a version.

use crate::engine::State;
use crate::engine::lease::Lease;
use crate::engine::regularity::Times;
use crate::time::Timestamp;
use std::sync::Arc;

/// State of a budget, as Redis has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub version: u64,
    pub state: State,
    pub filter: Option<FilterExtent>,
    pub times: Option<Arc<Times>>,
    /// Version with which the bucket began: that of its first write, or of its last reset. A lease is valid as long as
    /// this number is the same. 0: nodes take no leases.
    pub began: u64,
    /// Rests of leases that nodes have returned, at the time of the state.
    pub returned: Option<Lease>,
}

/// Contents of a filter in Redis: the filter as it was written, and the values in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterExtent {
    /// Version of the state with which the whole filter was written.
    pub base: u64,
    /// Octets of the log that belong to the state. The log never shrinks while the base is the same.
    pub log: u32,
}

/// Octets of the version, with which a state and a filter begin.
pub const VERSION_OCTETS: usize = 8;

const FILTER: u8 = 1;
const TIMES: u8 = 2;
const LEASES: u8 = 4;

impl Stored {
    /// Encodes the state, followed by the text of the key.
    pub fn encode(&self, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(VERSION_OCTETS + 32 + text.len());
        let flags = self.filter.map_or(0, |_| FILTER)
            | self.times.as_ref().map_or(0, |_| TIMES)
            | if self.began == 0 { 0 } else { LEASES };
        out.extend_from_slice(&self.version.to_le_bytes());
        out.push(flags);
        out.extend_from_slice(&self.state.at.micros().to_le_bytes());
        out.extend_from_slice(&self.state.level.to_le_bytes());
        if let Some(FilterExtent { base, log }) = self.filter {
            out.extend_from_slice(&base.to_le_bytes());
            out.extend_from_slice(&log.to_le_bytes());
        }
        if let Some(times) = &self.times {
            // A limit measures at most some hundred gaps.
            out.extend_from_slice(&(times.iter().len() as u16).to_le_bytes());
            times.iter().for_each(|time| out.extend_from_slice(&time.micros().to_le_bytes()));
        }
        if self.began != 0 {
            let (rest, end) = self.returned.map_or((0.0, 0.0), |returned| returned.parts());
            out.extend_from_slice(&self.began.to_le_bytes());
            out.extend_from_slice(&rest.to_le_bytes());
            out.extend_from_slice(&end.to_le_bytes());
        }
        out.extend_from_slice(text);
        out
    }

    /// Decodes a state; also returns the text of the key. `None` if the octets are no state of this format.
    pub fn decode(mut bytes: &[u8]) -> Option<(Self, &[u8])> {
        let bytes = &mut bytes;
        let version = u64::from_le_bytes(take(bytes)?);
        let [flags] = take(bytes)?;
        if flags & !(FILTER | TIMES | LEASES) != 0 {
            return None;
        }
        let at = Timestamp::from_micros(i64::from_le_bytes(take(bytes)?));
        let level = f64::from_le_bytes(take(bytes)?);
        let filter = match flags & FILTER {
            0 => None,
            _ => Some(FilterExtent { base: u64::from_le_bytes(take(bytes)?), log: u32::from_le_bytes(take(bytes)?) }),
        };
        let times = match flags & TIMES {
            0 => None,
            _ => {
                let count = u16::from_le_bytes(take(bytes)?);
                let time = |_| take(bytes).map(|time| Timestamp::from_micros(i64::from_le_bytes(time)));
                Some(Arc::new(Times::new((0..count).map(time).collect::<Option<_>>()?)))
            }
        };
        let (mut began, mut returned) = (0, None);
        if flags & LEASES != 0 {
            began = u64::from_le_bytes(take(bytes)?);
            let (rest, end) = (f64::from_le_bytes(take(bytes)?), f64::from_le_bytes(take(bytes)?));
            returned = Some(Lease::new(rest, end, at)).filter(|_| rest > 0.0);
        }
        Some((Self { version, state: State { at, level }, filter, times, began, returned }, bytes))
    }
}

/// Returns the version with which octets of a state or a filter begin.
pub fn version(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|version| u64::from_le_bytes(*version))
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_state_is_decoded_as_encoded(
            version in any::<u64>(), at in any::<i64>(), level in -1e300f64..1e300,
            filter in proptest::option::of((any::<u64>(), any::<u32>())),
            times in proptest::option::of(proptest::collection::vec(any::<i64>(), 0..40)),
            began in 0u64..3, returned in proptest::option::of((1e-300f64..1e300, 0.0f64..1e300)),
            text in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let times = times.map(|times| Arc::new(Times::new(times.into_iter().map(Timestamp::from_micros).collect())));
            let filter = filter.map(|(base, log)| FilterExtent { base, log });
            let at = Timestamp::from_micros(at);
            let returned = returned.filter(|_| began != 0).map(|(rest, end)| Lease::new(rest, end, at));
            let stored = Stored { version, state: State { at, level }, filter, times, began, returned };
            let bytes = stored.encode(&text);
            prop_assert_eq!(Stored::decode(&bytes), Some((stored, &text[..])));
        }

        #[test]
        fn arbitrary_octets_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Stored::decode(&bytes);
        }
    }
}
