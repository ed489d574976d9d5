//! Ids of sessions, for replies, headers and logs.

use crate::time::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes an id that is short enough to be read aloud. `now` is the present time. The id is unique on this host unless the
/// clock of the host stands still.
pub fn session_id(now: Timestamp) -> Arc<str> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed) % (36 * 36 * 36);
    let micros = u64::try_from(now.micros()).unwrap_or(0);
    let mut id = String::with_capacity(16);
    push_base36(&mut id, micros, 1);
    push_base36(&mut id, serial, 3);
    id.into()
}

/// Appends a number in base 36 with at least `width` digits. No number has more than 13 digits.
fn push_base36(text: &mut String, mut number: u64, width: usize) {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut digits = [0; 13];
    let mut first = digits.len();
    while number > 0 || first + width > digits.len() {
        first -= 1;
        digits[first] = DIGITS[(number % 36) as usize];
        number /= 36;
    }
    // The digits are ASCII.
    text.push_str(str::from_utf8(&digits[first..]).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_its_digits_in_base_36() {
        let text = |number, width| {
            let mut text = String::from("x");
            push_base36(&mut text, number, width);
            text
        };
        assert_eq!((text(0, 1), text(0, 3), text(36 * 36 + 35, 3)), ("x0".into(), "x000".into(), "x10z".into()));
        assert_eq!(text(u64::MAX, 1), "x3w5e11264sgsf");
    }
}
