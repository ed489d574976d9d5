//! Translation of the numbers of an argument to the syntax of limits.

use super::Verb;
use crate::policy::limit::{Count, LONGEST_PERIOD};
use crate::time::{Units, parse_amount, parse_exim_duration, unambiguous};

/// Returns the number of events that reach the limit.
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
        // The average of one event is 1 already: Exim refuses everything, too.
        most if most <= 1.0 && count != Count::Bytes && verb != Verb::Warn => Ok("0".to_owned()),
        0.0 if verb != Verb::Warn => Ok("0".to_owned()),
        _ => match amount(most, count) {
            Some(amount) => Ok(format!("{amount} / {period}")),
            // The amount is too large for any sender to reach.
            None => Ok("unlimited".to_owned()),
        },
    }
}

/// Returns a number in the syntax of limits. `None`: it is too large for any sender to reach.
fn amount(number: f64, count: Count) -> Option<String> {
    let units = [("G", 1024.0 * 1024.0 * 1024.0), ("M", 1024.0 * 1024.0), ("K", 1024.0)];
    let unit = units.into_iter().find(|(_, size)| count == Count::Bytes && number >= *size && number % size == 0.0);
    let text = match unit {
        Some((unit, size)) => format!("{}{unit}", unambiguous((number / size).to_string())),
        None => unambiguous(number.to_string()),
    };
    let same = parse_amount(&text, if count == Count::Bytes { Units::Octets } else { Units::Things });
    // A long fraction is cut; the difference is too small to matter.
    let shorter = || text.get(..18).filter(|text| text.contains('.')).map(str::to_owned);
    if same.is_ok() { Some(text) } else { shorter() }
}
