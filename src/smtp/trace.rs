//! `Received:` lines (RFC 5321 §4.4): writes the line that Weir adds to a message, and counts the lines that the
//! message already has, to find mail loops.

use memchr::memchr;
use std::net::IpAddr;

/// Contents of the `Received:` line that Weir adds.
#[derive(Clone, Debug)]
pub struct Received<'a> {
    /// The client's HELO name.
    pub helo: &'a str,
    pub client: IpAddr,
    /// Host name of this Weir.
    pub by: &'a str,
    /// True if the client used EHLO, not HELO.
    pub extended: bool,
    /// True if MAIL had the parameter SMTPUTF8.
    pub utf8: bool,
    /// TLS version and cipher suite, if the client used TLS.
    pub tls: Option<(&'a str, &'a str)>,
    pub user: Option<&'a str>,
    /// The session's id.
    pub id: &'a str,
    /// Date and time in the format of RFC 5322 §3.3.
    pub date: &'a str,
}

impl Received<'_> {
    /// Returns the header line, folded, with its final CRLF.
    pub fn to_line(&self) -> String {
        let with = self.protocol();
        let mut line = format!("Received: from {} ({})\r\n", self.helo, literal(self.client));
        if let Some(user) = self.user {
            line.push_str(&format!("\t(authenticated user {})\r\n", comment(user)));
        }
        line.push_str(&format!("\tby {} (Weir) with {with} id {}", self.by, self.id));
        if let Some((version, cipher)) = self.tls {
            line.push_str(&format!("\r\n\t(using {version} with cipher {cipher})"));
        }
        line.push_str(&format!(";\r\n\t{}\r\n", self.date));
        line
    }

    /// Returns the protocol name after `with` (RFC 3848, RFC 6531 §4.3). After HELO it is always SMTP.
    fn protocol(&self) -> String {
        if !self.extended {
            return "SMTP".to_owned();
        }
        let base = if self.utf8 { "UTF8SMTP" } else { "ESMTP" };
        let (tls, user) = (self.tls.map_or("", |_| "S"), self.user.map_or("", |_| "A"));
        format!("{base}{tls}{user}")
    }
}

/// Writes an address literal (RFC 5321 §4.1.3).
fn literal(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("[{address}]"),
        IpAddr::V6(address) => format!("[IPv6:{address}]"),
    }
}

/// Returns the text in a form for a comment in a header (RFC 5322 §3.2.2): escapes characters that could end the
/// comment, replaces all characters except printable ASCII by `?`, and cuts the text after 200 characters so that it
/// fits into a line.
fn comment(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(200) {
        match c {
            '(' | ')' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => out.push('?'),
        }
    }
    out
}

/// Counter of the `Received:` lines in a message's header. There is one line for each server through which the message
/// has passed.
#[derive(Debug, Default)]
pub struct Hops {
    count: usize,
    line: HeaderLine,
}

#[derive(Clone, Copy, Debug)]
enum HeaderLine {
    /// This number of octets of the line have been read, and all of them match the field name `Received`.
    Name(usize),
    /// The whole field name `Received` has been read. A colon must follow, directly or after blanks (RFC 5322 §4.5).
    Named,
    Other,
    /// The header has ended, and the body has begun.
    Body,
}

impl Default for HeaderLine {
    fn default() -> Self {
        Self::Name(0)
    }
}

/// Maximum number of `Received:` lines. RFC 5321 §6.3 asks for a maximum of "normally at least 100".
const MAX_HOPS: usize = 100;

const FIELD_NAME: &[u8] = b"received";

impl Hops {
    /// Reads the next octets of the message, in pieces of any length.
    pub fn read(&mut self, mut octets: &[u8]) {
        while !octets.is_empty() {
            self.line = match self.line {
                HeaderLine::Body => return,
                HeaderLine::Name(0) if octets[0] == b'\r' => HeaderLine::Body,
                HeaderLine::Name(at) if octets[0].eq_ignore_ascii_case(&FIELD_NAME[at]) => {
                    octets = &octets[1..];
                    if at + 1 < FIELD_NAME.len() { HeaderLine::Name(at + 1) } else { HeaderLine::Named }
                }
                HeaderLine::Named if matches!(octets[0], b' ' | b'\t') => {
                    octets = &octets[1..];
                    HeaderLine::Named
                }
                HeaderLine::Named => {
                    self.count += usize::from(octets[0] == b':');
                    HeaderLine::Other
                }
                HeaderLine::Name(_) | HeaderLine::Other => match memchr(b'\n', octets) {
                    Some(end) => {
                        octets = &octets[end + 1..];
                        HeaderLine::Name(0)
                    }
                    None => {
                        octets = &[];
                        HeaderLine::Other
                    }
                },
            };
        }
    }

    /// Returns whether the message has so many `Received:` lines that it must be in a mail loop.
    pub fn is_loop(&self) -> bool {
        self.count > MAX_HOPS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_are_counted_in_the_header_alone_however_the_octets_are_cut() {
        let message = b"Received: a\r\n\tfolded received: x\r\nRECEIVED: b\r\nReceive: no\r\nX-Received: no\r\nreceived\t :c\r\nReceived x: no\r\nRec\r\n\r\nReceived: body\r\n";
        for cut in 0..message.len() {
            let mut hops = Hops::default();
            hops.read(&message[..cut]);
            hops.read(&message[cut..]);
            assert_eq!(hops.count, 3, "cut at {cut}");
        }
        let mut hops = Hops::default();
        hops.read(&b"Received: x\r\n".repeat(100));
        assert!(!hops.is_loop());
        hops.read(b"Received: x\r\n");
        assert!(hops.is_loop());
    }

    fn received<'a>(user: Option<&'a str>, tls: Option<(&'a str, &'a str)>) -> Received<'a> {
        Received {
            helo: "pc.example",
            client: "192.0.2.7".parse().unwrap(),
            by: "smtp.example.org",
            extended: true,
            utf8: false,
            tls,
            user,
            id: "abc",
            date: "Sat, 21 Nov 2026 10:00:00 +0000",
        }
    }

    #[test]
    fn the_keyword_is_that_of_rfc_3848() {
        let tls = Some(("TLSv1.3", "TLS13_AES_256_GCM_SHA384"));
        for (user, tls, keyword) in
            [(None, None, "ESMTP"), (Some("u"), None, "ESMTPA"), (None, tls, "ESMTPS"), (Some("u"), tls, "ESMTPSA")]
        {
            let line = received(user, tls).to_line();
            assert!(line.contains(&format!(" with {keyword} id abc")), "{line}");
        }
    }

    #[test]
    fn a_message_in_utf8_says_so() {
        let tls = Some(("TLSv1.3", "TLS13_AES_256_GCM_SHA384"));
        let line = Received { utf8: true, ..received(Some("u"), tls) }.to_line();
        assert!(line.contains(" with UTF8SMTPSA id abc"), "{line}");
    }

    #[test]
    fn no_user_name_breaks_the_header() {
        let line = received(Some("a)\r\nX: (\\\u{e9}"), None).to_line();
        assert!(line.contains("(authenticated user a\\)??X: \\(\\\\?)"), "{line}");
        for part in line.trim_end_matches("\r\n").split("\r\n").skip(1) {
            assert!(part.starts_with('\t') && part.len() < 998, "{part}");
        }
    }
}
