//! Log of nftables or iptables: lines of the kernel, or of ulogd2, about packets that a rule has blocked.

use super::blocked::{BlockedConnection, Line};
use crate::history::Stamps;
use crate::time::Timestamp;
use jiff::tz::TimeZone;

/// Prefix that a rule writes before a blocked connection of a client to the outside.
pub const OUTGOING_PREFIX: &str = "weir-egress-out";

/// Prefix that a rule writes before a blocked connection from outside to a client.
pub const INCOMING_PREFIX: &str = "weir-egress-in";

/// Reader of a log's lines.
pub struct FirewallLog {
    prefix: String,
    stamps: Stamps,
}

impl FirewallLog {
    /// Reader of lines with this prefix. `zone` is the time zone of times without an offset.
    pub fn new(prefix: &str, zone: TimeZone, now: Timestamp) -> Self {
        Self { prefix: prefix.trim().to_owned(), stamps: Stamps::new(zone, None, now) }
    }

    /// Reads a line, in one of these forms. The kernel writes its uptime into brackets, and dmesg writes no time:
    ///
    /// ```text
    /// Nov 27 02:10:01 edge kernel: [  123.45] weir-egress-out IN=eth0 OUT=eth1 SRC=10.0.0.5 DST=203.0.113.7 … PROTO=TCP …
    /// Nov 27 02:10:01 edge weir-egress-out IN=eth0 OUT=eth1 MAC= SRC=10.0.0.5 DST=203.0.113.7 … PROTO=TCP SPT=43210 DPT=25 …
    /// [  123.45] weir-egress-out IN=eth0 OUT=eth1 SRC=10.0.0.5 DST=203.0.113.7 … PROTO=TCP SPT=43210 DPT=25 …
    /// ```
    pub fn read(&mut self, line: &str) -> Line {
        // Most lines of a common log are of other programs.
        if !line.contains(&self.prefix) {
            return Line::Other;
        }
        let stamp = self.stamps.read(line).ok();
        let after_time = stamp.and_then(|(_, after)| line.get(after..)).unwrap_or(line);
        let Some(packet) = after_header(after_time, &self.prefix) else { return Line::Other };
        packet_of(packet, stamp.map(|(at, _)| at))
    }
}

/// Returns the text after the prefix, which must be the first text after the header of syslog. So a program that logs
/// what strangers send cannot be made to write a line about a blocked connection.
fn after_header<'a>(after_time: &'a str, prefix: &str) -> Option<&'a str> {
    let text = after_time.trim_start();
    // Without a host: the line is of dmesg, or the prefix begins the line.
    if let Some(packet) = after_uptime(text).strip_prefix(prefix) {
        return Some(packet);
    }
    let text = if text.starts_with("kernel:") { text } else { text.split_once(' ')?.1.trim_start() };
    let of_kernel = text.strip_prefix("kernel:").map(|text| after_uptime(text.trim_start()));
    of_kernel.unwrap_or(text).strip_prefix(prefix)
}

/// Removes the uptime of the kernel: `[  123.456789] `.
fn after_uptime(text: &str) -> &str {
    let uptime = text.strip_prefix('[').and_then(|text| text.split_once(']'));
    let is_uptime = |time: &str| time.bytes().all(|b| b.is_ascii_digit() || matches!(b, b' ' | b'.'));
    uptime.filter(|(time, _)| is_uptime(time)).map_or(text, |(_, text)| text.trim_start())
}

/// Reads the fields of a packet, such as `SRC=10.0.0.5`. Other prefixes can begin with the prefix.
fn packet_of(text: &str, at: Option<Timestamp>) -> Line {
    if !text.is_empty() && !text.starts_with([' ', ':', ',']) && !text.starts_with("IN=") {
        return Line::Other;
    }
    // An ICMP error has the fields of another packet after its own ones, in brackets.
    let field = |name: &str| {
        let mut fields = text.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        fields.find(|(known, _)| known.trim_start_matches([':', ',']) == name).map(|(_, value)| value)
    };
    let Some(protocol) = field("PROTO") else { return Line::Damaged };
    if protocol != "TCP" && protocol != "6" {
        return Line::Other;
    }
    let address = |name| field(name)?.parse().ok().map(|address: std::net::IpAddr| address.to_canonical());
    let port = field("DPT").map(str::parse).transpose();
    match (address("SRC"), address("DST"), port) {
        (Some(client), Some(destination), Ok(port)) => {
            Line::Blocked(BlockedConnection { at, client, destination, port })
        }
        _ => Line::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::super::random_lines::check_damaged_lines;
    use super::*;
    use crate::time::parse_time;

    const PACKET: &str = "IN=eth0 OUT=eth1 MAC=02:42:ac:11:00:02:02:42:ac:11:00:03:08:00 SRC=10.0.0.5 DST=203.0.113.7 \
        LEN=60 TOS=0x00 PREC=0x00 TTL=63 ID=54321 DF PROTO=TCP SPT=43210 DPT=25 WINDOW=64240 RES=0x00 SYN URGP=0";

    fn log() -> FirewallLog {
        FirewallLog::new("weir-egress-out ", TimeZone::UTC, parse_time("2026-11-27T12:00:00Z").unwrap())
    }

    fn blocked(at: Option<&str>, client: &str, destination: &str) -> Line {
        let at = at.map(|at| parse_time(at).unwrap());
        let (client, destination) = (client.parse().unwrap(), destination.parse().unwrap());
        Line::Blocked(BlockedConnection { at, client, destination, port: Some(25) })
    }

    #[test]
    fn each_form_of_the_log_names_the_client_and_the_destination() {
        let second = Some("2026-11-27T02:10:01Z");
        for (header, at) in [
            ("Nov 27 02:10:01 edge kernel: [  123.456789] weir-egress-out ", second),
            ("Nov 27 02:10:01 edge kernel: weir-egress-out ", second),
            ("Nov 27 02:10:01 edge weir-egress-out  ", second),
            ("Nov 27 02:10:01 edge weir-egress-out", second),
            ("2026-11-27T03:10:01.5+01:00 edge kernel: [123.4] weir-egress-out ", Some("2026-11-27T02:10:01.5Z")),
            ("2026-11-27T02:10:01+0000 edge kernel: weir-egress-out: ", second),
            ("<4>Nov 27 02:10:01 kernel: weir-egress-out ", second),
            ("[  123.456789] weir-egress-out ", None),
            ("weir-egress-out ", None),
        ] {
            let line = format!("{header}{PACKET}");
            assert_eq!(log().read(&line), blocked(at, "10.0.0.5", "203.0.113.7"), "{line}");
        }
        let six = "[1.0] weir-egress-out IN=eth0 OUT=eth1 MAC= SRC=2001:0db8:0000:0000:0000:0000:0000:0005 \
            DST=2001:0db8:ffff:0000:0000:0000:0000:0001 LEN=80 TC=0 HOPLIMIT=63 FLOWLBL=1 PROTO=TCP SPT=43210 DPT=25 SYN";
        assert_eq!(log().read(six), blocked(None, "2001:db8::5", "2001:db8:ffff::1"));
        let mapped = format!("weir-egress-out {}", PACKET.replace("10.0.0.5", "::ffff:10.0.0.5"));
        assert_eq!(log().read(&mapped), blocked(None, "10.0.0.5", "203.0.113.7"));
    }

    #[test]
    fn other_lines_and_damaged_lines_block_nothing() {
        let header = "Nov 27 02:10:01 edge kernel: [1.0] ";
        let udp = PACKET.replace("PROTO=TCP", "PROTO=UDP");
        let icmp = format!("IN=eth0 SRC=10.0.0.5 DST=10.0.0.6 PROTO=ICMP TYPE=3 CODE=3 [{PACKET} ]");
        for other in [
            String::new(),
            format!("{header}weir-egress-in {PACKET}"),
            format!("{header}weir-egress-outer {PACKET}"),
            format!("{header}weir-egress-out {udp}"),
            format!("{header}weir-egress-out {icmp}"),
            // The client of another program chooses these texts.
            format!("Nov 27 02:10:01 edge sshd[7]: Invalid user weir-egress-out {PACKET}"),
            format!("Nov 27 02:10:01 edge sshd[7]: kernel: weir-egress-out {PACKET}"),
            format!("Nov 27 02:10:01 edge sshd[7]: [1.0] weir-egress-out {PACKET}"),
            format!("sshd: weir-egress-in weir-egress-out {PACKET}"),
        ] {
            assert_eq!(log().read(&other), Line::Other, "{other}");
        }
        for (part, damaged) in [
            ("SRC=10.0.0.5 ", ""),
            ("DST=203.0.113.7 ", "DST=203.0.113.777 "),
            ("DST=203.0.113.7 ", "DST= "),
            ("PROTO=TCP ", ""),
            ("DPT=25 ", "DPT=65536 "),
        ] {
            let line = format!("{header}weir-egress-out {}", PACKET.replace(part, damaged));
            assert_eq!(log().read(&line), Line::Damaged, "{line}");
        }
        assert_eq!(log().read(&format!("{header}weir-egress-out")), Line::Damaged);
    }

    #[test]
    fn the_prefix_can_be_another_one() {
        let mut log = FirewallLog::new("drop smtp ", TimeZone::UTC, Timestamp::from_micros(0));
        assert_eq!(log.read(&format!("drop smtp {PACKET}")), blocked(None, "10.0.0.5", "203.0.113.7"));
        assert_eq!(log.read(&format!("weir-egress-out {PACKET}")), Line::Other);
    }

    #[test]
    fn no_damaged_line_makes_the_reader_panic() {
        let line = format!("Nov 27 02:10:01 edge kernel: [  123.456789] weir-egress-out {PACKET}");
        let mut log = log();
        check_damaged_lines(&[&line], |line| log.read(line));
    }
}
