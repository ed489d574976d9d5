//! Keys of `[state]` about the records of refusals.

use super::section::Section;
use super::values::{duration, octets};
use crate::store::RefusalOptions;
use std::time::Duration;
use toml::de::DeValue;

/// Longest time for which refusals are kept: as for the login history.
const MAX_KEEP: Duration = Duration::from_secs(366 * 86_400);

/// Bounds of the size. The state file has to fit on a disk, and a smaller history would not hold one flood.
const MIN_OCTETS: u64 = 1 << 20;
const MAX_OCTETS: u64 = 16 << 30;

/// Reads the keys about the records of refusals.
pub fn read(s: &mut Section<'_>) -> RefusalOptions {
    let keep = s.value("keep-refusals", "\"14d\"", |value: &DeValue<'_>| match duration(value)? {
        keep if keep > MAX_KEEP => Err("at most 366d".to_owned()),
        keep => Ok(keep),
    });
    let max_octets = s.value("max-refusals-size", "\"64M\"", |value: &DeValue<'_>| match octets(value)? {
        octets if !(MIN_OCTETS..=MAX_OCTETS).contains(&octets) => Err("it must be from 1M to 16G".to_owned()),
        octets => Ok(octets),
    });
    RefusalOptions { keep, max_octets }
}
