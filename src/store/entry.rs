//! The form of a journal entry: the changed states of one commit, one after the other.
//!
//! Each is a key's length (u16), the key (UTF-8), the time (i64, microseconds) and the level (f64), all little-endian.

use crate::engine::ewma::State;
use crate::policy::key::Key;
use crate::time::Timestamp;

/// Appends one changed state.
pub fn write(out: &mut Vec<u8>, key: &Key, state: State) {
    let key = key.as_str().as_bytes();
    // Keys are made of a configured name, an address and a login of at most 1024 octets.
    let length = u16::try_from(key.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&key[..usize::from(length)]);
    out.extend_from_slice(&state.at.micros().to_le_bytes());
    out.extend_from_slice(&state.rate.to_le_bytes());
}

/// Reads an entry; `None` if it is damaged.
pub fn read(mut bytes: &[u8]) -> Option<Vec<(Key, State)>> {
    let mut changes = Vec::new();
    while !bytes.is_empty() {
        let length = u16::from_le_bytes(take(&mut bytes)?);
        let (key, rest) = bytes.split_at_checked(usize::from(length))?;
        bytes = rest;
        let key = Key::from_stored(String::from_utf8(key.to_vec()).ok()?);
        let at = Timestamp::from_micros(i64::from_le_bytes(take(&mut bytes)?));
        let rate = f64::from_le_bytes(take(&mut bytes)?);
        changes.push((key, State { at, rate }));
    }
    Some(changes)
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
        fn what_is_written_is_read_back(changes in proptest::collection::vec(("\\PC{0,40}", any::<i64>(), -1e300f64..1e300), 0..5)) {
            let changes: Vec<_> = changes.into_iter()
                .map(|(key, at, rate)| (Key::from_stored(key), State { at: Timestamp::from_micros(at), rate })).collect();
            let mut bytes = Vec::new();
            changes.iter().for_each(|(key, state)| write(&mut bytes, key, *state));
            prop_assert_eq!(read(&bytes), Some(changes));
        }

        #[test]
        fn damage_is_seen_and_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Some(changes) = read(&bytes) {
                let mut again = Vec::new();
                changes.iter().for_each(|(key, state)| write(&mut again, key, *state));
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
