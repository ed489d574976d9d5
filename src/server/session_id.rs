//! Ids of sessions, for replies, headers and logs.

use crate::clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes an id that is short enough to be read aloud. It is unique on this host unless the clock of the host stands
/// still.
pub fn session_id() -> Arc<str> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed) % (36 * 36 * 36);
    let micros = u64::try_from(clock::now().micros()).unwrap_or(0);
    format!("{}{:0>3}", base36(micros), base36(serial)).into()
}

fn base36(mut number: u64) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut digits = Vec::new();
    while number > 0 || digits.is_empty() {
        digits.push(char::from(DIGITS[(number % 36) as usize]));
        number /= 36;
    }
    digits.iter().rev().collect()
}
