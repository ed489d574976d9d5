//! Parser of the PROXY protocol, versions 1 and 2, with which a load balancer tells a server the client's address. Does
//! no input or output.
//!
//! Section numbers refer to <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>. A header that two parsers
//! could understand differently is an error, like all ambiguous input from clients.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Result of reading a header from its first octet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// At least `more` octets are missing. Reading `more` octets does not read past the header.
    Incomplete { more: usize },
    /// The header is complete, in the first `length` octets. `client` is the address behind the proxy. `client` is
    /// `None` if the proxy connects for itself (a health check) or does not know the client. Weir then uses the address
    /// of the connection itself.
    Complete { client: Option<IpAddr>, length: usize },
}

/// Error in a header, with a text for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault(pub &'static str);

/// Beginning of version 1 (§2.1).
const TEXT: &[u8] = b"PROXY ";

/// Beginning of version 2 (§2.2).
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Minimum octets of a header of either version: `PROXY UNKNOWN` and CRLF.
const SHORTEST: usize = 15;

/// Maximum octets of the line of version 1, with its CRLF (§2.1).
const LONGEST_TEXT: usize = 107;

/// Octets of version 2 before the addresses: signature, version and command, protocol, length.
const FIXED: usize = 16;

/// Maximum octets after [`FIXED`]: addresses, and extensions such as the name and certificate of a TLS client.
const LONGEST_REST: usize = 4096;

/// Protocols of version 2 that mail uses, in the order of §2.2. With UNSPECIFIED and UNIX the client has no address.
const UNSPECIFIED: u8 = 0x00;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
const UNIX: u8 = 0x31;

/// Type of the extension that holds the header's checksum (§2.2.3).
const CRC32C: u8 = 0x03;

/// Reads the header at the beginning of `bytes`. Ignores octets after the header.
pub fn parse(bytes: &[u8]) -> Result<Header, Fault> {
    if begins(bytes, TEXT) {
        parse_text(bytes)
    } else if begins(bytes, SIGNATURE) {
        parse_binary(bytes)
    } else {
        Err(Fault("the connection does not begin with one"))
    }
}

/// Returns whether `bytes` and `with` agree in the octets that both have. More octets can follow `bytes`.
fn begins(bytes: &[u8], with: &[u8]) -> bool {
    bytes.iter().zip(with).all(|(one, other)| one == other)
}

fn parse_text(bytes: &[u8]) -> Result<Header, Fault> {
    let end = bytes.iter().take(LONGEST_TEXT).position(|octet| *octet == b'\n');
    let Some(end) = end else {
        // CRLF has two octets, but the CR has perhaps arrived already.
        let end = if bytes.ends_with(b"\r") { 1 } else { 2 };
        let more = end.max(SHORTEST.saturating_sub(bytes.len()));
        let fits = bytes.len() + more <= LONGEST_TEXT;
        return if fits { Ok(Header::Incomplete { more }) } else { Err(Fault("its line is too long")) };
    };
    let line = bytes[..end].strip_suffix(b"\r").filter(|line| !line.contains(&b'\r'));
    let line = line.ok_or(Fault("its line has a bare CR or LF"))?;
    Ok(Header::Complete { client: client_of_line(line)?, length: end + 1 })
}

/// Reads a line of version 1, without its CRLF. Destination and ports are not used, but a wrong destination or port
/// makes the whole header an error.
fn client_of_line(line: &[u8]) -> Result<Option<IpAddr>, Fault> {
    let words: Vec<&[u8]> = line.split(|octet| *octet == b' ').collect();
    let (family, addresses, ports) = match words[..] {
        // A receiver ignores the rest of the line (§2.1).
        [_, b"UNKNOWN", ..] => return Ok(None),
        [_, family, source, destination, from, to] => (family, [source, destination], [from, to]),
        _ => return Err(Fault("its line is not made of a protocol, two addresses and two ports")),
    };
    let [source, destination] = match family {
        b"TCP4" => addresses.map(address::<Ipv4Addr>),
        b"TCP6" => addresses.map(address::<Ipv6Addr>),
        _ => return Err(Fault("its protocol is not TCP4, TCP6 or UNKNOWN")),
    };
    destination?;
    if !ports.into_iter().all(is_port) {
        return Err(Fault("its line does not end in two port numbers"));
    }
    possible(source?).map(Some)
}

/// Reads an address of this family. The standard library refuses leading zeros and abbreviated IPv4 addresses, as §2.1
/// requires.
fn address<A: FromStr + Into<IpAddr>>(word: &[u8]) -> Result<IpAddr, Fault> {
    let address = std::str::from_utf8(word).ok().and_then(|word| word.parse::<A>().ok());
    address.map(Into::into).ok_or(Fault("an address is not one of its protocol"))
}

/// Returns whether this is a port number in the form that §2.1 requires. 0 is allowed, because proxies send 0 for an
/// unknown port.
fn is_port(word: &[u8]) -> bool {
    let port = std::str::from_utf8(word).ok().and_then(|word| word.parse::<u16>().ok());
    port.is_some_and(|port| port.to_string().as_bytes() == word)
}

fn parse_binary(bytes: &[u8]) -> Result<Header, Fault> {
    let Some((&[.., command, protocol, high, low], rest)) = bytes.split_first_chunk::<FIXED>() else {
        return Ok(Header::Incomplete { more: FIXED - bytes.len() });
    };
    if command >> 4 != 2 {
        return Err(Fault("its version is not 2"));
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > LONGEST_REST {
        return Err(Fault("it is too long"));
    }
    if rest.len() < length {
        return Ok(Header::Incomplete { more: length - rest.len() });
    }
    let header = &bytes[..FIXED + length];
    let client = match command & 0xf {
        // LOCAL: a receiver skips the rest (§2.2).
        0 => None,
        1 => client_of_block(header, protocol)?,
        _ => return Err(Fault("its command is neither LOCAL nor PROXY")),
    };
    Ok(Header::Complete { client, length: header.len() })
}

/// Reads the addresses of version 2, and checks the extensions after them.
fn client_of_block(header: &[u8], protocol: u8) -> Result<Option<IpAddr>, Fault> {
    let cut_short = Fault("its addresses are cut short");
    let rest = &header[FIXED..];
    let (client, addresses) = match protocol {
        // The length of the addresses is unknown, so the extensions after the addresses cannot be found.
        UNSPECIFIED => return Ok(None),
        TCP4 => (Some(IpAddr::from(*rest.first_chunk::<4>().ok_or(cut_short)?)), 12),
        TCP6 => (Some(IpAddr::from(*rest.first_chunk::<16>().ok_or(cut_short)?)), 36),
        UNIX => (None, 216),
        _ => return Err(Fault("its protocol is not TCP")),
    };
    if rest.len() < addresses {
        return Err(cut_short);
    }
    check_extensions(header, FIXED + addresses)?;
    client.map(possible).transpose()
}

/// Checks that the extensions (§2.2, TLV) fill the header from `at` to its end, and checks the checksum if the header
/// has one. Ignores all other extensions.
fn check_extensions(header: &[u8], mut at: usize) -> Result<(), Fault> {
    let mut has_checksum = false;
    while at < header.len() {
        let Some((&[kind, high, low], rest)) = header[at..].split_first_chunk::<3>() else {
            return Err(Fault("an extension is cut short"));
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let value = rest.get(..length).ok_or(Fault("an extension is cut short"))?;
        at += 3;
        if kind == CRC32C {
            let value = <[u8; 4]>::try_from(value).map_err(|_| Fault("its checksum has not four octets"))?;
            // A second checksum is an error: each checksum is computed with only its own octets set to 0, so two
            // checksums cannot both be right.
            let right = crc32c(&[&header[..at], &[0; 4], &header[at + 4..]].concat());
            if has_checksum || u32::from_be_bytes(value) != right {
                return Err(Fault("its checksum is wrong"));
            }
            has_checksum = true;
        }
        at += length;
    }
    Ok(())
}

/// Computes CRC-32C (RFC 9260, appendix A), bit by bit. This is fast enough, because a header is short, and few headers
/// have a checksum.
fn crc32c(octets: &[u8]) -> u32 {
    /// Castagnoli's polynomial, its bits in reverse.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    !octets.iter().fold(!0, |crc, octet| {
        (0..8).fold(crc ^ u32::from(*octet), |crc, _| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ POLYNOMIAL })
    })
}

/// Returns the client's address in canonical form, if a client can have this address. No TCP connection comes from an
/// unspecified, multicast or broadcast address. A proxy that names such an address is broken, and all its clients would
/// share one budget.
fn possible(client: IpAddr) -> Result<IpAddr, Fault> {
    let client = client.to_canonical();
    let is_broadcast = client == IpAddr::V4(Ipv4Addr::BROADCAST);
    if client.is_unspecified() || client.is_multicast() || is_broadcast {
        return Err(Fault("no client can have the address it names"));
    }
    Ok(client)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a header of version 2 with its correct length.
    fn binary(command: u8, protocol: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, protocol], &length, rest].concat()
    }

    /// Addresses and ports of version 2: from 192.0.2.7 to 198.51.100.1.
    const BLOCK4: [u8; 12] = [192, 0, 2, 7, 198, 51, 100, 1, 0xdd, 0x88, 2, 75];

    fn block6(source: &str) -> Vec<u8> {
        let source: Ipv6Addr = source.parse().unwrap();
        [&source.octets()[..], &Ipv6Addr::LOCALHOST.octets(), &[0xdd, 0x88, 2, 75]].concat()
    }

    fn with_checksum(mut rest: Vec<u8>) -> Vec<u8> {
        rest.extend([CRC32C, 0, 4, 0, 0, 0, 0]);
        let sum = crc32c(&binary(0x21, TCP4, &rest)).to_be_bytes();
        let at = rest.len() - 4;
        rest[at..].copy_from_slice(&sum);
        rest
    }

    /// Returns good headers, each with the client that it names.
    fn good() -> Vec<(Vec<u8>, Option<&'static str>)> {
        let line = |line: &str| format!("{line}\r\n").into_bytes();
        let extensions = [&BLOCK4[..], &[0x04, 0, 0, 0xe0, 0, 2, 7, 7]].concat();
        let longest = [&BLOCK4[..], &[0x02, 0x0f, 0xf1], &[b'x'; LONGEST_REST - 15]].concat();
        vec![
            (line("PROXY TCP4 192.0.2.7 198.51.100.1 56712 587"), Some("192.0.2.7")),
            (line("PROXY TCP4 255.255.255.254 255.255.255.255 65535 65535"), Some("255.255.255.254")),
            (line("PROXY TCP4 192.0.2.7 0.0.0.0 0 0"), Some("192.0.2.7")),
            (line("PROXY TCP6 2001:db8::7 2001:DB8:0:0:0:0:0:1 56712 587"), Some("2001:db8::7")),
            (
                line(
                    "PROXY TCP6 2001:db8:1111:2222:3333:4444:5555:6666 2001:db8:1111:2222:3333:4444:5555:6666 65535 65535",
                ),
                Some("2001:db8:1111:2222:3333:4444:5555:6666"),
            ),
            // An IPv4 client of a proxy's dual-stack socket.
            (line("PROXY TCP6 ::ffff:192.0.2.7 ::ffff:198.51.100.1 1 587"), Some("192.0.2.7")),
            (line("PROXY UNKNOWN"), None),
            (line("PROXY UNKNOWN "), None),
            (line("PROXY UNKNOWN 192.0.2.7 \0\x7f what ever"), None),
            (line(&format!("PROXY UNKNOWN {}", "f".repeat(91))), None),
            (binary(0x21, TCP4, &BLOCK4), Some("192.0.2.7")),
            (binary(0x21, TCP6, &block6("2001:db8::7")), Some("2001:db8::7")),
            (binary(0x21, TCP6, &block6("::ffff:192.0.2.7")), Some("192.0.2.7")),
            (binary(0x21, TCP4, &extensions), Some("192.0.2.7")),
            (binary(0x21, TCP4, &longest), Some("192.0.2.7")),
            (binary(0x21, TCP4, &with_checksum(BLOCK4.to_vec())), Some("192.0.2.7")),
            (binary(0x21, TCP4, &with_checksum(extensions)), Some("192.0.2.7")),
            (binary(0x21, UNSPECIFIED, b""), None),
            (binary(0x21, UNSPECIFIED, b"what ever"), None),
            (binary(0x21, UNIX, &[0; 216]), None),
            (binary(0x20, UNSPECIFIED, b""), None),
            (binary(0x20, TCP4, &BLOCK4), None),
            (binary(0x20, 0xff, b"what ever"), None),
        ]
    }

    #[test]
    fn a_good_header_names_the_client_and_octets_after_it_are_ignored() {
        for (header, client) in good() {
            let expected =
                Header::Complete { client: client.map(|client| client.parse().unwrap()), length: header.len() };
            for after in [&b""[..], b"EHLO client.example\r\n", b"\r\n", b"\x16\x03\x01", b"PROXY UNKNOWN\r\n"] {
                let bytes = [&header[..], after].concat();
                assert_eq!(parse(&bytes), Ok(expected), "{:?}", bytes.escape_ascii().to_string());
            }
        }
    }

    #[test]
    fn an_incomplete_header_never_asks_for_octets_after_its_end() {
        for (header, _) in good() {
            for cut in 0..header.len() {
                let Ok(Header::Incomplete { more }) = parse(&header[..cut]) else { panic!("{cut} of {header:?}") };
                assert!((1..=header.len() - cut).contains(&more), "{more} after {cut} of {header:?}");
            }
        }
    }

    #[test]
    fn a_wrong_line_is_refused() {
        let too_long = format!("PROXY UNKNOWN {}\r\n", "f".repeat(92));
        for (line, words) in [
            ("EHLO client.example\r\n", "does not begin"),
            ("proxy TCP4 192.0.2.7 198.51.100.1 1 587\r\n", "does not begin"),
            (" PROXY UNKNOWN\r\n", "does not begin"),
            ("PROXY\tUNKNOWN\r\n", "does not begin"),
            ("PROXY\r\n", "does not begin"),
            ("PROXY \r\n", "not made of"),
            ("PROXY  UNKNOWN\r\n", "not made of"),
            ("PROXY unknown\r\n", "not made of"),
            ("PROXY UNKNOWN4\r\n", "not made of"),
            ("PROXY TCP4\r\n", "not made of"),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 1\r\n", "not made of"),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 1 587 \r\n", "not made of"),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 1 587 x\r\n", "not made of"),
            ("PROXY TCP4  192.0.2.7 198.51.100.1 1 587\r\n", "not made of"),
            ("PROXY TCP4 192.0.2.7\t198.51.100.1 1 587\r\n", "not made of"),
            ("PROXY TCP5 192.0.2.7 198.51.100.1 1 587\r\n", "protocol is not"),
            ("PROXY UDP4 192.0.2.7 198.51.100.1 1 587\r\n", "protocol is not"),
            ("PROXY tcp4 192.0.2.7 198.51.100.1 1 587\r\n", "protocol is not"),
            ("PROXY TCP6 192.0.2.7 198.51.100.1 1 587\r\n", "an address"),
            ("PROXY TCP4 2001:db8::7 2001:db8::1 1 587\r\n", "an address"),
            ("PROXY TCP4 192.0.2.7 2001:db8::1 1 587\r\n", "an address"),
            ("PROXY TCP4 192.0.2.07 198.51.100.1 1 587\r\n", "an address"),
            ("PROXY TCP4 192.0.2.256 198.51.100.1 1 587\r\n", "an address"),
            ("PROXY TCP4 192.0.2 198.51.100.1 1 587\r\n", "an address"),
            ("PROXY TCP4 3221225991 198.51.100.1 1 587\r\n", "an address"),
            ("PROXY TCP4 0xc0.0.2.7 198.51.100.1 1 587\r\n", "an address"),
            ("PROXY TCP4 192.0.2.7 198.51.100 1 587\r\n", "an address"),
            ("PROXY TCP4 192.0.2.7 example.org 1 587\r\n", "an address"),
            ("PROXY TCP4 192.0.2.\u{664} 198.51.100.1 1 587\r\n", "an address"),
            ("PROXY TCP6 2001:db8::7::1 2001:db8::1 1 587\r\n", "an address"),
            ("PROXY TCP6 2001:db8:7 2001:db8::1 1 587\r\n", "an address"),
            ("PROXY TCP6 2001:db8::00007 2001:db8::1 1 587\r\n", "an address"),
            ("PROXY TCP6 fe80::7%eth0 2001:db8::1 1 587\r\n", "an address"),
            ("PROXY TCP6 [2001:db8::7] 2001:db8::1 1 587\r\n", "an address"),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 01 587\r\n", "port"),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 +1 587\r\n", "port"),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 -1 587\r\n", "port"),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 65536 587\r\n", "port"),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 1 0x24b\r\n", "port"),
            ("PROXY TCP4 192.0.2.7 198.51.100.1  587\r\n", "port"),
            ("PROXY TCP4 0.0.0.0 198.51.100.1 1 587\r\n", "no client"),
            ("PROXY TCP4 224.0.0.1 198.51.100.1 1 587\r\n", "no client"),
            ("PROXY TCP4 255.255.255.255 198.51.100.1 1 587\r\n", "no client"),
            ("PROXY TCP6 :: 2001:db8::1 1 587\r\n", "no client"),
            ("PROXY TCP6 ff02::1 2001:db8::1 1 587\r\n", "no client"),
            ("PROXY TCP6 ::ffff:0.0.0.0 2001:db8::1 1 587\r\n", "no client"),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 1 587\n", "bare"),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 1 587\r\r\n", "bare"),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 1\r587\r\n", "bare"),
            ("PROXY UNKNOWN\n", "bare"),
            ("PROXY UNKNOWN\n\r\n", "bare"),
            ("PROXY UNKNOWN \r \r\n", "bare"),
            (&too_long, "too long"),
            (&format!("PROXY {}", "x".repeat(5000)), "too long"),
        ] {
            let found = parse(line.as_bytes());
            assert!(found.is_err_and(|fault| fault.0.contains(words)), "{line:?}: {found:?}");
        }
    }

    #[test]
    fn a_wrong_binary_header_is_refused() {
        let mut bad_sum = with_checksum(BLOCK4.to_vec());
        bad_sum[3] ^= 1;
        let more = |more: &[u8]| [&BLOCK4[..], more].concat();
        let mut other_signature = binary(0x21, TCP4, &BLOCK4);
        other_signature[11] = b'\r';
        let mut too_long = binary(0x21, TCP4, &[0; LONGEST_REST + 1]);
        too_long[FIXED..FIXED + 12].copy_from_slice(&BLOCK4);
        for (header, words) in [
            (other_signature, "does not begin"),
            (binary(0x11, TCP4, &BLOCK4), "version"),
            (binary(0x31, TCP4, &BLOCK4), "version"),
            (binary(0x01, TCP4, &BLOCK4), "version"),
            (binary(0x22, TCP4, &BLOCK4), "command"),
            (binary(0x2f, TCP4, &BLOCK4), "command"),
            (binary(0x21, 0x12, &BLOCK4), "not TCP"),
            (binary(0x21, 0x22, &block6("2001:db8::7")), "not TCP"),
            (binary(0x21, 0x32, &[0; 216]), "not TCP"),
            (binary(0x21, 0x01, b""), "not TCP"),
            (binary(0x21, 0x10, &BLOCK4), "not TCP"),
            (binary(0x21, 0x41, &BLOCK4), "not TCP"),
            (binary(0x21, 0x1f, &BLOCK4), "not TCP"),
            (binary(0x21, TCP4, b""), "addresses are cut short"),
            (binary(0x21, TCP4, &BLOCK4[..11]), "addresses are cut short"),
            (binary(0x21, TCP6, &BLOCK4), "addresses are cut short"),
            (binary(0x21, TCP6, &block6("2001:db8::7")[..35]), "addresses are cut short"),
            (binary(0x21, UNIX, &[0; 215]), "addresses are cut short"),
            (binary(0x21, TCP4, &[0; 12]), "no client"),
            (binary(0x21, TCP4, &[&[239], &BLOCK4[1..]].concat()), "no client"),
            (binary(0x21, TCP6, &block6("ff02::1")), "no client"),
            (binary(0x21, TCP6, &block6("::")), "no client"),
            (binary(0x21, TCP4, &more(&[4])), "extension"),
            (binary(0x21, TCP4, &more(&[4, 0])), "extension"),
            (binary(0x21, TCP4, &more(&[4, 0, 1])), "extension"),
            (binary(0x21, TCP4, &more(&[4, 0, 1, 7, 4, 0, 2, 7])), "extension"),
            (binary(0x21, TCP4, &more(&[4, 0xff, 0xff, 7])), "extension"),
            (binary(0x21, UNIX, &[0; 217]), "extension"),
            (binary(0x21, TCP4, &bad_sum), "checksum"),
            (binary(0x21, TCP4, &more(&[CRC32C, 0, 0])), "checksum"),
            (binary(0x21, TCP4, &more(&[CRC32C, 0, 3, 1, 2, 3])), "checksum"),
            (binary(0x21, TCP4, &more(&[CRC32C, 0, 4, 0, 0, 0, 0])), "checksum"),
            (binary(0x21, TCP4, &with_checksum(with_checksum(BLOCK4.to_vec()))), "checksum"),
            (too_long, "too long"),
        ] {
            let found = parse(&header);
            assert!(found.is_err_and(|fault| fault.0.contains(words)), "{header:?}: {words}: {found:?}");
        }
    }

    #[test]
    fn a_header_that_is_too_long_is_refused_before_it_is_complete() {
        let header = binary(0x20, UNSPECIFIED, &[0; LONGEST_REST + 1]);
        assert_eq!(parse(&header[..FIXED]), Err(Fault("it is too long")));
        let line = b"PROXY UNKNOWN ".iter().chain(&[b'x'; 200]).copied().collect::<Vec<u8>>();
        assert!(parse(&line[..LONGEST_TEXT - 2]).is_ok());
        assert_eq!(parse(&line[..LONGEST_TEXT - 1]), Err(Fault("its line is too long")));
    }

    #[test]
    fn octets_after_a_header_with_one_changed_octet_make_no_difference() {
        for (header, _) in good().into_iter().filter(|(header, _)| header.len() < 300) {
            for (at, octet) in (0..header.len()).flat_map(|at| (0..=255).map(move |octet| (at, octet))) {
                let mut changed = header.clone();
                changed[at] = octet;
                let alone = parse(&changed);
                if !matches!(alone, Ok(Header::Incomplete { .. })) {
                    assert_eq!(parse(&[&changed[..], b"EHLO\r\n"].concat()), alone, "{octet} at {at} of {header:?}");
                }
            }
        }
    }

    #[test]
    fn the_checksum_is_crc_32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
