//! The numbers of an argument, as limits write them.

use super::Verb;
use crate::policy::limit::Count;
use crate::policy::rate_syntax::LONGEST_PERIOD;
use crate::time::{Units, parse_amount, parse_duration};

/// How many events it takes to be over.
pub fn per_event(most: f64, amount: f64) -> f64 {
    if most == 0.0 { 0.0 } else { most / amount }
}

/// `100 / 1d`, as limits write it.
pub fn rate(most: f64, period: &str, count: Count, verb: Verb) -> Result<String, String> {
    let time = parse_duration(period).map_err(|_| format!("the period {period} is known to Exim alone"));
    if period.contains('$') {
        return Err(format!("the period {period} is known to Exim alone"));
    }
    if time.is_ok_and(|time| time > LONGEST_PERIOD) || parse_duration(period).is_err() {
        return Err(format!("the period {period} is longer than 3650d, the longest that limits have"));
    }
    match most {
        0.0 if verb != Verb::Warn => Ok("0".to_owned()),
        _ => match amount(most, count) {
            Some(amount) => Ok(format!("{amount} / {period}")),
            // Nobody gets there.
            None => Ok("unlimited".to_owned()),
        },
    }
}

/// A number as limits write it. `None`: it is too large, so that nobody gets there.
fn amount(number: f64, count: Count) -> Option<String> {
    let units = [("G", 1024.0 * 1024.0 * 1024.0), ("M", 1024.0 * 1024.0), ("K", 1024.0)];
    let unit = units.into_iter().find(|(_, size)| count == Count::Bytes && number >= *size && number % size == 0.0);
    let text = match unit {
        Some((unit, size)) => format!("{}{unit}", number / size),
        None => number.to_string(),
    };
    let same = parse_amount(&text, if count == Count::Bytes { Units::Octets } else { Units::Things });
    // Of a fraction the last digits may have no room, which is less than anybody notices.
    let shorter = || text.get(..18).filter(|text| text.contains('.')).map(str::to_owned);
    if same.is_ok() { Some(text) } else { shorter() }
}
