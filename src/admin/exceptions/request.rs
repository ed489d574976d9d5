//! Checks of values in requests about exceptions: term and reason.

use crate::time::{format_duration, parse_duration};
use std::sync::Arc;
use std::time::Duration;

/// Maximum length of a reason, in characters.
const MAX_REASON_LENGTH: usize = 500;

/// Maximum term of an exception. A longer exception belongs in the configuration.
const MAX_TERM: Duration = Duration::from_secs(3_650 * 86_400);

/// Parses the term of an exception, such as `8h`, as an administrator writes it on the command line. Returns seconds.
pub fn parse_term(text: &str) -> Result<f64, String> {
    let term = parse_duration(text).map_err(|error| error.to_string())?;
    match term {
        Duration::ZERO => Err(format!("\"{text}\" is no time at all")),
        _ => checked_term(term.as_secs_f64()).map(|_| term.as_secs_f64()),
    }
}

/// Checks the term of an exception, in seconds.
pub fn checked_term(seconds: f64) -> Result<Duration, String> {
    let term = Duration::try_from_secs_f64(seconds).map_err(|_| format!("{seconds} s is no duration"))?;
    // Times have microseconds.
    match term {
        term if term.as_micros() == 0 => Err(format!("{seconds} s is no time at all")),
        term if term > MAX_TERM => {
            let (term, longest) = (format_duration(term), format_duration(MAX_TERM));
            Err(format!("{term} is too long, {longest} at most: what is to stay belongs into the configuration"))
        }
        term => Ok(term),
    }
}

/// Checks the reason for an act: it must fit into one log line. `is_needed` is true for acts that begin an exception:
/// their reason must not be empty.
pub fn checked_reason(reason: &str, is_needed: bool) -> Result<Arc<str>, String> {
    let reason = reason.trim();
    match reason.chars().count() {
        0 if is_needed => Err("the reason is empty: give one, for the audit trail".to_owned()),
        count if count > MAX_REASON_LENGTH => {
            Err(format!("reason has {count} characters: {MAX_REASON_LENGTH} at most"))
        }
        _ if reason.contains(char::is_control) => {
            Err(format!("reason has a control character in it: \"{}\"", reason.escape_debug()))
        }
        _ => Ok(reason.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_bad_value_of_a_request() {
        assert_eq!(parse_term("8h"), Ok(28_800.0));
        assert_eq!(checked_term(0.25), Ok(Duration::from_millis(250)));
        assert_eq!(checked_reason(" news ", true).as_deref(), Ok("news"));
        assert_eq!(checked_reason(" ", false).as_deref(), Ok(""));
        for (text, words) in [
            ("0s", "\"0s\" is no time at all"),
            ("soon", "\"soon\" is not a duration"),
            ("3651d", "3651d is too long, 3650d at most"),
        ] {
            assert!(parse_term(text).unwrap_err().contains(words), "{text}");
        }
        for seconds in [0.0, -1.0, 1e-9, 4e8, 1e300, f64::NAN, f64::INFINITY] {
            assert!(checked_term(seconds).is_err(), "{seconds}");
        }
        for (reason, words) in [
            (" ".to_owned(), "the reason is empty"),
            ("a\nb".to_owned(), "reason has a control character in it: \"a\\nb\""),
            ("x".repeat(501), "reason has 501 characters: 500 at most"),
        ] {
            assert!(checked_reason(&reason, true).unwrap_err().contains(words), "{reason}");
        }
    }
}
