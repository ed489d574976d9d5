//! Times at the beginning of log lines, in the forms of syslog (which have no year), of RFC 3339 and of Exim.

use crate::time::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use std::borrow::Cow;

/// Parser of the times of one log. A time without a year gets the year that brings it closest to the time of the
/// previous line.
#[derive(Clone)]
pub struct Stamps {
    zone: TimeZone,
    /// Year of the first time that has no year, if the administrator gave it.
    first_year: Option<i16>,
    /// Latest possible value of the first time that has no year: shortly after the file's modification time, because no
    /// line is written later.
    latest: DateTime,
    previous: Option<DateTime>,
    /// Whether a time without a year has been read.
    pub is_without_year: bool,
}

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Error for a line that does not begin with a time.
const NO_TIME: Cow<'static, str> = Cow::Borrowed("it has no time");

/// A leap year, in which 29 February is a valid date.
const LEAP_YEAR: i16 = 2024;

/// Maximum number of days by which the first line can be later than the file's modification time: clocks and time zones
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
    /// Returns an error that says what is wrong with the time.
    pub fn read(&mut self, line: &str) -> Result<(Timestamp, usize), Cow<'static, str>> {
        let start = after_priority(line);
        let weekday = weekday(&line[start..]);
        let text = &line[start + weekday..];
        let found = match text.as_bytes().first() {
            Some(b'0'..=b'9') => {
                seconds(text).map_or_else(|| self.with_year(text, weekday > 0), |found| Ok(Some(found)))
            }
            _ => self.without_year(text),
        };
        let (at, length) = found?.ok_or(NO_TIME)?;
        Ok((at, start + weekday + length))
    }

    /// Reads a time with a year: `2026-03-01T10:00:00.25+01:00 `, or in the form of Exim: `2026-03-01 10:00:00.250
    /// +0100 `. If a day of the week precedes the time, an abbreviation of the time zone follows: `2026-03-01 10:00:00
    /// CET `. Returns `None` if the text does not have such a form.
    fn with_year(&self, text: &str, has_zone: bool) -> Result<Option<(Timestamp, usize)>, String> {
        let bytes = text.as_bytes();
        if !is_date(text)
            || !matches!(bytes.get(10), Some(b'T' | b' '))
            || !bytes.get(11).is_some_and(u8::is_ascii_digit)
        {
            return Ok(None);
        }
        let end = 11 + text[11..].find(' ').unwrap_or(text.len() - 11);
        let next = text[end..].strip_prefix(' ').and_then(|rest| rest.split(' ').next());
        let offset = next.filter(|offset| bytes[10] == b' ' && is_offset(offset));
        let (time, mut after) = match offset {
            Some(offset) => (format!("{}{offset}", &text[..end]), end + 1 + offset.len()),
            None => (text[..end].to_owned(), end),
        };
        let zone = next.filter(|_| has_zone && offset.is_none());
        after += zone.map_or(0, |zone| 1 + zone.len());
        let civil = || time.parse::<DateTime>().ok()?.to_zoned(self.zone_of(zone)).ok();
        let at = time.parse::<jiff::Timestamp>().ok().or_else(|| Some(civil()?.timestamp()));
        let at = at.ok_or_else(|| impossible(&text[..10], text[..10].parse::<Date>().is_ok(), &time[11..]))?;
        Ok(Some((Timestamp::from_micros(at.as_microsecond()), after)))
    }

    /// Returns UTC for the abbreviation `UTC`. Other abbreviations are ambiguous: returns the time zone of the log for
    /// them.
    fn zone_of(&self, abbreviation: Option<&str>) -> TimeZone {
        if abbreviation == Some("UTC") { TimeZone::UTC } else { self.zone.clone() }
    }

    /// Reads a time without a year: `Mar  1 10:00:00 `. Some programs write a year before or after the time of day.
    /// Returns `None` if the text does not have this form.
    fn without_year(&mut self, text: &str) -> Result<Option<(Timestamp, usize)>, String> {
        let Some(form) = YearlessForm::parse(text) else { return Ok(None) };
        let date = format!("{} {}", MONTHS[form.month - 1], form.day);
        let is_date_possible = form.date(form.year.unwrap_or(LEAP_YEAR)).is_some();
        let time = form.clock.parse::<jiff::civil::Time>().ok().filter(|_| is_date_possible);
        let time = time.ok_or_else(|| impossible(&date, is_date_possible, form.clock))?;
        let with = |year| Some(form.date(year)?.to_datetime(time));
        let found = form.year.map_or_else(|| self.guess(with), with);
        let found = found.ok_or_else(|| format!("its date is impossible in the year of --year: {date}"))?;
        self.is_without_year |= form.year.is_none();
        self.previous = Some(found);
        let at = found.to_zoned(self.zone.clone()).map_err(|_| impossible(&date, false, form.clock))?.timestamp();
        Ok(Some((Timestamp::from_micros(at.as_microsecond()), form.length)))
    }

    /// Returns the time in the most likely year.
    fn guess(&self, with: impl Fn(i16) -> Option<DateTime>) -> Option<DateTime> {
        let near = |year: i16| (year.saturating_sub(4)..=year.saturating_add(4)).filter_map(&with);
        match (self.previous, self.first_year) {
            (Some(previous), _) => near(previous.year()).min_by_key(|time| distance(*time, previous)),
            (None, Some(year)) => with(year),
            // 29 February exists only in some years, so years further back are tried, too.
            (None, None) => near(self.latest.year()).filter(|time| *time <= self.latest).max(),
        }
    }
}

/// Parts of a time that can lack a year: `Mar  1 10:00:00`, `Mar  1 2026 10:00:00`, `Mar  1 10:00:00 2026`.
struct YearlessForm<'a> {
    /// Number from 1 to 12.
    month: usize,
    day: i8,
    clock: &'a str,
    year: Option<i16>,
    /// Length of the time in the text.
    length: usize,
}

impl<'a> YearlessForm<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut words = text.split(' ').filter(|word| !word.is_empty());
        let month = words.next().and_then(|word| MONTHS.iter().position(|month| *month == word))? + 1;
        let day = words.next()?.parse().ok()?;
        let word = words.next()?;
        let (mut year, clock) = match is_year(word) {
            true => (word.parse().ok(), words.next()?),
            false => (None, word),
        };
        if !clock.starts_with(|c: char| c.is_ascii_digit()) || !clock.contains(':') {
            return None;
        }
        // RFC 3164 forbids a host name of digits only. So four digits after the time are a year.
        let last = words.next().filter(|word| year.is_none() && is_year(word));
        year = year.or(last.and_then(|word| word.parse().ok()));
        let end = last.unwrap_or(clock);
        let length = end.as_ptr().addr() - text.as_ptr().addr() + end.len();
        Some(Self { month, day, clock, year, length })
    }

    fn date(&self, year: i16) -> Option<Date> {
        Date::new(year, i8::try_from(self.month).ok()?, self.day).ok()
    }
}

/// Says which part of a time is impossible.
fn impossible(date: &str, is_date_possible: bool, clock: &str) -> String {
    let time = clock.trim_end_matches('Z').split(['+', '-']).next().unwrap_or_default();
    match time.parse::<jiff::civil::Time>() {
        _ if !is_date_possible => format!("its date is impossible: {date}"),
        Ok(_) => format!("its offset from UTC is impossible: {clock}"),
        Err(_) => format!("its time of day is impossible: {time}"),
    }
}

fn is_year(word: &str) -> bool {
    word.len() == 4 && word.bytes().all(|b| b.is_ascii_digit())
}

/// Returns whether a text begins with ten characters in the form of `2026-03-01`.
pub fn is_date(text: &str) -> bool {
    let is_form = |(at, b): (usize, u8)| if matches!(at, 4 | 7) { b == b'-' } else { b.is_ascii_digit() };
    text.len() >= 10 && text.bytes().take(10).enumerate().all(is_form)
}

/// Returns the length of a day of the week before a time, as `journalctl -o short-full` writes: `Sun 2026-03-01`.
fn weekday(text: &str) -> usize {
    let is_weekday = ["Mon ", "Tue ", "Wed ", "Thu ", "Fri ", "Sat ", "Sun "].iter().any(|day| text.starts_with(day));
    if is_weekday { 4 } else { 0 }
}

/// Reads a time in seconds since 1970, as `journalctl -o short-unix` writes: `1772355600.125000 `.
fn seconds(text: &str) -> Option<(Timestamp, usize)> {
    let (whole, fraction) = text.split(' ').next()?.split_once('.')?;
    let is_form = whole.len() >= 9 && fraction.len() == 6 && fraction.bytes().all(|b| b.is_ascii_digit());
    let micros = whole.parse::<i64>().ok()?.checked_mul(1_000_000)?.checked_add(fraction.parse().ok()?)?;
    is_form.then(|| (Timestamp::from_micros(micros), whole.len() + 7))
}

fn distance(a: DateTime, b: DateTime) -> i64 {
    a.duration_since(b).as_secs().abs()
}

/// Returns the length of the priority and the version before a time, as in RFC 5424 §6.2: `<22>`, `<22>1 `.
fn after_priority(line: &str) -> usize {
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
            // OpenWrt's logread, and journalctl with -o short-precise, short-full and short-unix.
            ("Sun Mar  1 10:00:00 2026 mx1 postfix", "2026-03-01T09:00:00Z"),
            ("Mar 01 10:00:00.125000 mx1 postfix", "2026-03-01T09:00:00.125Z"),
            ("Sun 2026-03-01 10:00:00 CET mx1 postfix", "2026-03-01T09:00:00Z"),
            ("Sun 2026-03-01 10:00:00 UTC mx1 postfix", "2026-03-01T10:00:00Z"),
            ("1772355600.125000 mx1 postfix", "2026-03-01T09:00:00.125Z"),
        ] {
            let (at, end) = stamps("2026-08-01T00:00:00Z", None).read(line).unwrap_or_else(|_| panic!("{line}"));
            assert_eq!((at.rfc3339_exact(), &line[end..]), (expected.to_owned(), " mx1 postfix"), "{line}");
        }
        for line in
            ["", "2026", "-- Boot --", "<x>Mar 1 10:00:00", "Märzé 1", "May I ask", "Mar 1 to 2", "2026-03-01 is"]
        {
            assert_eq!(stamps("2026-08-01T00:00:00Z", None).read(line), Err(NO_TIME), "{line}");
        }
    }

    #[test]
    fn an_impossible_time_is_named() {
        for (line, expected) in [
            ("2026-02-30T10:00:00Z x", "its date is impossible: 2026-02-30"),
            ("2026-03-01T10:00:00+99:00 x", "its offset from UTC is impossible: 10:00:00+99:00"),
            ("2026-02-30 10:00:00 x", "its date is impossible: 2026-02-30"),
            ("2026-13-01 10:00:00 x", "its date is impossible: 2026-13-01"),
            ("2026-03-01 25:61:00 +0100 x", "its time of day is impossible: 25:61:00"),
            ("2026-03-01T25:61:00Z x", "its time of day is impossible: 25:61:00"),
            ("Feb 30 10:00:00 x", "its date is impossible: Feb 30"),
            ("Mar 32 10:00:00 x", "its date is impossible: Mar 32"),
            ("Mar  1 25:61:00 x", "its time of day is impossible: 25:61:00"),
            ("Feb 29 2025 10:00:00 x", "its date is impossible: Feb 29"),
        ] {
            assert_eq!(stamps("2026-08-01T00:00:00Z", None).read(line), Err(expected.into()), "{line}");
        }
        let found = stamps("2026-08-01T00:00:00Z", Some(2025)).read("Feb 29 10:00:00 x");
        assert_eq!(found, Err("its date is impossible in the year of --year: Feb 29".into()));
    }

    #[test]
    fn a_missing_year_follows_from_the_modification_time_and_the_order() {
        let mut log = stamps("2026-01-02T00:00:00Z", None);
        for (line, expected) in [
            ("Dec 30 10:00:00 x", "2025-12-30T09:00:00Z"),
            ("Dec 31 23:59:59 x", "2025-12-31T22:59:59Z"),
            ("Jan  1 00:00:00 x", "2025-12-31T23:00:00Z"),
            // Lines of several processes can be out of order.
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
