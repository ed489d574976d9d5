//! Parser of rspamd's buckets in all of their forms. A bucket has a burst (its capacity) and a rate (at which it
//! leaks).

use super::ucl::{Entry, Value};
use crate::time::{Units, format_duration, parse_rate, unambiguous};
use std::time::Duration;

/// A bucket of rspamd, with burst and rate in the syntax of limits.
#[derive(Debug, Default, PartialEq)]
pub struct Bucket {
    pub burst: String,
    pub rate: String,
    /// The bucket as written in the source.
    pub written: String,
    pub skip_recipients: bool,
    /// Setting with which rspamd only marks mail that exceeds the bucket.
    pub marks: Option<String>,
    pub message: Option<String>,
    pub comments: Vec<String>,
    /// Parts of the bucket that limits cannot express: line number and text.
    pub lost: Vec<(usize, String)>,
    /// Factors by which rspamd changes the bucket according to its rating of the mail; they have an effect only with
    /// `dynamic_rate_limit`.
    pub factors: Vec<(usize, String)>,
}

/// An amount in a number of seconds.
#[derive(Debug, PartialEq)]
struct Rate {
    amount: f64,
    seconds: f64,
    /// The end of the text, which rspamd ignores.
    rest: String,
}

/// Parses a bucket; `None` if the value sets no limit.
pub fn bucket(value: &Value) -> Result<Option<Bucket>, String> {
    match value {
        Value::Object(entries) => of_entries(entries).map(Some),
        Value::Array(pair) if is_pair(pair) => of_pair(pair),
        Value::Array(_) => Err("a list is [burst, rate], two numbers".to_owned()),
        Value::Quoted(text) | Value::Bare(text) => {
            let rate = parse(text)?;
            let written = format!("\"{text}\"");
            finished(rate.amount, rate, written).map(Some)
        }
    }
}

/// Returns whether a list is a bucket in the form `[burst, rate]`.
pub fn is_pair(values: &[Value]) -> bool {
    values.len() == 2 && values.iter().all(|value| plain(value).is_some())
}

/// Returns the number in a value, which can be in quotes.
fn plain(value: &Value) -> Option<f64> {
    value.number().or_else(|| value.text()?.trim().parse().ok()).filter(|number| number.is_finite())
}

fn of_pair(pair: &[Value]) -> Result<Option<Bucket>, String> {
    let numbers: Vec<f64> = pair.iter().filter_map(plain).collect();
    let [burst, rate] = numbers[..] else { return Err("a list is [burst, rate], two numbers".to_owned()) };
    if burst == 0.0 {
        return Ok(None);
    }
    let rate = Rate { amount: rate, seconds: 1.0, rest: String::new() };
    finished(burst, rate, format!("[{burst}, {}]", numbers[1])).map(Some)
}

fn of_entries(entries: &[Entry]) -> Result<Bucket, String> {
    let find = |key: &str| entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value);
    let burst = find("burst").ok_or("a bucket has no burst")?;
    let rate = find("rate").ok_or("a bucket has no rate")?;
    let name = |value: &Value| value.text().unwrap_or("{ … }").to_owned();
    let most = match burst.number() {
        Some(number) => number,
        None => burst.text().and_then(amount).ok_or_else(|| format!("burst = {} is not a number", name(burst)))?,
    };
    let written = format!("{{ burst = {}; rate = \"{}\" }}", name(burst), name(rate));
    let leak = match rate.number() {
        Some(number) => Rate { amount: number, seconds: 1.0, rest: String::new() },
        None => parse(rate.text().ok_or("rate is no text")?)?,
    };
    let mut bucket = finished(most, leak, written)?;
    for Entry { key, value, line } in entries {
        match &**key {
            "burst" | "rate" => {}
            "skip_recipients" => bucket.skip_recipients = value.is_true(),
            "skip_soft_reject" if value.is_true() => bucket.marks = Some(key.clone()),
            "skip_soft_reject" => {}
            // rspamd 3.1 and later add this symbol to the mail instead of refusing it.
            "symbol" => bucket.marks = Some(format!("symbol = {}", name(value))),
            "ham_factor_rate" | "ham_factor_burst" | "spam_factor_rate" | "spam_factor_burst" => {
                bucket.factors.push((*line, format!("{key} = {}: {}", name(value), super::FACTORS)));
            }
            "message" => bucket.message = value.text().map(str::to_owned),
            key => bucket.lost.push((*line, format!("{key} = {} has no meaning for limits", name(value)))),
        }
    }
    Ok(bucket)
}

/// Parses an amount of messages, such as `10k`.
fn amount(text: &str) -> Option<f64> {
    let units = [("k", 1e3), ("m", 1e6), ("g", 1e9)];
    let unit = units.into_iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)));
    let (digits, scale) = unit.unwrap_or((text, 1.0));
    let is_plain = digits.trim().chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '+' | '-'));
    let number = digits.trim().parse::<f64>().ok().filter(|_| is_plain);
    number.filter(|number| number.is_finite()).map(|number| number * scale)
}

/// Parses `100 / 1min` as rspamd does. From the time, rspamd reads only a number and one letter (s, m, h or d), and
/// ignores the rest.
fn parse(text: &str) -> Result<Rate, String> {
    let bad = |why: &str| format!("\"{text}\" is not a rate: {why} (rspamd writes 100 / 1h)");
    let (left, right) = text.split_once('/').ok_or_else(|| bad("it has no /"))?;
    let amount =
        amount(left.trim_end_matches(' ')).ok_or_else(|| bad("the amount is no number, which may end in k, m or g"))?;
    let right = right.trim_start_matches(' ');
    let end = right.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '+' | '-')).unwrap_or(right.len());
    let number: f64 = right[..end].parse().map_err(|_| bad("the time does not begin with a number"))?;
    let units = [('s', 1.0), ('m', 60.0), ('h', 3_600.0), ('d', 86_400.0)];
    let unit = units.into_iter().find(|(unit, _)| right[end..].starts_with(*unit));
    let (scale, read) = unit.map_or((1.0, end), |(_, scale)| (scale, end + 1));
    let seconds = number * scale;
    if seconds <= 0.0 {
        return Err(bad("the time must be above 0"));
    }
    Ok(Rate { amount, seconds, rest: right[read..].to_owned() })
}

/// Length of each unit in seconds, and the texts that can follow the first letter in words for this unit: rspamd reads
/// only the letter.
const ENDINGS: [(f64, &[&str]); 4] = [
    (1.0, &["", "ec", "econd", "econds", " s", " sec", " second", " seconds"]),
    (60.0, &["", "in", "ins", "inute", "inutes"]),
    (3_600.0, &["", "r", "our", "ours"]),
    (86_400.0, &["", "ay", "ays"]),
];

fn finished(burst: f64, leak: Rate, written: String) -> Result<Bucket, String> {
    if !(burst > 0.0 && leak.amount > 0.0) {
        return Err(format!("{written}: burst and rate must be above 0"));
    }
    let mut comments = Vec::new();
    let is_meant =
        |(size, endings): &(f64, &[&str])| leak.seconds % size == 0.0 && endings.contains(&leak.rest.trim_end());
    if !leak.rest.trim().is_empty() && !ENDINGS.iter().any(is_meant) {
        let read = format_duration(Duration::from_secs_f64(leak.seconds));
        comments.push(format!("rspamd knows s, m, h and d, and reads no further: this is so much in {read} to it."));
        if let Some(meant) = meant(&leak) {
            comments.push(format!("Was rate = \"{meant}\" meant?"));
        }
    }
    let rate = match leak.seconds == 1.0 && leak.amount < 1.0 {
        true => slow(leak.amount),
        false => written_rate(leak.amount, leak.seconds),
    };
    parse_rate(&rate, Units::Things).map_err(|error| format!("{written}: {error}"))?;
    let burst = decimal(burst).ok_or_else(|| format!("{written}: the burst is too large"))?;
    Ok(Bucket { burst, rate, written, comments, ..Bucket::default() })
}

/// Guesses the rate that the administrator meant with a unit that rspamd does not know.
fn meant(leak: &Rate) -> Option<String> {
    let unit = leak.rest.trim();
    let days = match unit {
        "onth" | "onths" | "month" | "months" | "mon" | "M" => 30.0,
        "w" | "week" | "weeks" => 7.0,
        "day" | "days" | "D" => 1.0,
        "y" | "year" | "years" => 365.0,
        "hour" | "hours" | "H" => 1.0 / 24.0,
        "min" | "minute" | "minutes" => 1.0 / 1_440.0,
        _ => return None,
    };
    // rspamd reads only the m of "1month", as minutes.
    let number = if unit.starts_with("onth") { leak.seconds / 60.0 } else { leak.seconds };
    Some(written_rate(leak.amount, number * days * 86_400.0))
}

fn written_rate(amount: f64, seconds: f64) -> String {
    let time = format_duration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    format!("{} / {time}", decimal(amount).unwrap_or_default())
}

/// Writes a rate below 1 per second with the shortest period in which its amount is a whole number. If there is no such
/// period, writes the amount per day.
fn slow(per_second: f64) -> String {
    let times = [60.0, 3_600.0, 86_400.0];
    let whole = times.into_iter().find(|seconds| {
        let amount = per_second * seconds;
        // The number in the source can be rounded: 0.033333333 per second means 2 per minute.
        amount.round() >= 1.0 && (amount - amount.round()).abs() < 1e-4 * amount
    });
    match whole {
        Some(seconds) => written_rate((per_second * seconds).round(), seconds),
        None => written_rate(per_second * 86_400.0, 86_400.0),
    }
}

/// Returns a number as text, with no more digits than the configuration of Weir accepts.
fn decimal(number: f64) -> Option<String> {
    let text = number.to_string();
    let text = if text.contains('.') {
        text.get(..18).unwrap_or(&text).trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    (text.len() <= 18).then(|| unambiguous(text.to_owned())).filter(|text| text.len() <= 18)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (String, String) {
        let Bucket { burst, rate, .. } = bucket(&Value::Quoted(text.into())).unwrap().unwrap();
        (burst, rate)
    }

    #[test]
    fn rates_are_read_as_far_as_rspamd_reads_them() {
        for (text, burst, rate, says) in [
            ("100 / 1h", "100", "100 / 1h", ""),
            ("100/1min", "100", "100 / 1m", ""),
            ("10k / 1.5d", "10000", "10000 / 1d12h", ""),
            ("20 / 1w", "20", "20 / 1s", "Was rate = \"20 / 7d\" meant?"),
            ("20 / 2 weeks", "20", "20 / 2s", "Was rate = \"20 / 14d\" meant?"),
            ("20 / 1 hour", "20", "20 / 1s", "Was rate = \"20 / 1h\" meant?"),
            ("20 / 1month", "20", "20 / 1m", "Was rate = \"20 / 30d\" meant?"),
            ("20 / 1m0", "20", "20 / 1m", "reads no further"),
        ] {
            assert_eq!(read(text), (burst.into(), rate.into()), "{text}");
            let comments = bucket(&Value::Quoted(text.into())).unwrap().unwrap().comments.join(" ");
            assert!(comments.contains(says) && comments.is_empty() == says.is_empty(), "{text}: {comments}");
        }
        for text in ["100", "x / 1h", "10K / 1h", "10 / h", "10 / 0s", "0 / 1h", "-1 / 1h", "10 / -1h", "1e3 / 1h"] {
            let said = bucket(&Value::Quoted(text.into()));
            assert!(said.is_err(), "{text}: {said:?}");
        }
    }

    #[test]
    fn rates_per_second_are_written_with_a_readable_period() {
        for (per_second, rate) in [
            (0.033_333_333, "2 / 1m"),
            (0.016_666_666_67, "1 / 1m"),
            (0.000_555_556, "2 / 1h"),
            (0.025, "1.5 / 1m"),
            (0.000_277_778, "1 / 1h"),
            (2.5, "2.5 / 1s"),
            (0.000_1, "8.64 / 1d"),
        ] {
            let pair = [Value::Bare("5".into()), Value::Bare(per_second.to_string())];
            let expected = if rate == "1.5 / 1m" { "90 / 1h" } else { rate };
            assert_eq!(bucket(&Value::Array(pair.to_vec())).unwrap().unwrap().rate, expected);
        }
        let none = [Value::Bare("0".into()), Value::Bare("1".into())];
        assert_eq!(bucket(&Value::Array(none.to_vec())), Ok(None));
    }
}
