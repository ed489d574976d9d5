//! The one header line that Weir adds: `Received:` (RFC 5321 §4.4).

use std::net::IpAddr;

/// What a `Received:` line tells.
#[derive(Clone, Debug)]
pub struct Received<'a> {
    /// What the client called itself.
    pub helo: &'a str,
    pub client: IpAddr,
    /// This server.
    pub by: &'a str,
    /// EHLO rather than HELO.
    pub extended: bool,
    /// TLS version and cipher suite, where TLS was used.
    pub tls: Option<(&'a str, &'a str)>,
    pub user: Option<&'a str>,
    /// The session's id.
    pub id: &'a str,
    /// Date and time as RFC 5322 §3.3 writes them.
    pub date: &'a str,
}

impl Received<'_> {
    /// The header line, folded, with its CRLF.
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

    /// The keyword after `with` (RFC 3848). HELO has no keyword for TLS or AUTH, neither of which it can have begun.
    fn protocol(&self) -> &'static str {
        match (self.extended, self.tls.is_some(), self.user.is_some()) {
            (false, ..) => "SMTP",
            (true, false, false) => "ESMTP",
            (true, false, true) => "ESMTPA",
            (true, true, false) => "ESMTPS",
            (true, true, true) => "ESMTPSA",
        }
    }
}

/// The address as an address literal (RFC 5321 §4.1.3).
fn literal(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("[{address}]"),
        IpAddr::V6(address) => format!("[IPv6:{address}]"),
    }
}

/// Text within a comment: what could end it is escaped, what is no printable ASCII is replaced, and it fits a line (RFC 5322 §3.2.2).
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

#[cfg(test)]
mod tests {
    use super::*;

    fn received<'a>(user: Option<&'a str>, tls: Option<(&'a str, &'a str)>) -> Received<'a> {
        Received {
            helo: "pc.example",
            client: "192.0.2.7".parse().unwrap(),
            by: "smtp.example.org",
            extended: true,
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
    fn no_user_name_breaks_the_header() {
        let line = received(Some("a)\r\nX: (\\\u{e9}"), None).to_line();
        assert!(line.contains("(authenticated user a\\)??X: \\(\\\\?)"), "{line}");
        for part in line.trim_end_matches("\r\n").split("\r\n").skip(1) {
            assert!(part.starts_with('\t') && part.len() < 998, "{part}");
        }
    }
}
