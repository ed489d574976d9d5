//! Points in time, durations and rates: arithmetic, parsers and writers. Reads no clock.

pub mod steady;
mod suggestion;

pub use suggestion::unambiguous;

use jiff::fmt::temporal::DateTimePrinter;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::time::Duration;

/// A point in time: microseconds since 1970-01-01T00:00:00Z. Exim stores the same time as `tv_sec` and `tv_usec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Last second of the year 9999, for terms that end only by a command.
    pub const END_OF_9999: Self = Self(253_402_300_799_000_000);

    /// Makes a point in time from microseconds since 1970.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Returns microseconds since 1970.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Returns seconds since 1970 as a double. Exim computes with such doubles, and its decisions depend on their last
    /// bit.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Returns whole seconds since 1970, rounded down: `tv_sec`.
    pub const fn whole_seconds(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// Formats the time as in RFC 5322 §3.3, in UTC: `Sat, 21 Nov 2026 10:00:00 +0000`. A year outside jiff's range,
    /// −9999 to 9999, becomes 1970.
    pub fn rfc5322(self) -> String {
        let zoned = jiff::Timestamp::from_microsecond(self.0).unwrap_or_default().to_zoned(jiff::tz::TimeZone::UTC);
        jiff::fmt::rfc2822::to_string(&zoned).unwrap_or_default()
    }

    /// Formats the time as in RFC 3339, in UTC, down to the second: `2026-11-21T10:00:00Z`.
    pub fn rfc3339(self) -> String {
        Self(self.whole_seconds().saturating_mul(1_000_000)).rfc3339_exact()
    }

    /// Formats the time as in RFC 3339, in UTC, exact to the microsecond: `2026-11-21T10:00:00.25Z`. The last two hours
    /// of the year 9999, which jiff does not know, and all later times, become the last second of that year.
    pub fn rfc3339_exact(self) -> String {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(instant) => instant.to_string(),
            Err(_) if self.0 > 0 => END_OF_9999.to_owned(),
            Err(_) => jiff::Timestamp::MIN.to_string(),
        }
    }

    /// Does the same as [`Self::rfc3339_exact`], but always with six digits after the point, so that the texts sort by
    /// time: `2026-11-21T10:00:00.250000Z`.
    pub fn rfc3339_fixed(self) -> String {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(instant) => DateTimePrinter::new().precision(Some(6)).timestamp_to_string(&instant),
            Err(_) => self.rfc3339_exact(),
        }
    }

    /// Returns the point in time `duration` later. Instead of an overflow, returns the last possible point in time.
    pub fn after(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros))
    }

    /// Returns the time from `earlier` until this point. Returns zero if `earlier` is later than this point.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// In JSON, a time is a text as in RFC 3339, in UTC, exact to the microsecond.
impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.rfc3339_exact())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parse_time(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// Error of parsing a duration, a time, an amount or a rate. The text names the bad value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreadable {}

const UNITS: [(char, u64); 5] = [('w', 7 * 86_400), ('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// Parses a duration: numbers with the units w, d, h, m, s, as in `8h` or `1d2h30m`. Seconds can have a fraction of up
/// to six digits (`0.25s`). Units can also be words, with spaces: `5 min`, `1 day 2 hours`.
pub fn parse_duration(text: &str) -> Result<Duration, Unreadable> {
    let parsed = sum_of_parts(text, |rest| {
        let rest = rest.trim_start_matches(' ');
        let (word, after) = rest.split_at(rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len()));
        let is_last = after.trim_start().is_empty();
        Some((suggestion::unit(word)?, if is_last { after } else { after.trim_start_matches(' ') }))
    });
    parsed.map_err(|why| {
        let right = suggestion::duration(text).filter(|right| right != text);
        let right = right.map_or("30s, 15m, 8h, 1d, 1d2h30m".to_owned(), |right| format!("\"{right}\""));
        Unreadable(format!("\"{text}\" is not a duration: {why} (write {right})"))
    })
}

/// Parses a duration exactly as Exim does: each unit is one small letter, without spaces.
pub fn parse_exim_duration(text: &str) -> Result<Duration, Unreadable> {
    let parsed =
        sum_of_parts(text, |rest| UNITS.iter().find_map(|(name, seconds)| Some((*seconds, rest.strip_prefix(*name)?))));
    parsed.map_err(|why| Unreadable(format!("\"{text}\" is not a duration: {why}")))
}

/// Adds the parts of a duration. `unit` parses the unit at the beginning of a text. It returns the seconds of the unit,
/// and the text after the unit.
fn sum_of_parts<'t>(text: &'t str, unit: impl Fn(&'t str) -> Option<(u64, &'t str)>) -> Result<Duration, &'static str> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err("it is empty");
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or("a number lacks its unit")?;
        if digits == 0 {
            return Err("a number was expected");
        }
        let count: u64 = rest[..digits].parse().map_err(|_| "the number is too large")?;
        rest = &rest[digits..];
        if let Some(fraction) = rest.strip_prefix('.') {
            let digits = fraction.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
            if !(1..=6).contains(&digits) || !fraction[digits..].starts_with('s') {
                return Err("only seconds have a fraction, of at most six digits");
            }
            let micros = format!("{:0<6}", &fraction[..digits]).parse().map_err(|_| "the fraction is unreadable")?;
            total += Duration::from_micros(micros);
            rest = &fraction[digits..];
        }
        let (seconds, after) = unit(rest).ok_or("the units are w, d, h, m and s")?;
        let part = count.checked_mul(seconds).filter(|s| *s <= LONGEST.as_secs()).ok_or("it is too long")?;
        total += Duration::from_secs(part);
        rest = after;
    }
    if total > LONGEST { Err("it is too long") } else { Ok(total) }
}

/// Text of [`Timestamp::END_OF_9999`].
const END_OF_9999: &str = "9999-12-31T23:59:59Z";

/// Longest duration, a thousand years: a timestamp plus a few such durations does not overflow an i64.
const LONGEST: Duration = Duration::from_secs(1_000 * 366 * 86_400);

/// Point in time as people write it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    Exact(Timestamp),
    /// Date and time that the clocks of a time zone show; the text does not name the zone.
    Civil(jiff::civil::DateTime),
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(at) => f.write_str(&at.rfc3339_exact()),
            Self::Civil(civil) => civil.fmt(f),
        }
    }
}

/// Parses a point in time. The text is a number of seconds since 1970, with or without a fraction. Otherwise it is a
/// date and time as in RFC 3339, with or without an offset (`2026-03-01T10:00`).
pub fn parse_moment(text: &str) -> Result<Moment, Unreadable> {
    let number = match text.parse::<i64>() {
        Ok(seconds) => Some(seconds.saturating_mul(1_000_000)),
        // A number that does not fit into an integer becomes the largest or smallest integer.
        Err(_) => {
            text.parse::<f64>().ok().filter(|seconds| !seconds.is_nan()).map(|seconds| (seconds * 1e6).round() as i64)
        }
    };
    if let Some(micros) = number {
        // jiff knows the years −9999 to 9999.
        let known = jiff::Timestamp::from_microsecond(micros).is_ok();
        return known
            .then_some(Moment::Exact(Timestamp(micros)))
            .ok_or_else(|| Unreadable(format!("\"{text}\" is no time in seconds; are these milliseconds?")));
    }
    if text == END_OF_9999 {
        return Ok(Moment::Exact(Timestamp::END_OF_9999));
    }
    let instant = text.parse::<jiff::Timestamp>().ok();
    let exact = instant.map(|instant| Moment::Exact(Timestamp(instant.as_microsecond())));
    let civil = || text.parse().ok().map(Moment::Civil);
    exact
        .or_else(civil)
        .ok_or_else(|| Unreadable(format!("\"{text}\" is not a time: write seconds since 1970, or 2026-03-01T10:00")))
}

/// Parses a point in time like [`parse_moment`]. Without an offset the time is UTC.
pub fn parse_time(text: &str) -> Result<Timestamp, Unreadable> {
    match parse_moment(text)? {
        Moment::Exact(at) => Ok(at),
        Moment::Civil(civil) => {
            let zoned = civil.to_zoned(jiff::tz::TimeZone::UTC);
            let zoned = zoned.map_err(|_| Unreadable(format!("\"{text}\" is not a time within 10000 years")))?;
            Ok(Timestamp(zoned.timestamp().as_microsecond()))
        }
    }
}

/// Formats a duration for people, exact to the microsecond: `1d2h30m`, `0.25s`, `0s`.
pub fn format_duration(duration: Duration) -> String {
    let mut seconds = duration.as_secs();
    let mut text = String::new();
    for (unit, size) in UNITS.iter().filter(|(unit, _)| *unit != 's' && *unit != 'w') {
        if seconds >= *size {
            text.push_str(&format!("{}{unit}", seconds / size));
            seconds %= size;
        }
    }
    let micros = duration.subsec_micros();
    if micros > 0 {
        let fraction = format!("{micros:06}");
        text.push_str(&format!("{seconds}.{}s", fraction.trim_end_matches('0')));
    } else if seconds > 0 || text.is_empty() {
        text.push_str(&format!("{seconds}s"));
    }
    text
}

/// Formats a waiting time for people, rounded up to whole seconds, so that the time shown is never too short.
pub fn format_wait(wait: Duration) -> String {
    let up = u64::from(wait.subsec_nanos() > 0);
    format_duration(Duration::from_secs(wait.as_secs() + up))
}

/// Rate of a limit: an amount per period, as in `100 / 1d`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Amount, in units of what the limit counts; above 0.
    pub amount: f64,
    /// Period; above 0.
    pub period: Duration,
}

/// Units of an amount. They determine whether the suffix K means 1000 or 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// K is 1000.
    Things,
    /// K is 1024.
    Octets,
}

/// Parses an amount above 0. The amount can have a fraction and a suffix K, M or G, with or without a space before the
/// suffix. The suffixes mean 1000, 1000² and 1000³. For octets they mean powers of 1024, and can also be written KiB,
/// MiB, GiB. Digits can be grouped with `_`.
pub fn parse_amount(text: &str, units: Units) -> Result<f64, Unreadable> {
    let kilo: f64 = if units == Units::Octets { 1024.0 } else { 1000.0 };
    let binary = Some(text).filter(|_| units == Units::Octets).and_then(|text| text.strip_suffix("iB"));
    let prefixed = binary.unwrap_or(text);
    let before = |prefix: char| prefixed.strip_suffix(prefix).map(|digits| digits.trim_end_matches(' '));
    let scales = [('K', kilo), ('M', kilo.powi(2)), ('G', kilo.powi(3))];
    let (digits, scale) =
        scales.into_iter().find_map(|(prefix, scale)| Some((before(prefix)?, scale))).unwrap_or((text, 1.0));
    if let Some((large, small)) = suggestion::ambiguous(digits) {
        let unit = text[digits.len()..].trim();
        let why =
            format!("\"{text}\" may be {large}{unit} or {small}{unit}: write \"{large}{unit}\" or \"{small}{unit}\"");
        return Err(Unreadable(why));
    }
    let is_digit = |b: Option<&u8>| b.is_some_and(u8::is_ascii_digit);
    let bytes = digits.as_bytes();
    let groups = |at: usize| is_digit(at.checked_sub(1).and_then(|at| bytes.get(at))) && is_digit(bytes.get(at + 1));
    let fits = |(at, b): (usize, &u8)| b.is_ascii_digit() || *b == b'.' || *b == b'_' && groups(at);
    let plain = !digits.is_empty() && digits.len() <= 18 && bytes.iter().enumerate().all(fits);
    let number = Some(digits.replace('_', "")).filter(|_| plain).and_then(|digits| digits.parse::<f64>().ok());
    let amount = number.map(|number| number * scale).ok_or_else(|| {
        let right = suggestion::amount(text, units).map_or(String::new(), |right| format!(": write \"{right}\""));
        Unreadable(format!("\"{text}\" is not an amount{right}"))
    })?;
    if amount <= 0.0 {
        return Err(Unreadable(format!("\"{text}\": the amount must be above 0")));
    }
    Ok(amount)
}

/// Parses a rate: `100 / 1d`.
pub fn parse_rate(text: &str, units: Units) -> Result<Rate, Unreadable> {
    let bad = |why: &dyn fmt::Display| Unreadable(format!("\"{text}\" is not a rate: {why}"));
    let (amount, period) = text.split_once('/').ok_or_else(|| {
        let example = "an amount and a period, as in \"100 / 1d\"".to_owned();
        bad(&format!("write {}", suggestion::rate(text, units).map_or(example, |right| format!("\"{right}\""))))
    })?;
    let amount = parse_amount(amount.trim(), units).map_err(|error| bad(&error))?;
    let period = parse_duration(period.trim()).map_err(|error| bad(&error))?;
    if period.is_zero() {
        return Err(bad(&"the period must be above 0"));
    }
    Ok(Rate { amount, period })
}

/// Formats an amount for people, rounded to one decimal as by Exim's `%.1f`. A decimal of 0 is left out. For example,
/// if a bucket was full a moment ago, its level of 1.9999 is shown as `2 of 2`, not as `2.0 of 2`.
pub fn format_amount(amount: f64) -> String {
    let text = format!("{amount:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_are_formatted_without_a_zero_decimal() {
        for (amount, text) in
            [(2.0, "2"), (1.999_9, "2"), (2.04, "2"), (2.06, "2.1"), (0.5, "0.5"), (1e15, "1000000000000000")]
        {
            assert_eq!(format_amount(amount), text);
        }
    }

    /// jiff does not know the last hours of the year 9999. A suspension until released became one until 1970 in a dump.
    #[test]
    fn the_end_of_the_year_9999_is_read_as_it_is_written() {
        let end = Timestamp::END_OF_9999;
        assert_eq!((end.rfc3339(), end.rfc3339_exact()), (END_OF_9999.to_owned(), END_OF_9999.to_owned()));
        assert_eq!(parse_time(END_OF_9999), Ok(end));
        assert_eq!(Timestamp::from_micros(i64::MAX).rfc3339(), END_OF_9999);
        assert!(Timestamp::from_micros(i64::MIN).rfc3339().starts_with("-00"));
    }

    #[test]
    fn reads_durations_as_exim_does() {
        for (text, seconds) in [
            ("8h", 28_800.0),
            ("1d2h30m", 95_400.0),
            ("1w2d", 777_600.0),
            ("0s", 0.0),
            ("0.25s", 0.25),
            ("1m0.000001s", 60.000001),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
            assert_eq!(parse_exim_duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
    }

    #[test]
    fn reads_durations_as_people_write_them() {
        for (text, seconds) in [
            ("5min", 300.0),
            ("5 m", 300.0),
            ("5 minutes", 300.0),
            ("1 Day 2 hours", 93_600.0),
            ("1h 30m", 5_400.0),
            ("90sec", 90.0),
            ("1.5sec", 1.5),
            ("2D", 172_800.0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
            assert!(parse_exim_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn refuses_invalid_durations() {
        for text in [
            "",
            "8",
            "h",
            " 8h",
            "8h ",
            "8M",
            "8 month",
            "1h2",
            "-1h",
            "1.5h",
            "1y",
            "1.s",
            "99999999999999999999s",
            "9999999w",
            "1µ",
        ] {
            let error = parse_duration(text).unwrap_err().to_string();
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
        }
    }

    #[test]
    fn dates_are_those_of_rfc_5322() {
        let date = Timestamp::from_micros(1_700_000_000_000_000).rfc5322();
        assert_eq!(date, "Tue, 14 Nov 2023 22:13:20 +0000");
    }

    #[test]
    fn reads_rates() {
        let day = Duration::from_secs(86_400);
        assert_eq!(parse_rate("100 / 1d", Units::Things), Ok(Rate { amount: 100.0, period: day }));
        assert_eq!(parse_rate("1.5K/1d", Units::Octets), Ok(Rate { amount: 1536.0, period: day }));
        assert_eq!(parse_rate("1.5K/1d", Units::Things), Ok(Rate { amount: 1500.0, period: day }));
        assert_eq!(parse_rate("1.5 KiB / 1 day", Units::Octets), Ok(Rate { amount: 1536.0, period: day }));
        assert_eq!(parse_rate("10_000 / 1d", Units::Things), Ok(Rate { amount: 10_000.0, period: day }));
        for text in [
            "100",
            "/ 1d",
            "100 /",
            "0 / 1d",
            "100 / 0s",
            "-1 / 1d",
            "1e3 / 1d",
            "nan / 1d",
            "inf / 1d",
            "x / 1d",
            "1.2.3 / 1d",
            "1_ / 1d",
            "1__0 / 1d",
            "2.500 / 1d",
            "1,000 / 1d",
        ] {
            let error = parse_rate(text, Units::Things).unwrap_err().to_string();
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
        }
    }

    #[test]
    fn reads_times_as_numbers_or_dates() {
        for (text, micros) in [
            ("0", 0),
            ("1700000000.25", 1_700_000_000_250_000),
            ("2023-11-14T22:13:20Z", 1_700_000_000_000_000),
            ("2023-11-14T23:13:20+01:00", 1_700_000_000_000_000),
            ("2023-11-14T22:13", 1_699_999_980_000_000),
        ] {
            assert_eq!(parse_time(text), Ok(Timestamp(micros)), "{text}");
        }
        for text in ["", "yesterday", "nan", "1e300", "9223372036854775807", "2023-13-01T00:00"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        assert_eq!(Timestamp(1_700_000_000_900_000).rfc3339(), "2023-11-14T22:13:20Z");
    }

    #[test]
    fn a_wait_is_never_rounded_down() {
        assert_eq!(format_wait(Duration::from_millis(1)), "1s");
        assert_eq!(format_wait(Duration::from_millis(59_001)), "1m");
        assert_eq!(format_wait(Duration::from_secs(7_987)), "2h13m7s");
        assert_eq!(format_wait(Duration::ZERO), "0s");
    }

    proptest! {
        #[test]
        fn formatted_durations_are_parsed_back(micros in 0u64..10_000_000_000_000_000) {
            let duration = Duration::from_micros(micros);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_makes_a_parser_panic(text in "\\PC{0,24}|[0-9.wdhms /KMG]{0,24}") {
            let _ = parse_duration(&text);
            let _ = parse_rate(&text, Units::Octets);
        }
    }
}
