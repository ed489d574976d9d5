//! Suggestions for durations, amounts and rates that are spelled wrongly, and the spellings of units.

use super::{LONGEST, Units, format_duration, parse_amount, parse_duration, parse_rate};
use std::time::Duration;

/// Words for units of time, each with its seconds.
const WORDS: [(u64, &[&str]); 5] = [
    (7 * 86_400, &["w", "week", "weeks"]),
    (86_400, &["d", "day", "days"]),
    (3_600, &["h", "hr", "hrs", "hour", "hours"]),
    (60, &["m", "min", "mins", "minute", "minutes"]),
    (1, &["s", "sec", "secs", "second", "seconds"]),
];

/// Words for units that durations do not have, each with its seconds. `M` can mean minutes or months. For a timeout,
/// minutes are more likely.
const OTHER_WORDS: [(f64, &[&str]); 5] = [
    (0.001, &["ms", "msec", "millisecond", "milliseconds"]),
    (60.0, &["M", "mn"]),
    (30.0 * 86_400.0, &["month", "months", "mon", "mo"]),
    (365.0 * 86_400.0, &["y", "yr", "year", "years"]),
    (14.0 * 86_400.0, &["fortnight"]),
];

/// Returns the number of seconds in a unit of time, such as `m`, `min` or `Minutes`. A single `M` is no unit, because it
/// could mean a minute or a month.
pub(super) fn unit(word: &str) -> Option<u64> {
    let lower = word.to_lowercase();
    WORDS.iter().find(|(_, words)| word != "M" && words.contains(&&*lower)).map(|(seconds, _)| *seconds)
}

/// Returns the correct spelling of a duration, if this text can only mean that duration, or most probably means it.
pub(super) fn duration(text: &str) -> Option<String> {
    let text = text.trim();
    if let Some(seconds) = clock(text) {
        return Some(format_duration(Duration::from_secs(seconds)));
    }
    let digits = text.find(|c: char| !c.is_ascii_digit() && !".,".contains(c)).unwrap_or(text.len());
    let (number, word) = (text[..digits].replace(',', "."), text[digits..].trim());
    let number: f64 = if number.is_empty() { 1.0 } else { number.parse().ok()? };
    let lower = word.to_lowercase();
    let is_word = |words: &[&str]| words.contains(&word) || words.contains(&&*lower);
    let other = OTHER_WORDS.iter().find(|(_, words)| is_word(words)).map(|(seconds, _)| *seconds);
    let seconds = number * unit(word).map_or(other, |seconds| Some(seconds as f64))?;
    let right = Duration::try_from_secs_f64((seconds * 1e6).round() / 1e6).ok();
    // Do not call the parser here, because the parser calls this function for the right spelling.
    right.filter(|right| *right <= LONGEST).map(format_duration)
}

/// Reads `1:30:00`, hours with minutes and seconds.
fn clock(text: &str) -> Option<u64> {
    let parts: Vec<u64> = text.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    match parts[..] {
        [hours, minutes, seconds] if minutes < 60 && seconds < 60 => {
            hours.checked_mul(3_600)?.checked_add(minutes * 60 + seconds)
        }
        _ => None,
    }
}

/// Returns both meanings of a number whose separator can separate either thousands or a fraction: 2.500 is 2500 in some
/// countries and 2.5 in others.
pub(super) fn ambiguous(digits: &str) -> Option<(String, String)> {
    let separator = digits.chars().find(|c| !c.is_ascii_digit()).filter(|c| ".,".contains(*c))?;
    let (whole, fraction) = digits.split_once(separator)?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_thousands = whole.len() <= 3 && !whole.starts_with('0') && fraction.len() == 3;
    let decimal = format!("{whole}.{}", fraction.trim_end_matches('0'));
    let both = (format!("{whole}{fraction}"), decimal.trim_end_matches('.').to_owned());
    (is_thousands && is_number(whole) && is_number(fraction)).then_some(both)
}

/// Returns a decimal number in a form in which the point cannot be taken for a separator of thousands: `1.6670` for
/// `1.667`.
pub fn unambiguous(number: String) -> String {
    if ambiguous(&number).is_some() { number + "0" } else { number }
}

/// Returns the correct spelling of an amount, if this text can have only one meaning.
pub(super) fn amount(text: &str, units: Units) -> Option<String> {
    let text = text.trim();
    let end = text.rfind(|c: char| c.is_ascii_digit()).map_or(0, |at| at + 1);
    let (digits, unit) = text.split_at(end);
    let prefix = match unit.trim().to_lowercase().as_str() {
        "" => "",
        "b" | "byte" | "bytes" | "octets" if units == Units::Octets => "",
        "k" => "K",
        "m" | "mio" => "M",
        "g" => "G",
        "kb" | "kib" | "kbyte" | "kbytes" if units == Units::Octets => "K",
        "mb" | "mib" | "mbyte" | "mbytes" if units == Units::Octets => "M",
        "gb" | "gib" | "gbyte" | "gbytes" if units == Units::Octets => "G",
        _ => return None,
    };
    let plain = match digits.split([',', '.', '\'', ' ', '_']).collect::<Vec<_>>()[..] {
        // A single group that does not have three digits is the fraction of a decimal number.
        [whole, fraction] if digits.contains([',', '.']) && fraction.len() != 3 => format!("{whole}.{fraction}"),
        [first, ref groups @ ..] if (1..=3).contains(&first.len()) && groups.iter().all(|group| group.len() == 3) => {
            format!("{first}{}", groups.concat())
        }
        _ => digits.to_owned(),
    };
    let written = format!("{plain}{prefix}");
    (written != text && parse_amount(&written, units).is_ok()).then_some(written)
}

/// Returns the correct spelling of a rate, if this text (such as `100 per day`) can have only one meaning.
pub(super) fn rate(text: &str, units: Units) -> Option<String> {
    let lower = text.to_lowercase();
    let (most, period) = ["/", " per ", " in ", " every ", " a ", " an "].iter().find_map(|by| lower.split_once(by))?;
    let spelt = |text: &str, good: bool, right: Option<String>| if good { Some(text.trim().to_owned()) } else { right };
    let most = spelt(most, parse_amount(most.trim(), units).is_ok(), amount(most, units))?;
    let period = spelt(period, parse_duration(period.trim()).is_ok(), duration(period))?;
    let written = format!("{most} / {period}");
    parse_rate(&written, units).is_ok().then_some(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_spelt_right() {
        for (text, right) in [
            ("100ms", Some("0.1s")),
            ("1.5h", Some("1h30m")),
            ("1,5 h", Some("1h30m")),
            ("5M", Some("5m")),
            ("1 month", Some("30d")),
            ("1y", Some("365d")),
            ("00:05:00", Some("5m")),
            ("day", Some("1d")),
            ("5", None),
            ("soon", None),
            ("", None),
            ("99999999999999999y", None),
        ] {
            assert_eq!(duration(text).as_deref(), right, "{text}");
        }
    }

    #[test]
    fn amounts_are_spelt_right() {
        for (text, units, right) in [
            ("1 GB", Units::Octets, Some("1G")),
            ("500 mb", Units::Octets, Some("500M")),
            ("1 GB", Units::Things, None),
            ("1k", Units::Things, Some("1K")),
            ("1,000,000", Units::Things, Some("1000000")),
            ("1'000", Units::Things, Some("1000")),
            ("1 000", Units::Things, Some("1000")),
            ("1,5", Units::Things, Some("1.5")),
            ("x", Units::Things, None),
            ("", Units::Things, None),
        ] {
            assert_eq!(amount(text, units).as_deref(), right, "{text}");
        }
        assert_eq!(ambiguous("2.500"), Some(("2500".to_owned(), "2.5".to_owned())));
        assert_eq!(ambiguous("1,000"), Some(("1000".to_owned(), "1".to_owned())));
        assert_eq!(unambiguous("1.667".to_owned()), "1.6670");
        for text in ["0.125", "2.50", "1.2.500", "2500", "1.0000", "x.500"] {
            assert_eq!(ambiguous(text), None, "{text}");
        }
    }

    #[test]
    fn rates_are_spelt_right() {
        for (text, right) in [
            ("100 per day", Some("100 / 1d")),
            ("100/hour", Some("100 / 1h")),
            ("1,000,000 in 2 hours", Some("1000000 / 2 hours")),
            ("100", None),
            ("hundred a day", None),
        ] {
            assert_eq!(rate(text, Units::Things).as_deref(), right, "{text}");
        }
    }
}
