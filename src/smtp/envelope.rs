//! Parser of MAIL and RCPT with their parameters. Checks the parameters, and keeps them in the client's spelling,
//! because Weir sends them to the upstream.

use super::address::{self, Path};
use super::extensions::Extensions;
use super::reply::Reply;

/// Arguments of MAIL: the sender, and the parameters that Weir knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    pub sender: Path,
    /// SIZE: message size in octets as declared by the client (RFC 1870).
    pub size: Option<u64>,
    /// BODY: encoding of the body (RFC 6152).
    pub body: Option<Body>,
    /// SMTPUTF8: addresses and headers are allowed to contain UTF-8 (RFC 6531).
    pub smtp_utf8: bool,
    /// REQUIRETLS: every hop must use TLS (RFC 8689).
    pub require_tls: bool,
    /// RET: a bounce quotes the whole message (FULL) or only its header (HDRS) (RFC 3461 §4.3).
    pub ret: Option<Box<str>>,
    /// ENVID: identifier of the message, encoded as xtext; bounces repeat this identifier (RFC 3461 §4.4).
    pub envid: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    SevenBit,
    EightBitMime,
}

/// Arguments of RCPT: the recipient, and the parameters that Weir knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rcpt {
    pub recipient: Path,
    /// NOTIFY: the events about which the sender wants a notification (RFC 3461 §4.1).
    pub notify: Option<Box<str>>,
    /// ORCPT: the original recipient, with the address type (RFC 3461 §4.2, RFC 6533 §3).
    pub orcpt: Option<Box<str>>,
}

/// Maximum octets of ENVID (RFC 3461 §4.4).
const MAX_ENVID: usize = 100;
/// Maximum octets of ORCPT (RFC 3461 §4.2).
const MAX_ORCPT: usize = 500;

impl Mail {
    /// Returns whether a server that offers these extensions supports all parameters and accepts the declared size.
    pub fn is_within(&self, offered: &Extensions) -> bool {
        self.unsupported(offered).is_none() && !self.is_too_large_for(offered)
    }

    /// Returns whether the declared size exceeds the maximum size of a server that offers these extensions (RFC 1870
    /// §6.1).
    pub fn is_too_large_for(&self, offered: &Extensions) -> bool {
        let max = offered.size.filter(|max| *max > 0);
        self.size.zip(max).is_some_and(|(size, max)| size > max)
    }

    /// Creates MAIL without parameters.
    pub fn new(sender: Path) -> Self {
        Self { sender, size: None, body: None, smtp_utf8: false, require_tls: false, ret: None, envid: None }
    }

    /// Parses the arguments of MAIL. Returns the reply to the client as the error.
    pub fn parse(arguments: &str) -> Result<Self, Reply> {
        let (sender, parameters) =
            path_after("FROM:", arguments).ok_or_else(|| Reply::new(501, "5.1.7 Say MAIL FROM:<address>"))?;
        if matches!(sender, Path::Postmaster(_)) {
            return Err(Reply::new(501, "5.1.7 A sender has a domain"));
        }
        let mut mail = Self::new(sender);
        let mut seen_auth = false;
        for parameter in parameters {
            let (name, value) = split(parameter);
            let repeated = match (name.as_str(), value) {
                ("SIZE", Some(value)) => mail.size.replace(size(value)?).is_some(),
                ("BODY", Some(value)) => mail.body.replace(body(value)?).is_some(),
                ("SMTPUTF8", None) => std::mem::replace(&mut mail.smtp_utf8, true),
                ("REQUIRETLS", None) => std::mem::replace(&mut mail.require_tls, true),
                ("RET", Some(value)) => mail.ret.replace(ret(value)?).is_some(),
                ("ENVID", Some(value)) => mail.envid.replace(envid(value)?).is_some(),
                // AUTH (RFC 4954 §5) is accepted, but not sent to the upstream, because the upstream has no reason to
                // trust its value.
                ("AUTH", Some(value)) => {
                    submitter(value)?;
                    std::mem::replace(&mut seen_auth, true)
                }
                ("SIZE" | "BODY" | "SMTPUTF8" | "REQUIRETLS" | "RET" | "ENVID" | "AUTH", _) => {
                    return Err(malformed("MAIL", &name));
                }
                _ => return Err(unknown("MAIL", &name)),
            };
            if repeated {
                return Err(twice("MAIL", &name));
            }
        }
        Ok(mail)
    }

    /// Returns the name of the first parameter that the client used and a server with these extensions does not
    /// support. `None` if the server supports all of them.
    pub fn unsupported(&self, offered: &Extensions) -> Option<&'static str> {
        let wanted = [
            (self.body == Some(Body::EightBitMime), offered.eight_bit_mime, "BODY"),
            (self.smtp_utf8, offered.smtp_utf8, "SMTPUTF8"),
            (self.require_tls, offered.require_tls, "REQUIRETLS"),
            (self.ret.is_some(), offered.dsn, "RET"),
            (self.envid.is_some(), offered.dsn, "ENVID"),
        ];
        first_unsupported(&wanted)
    }
}

impl Rcpt {
    /// Returns the total octets of the address and of the parameter values.
    pub fn octets(&self) -> usize {
        let parameters = [&self.notify, &self.orcpt].map(|value| value.as_ref().map_or(0, |value| value.len()));
        self.recipient.octets() + parameters.iter().sum::<usize>()
    }

    /// Creates RCPT without parameters.
    pub fn new(recipient: Path) -> Self {
        Self { recipient, notify: None, orcpt: None }
    }

    /// Parses the arguments of RCPT. Returns the reply to the client as the error.
    pub fn parse(arguments: &str) -> Result<Self, Reply> {
        let (recipient, parameters) =
            path_after("TO:", arguments).ok_or_else(|| Reply::new(501, "5.1.3 Say RCPT TO:<address>"))?;
        if recipient == Path::Null {
            return Err(Reply::new(501, "5.1.3 A recipient is not empty"));
        }
        let mut rcpt = Self::new(recipient);
        for parameter in parameters {
            let (name, value) = split(parameter);
            let repeated = match (name.as_str(), value) {
                ("NOTIFY", Some(value)) => rcpt.notify.replace(notify(value)?).is_some(),
                ("ORCPT", Some(value)) => rcpt.orcpt.replace(orcpt(value)?).is_some(),
                ("NOTIFY" | "ORCPT", _) => return Err(malformed("RCPT", &name)),
                _ => return Err(unknown("RCPT", &name)),
            };
            if repeated {
                return Err(twice("RCPT", &name));
            }
        }
        Ok(rcpt)
    }

    /// Returns the name of the first parameter that the client used and a server with these extensions does not
    /// support. `None` if the server supports all of them.
    pub fn unsupported(&self, offered: &Extensions) -> Option<&'static str> {
        first_unsupported(&[
            (self.notify.is_some(), offered.dsn, "NOTIFY"),
            (self.orcpt.is_some(), offered.dsn, "ORCPT"),
        ])
    }

    /// Returns whether the recipient and ORCPT are in ASCII, so that a server without SMTPUTF8 accepts them.
    pub fn is_ascii(&self) -> bool {
        self.recipient.is_ascii() && self.orcpt.as_ref().is_none_or(|orcpt| orcpt.is_ascii())
    }
}

/// Returns the name of the first parameter that the client gave and the server does not support. Each item says whether
/// the client gave the parameter, whether the server supports it, and its name.
fn first_unsupported(wanted: &[(bool, bool, &'static str)]) -> Option<&'static str> {
    wanted.iter().find(|(is_given, is_supported, _)| *is_given && !is_supported).map(|(.., name)| *name)
}

fn unknown(verb: &str, name: &str) -> Reply {
    Reply::new(555, format!("5.5.4 {verb} parameter {name} not recognized"))
}

fn malformed(verb: &str, name: &str) -> Reply {
    Reply::new(501, format!("5.5.4 {verb} parameter {name} is malformed"))
}

fn twice(verb: &str, name: &str) -> Reply {
    Reply::new(501, format!("5.5.4 {verb} parameter {name} given twice"))
}

/// Parses the path after `FROM:` or `TO:` and returns it with the words of the parameters. Spaces before the path are
/// accepted, because many clients send a space there, and it is harmless, though RFC 5321 §3.3 forbids it.
fn path_after<'a>(keyword: &str, arguments: &'a str) -> Option<(Path, impl Iterator<Item = &'a str>)> {
    let head = arguments.get(..keyword.len())?;
    if !head.eq_ignore_ascii_case(keyword) {
        return None;
    }
    let (path, rest) = address::parse_path(arguments[keyword.len()..].trim_start_matches(' '))?;
    let stands_apart = rest.is_empty() || rest.starts_with(' ');
    stands_apart.then(|| (path, rest.split(' ').filter(|word| !word.is_empty())))
}

fn split(parameter: &str) -> (String, Option<&str>) {
    match parameter.split_once('=') {
        Some((name, value)) => (name.to_ascii_uppercase(), Some(value)),
        None => (parameter.to_ascii_uppercase(), None),
    }
}

fn size(value: &str) -> Result<u64, Reply> {
    // RFC 1870 allows at most 20 digits. A size that does not fit into u64 becomes the largest u64, which exceeds any
    // limit.
    let digits = (1..=20).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_digit());
    if !digits {
        return Err(Reply::new(501, "5.5.4 SIZE is a number of octets"));
    }
    Ok(value.parse().unwrap_or(u64::MAX))
}

fn body(value: &str) -> Result<Body, Reply> {
    match value.to_ascii_uppercase().as_str() {
        "7BIT" => Ok(Body::SevenBit),
        "8BITMIME" => Ok(Body::EightBitMime),
        _ => Err(Reply::new(501, "5.5.4 BODY is 7BIT or 8BITMIME")),
    }
}

fn ret(value: &str) -> Result<Box<str>, Reply> {
    let known = ["FULL", "HDRS"].iter().any(|word| word.eq_ignore_ascii_case(value));
    if known { Ok(value.into()) } else { Err(Reply::new(501, "5.5.4 RET is FULL or HDRS")) }
}

fn envid(value: &str) -> Result<Box<str>, Reply> {
    if (1..=MAX_ENVID).contains(&value.len()) && is_xtext(value) {
        return Ok(value.into());
    }
    Err(Reply::new(501, format!("5.5.4 ENVID is 1 to {MAX_ENVID} characters of xtext")))
}

fn notify(value: &str) -> Result<Box<str>, Reply> {
    let mut words: Vec<String> = value.split(',').map(str::to_ascii_uppercase).collect();
    let count = words.len();
    words.sort();
    words.dedup();
    let known = words.iter().all(|word| ["SUCCESS", "FAILURE", "DELAY"].contains(&word.as_str()));
    if known && words.len() == count || words == ["NEVER"] && count == 1 {
        return Ok(value.into());
    }
    Err(Reply::new(501, "5.5.4 NOTIFY is NEVER, or some of SUCCESS,FAILURE,DELAY"))
}

fn orcpt(value: &str) -> Result<Box<str>, Reply> {
    let is_type = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let good = value.split_once(';').is_some_and(|(kind, address)| {
        // RFC 6533 §3: an address of type utf-8 is plain UTF-8, or contains escaped characters of the form \x{NN},
        // which are valid xtext.
        let fits = is_xtext(address) || kind.eq_ignore_ascii_case("utf-8") && is_unicode_text(address);
        is_type(kind) && !address.is_empty() && fits
    });
    if good && value.len() <= MAX_ORCPT {
        return Ok(value.into());
    }
    Err(Reply::new(501, "5.5.4 ORCPT is an address type, a semicolon and an address as xtext"))
}

/// Checks the value of MAIL's parameter AUTH: the original submitter as xtext, or `<>` (RFC 4954 §5).
fn submitter(value: &str) -> Result<(), Reply> {
    if value == "<>" || !value.is_empty() && is_xtext(value) {
        return Ok(());
    }
    Err(Reply::new(501, "5.5.4 AUTH is <> or an address as xtext"))
}

/// Returns whether this is xtext: printable ASCII without space and `=`, and `+` only before two hexadecimal digits
/// (RFC 3461 §4). The RFC does not allow lower-case digits, but they are accepted, because they are common.
fn is_xtext(text: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let good = match byte {
            b'+' => bytes.next().zip(bytes.next()).is_some_and(|(a, b)| a.is_ascii_hexdigit() && b.is_ascii_hexdigit()),
            byte => (b'!'..=b'~').contains(&byte) && byte != b'=',
        };
        if !good {
            return false;
        }
    }
    true
}

fn is_unicode_text(text: &str) -> bool {
    text.chars().all(|c| if c.is_ascii() { ('!'..='~').contains(&c) && c != '=' } else { address::is_fit(c) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_parameters_and_keeps_them_as_written() {
        let mail = Mail::parse("FROM:<a@b> ret=hdrs ENVID=QQ+2B314 smtputf8 AUTH=e+3Dmc2@example.com SIZE=7").unwrap();
        assert_eq!((mail.ret.as_deref(), mail.envid.as_deref()), (Some("hdrs"), Some("QQ+2B314")));
        assert_eq!((mail.smtp_utf8, mail.require_tls, mail.size), (true, false, Some(7)));
        let rcpt = Rcpt::parse("TO:<c@d> NOTIFY=success,DELAY ORCPT=rfc822;Bob+2Bx@example.com").unwrap();
        assert_eq!(rcpt.notify.as_deref(), Some("success,DELAY"));
        assert_eq!(rcpt.orcpt.as_deref(), Some("rfc822;Bob+2Bx@example.com"));
        assert!(rcpt.is_ascii());
        for orcpt in ["utf-8;ü@é.example", r"UTF-8;\x{FC}@example.com", "x-other;+41"] {
            let rcpt = Rcpt::parse(&format!("TO:<c@d> ORCPT={orcpt}")).unwrap();
            assert_eq!((rcpt.orcpt.as_deref(), rcpt.is_ascii()), (Some(orcpt), orcpt.is_ascii()));
        }
    }

    #[test]
    fn refuses_wrong_parameters() {
        for (parameter, code) in [
            ("RET=FOO", 501),
            ("BODY", 501),
            ("SIZE", 501),
            ("RET", 501),
            ("ENVID=", 501),
            ("ENVID=a+ZZ", 501),
            ("ENVID=a+4", 501),
            ("ENVID=a=b", 501),
            ("ENVID=é", 501),
            ("ENVID=a ENVID=b", 501),
            ("RET=FULL RET=FULL", 501),
            ("SMTPUTF8=1", 501),
            ("SMTPUTF8 SMTPUTF8", 501),
            ("REQUIRETLS=yes", 501),
            ("REQUIRETLS REQUIRETLS", 501),
            ("AUTH=", 501),
            ("AUTH", 501),
            ("AUTH=<a@b>=", 501),
            ("AUTH=<> AUTH=<>", 501),
            ("NOTIFY=NEVER", 555),
            ("=", 555),
        ] {
            let refused = Mail::parse(&format!("FROM:<a@b> {parameter}"));
            assert_eq!(refused.map_err(|reply| reply.code()), Err(code), "{parameter}");
        }
        let long = format!("ENVID={}", "x".repeat(101));
        assert!(Mail::parse(&format!("FROM:<a@b> {long}")).is_err());
        for (parameter, code) in [
            ("NOTIFY=", 501),
            ("NOTIFY=NEVER,SUCCESS", 501),
            ("NOTIFY=NEVER,NEVER", 501),
            ("NOTIFY=SUCCESS,SUCCESS", 501),
            ("NOTIFY=MAYBE", 501),
            ("NOTIFY=SUCCESS,", 501),
            ("NOTIFY=SUCCESS NOTIFY=DELAY", 501),
            ("ORCPT=nosemicolon", 501),
            ("ORCPT=;a@b", 501),
            ("ORCPT=rfc822;", 501),
            ("ORCPT=rfc822;é@b", 501),
            ("ORCPT=utf-8;a\u{85}b", 501),
            ("ORCPT=utf-8;a\u{2028}b", 501),
            ("ORCPT=rf c;a", 501),
            ("ORCPT=rfc822;a ORCPT=rfc822;a", 501),
            ("RET=FULL", 555),
        ] {
            let refused = Rcpt::parse(&format!("TO:<a@b> {parameter}"));
            assert_eq!(refused.map_err(|reply| reply.code()), Err(code), "{parameter}");
        }
    }
}
