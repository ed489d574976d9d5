//! `[outcomes]`: how long, and how many, queue ids are stored for the outcomes of deliveries, and the report address.

use super::section::Section;
use super::values::{count, duration, text};
use crate::notify::is_mail_address;
use crate::session::ReportAddress;
use crate::store::OutcomeOptions;
use std::time::Duration;

/// Longest time for which queue ids are kept: as for refusals.
const MAX_KEEP: Duration = Duration::from_secs(366 * 86_400);

/// Reads `[outcomes]`; `None` if the section is missing.
pub fn read(mut s: Section<'_>) -> Option<(OutcomeOptions, Option<ReportAddress>)> {
    if !s.exists() {
        return None;
    }
    let keep = s.value("keep", "\"7d\"", |value| match duration(value)? {
        keep if keep.is_zero() => Err("write for how long outcomes are awaited, as in \"7d\"".to_owned()),
        keep if keep > MAX_KEEP => Err("at most 366d".to_owned()),
        keep => Ok(keep),
    });
    let max_messages = s.value("max-messages", "200000", count(1..=100_000_000));
    let report_address = s.optional("report-address", |value| match text(value)? {
        address if is_mail_address(&address) => Ok(ReportAddress::new(&address)),
        other => Err(format!("\"{}\" is no mail address: write \"reports@weir.example.org\"", other.escape_debug())),
    });
    s.finish();
    let options = OutcomeOptions { keep, max_messages: max_messages as u64 };
    Some((options, report_address.map(|address| address.value)))
}
