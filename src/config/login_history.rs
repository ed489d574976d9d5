//! Keys of `[accounts]` about the login history.

use super::section::Section;
use super::values::duration;
use crate::policy::LoginHistory;
use std::time::Duration;
use toml::de::DeValue;

/// Longest time for which logins are remembered. A user's networks are few, so a longer history would add little.
const MAX_KEEP: Duration = Duration::from_secs(366 * 86_400);

/// Reads the keys about the login history.
pub fn read(s: &mut Section<'_>) -> LoginHistory {
    if !s.exists() {
        return LoginHistory::default();
    }
    let keep = s.value("login-history", "\"30d\"", |value: &DeValue<'_>| match duration(value)? {
        keep if keep > MAX_KEEP => Err("at most 366d".to_owned()),
        keep => Ok(keep),
    });
    let known_after = s.placed("known-after", "\"1d\"", duration);
    if !keep.is_zero() && known_after.value >= keep {
        let message = "known-after must be shorter than login-history: otherwise no place becomes known";
        s.error(&known_after.span, message, Some("write a shorter known-after, or a longer login-history"));
    }
    LoginHistory { keep, known_after: known_after.value }
}
