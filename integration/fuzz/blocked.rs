//! Fuzz target of the readers of blocked connections: the log of a firewall, and NetFlow as CSV.

use jiff::tz::TimeZone;
use weir::egress::{FirewallLog, Line, NetFlow, OUTGOING_PREFIX};
use weir::time::Timestamp;

/// Property: a blocked connection names addresses in their shortest form, and a flow has the port that is asked for.
pub fn target(input: &[u8]) {
    let mut log = FirewallLog::new(OUTGOING_PREFIX, TimeZone::UTC, Timestamp::from_micros(1_800_000_000_000_000));
    let mut flows = NetFlow::new(25, TimeZone::UTC);
    for line in String::from_utf8_lossy(input).lines() {
        for (read, is_flow) in [(log.read(line), false), (flows.read(line), true)] {
            let Line::Blocked(blocked) = read else { continue };
            assert_eq!(blocked.client, blocked.client.to_canonical());
            assert_eq!(blocked.destination, blocked.destination.to_canonical());
            assert!(!is_flow || blocked.port == Some(25));
        }
    }
}
