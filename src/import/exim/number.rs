//! Translation of the numbers in an argument of `ratelimit` into the syntax of limits.

use super::Verb;
use crate::policy::limit::{Count, LONGEST_PERIOD};
use crate::time::{Units, parse_amount, parse_exim_duration, unambiguous};

/// Returns how many events are needed to reach the limit `most`, if Exim adds `amount` for each event.
pub fn per_event(most: f64, amount: f64) -> f64 {
    if most == 0.0 { 0.0 } else { most / amount }
}

/// Returns a rate in the syntax of limits: `100 / 1d`.
pub fn rate(most: f64, period: &str, count: Count, verb: Verb) -> Result<String, String> {
    let time = parse_exim_duration(period).map_err(|_| format!("the period {period} is known only to Exim"));
    if period.contains('$') {
        return Err(format!("the period {period} is known only to Exim"));
    }
    if time.is_ok_and(|time| time > LONGEST_PERIOD) || parse_exim_duration(period).is_err() {
        return Err(format!("the period {period} is longer than 3650d, the longest that limits have"));
    }
    match most {
        // In Exim, a single event already raises the average to 1, so Exim refuses every event, too.
        most if most <= 1.0 && count != Count::Bytes && verb != Verb::Warn => Ok("0".to_owned()),
        0.0 if verb != Verb::Warn => Ok("0".to_owned()),
        _ => match amount(most, count) {
            Some(amount) => Ok(format!("{amount} / {period}")),
            // The number is too large for Weir, and no sender can reach it.
            None => Ok("unlimited".to_owned()),
        },
    }
}

/// Returns a number in the syntax of limits; `None` if the number is too large for Weir, so that no sender can reach
/// it.
fn amount(number: f64, count: Count) -> Option<String> {
    let units = [("G", 1024.0 * 1024.0 * 1024.0), ("M", 1024.0 * 1024.0), ("K", 1024.0)];
    let unit = units.into_iter().find(|(_, size)| count == Count::Bytes && number >= *size && number % size == 0.0);
    let text = match unit {
        Some((unit, size)) => format!("{}{unit}", unambiguous((number / size).to_string())),
        None => unambiguous(number.to_string()),
    };
    let same = parse_amount(&text, if count == Count::Bytes { Units::Octets } else { Units::Things });
    // Weir does not accept so many decimal places; the digits that are cut off do not matter.
    let shorter = || text.get(..18).filter(|text| text.contains('.')).map(str::to_owned);
    if same.is_ok() { Some(text) } else { shorter() }
}
