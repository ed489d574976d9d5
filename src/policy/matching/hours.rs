//! Hours of the week, such as `Mon-Fri 08:00-18:00`, in a time zone.

use crate::time::{Moment, Timestamp};
use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use std::fmt;

/// Days of the week, with a span of time on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    /// Monday is bit 0.
    days: u8,
    /// Minutes since midnight: `begin` is included, `end` is excluded. If `end` is before `begin`, the span ends on the
    /// next day.
    begin: u16,
    end: u16,
}

/// A time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone(TimeZone);

/// Error in hours. The text names the bad value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadHours(String);

impl fmt::Display for BadHours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadHours {}

impl Zone {
    pub fn new(zone: TimeZone) -> Self {
        Self(zone)
    }

    /// Returns local weekday and minutes since midnight.
    pub fn civil(&self, now: Timestamp) -> (Weekday, u16) {
        let instant = jiff::Timestamp::from_microsecond(now.micros()).unwrap_or_default();
        let shown = self.0.to_datetime(instant);
        // Neither the hour nor the minute is negative.
        (shown.weekday(), shown.hour().unsigned_abs() as u16 * 60 + shown.minute().unsigned_abs() as u16)
    }

    /// Returns the point in time at which the clocks of this zone show `moment`. If the clocks skip this moment,
    /// returns the time one hour later. If the clocks show this moment twice, returns the earlier point in time.
    pub fn instant(&self, moment: Moment) -> Timestamp {
        match moment {
            Moment::Exact(at) => at,
            Moment::Civil(civil) => {
                let zoned = civil.to_zoned(self.0.clone()).or_else(|_| civil.to_zoned(TimeZone::UTC));
                let instant = zoned.map(|zoned| zoned.timestamp()).unwrap_or_default();
                Timestamp::from_micros(instant.as_microsecond())
            }
        }
    }

    /// Formats a point in time as RFC 3339, down to the second, in this zone: `2026-11-21T10:00:00+01:00`.
    pub fn rfc3339(&self, at: Timestamp) -> String {
        if self.0 == TimeZone::UTC {
            return at.rfc3339();
        }
        let instant = jiff::Timestamp::from_second(at.whole_seconds()).unwrap_or_default();
        instant.display_with_offset(self.0.to_offset(instant)).to_string()
    }

    /// Formats a point in time for people, in this zone, rounded up to the minute: `2026-11-21 11:00 CET`.
    pub fn minute(&self, at: Timestamp) -> String {
        let second = at.micros().div_euclid(60_000_000) * 60 + if at.micros() % 60_000_000 == 0 { 0 } else { 60 };
        let instant = jiff::Timestamp::from_second(second).unwrap_or_default();
        instant.to_zoned(self.0.clone()).strftime("%Y-%m-%d %H:%M %Z").to_string()
    }

    /// Returns the name: `Europe/Vienna`.
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("the time zone of the system")
    }
}

/// The default is coordinated universal time.
impl Default for Zone {
    fn default() -> Self {
        Self(TimeZone::UTC)
    }
}

impl Hours {
    /// Parses `Mon-Fri 08:00-18:00`, `Sat,Sun` or `22:00-06:00`. A span over midnight belongs to the day on which it
    /// begins. A range of days can continue after the end of the week (`Fri-Mon`).
    pub fn parse(text: &str) -> Result<Self, BadHours> {
        let bad = |why: String| BadHours(format!("\"{text}\" are no hours: {why} (write \"Mon-Fri 08:00-18:00\")"));
        let words: Vec<&str> = text.split_whitespace().collect();
        let (named, times) = match words[..] {
            [] => return Err(bad("there is nothing".to_owned())),
            [times] if times.starts_with(|c: char| c.is_ascii_digit()) => (None, Some(times)),
            [named] => (Some(named), None),
            [named, times] => (Some(named), Some(times)),
            _ => return Err(bad("there are more than days and a time; leave no space within them".to_owned())),
        };
        let days = named.map_or(Ok(EVERY_DAY), days).map_err(bad)?;
        let (begin, end) = times.map_or(Ok((0, DAY)), span).map_err(bad)?;
        Ok(Self { days, begin, end })
    }

    /// Returns whether a minute of the week is included.
    pub fn contains(&self, weekday: Weekday, minute: u16) -> bool {
        let has = |day: Weekday| self.days & bit(day) != 0;
        match self.begin < self.end {
            true => has(weekday) && (self.begin..self.end).contains(&minute),
            false => has(weekday) && minute >= self.begin || has(weekday.previous()) && minute < self.end,
        }
    }
}

/// Returns, for each day from Monday to Sunday, the spans that at least one of `hours` includes, such as `00:00-06:00`.
pub fn week(hours: &[Hours]) -> Vec<(&'static str, Vec<String>)> {
    let clock = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
    let spans = |day: Weekday| {
        let holds = |minute: u16| minute < DAY && hours.iter().any(|hours| hours.contains(day, minute));
        let begins = (0..DAY).filter(|&minute| holds(minute) && (minute == 0 || !holds(minute - 1)));
        let ends = (1..=DAY).filter(|&minute| !holds(minute) && holds(minute - 1));
        begins.zip(ends).map(|(begin, end)| format!("{}-{}", clock(begin), clock(end))).collect()
    };
    NAMES.into_iter().map(|(name, day)| (name, spans(day))).collect()
}

const EVERY_DAY: u8 = 0x7f;

/// Minutes of a day.
const DAY: u16 = 24 * 60;

const NAMES: [(&str, Weekday); 7] = [
    ("Mon", Weekday::Monday),
    ("Tue", Weekday::Tuesday),
    ("Wed", Weekday::Wednesday),
    ("Thu", Weekday::Thursday),
    ("Fri", Weekday::Friday),
    ("Sat", Weekday::Saturday),
    ("Sun", Weekday::Sunday),
];

fn bit(day: Weekday) -> u8 {
    1 << day.to_monday_zero_offset()
}

/// Parses `Mon-Fri,Sun`.
fn days(text: &str) -> Result<u8, String> {
    let mut days = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut day, last) = (weekday(first)?, weekday(last)?);
        days |= bit(day);
        while day != last {
            day = day.next();
            days |= bit(day);
        }
    }
    Ok(days)
}

fn weekday(text: &str) -> Result<Weekday, String> {
    let known = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    let unknown = || format!("\"{text}\" is not a day: Mon, Tue, Wed, Thu, Fri, Sat or Sun");
    known.map(|(_, day)| *day).ok_or_else(unknown)
}

/// Parses `08:00-18:00`.
fn span(text: &str) -> Result<(u16, u16), String> {
    let (begin, end) = text.split_once('-').ok_or_else(|| format!("\"{text}\" has no end"))?;
    let (begin, end) = (minute(begin)?, minute(end)?);
    match begin {
        DAY => Err("a day begins at 00:00".to_owned()),
        _ if begin == end => Err("it ends when it begins; a whole day is 00:00-24:00".to_owned()),
        _ => Ok((begin, end)),
    }
}

/// Parses `08:00`, up to `24:00`.
fn minute(text: &str) -> Result<u16, String> {
    let number = |digits: &str| match digits.len() <= 2 && digits.bytes().all(|b| b.is_ascii_digit()) {
        true => digits.parse::<u16>().ok(),
        false => None,
    };
    let read = || {
        let (hour, minute) = text.split_once(':')?;
        let minute = number(minute).filter(|n| *n < 60 && minute.len() == 2)?;
        Some(number(hour)? * 60 + minute).filter(|minute| *minute <= DAY)
    };
    read().ok_or_else(|| format!("\"{text}\" is not a time from 00:00 to 24:00"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{parse_moment, parse_time};

    fn at(text: &str, day: &str, time: &str) -> bool {
        Hours::parse(text).unwrap().contains(weekday(day).unwrap(), minute(time).unwrap())
    }

    #[test]
    fn hours_contain_the_minutes_that_they_name() {
        for (hours, within, without) in [
            ("Mon-Fri 08:00-18:00", "Mon 08:00, Wed 12:30, Fri 17:59", "Mon 07:59, Mon 18:00, Sat 12:00, Sun 12:00"),
            ("Sat,Sun", "Sat 00:00, Sun 23:59", "Fri 23:59, Mon 00:00"),
            ("sat,SUN 8:00-24:00", "Sat 08:00, Sun 23:59", "Sat 07:59, Mon 00:00"),
            ("22:00-06:00", "Mon 22:00, Mon 05:59, Sun 23:00", "Mon 21:59, Mon 06:00"),
            ("Fri 22:00-06:00", "Fri 22:00, Sat 05:59", "Fri 05:59, Sat 06:00, Sat 22:00"),
            ("Sun 22:00-06:00", "Sun 22:00, Mon 05:59", "Sun 05:59, Mon 22:00"),
            ("Fri-Mon 12:00-13:00", "Fri 12:00, Sat 12:59, Sun 12:00, Mon 12:00", "Tue 12:00, Thu 12:00, Fri 13:00"),
            ("Mon,Wed-Thu 00:00-24:00", "Mon 00:00, Wed 23:59, Thu 12:00", "Tue 12:00, Fri 00:00, Sun 23:59"),
            ("Tue 20:00-00:00", "Tue 20:00, Tue 23:59", "Tue 19:59, Wed 00:00"),
            (" Mon-Mon   08:00-09:00 ", "Mon 08:00", "Tue 08:00, Sun 08:00"),
        ] {
            for (moments, expected) in [(within, true), (without, false)] {
                for moment in moments.split(", ") {
                    let (day, time) = moment.split_once(' ').unwrap();
                    assert_eq!(at(hours, day, time), expected, "{hours}: {moment}");
                }
            }
        }
    }

    #[test]
    fn a_week_of_hours_shows_the_gap_after_a_night() {
        let hours = ["Sat-Sun", "Mon-Fri 20:00-06:00"].map(|text| Hours::parse(text).unwrap());
        let week = week(&hours);
        let day = |name| week.iter().find(|(day, _)| *day == name).unwrap().1.join(", ");
        // The night from Sunday to Monday begins on Sunday. The nights of Mon-Fri do not include Sunday.
        assert_eq!(day("Mon"), "20:00-24:00");
        assert_eq!(day("Fri"), "00:00-06:00, 20:00-24:00");
        assert_eq!(day("Sat"), "00:00-24:00");
        assert_eq!(week.iter().map(|(day, _)| *day).collect::<Vec<_>>().join(" "), "Mon Tue Wed Thu Fri Sat Sun");
    }

    #[test]
    fn a_time_without_an_offset_is_that_of_the_zones_clocks() {
        let vienna = Zone::new(jiff::tz::TimeZoneDatabase::bundled().get("Europe/Vienna").unwrap());
        for (text, utc, shown) in [
            ("2026-03-01T10:00", "2026-03-01T09:00:00Z", "2026-03-01T10:00:00+01:00"),
            ("2026-07-01T10:00", "2026-07-01T08:00:00Z", "2026-07-01T10:00:00+02:00"),
            ("2026-07-01T10:00Z", "2026-07-01T10:00:00Z", "2026-07-01T12:00:00+02:00"),
            ("0", "1970-01-01T00:00:00Z", "1970-01-01T01:00:00+01:00"),
            // This hour does not exist: the clocks go from 02:00 to 03:00.
            ("2026-03-29T02:30", "2026-03-29T01:30:00Z", "2026-03-29T03:30:00+02:00"),
        ] {
            let at = vienna.instant(parse_moment(text).unwrap());
            assert_eq!((at.rfc3339(), vienna.rfc3339(at)), (utc.to_owned(), shown.to_owned()), "{text}");
        }
        let at = Zone::default().instant(parse_moment("2026-03-01T10:00").unwrap());
        assert_eq!(Zone::default().rfc3339(at), "2026-03-01T10:00:00Z");
    }

    #[test]
    fn bad_hours_are_refused_with_the_reason() {
        for (text, words) in [
            ("", "there is nothing"),
            ("Mon-Fri 08:00 - 18:00", "leave no space within them"),
            ("Mo-Fr", "\"Mo\" is not a day"),
            ("Mon-Fri-Sun", "\"Fri-Sun\" is not a day"),
            ("Mon,", "\"\" is not a day"),
            ("Mon 08:00", "\"08:00\" has no end"),
            ("08:00", "\"08:00\" has no end"),
            ("08:00-8", "\"8\" is not a time"),
            ("08:00-24:01", "\"24:01\" is not a time from 00:00 to 24:00"),
            ("08:60-09:00", "\"08:60\" is not a time"),
            ("08:0-09:00", "\"08:0\" is not a time"),
            ("+8:00-09:00", "\"+8:00\" is not a day"),
            ("Mon +8:00-09:00", "\"+8:00\" is not a time"),
            ("24:00-08:00", "a day begins at 00:00"),
            ("08:00-08:00", "a whole day is 00:00-24:00"),
        ] {
            let error = Hours::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{text}\" are no hours: ")) && error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_zone_shows_the_time_of_its_clocks() {
        let vienna = jiff::tz::TimeZoneDatabase::bundled().get("Europe/Vienna").unwrap();
        for (zone, now, day, time) in [
            (Zone::new(vienna.clone()), "2026-01-11T23:30:00Z", Weekday::Monday, 30),
            (Zone::new(vienna.clone()), "2026-07-12T21:59:59Z", Weekday::Sunday, 23 * 60 + 59),
            (Zone::new(vienna), "2026-07-12T22:00:00Z", Weekday::Monday, 0),
            (Zone::default(), "2026-07-12T22:00:00Z", Weekday::Sunday, 22 * 60),
        ] {
            assert_eq!(zone.civil(parse_time(now).unwrap()), (day, time), "{now}");
        }
    }

    #[test]
    fn the_first_and_last_timestamp_have_a_weekday() {
        for micros in [i64::MIN, -1, i64::MAX] {
            let (_, minute) = Zone::default().civil(Timestamp::from_micros(micros));
            assert!(minute < DAY);
        }
    }
}
