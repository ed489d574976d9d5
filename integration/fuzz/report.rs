//! Fuzz target of the parser of reports, which strangers can send to the report address.

use weir::outcomes::parse_report;

/// Property: an outcome names a message, by queue ids that are ones or by a `Message-ID`, and the number of outcomes and
/// queue ids has a bound.
pub fn target(input: &[u8]) {
    let Ok(outcomes) = parse_report(input) else { return };
    assert!(outcomes.len() <= 1000);
    for outcome in outcomes {
        assert!(!outcome.queue_ids.is_empty() || outcome.message_id.is_some());
        assert!(outcome.queue_ids.len() <= 50);
        assert!(outcome.queue_ids.iter().all(|id| (4..=64).contains(&id.len()) && id.is_ascii()));
    }
}
