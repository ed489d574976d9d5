//! NetFlow as CSV, as nfdump and similar programs write it: the first line names the columns.

use super::blocked::{BlockedConnection, Line};
use crate::time::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Maximum number of columns; nfdump writes some 50.
const MAX_COLUMNS: usize = 256;

/// Forwarding status from which on a packet was not forwarded, and up to which it was (RFC 7270, §4.12).
const FORWARDED: std::ops::Range<u16> = 64..128;

/// Reader of a file's lines.
pub struct NetFlow {
    port: u16,
    zone: TimeZone,
    /// Line that names the columns, and the columns.
    header: Option<(String, Columns)>,
}

/// Indices of columns.
struct Columns {
    client: usize,
    destination: usize,
    port: usize,
    protocol: usize,
    time: Option<usize>,
    flags: Option<usize>,
    forwarding: Option<usize>,
}

/// Names of a column in nfdump 1.6, nfdump 1.7, and other programs: in lower case, without `_`, `-` and spaces.
type Names = &'static [&'static str];

const CLIENT: Names = &["sa", "srcaddr", "srcip", "srcipaddr", "ipsrc", "ipv4srcaddr", "sourceaddress"];
const DESTINATION: Names = &["da", "dstaddr", "dstip", "dstipaddr", "ipdst", "ipv4dstaddr", "destinationaddress"];
const PORT: Names = &["dp", "dstport", "dport", "portdst", "l4dstport", "destinationport"];
const PROTOCOL: Names = &["pr", "proto", "protocol", "ipprotocol"];
const TIME: Names = &["ts", "firstseen", "start", "starttime", "timestart", "timestampstart"];
const FLAGS: Names = &["flg", "flags", "tcpflags"];
const FORWARDING: Names = &["fwd", "fwdstatus", "forwardingstatus"];

impl NetFlow {
    /// Reader of flows to this port. `zone` is the time zone of times without an offset.
    pub fn new(port: u16, zone: TimeZone) -> Self {
        Self { port, zone, header: None }
    }

    /// Returns the line that names the columns, if it has been read.
    pub fn header(&self) -> Option<&str> {
        self.header.as_ref().map(|(header, _)| header.as_str())
    }

    /// Reads a line. A line with the names of columns can come at any time, because a file can begin anew.
    pub fn read(&mut self, line: &str) -> Line {
        let fields: Vec<&str> = line.split(',').take(MAX_COLUMNS).map(|field| field.trim().trim_matches('"')).collect();
        if let Some(columns) = Columns::of(&fields) {
            self.header = Some((line.to_owned(), columns));
            return Line::Other;
        }
        let Some((_, columns)) = &self.header else { return Line::Damaged };
        // After the flows, nfdump writes a summary, and each of its lines has fewer fields.
        let field = |index: usize| fields.get(index).copied();
        let (Some(client), Some(destination), Some(port), Some(protocol)) =
            (field(columns.client), field(columns.destination), field(columns.port), field(columns.protocol))
        else {
            return Line::Other;
        };
        if !is_tcp(protocol) {
            return Line::Other;
        }
        let (Ok(client), Ok(destination), Ok(port)) =
            (client.parse::<std::net::IpAddr>(), destination.parse::<std::net::IpAddr>(), port.parse::<u16>())
        else {
            return Line::Damaged;
        };
        let is_known = |column: Option<usize>, is: fn(&str) -> bool| column.and_then(field).is_some_and(is);
        if port != self.port || is_known(columns.flags, has_ack) || is_known(columns.forwarding, is_forwarded) {
            return Line::Other;
        }
        let at = columns.time.and_then(field).and_then(|time| time_of(time, &self.zone));
        let (client, destination) = (client.to_canonical(), destination.to_canonical());
        Line::Blocked(BlockedConnection { at, client, destination, port: Some(port) })
    }
}

impl Columns {
    /// Returns the columns that these names say; `None` if they are no names of columns.
    fn of(fields: &[&str]) -> Option<Self> {
        // The line of a flow has an address, and its numbers have digits at the beginning.
        let names: Vec<String> =
            fields.iter().map(|field| field.to_ascii_lowercase().replace(['_', '-', ' '], "")).collect();
        let index = |known: Names| names.iter().position(|name| known.contains(&name.as_str()));
        Some(Self {
            client: index(CLIENT)?,
            destination: index(DESTINATION)?,
            port: index(PORT)?,
            protocol: index(PROTOCOL)?,
            time: index(TIME),
            flags: index(FLAGS),
            forwarding: index(FORWARDING),
        })
    }
}

fn is_tcp(protocol: &str) -> bool {
    protocol == "6" || protocol.eq_ignore_ascii_case("tcp")
}

/// Returns whether the client has sent ACK: then the other side has answered it, and the connection was not blocked.
/// The flags are letters, as in `...AP.SF`, or a number, as in `0x1b`.
fn has_ack(flags: &str) -> bool {
    let number = match flags.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16).ok(),
        None => flags.parse().ok(),
    };
    number.map_or_else(|| flags.contains('A'), |number| number & 0x10 != 0)
}

fn is_forwarded(status: &str) -> bool {
    status.parse().is_ok_and(|status| FORWARDED.contains(&status))
}

/// Reads a time: `2026-11-27 02:10:01.250`, the same with an offset, or seconds since 1970.
fn time_of(text: &str, zone: &TimeZone) -> Option<Timestamp> {
    let at = if let Ok(seconds) = text.parse::<f64>() {
        jiff::Timestamp::from_microsecond((seconds * 1e6) as i64).ok()?
    } else if let Ok(at) = text.parse::<jiff::Timestamp>() {
        at
    } else {
        text.parse::<DateTime>().ok()?.to_zoned(zone.clone()).ok()?.timestamp()
    };
    Some(Timestamp::from_micros(at.as_microsecond()))
}

#[cfg(test)]
mod tests {
    use super::super::random_lines::check_damaged_lines;
    use super::*;
    use crate::time::parse_time;

    /// Header and lines of nfdump 1.6: `nfdump -r FILE -o csv`.
    const OLD: &str = "ts,te,td,sa,da,sp,dp,pr,flg,fwd,stos,ipkt,ibyt,opkt,obyt,in,out";
    const OLD_FLOW: &str =
        "2026-11-27 02:10:01,2026-11-27 02:10:01,0.000,10.0.0.5,203.0.113.7,43210,25,TCP,......S.,0,0,1,60,0,0,2,3";

    /// Header and line of nfdump 1.7.
    const NEW: &str = "firstSeen,duration,proto,srcAddr,srcPort,dstAddr,dstPort,packets,bytes,bps,bpp,flows";
    const NEW_FLOW: &str = "2026-11-27 02:10:01.250,00:00:00.000,TCP,10.0.0.5,43210,203.0.113.7,25,1,60,0,60,1";

    fn flows(header: &str) -> NetFlow {
        let mut flows = NetFlow::new(25, TimeZone::fixed(jiff::tz::offset(1)));
        assert_eq!(flows.read(header), Line::Other);
        flows
    }

    fn blocked(at: &str) -> Line {
        let (client, destination) = ("10.0.0.5".parse().unwrap(), "203.0.113.7".parse().unwrap());
        let at = Some(parse_time(at).unwrap());
        Line::Blocked(BlockedConnection { at, client, destination, port: Some(25) })
    }

    #[test]
    fn a_flow_is_read_by_the_names_of_the_columns() {
        assert_eq!(flows(OLD).read(OLD_FLOW), blocked("2026-11-27T01:10:01Z"));
        assert_eq!(flows(NEW).read(NEW_FLOW), blocked("2026-11-27T01:10:01.25Z"));
        let pmacct = "SRC_IP,DST_IP,SRC_PORT,DST_PORT,PROTOCOL,TIMESTAMP_START";
        let seconds = "10.0.0.5,203.0.113.7,43210,25,tcp,1795741801.25";
        assert_eq!(flows(pmacct).read(seconds), blocked("2026-11-27T01:10:01.25Z"));
        let quoted = "\"::ffff:10.0.0.5\", 203.0.113.7, 43210, 25, 6, 2026-11-27T01:10:01Z";
        assert_eq!(flows(pmacct).read(quoted), blocked("2026-11-27T01:10:01Z"));
        // A file begins anew, with other columns.
        let mut flows = flows(OLD);
        assert_eq!(flows.header(), Some(OLD));
        assert_eq!((flows.read(NEW), flows.read(NEW_FLOW)), (Line::Other, blocked("2026-11-27T01:10:01.25Z")));
        assert_eq!(flows.header(), Some(NEW));
    }

    #[test]
    fn other_flows_and_damaged_lines_block_nothing() {
        for (part, other) in [
            ("TCP", "UDP"),
            (",25,TCP", ",587,TCP"),
            ("......S.", "...AP.SF"),
            ("......S.", "0x12"),
            ("......S.,0,", "......S.,64,"),
        ] {
            assert_eq!(flows(OLD).read(&OLD_FLOW.replace(part, other)), Line::Other, "{other}");
        }
        for (part, still) in [("......S.", "0x02"), ("......S.", "2"), ("......S.,0,", "......S.,128,")] {
            assert_eq!(flows(OLD).read(&OLD_FLOW.replace(part, still)), blocked("2026-11-27T01:10:01Z"), "{still}");
        }
        for summary in ["", "Summary", "flows,bytes,packets,avg_bps,avg_pps,avg_bpp", "1,60,1,0,0,60"] {
            assert_eq!(flows(OLD).read(summary), Line::Other, "{summary}");
        }
        for (part, damaged) in [("10.0.0.5", "10.0.0"), ("203.0.113.7", ""), (",25,", ",65536,")] {
            assert_eq!(flows(OLD).read(&OLD_FLOW.replace(part, damaged)), Line::Damaged, "{damaged}");
        }
        assert_eq!(NetFlow::new(25, TimeZone::UTC).read(OLD_FLOW), Line::Damaged, "there are no names of columns");
        let no_time = OLD_FLOW.replace("2026-11-27 02:10:01,", "then,");
        assert!(matches!(flows(OLD).read(&no_time), Line::Blocked(BlockedConnection { at: None, .. })));
    }

    #[test]
    fn no_damaged_line_makes_the_reader_panic() {
        let mut flows = flows(OLD);
        check_damaged_lines(&[OLD_FLOW, NEW_FLOW, OLD_FLOW, OLD, NEW], |line| flows.read(line));
    }
}
