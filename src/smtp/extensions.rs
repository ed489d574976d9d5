//! Parser of the extensions that a server offers in its reply to EHLO (RFC 5321 §4.1.1.1).

use super::attributes::Attributes;
use super::reply::Reply;
use std::str::FromStr;

/// Extensions that an upstream offers. Only extensions that Weir uses, or offers to its clients, are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// PIPELINING (RFC 2920).
    pub pipelining: bool,
    /// STARTTLS (RFC 3207).
    pub start_tls: bool,
    /// 8BITMIME (RFC 6152).
    pub eight_bit_mime: bool,
    /// SMTPUTF8 (RFC 6531).
    pub smtp_utf8: bool,
    /// DSN (RFC 3461).
    pub dsn: bool,
    /// REQUIRETLS (RFC 8689).
    pub require_tls: bool,
    /// SIZE (RFC 1870): maximum message size in octets; 0 if the server offers SIZE without a maximum.
    pub size: Option<u64>,
    /// LIMITS RCPTMAX (RFC 9422): maximum recipients of a message.
    pub max_recipients: Option<usize>,
    /// LIMITS MAILMAX (RFC 9422): maximum messages on a connection.
    pub max_messages: Option<u32>,
    /// Mechanisms of AUTH (RFC 4954).
    pub auth_plain: bool,
    pub auth_login: bool,
    /// AUTH SCRAM-SHA-256 (RFC 7677).
    pub auth_scram_sha_256: bool,
    /// AUTH XOAUTH2, a mechanism of Google and Microsoft.
    pub auth_xoauth2: bool,
    /// Attributes of a client that the server accepts in XCLIENT (Postfix's XCLIENT_README).
    pub xclient: Attributes,
    /// Attributes of a client that the server accepts in XFORWARD (Postfix's XFORWARD_README).
    pub xforward: Attributes,
}

impl Extensions {
    /// Parses the reply to EHLO: the first line is a greeting, each further line is an extension.
    pub fn from_ehlo(reply: &Reply) -> Self {
        let mut offered = Self::default();
        for line in reply.texts().skip(1) {
            let mut words = line.split(' ').filter(|word| !word.is_empty());
            match words.next().unwrap_or_default().to_ascii_uppercase().as_str() {
                "PIPELINING" => offered.pipelining = true,
                "STARTTLS" => offered.start_tls = true,
                "8BITMIME" => offered.eight_bit_mime = true,
                "SMTPUTF8" => offered.smtp_utf8 = true,
                "DSN" => offered.dsn = true,
                "REQUIRETLS" => offered.require_tls = true,
                "SIZE" => offered.size = Some(words.next().and_then(|limit| limit.parse().ok()).unwrap_or(0)),
                "AUTH" => words.for_each(|mechanism| match mechanism.to_ascii_uppercase().as_str() {
                    "PLAIN" => offered.auth_plain = true,
                    "LOGIN" => offered.auth_login = true,
                    "SCRAM-SHA-256" => offered.auth_scram_sha_256 = true,
                    "XOAUTH2" => offered.auth_xoauth2 = true,
                    _ => {}
                }),
                "XCLIENT" => offered.xclient = Attributes::named(words),
                "XFORWARD" => offered.xforward = Attributes::named(words),
                "LIMITS" => words.for_each(|limit| match limit.split_once('=') {
                    Some((name, value)) if name.eq_ignore_ascii_case("RCPTMAX") => {
                        offered.max_recipients = positive(value)
                    }
                    Some((name, value)) if name.eq_ignore_ascii_case("MAILMAX") => {
                        offered.max_messages = positive(value)
                    }
                    _ => {}
                }),
                _ => {}
            }
        }
        // RFC 6531 §3.1: SMTPUTF8 requires 8BITMIME.
        offered.smtp_utf8 &= offered.eight_bit_mime;
        offered
    }

    /// Returns the extensions that both upstreams offer, with the lower of their limits. Weir can offer these
    /// extensions to a client whose message goes to one of the two upstreams.
    pub fn common(&self, other: &Self) -> Self {
        // 0 means no limit.
        let lower = |a: Option<u64>, b: Option<u64>| match (a.filter(|a| *a > 0), b.filter(|b| *b > 0)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (limit, None) | (None, limit) => limit.or(a.and(b)),
        };
        let fewer = |a: Option<usize>, b: Option<usize>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (limit, None) | (None, limit) => limit,
        };
        Self {
            pipelining: self.pipelining && other.pipelining,
            start_tls: self.start_tls && other.start_tls,
            eight_bit_mime: self.eight_bit_mime && other.eight_bit_mime,
            smtp_utf8: self.smtp_utf8 && other.smtp_utf8,
            dsn: self.dsn && other.dsn,
            require_tls: self.require_tls && other.require_tls,
            size: lower(self.size, other.size),
            max_recipients: fewer(self.max_recipients, other.max_recipients),
            // The other extensions are used only between Weir and an upstream, and are not offered to clients.
            ..Self::default()
        }
    }

    /// Returns whether `other` includes all extensions in `self` that concern clients, with limits that are not lower.
    pub fn is_within(&self, other: &Self) -> bool {
        let flags = [
            (self.pipelining, other.pipelining),
            (self.start_tls, other.start_tls),
            (self.eight_bit_mime, other.eight_bit_mime),
            (self.smtp_utf8, other.smtp_utf8),
            (self.dsn, other.dsn),
            (self.require_tls, other.require_tls),
        ];
        // 0 means no limit.
        let max_size = |limit: Option<u64>| limit.filter(|limit| *limit > 0).unwrap_or(u64::MAX);
        let recipients = |limit: Option<usize>| limit.unwrap_or(usize::MAX);
        flags.iter().all(|(ours, theirs)| !ours || *theirs)
            && max_size(self.size) <= max_size(other.size)
            && recipients(self.max_recipients) <= recipients(other.max_recipients)
    }

    /// Returns the extensions in one line, in the words of a reply to EHLO, separated by commas.
    pub fn names(&self) -> String {
        let flags = [
            (self.pipelining, "PIPELINING"),
            (self.start_tls, "STARTTLS"),
            (self.eight_bit_mime, "8BITMIME"),
            (self.smtp_utf8, "SMTPUTF8"),
            (self.dsn, "DSN"),
            (self.require_tls, "REQUIRETLS"),
            (self.auth_scram_sha_256, "AUTH SCRAM-SHA-256"),
            (self.auth_plain, "AUTH PLAIN"),
            (self.auth_login, "AUTH LOGIN"),
            (self.auth_xoauth2, "AUTH XOAUTH2"),
        ];
        let mut names: Vec<String> =
            flags.iter().filter(|(offered, _)| *offered).map(|(_, name)| (*name).to_owned()).collect();
        names.extend(self.size.map(|limit| format!("SIZE {limit}")));
        names.extend(self.max_recipients.map(|max| format!("LIMITS RCPTMAX={max}")));
        names.extend(self.max_messages.map(|max| format!("LIMITS MAILMAX={max}")));
        for (name, taken) in [("XCLIENT", self.xclient), ("XFORWARD", self.xforward)] {
            if !taken.is_empty() {
                names.push(format!("{name} {}", taken.names()));
            }
        }
        names.join(", ")
    }
}

fn positive<T: FromStr + From<u8> + PartialOrd>(value: &str) -> Option<T> {
    value.parse().ok().filter(|number| *number > T::from(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_reply_to_ehlo() {
        let lines = [
            "mx hello DSN",
            "pipelining",
            "AUTH CRAM-MD5 login SCRAM-SHA-256-PLUS scram-sha-256 XOAUTH2",
            "SIZE 1000",
            "LIMITS MAILMAX=5 RCPTMAX=20",
            "XDSN",
            "xforward ADDR ident WHAT",
            "XCLIENT",
            "SMTPUTF8",
            "8BITMIME",
            "",
        ];
        let expected = Extensions {
            pipelining: true,
            eight_bit_mime: true,
            smtp_utf8: true,
            size: Some(1000),
            max_recipients: Some(20),
            max_messages: Some(5),
            auth_login: true,
            auth_scram_sha_256: true,
            auth_xoauth2: true,
            xforward: Attributes::named("ADDR IDENT".split(' ')),
            ..Extensions::default()
        };
        let offered = Extensions::from_ehlo(&Reply::lines(250, lines));
        assert_eq!(offered, expected);
        assert!(offered.names().contains(", AUTH SCRAM-SHA-256, AUTH LOGIN, AUTH XOAUTH2, "), "{}", offered.names());
    }

    #[test]
    fn common_extensions_have_the_lower_limits() {
        let one = Extensions { dsn: true, size: Some(0), max_recipients: Some(5), ..Extensions::default() };
        let other = Extensions { dsn: true, pipelining: true, size: Some(9), ..Extensions::default() };
        let common = Extensions { dsn: true, size: Some(9), max_recipients: Some(5), ..Extensions::default() };
        assert_eq!((one.common(&other), other.common(&one)), (common, common));
        assert_eq!((one.common(&one), common.common(&Extensions::default()).size), (one, Some(9)));
    }

    #[test]
    fn odd_values_count_as_none() {
        for (line, size, recipients) in [
            ("SIZE", Some(0), None),
            ("SIZE many", Some(0), None),
            ("LIMITS RCPTMAX=0", None, None),
            ("LIMITS RCPTMAX", None, None),
            ("LIMITS RCPTMAX=99999999999999999999999", None, None),
        ] {
            let offered = Extensions::from_ehlo(&Reply::lines(250, ["mx", line]));
            assert_eq!((offered.size, offered.max_recipients), (size, recipients), "{line}");
        }
    }
}
