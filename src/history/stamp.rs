//! Times at the beginning of log lines, in the forms of syslog (which have no year), of RFC 3339 and of Exim.

use crate::time::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

/// Reader of the times of one log. A time without a year gets the year for which it is closest to the time of the line
/// before.
#[derive(Clone)]
pub struct Stamps {
    zone: TimeZone,
    /// Year of the first time that has no year, if the administrator gave it.
    first_year: Option<i16>,
    /// Latest possible value of the first time that has no year: shortly after the file's modification, as lines cannot
    /// be written later than that.
    latest: DateTime,
    previous: Option<DateTime>,
    /// Whether a time without a year has been read.
    pub is_without_year: bool,
}

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Number of days by which the first line may be later than the file's modification time, as clocks and time zones
/// differ.
const DAYS_AHEAD: i32 = 1;

impl Stamps {
    /// Creates the reader for a log; `modified` is the modification time of its file.
    pub fn new(zone: TimeZone, first_year: Option<i16>, modified: Timestamp) -> Self {
        let latest = jiff::Timestamp::from_microsecond(modified.micros()).unwrap_or_default();
        let latest = latest.to_zoned(zone.clone()).datetime();
        let latest = latest.checked_add(jiff::Span::new().days(DAYS_AHEAD)).unwrap_or(latest);
        Self { zone, first_year, latest, previous: None, is_without_year: false }
    }

    /// Reads the time at the beginning of a line. Returns the time, and the position at which the text after it begins.
    pub fn read(&mut self, line: &str) -> Option<(Timestamp, usize)> {
        let start = priority(line);
        let text = &line[start..];
        let (at, length) = match text.as_bytes().first()? {
            b'0'..=b'9' => self.with_year(text)?,
            _ => self.without_year(text)?,
        };
        Some((at, start + length))
    }

    /// Reads a time with a year: `2026-03-01T10:00:00.25+01:00 `, or in the form of Exim: `2026-03-01 10:00:00.250
    /// +0100 `.
    fn with_year(&self, text: &str) -> Option<(Timestamp, usize)> {
        let bytes = text.as_bytes();
        if !matches!(bytes.get(10), Some(b'T' | b' ')) || !text.is_char_boundary(11) {
            return None;
        }
        let end = 11 + text[11..].find(' ').unwrap_or(text.len() - 11);
        let offset = text[end..].strip_prefix(' ').and_then(|rest| rest.split(' ').next());
        let offset = offset.filter(|offset| bytes[10] == b' ' && is_offset(offset));
        let (time, end) = match offset {
            Some(offset) => (format!("{}{offset}", &text[..end]), end + 1 + offset.len()),
            None => (text[..end].to_owned(), end),
        };
        let at = match time.parse::<jiff::Timestamp>() {
            Ok(at) => at,
            Err(_) => time.parse::<DateTime>().ok()?.to_zoned(self.zone.clone()).ok()?.timestamp(),
        };
        Some((Timestamp::from_micros(at.as_microsecond()), end))
    }

    /// Reads a time without a year: `Mar  1 10:00:00 `; some programs write the year after the day.
    fn without_year(&mut self, text: &str) -> Option<(Timestamp, usize)> {
        let mut words = text.split(' ').filter(|word| !word.is_empty());
        let month = words.next().and_then(|word| MONTHS.iter().position(|month| *month == word))?;
        let month = i8::try_from(month + 1).ok()?;
        let day: i8 = words.next()?.parse().ok()?;
        let word = words.next()?;
        let (year, clock) = match word.parse::<i16>() {
            Ok(year) => (Some(year), words.next()?),
            Err(_) => (None, word),
        };
        let time: jiff::civil::Time = clock.parse().ok()?;
        let length = clock.as_ptr().addr() - text.as_ptr().addr() + clock.len();
        let with = |year| Some(Date::new(year, month, day).ok()?.to_datetime(time));
        let found = match year {
            Some(year) => with(year)?,
            None => self.guess(with)?,
        };
        self.is_without_year |= year.is_none();
        self.previous = Some(found);
        let at = found.to_zoned(self.zone.clone()).ok()?.timestamp();
        Some((Timestamp::from_micros(at.as_microsecond()), length))
    }

    /// Returns the time in the most likely year.
    fn guess(&self, with: impl Fn(i16) -> Option<DateTime>) -> Option<DateTime> {
        let near = |year: i16| (year.saturating_sub(4)..=year.saturating_add(4)).filter_map(&with);
        match (self.previous, self.first_year) {
            (Some(previous), _) => near(previous.year()).min_by_key(|time| distance(*time, previous)),
            (None, Some(year)) => with(year),
            // 29 February exists only in some years, so that years further back are tried, too.
            (None, None) => near(self.latest.year()).filter(|time| *time <= self.latest).max(),
        }
    }
}

fn distance(a: DateTime, b: DateTime) -> i64 {
    a.duration_since(b).as_secs().abs()
}

/// Returns the length of the priority and the version before a time, as in RFC 5424 §6.2: `<22>`, `<22>1 `.
fn priority(line: &str) -> usize {
    let Some((digits, rest)) = line.strip_prefix('<').and_then(|rest| rest.split_once('>')) else { return 0 };
    match digits.len() {
        1..=3 if digits.bytes().all(|b| b.is_ascii_digit()) => {
            let version = if rest.starts_with("1 ") { 2 } else { 0 };
            digits.len() + 2 + version
        }
        _ => 0,
    }
}

fn is_offset(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']);
    digits.is_some_and(|digits| digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::parse_time;

    fn stamps(modified: &str, year: Option<i16>) -> Stamps {
        Stamps::new(TimeZone::get("Europe/Vienna").unwrap(), year, parse_time(modified).unwrap())
    }

    #[test]
    fn all_forms_of_times_are_read() {
        for (line, expected) in [
            ("2026-03-01T10:00:00.25+01:00 mx1 postfix", "2026-03-01T09:00:00.25Z"),
            ("2026-03-01T10:00:00+0100 mx1 postfix", "2026-03-01T09:00:00Z"),
            ("2026-03-01T10:00:00Z mx1 postfix", "2026-03-01T10:00:00Z"),
            ("<22>1 2026-03-01T10:00:00Z mx1 postfix", "2026-03-01T10:00:00Z"),
            ("<22>Mar  1 10:00:00 mx1 postfix", "2026-03-01T09:00:00Z"),
            ("Mar  1 2024 10:00:00 mx1 postfix", "2024-03-01T09:00:00Z"),
            ("2026-07-01 10:00:00 mx1 postfix", "2026-07-01T08:00:00Z"),
            ("2026-07-01 10:00:00.125 mx1 postfix", "2026-07-01T08:00:00.125Z"),
            ("2026-07-01 10:00:00 -0500 mx1 postfix", "2026-07-01T15:00:00Z"),
        ] {
            let (at, end) = stamps("2026-08-01T00:00:00Z", None).read(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!((at.rfc3339_exact(), &line[end..]), (expected.to_owned(), " mx1 postfix"), "{line}");
        }
        for line in
            ["", "2026", "2026-13-01T10:00:00Z x", "Mar 32 10:00:00 x", "-- Boot --", "<x>Mar 1 10:00:00", "Märzé 1"]
        {
            assert_eq!(stamps("2026-08-01T00:00:00Z", None).read(line), None, "{line}");
        }
    }

    #[test]
    fn a_missing_year_follows_from_the_modification_time_and_the_order() {
        let mut log = stamps("2026-01-02T00:00:00Z", None);
        for (line, expected) in [
            ("Dec 30 10:00:00 x", "2025-12-30T09:00:00Z"),
            ("Dec 31 23:59:59 x", "2025-12-31T22:59:59Z"),
            ("Jan  1 00:00:00 x", "2025-12-31T23:00:00Z"),
            // Lines of several processes may be out of order.
            ("Dec 31 23:59:59 x", "2025-12-31T22:59:59Z"),
            ("Jan  1 00:00:01 x", "2025-12-31T23:00:01Z"),
            ("Jun  1 00:00:01 x", "2026-05-31T22:00:01Z"),
        ] {
            assert_eq!(log.read(line).unwrap().0.rfc3339(), expected, "{line}");
        }
        assert!(log.is_without_year);
        let first = |modified, year, line| stamps(modified, year).read(line).unwrap().0.rfc3339();
        assert_eq!(first("2026-02-01T00:00:00Z", None, "Feb 29 10:00:00 x"), "2024-02-29T09:00:00Z");
        assert_eq!(first("2026-02-01T00:00:00Z", Some(2020), "Mar  1 10:00:00 x"), "2020-03-01T09:00:00Z");
    }
}
