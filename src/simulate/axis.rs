//! Ticks of the time axes of a plot: customary lengths of time, and dates.

use crate::time::Timestamp;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use std::ops::Range;

/// Linear axis with ticks at given values. `WithKeyPoints` of plotters cannot label a linear axis of numbers.
pub struct Ticked {
    inner: RangedCoordf64,
    ticks: Vec<f64>,
}

impl Ticked {
    pub fn new(range: Range<f64>, ticks: Vec<f64>) -> Self {
        Self { inner: range.into(), ticks }
    }
}

impl Ranged for Ticked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.inner.map(value, limit)
    }

    /// Returns the ticks as the labelled lines of the mesh. The mesh has no other lines.
    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.inner.range()
    }
}

const MINUTE: f64 = 60.0;
const HOUR: f64 = 60.0 * MINUTE;
const DAY: f64 = 24.0 * HOUR;
const WEEK: f64 = 7.0 * DAY;

/// Lengths of windows that have a tick, in seconds, with their labels.
const LENGTHS: [(f64, &str); 10] = [
    (1.0, "1 s"),
    (10.0, "10 s"),
    (MINUTE, "1 min"),
    (10.0 * MINUTE, "10 min"),
    (HOUR, "1 h"),
    (6.0 * HOUR, "6 h"),
    (DAY, "1 d"),
    (WEEK, "1 week"),
    (30.0 * DAY, "30 d"),
    (365.0 * DAY, "1 year"),
];

/// Distances between two ticks of an axis of dates, in seconds.
const STEPS: [f64; 14] = [
    10.0,
    MINUTE,
    10.0 * MINUTE,
    HOUR,
    3.0 * HOUR,
    6.0 * HOUR,
    12.0 * HOUR,
    DAY,
    2.0 * DAY,
    WEEK,
    2.0 * WEEK,
    30.0 * DAY,
    90.0 * DAY,
    365.0 * DAY,
];

/// Maximum number of ticks of an axis of dates; the labels of more ticks would overlap.
const MAX_DATES: f64 = 6.0;

/// Monday, 5 January 1970: weeks begin on Mondays.
const FIRST_MONDAY: f64 = 4.0 * DAY;

/// Returns the customary lengths of windows up to `longest`, all in seconds.
pub fn lengths(longest: f64) -> Vec<f64> {
    LENGTHS.iter().map(|(length, _)| *length).filter(|length| *length <= longest).collect()
}

/// Returns the label of a tick of [`lengths`].
pub fn length_label(seconds: f64) -> String {
    LENGTHS.iter().find(|(length, _)| *length == seconds).map_or_else(String::new, |(_, label)| (*label).to_owned())
}

/// Returns the ticks between two times, in seconds since 1970: full minutes, hours, days or Mondays.
pub fn dates(first: f64, last: f64) -> Vec<f64> {
    let step = step(last - first);
    let origin = if step % WEEK == 0.0 { FIRST_MONDAY } else { 0.0 };
    let (from, to) = (((first - origin) / step).ceil() as i64, ((last - origin) / step).floor() as i64);
    (from..=to).map(|number| origin + number as f64 * step).collect()
}

/// Returns the label of a tick of [`dates`] on an axis of this length: the date in UTC, and also the time if a day has
/// several ticks.
pub fn date_label(at: f64, span: f64) -> String {
    let text = Timestamp::from_micros((at * 1e6) as i64).rfc3339();
    let length = match step(span) {
        DAY.. => 10,
        MINUTE.. => 16,
        _ => 19,
    };
    text.chars().take(length).collect::<String>().replace('T', " ")
}

fn step(span: f64) -> f64 {
    let years = 365.0 * DAY;
    let fits = |step: &f64| span / step <= MAX_DATES;
    STEPS.into_iter().find(fits).unwrap_or_else(|| (span / MAX_DATES / years).ceil() * years)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_customary_ticks() {
        let labels: Vec<String> = lengths(30.0 * DAY).into_iter().map(length_label).collect();
        assert_eq!(labels, ["1 s", "10 s", "1 min", "10 min", "1 h", "6 h", "1 d", "1 week", "30 d"]);
        assert_eq!(lengths(HOUR - 1.0).last(), Some(&(10.0 * MINUTE)));
    }

    #[test]
    fn dates_are_full_units() {
        // Thursday, 1 January 2026, 00:00:01.
        let first = 1_767_225_601.0;
        for (span, labels) in [
            (60.0, &["2026-01-01 00:00:10", "2026-01-01 00:00:20"][..]),
            (5.0 * HOUR, &["2026-01-01 01:00", "2026-01-01 02:00"]),
            (5.0 * DAY, &["2026-01-02", "2026-01-03"]),
            (30.0 * DAY, &["2026-01-05", "2026-01-12"]),
        ] {
            let ticks = dates(first, first + span);
            assert!((2..=7).contains(&ticks.len()), "{ticks:?}");
            let shown: Vec<String> = ticks.iter().take(2).map(|at| date_label(*at, span)).collect();
            assert_eq!(shown, labels);
        }
        for years in [2.0, 40.0, 9000.0] {
            assert!(dates(first, first + years * 365.0 * DAY).len() <= 7, "{years}");
        }
    }
}
