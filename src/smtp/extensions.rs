//! What a server offers beyond plain SMTP, as its reply to EHLO says (RFC 5321 §4.1.1.1).

use super::attributes::Attributes;
use super::reply::Reply;

/// The extensions of an upstream that matter to Weir.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// RFC 2920.
    pub pipelining: bool,
    /// RFC 3207.
    pub start_tls: bool,
    /// RFC 6152.
    pub eight_bit_mime: bool,
    /// RFC 6531.
    pub smtp_utf8: bool,
    /// RFC 3461.
    pub dsn: bool,
    /// RFC 8689.
    pub require_tls: bool,
    /// RFC 1870: the largest message in octets, 0 if it does not say.
    pub size: Option<u64>,
    /// RFC 9422: the most recipients of a message.
    pub max_recipients: Option<usize>,
    /// RFC 4954, with these mechanisms.
    pub auth_plain: bool,
    pub auth_login: bool,
    /// What it lets itself be told of a client (Postfix's XCLIENT_README and XFORWARD_README).
    pub xclient: Attributes,
    pub xforward: Attributes,
}

impl Extensions {
    /// From the reply to EHLO: the first line is a greeting, each further one an extension.
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
                    _ => {}
                }),
                "XCLIENT" => offered.xclient = Attributes::named(words),
                "XFORWARD" => offered.xforward = Attributes::named(words),
                "LIMITS" => offered.max_recipients = words.find_map(max_recipients),
                _ => {}
            }
        }
        // RFC 6531 §3.1 has it only together.
        offered.smtp_utf8 &= offered.eight_bit_mime;
        offered
    }

    /// Whether the other offers clients all of this, and perhaps more.
    pub fn is_within(&self, other: &Self) -> bool {
        let flags = [
            (self.pipelining, other.pipelining),
            (self.start_tls, other.start_tls),
            (self.eight_bit_mime, other.eight_bit_mime),
            (self.smtp_utf8, other.smtp_utf8),
            (self.dsn, other.dsn),
            (self.require_tls, other.require_tls),
        ];
        // No limit is more than any.
        let most = |limit: Option<u64>| limit.filter(|limit| *limit > 0).unwrap_or(u64::MAX);
        let recipients = |limit: Option<usize>| limit.unwrap_or(usize::MAX);
        flags.iter().all(|(ours, theirs)| !ours || *theirs)
            && most(self.size) <= most(other.size)
            && recipients(self.max_recipients) <= recipients(other.max_recipients)
    }

    /// As EHLO writes them, in one line.
    pub fn names(&self) -> String {
        let flags = [
            (self.pipelining, "PIPELINING"),
            (self.start_tls, "STARTTLS"),
            (self.eight_bit_mime, "8BITMIME"),
            (self.smtp_utf8, "SMTPUTF8"),
            (self.dsn, "DSN"),
            (self.require_tls, "REQUIRETLS"),
            (self.auth_plain, "AUTH PLAIN"),
            (self.auth_login, "AUTH LOGIN"),
        ];
        let mut names: Vec<String> =
            flags.iter().filter(|(offered, _)| *offered).map(|(_, name)| (*name).to_owned()).collect();
        names.extend(self.size.map(|limit| format!("SIZE {limit}")));
        names.extend(self.max_recipients.map(|most| format!("LIMITS RCPTMAX={most}")));
        for (name, taken) in [("XCLIENT", self.xclient), ("XFORWARD", self.xforward)] {
            if !taken.is_empty() {
                names.push(format!("{name} {}", taken.names()));
            }
        }
        names.join(", ")
    }
}

fn max_recipients(limit: &str) -> Option<usize> {
    let (name, value) = limit.split_once('=')?;
    let value = value.parse().ok().filter(|most| *most > 0);
    value.filter(|_| name.eq_ignore_ascii_case("RCPTMAX"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_ehlo_says() {
        let lines = [
            "mx hello DSN",
            "pipelining",
            "AUTH CRAM-MD5 login",
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
            auth_login: true,
            xforward: Attributes::named("ADDR IDENT".split(' ')),
            ..Extensions::default()
        };
        assert_eq!(Extensions::from_ehlo(&Reply::lines(250, lines)), expected);
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
