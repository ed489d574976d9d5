//! Strict parser of mailboxes and paths (RFC 5321 §4.1.2), which also accepts UTF-8 (RFC 6531 §3.3). Weir sends each
//! address to the upstream in the spelling that the client used.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// A parsed reverse-path (MAIL) or forward-path (RCPT). Its text cannot end a command line or begin another parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// `<>`, the sender of bounces.
    Null,
    /// `<postmaster>`, which needs no domain (RFC 5321 §4.5.1).
    Postmaster(Arc<str>),
    /// `<local-part@domain>`.
    Mailbox(Mailbox),
}

/// A mailbox in the spelling that the client used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mailbox {
    text: Arc<str>,
    at: usize,
}

impl Mailbox {
    /// Returns the local part as the client wrote it, with its quotes if it has any.
    pub fn local_part(&self) -> &str {
        &self.text[..self.at]
    }

    /// Returns the domain or address literal as the client wrote it.
    pub fn domain(&self) -> &str {
        &self.text[self.at + 1..]
    }
}

impl Path {
    /// Returns the number of octets between the angle brackets.
    pub fn octets(&self) -> usize {
        match self {
            Self::Null => 0,
            Self::Postmaster(text) => text.len(),
            Self::Mailbox(mailbox) => mailbox.text.len(),
        }
    }

    /// Returns the address without angle brackets: empty for the null path. The text is shared, not copied.
    pub fn text(&self) -> Arc<str> {
        match self {
            Self::Null => Arc::default(),
            Self::Postmaster(text) => text.clone(),
            Self::Mailbox(mailbox) => mailbox.text.clone(),
        }
    }

    /// Returns whether the path is in ASCII, so that a server without SMTPUTF8 accepts it.
    pub fn is_ascii(&self) -> bool {
        match self {
            Self::Null | Self::Postmaster(_) => true,
            Self::Mailbox(mailbox) => mailbox.text.is_ascii(),
        }
    }
}

/// Writes the address without angle brackets; writes nothing for the null path.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => Ok(()),
            Self::Postmaster(text) => f.write_str(text),
            Self::Mailbox(mailbox) => f.write_str(&mailbox.text),
        }
    }
}

/// Maximum octets of a path, with its brackets (RFC 5321 §4.5.3.1.3). The 64 octets of §4.5.3.1.1 for a local part are
/// not enforced, because real bounce addresses are longer, and the upstream perhaps accepts them.
const MAX_PATH: usize = 256;
const MAX_DOMAIN: usize = 255;

/// Parses a path at the start of `text`. Returns the path and the text after it.
///
/// The angle brackets are required. A source route (`@a,@b:` in `<@a,@b:c@d>`) is checked and left out, as RFC 5321
/// appendix C allows.
pub fn parse_path(text: &str) -> Option<(Path, &str)> {
    let inner = text.strip_prefix('<')?;
    if let Some(rest) = inner.strip_prefix('>') {
        return Some((Path::Null, rest));
    }
    let inner = if inner.starts_with('@') { skip_route(inner)? } else { inner };
    let at = local_part_length(inner)?;
    let (local, rest) = inner.split_at(at);
    if let Some(rest) = rest.strip_prefix('>') {
        let postmaster = local.eq_ignore_ascii_case("postmaster");
        return postmaster.then(|| (Path::Postmaster(local.into()), rest));
    }
    let rest = rest.strip_prefix('@')?;
    let end = rest.find('>')?;
    let (domain, rest) = rest.split_at(end);
    let is_known = is_domain(domain) || is_address_literal(domain) || is_unicode_domain(domain);
    let fits = local.chars().all(|c| c.is_ascii() || is_fit(c)) && at + domain.len() + 3 <= MAX_PATH;
    if !is_known || !fits {
        return None;
    }
    let mailbox = Mailbox { text: inner[..=at + domain.len()].into(), at };
    Some((Path::Mailbox(mailbox), &rest[1..]))
}

fn skip_route(text: &str) -> Option<&str> {
    let (route, rest) = text.split_once(':')?;
    let all_domains = route.split(',').all(|hop| hop.strip_prefix('@').is_some_and(is_domain));
    all_domains.then_some(rest)
}

/// Returns the length of the local part (dot-string or quoted-string) at the start of `text`.
fn local_part_length(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    if bytes.first() == Some(&b'"') {
        return quoted_string_length(bytes);
    }
    let end = bytes.iter().position(|b| !is_atext(*b) && *b != b'.').unwrap_or(bytes.len());
    let dots_stand_well = !text[..end].split('.').any(str::is_empty);
    dots_stand_well.then_some(end)
}

/// Returns the length of the quoted string at the start of `bytes`; `None` if there is none, or if it is not closed.
pub fn quoted_string_length(bytes: &[u8]) -> Option<usize> {
    if bytes.first() != Some(&b'"') {
        return None;
    }
    let mut escaped = false;
    for (at, byte) in bytes.iter().enumerate().skip(1) {
        match byte {
            b'"' if !escaped => return Some(at + 1),
            b'\\' if !escaped => escaped = true,
            b' '..=b'~' | 0x80.. => escaped = false,
            _ => return None,
        }
    }
    None
}

/// Returns whether this octet is allowed in an atom of a local part (`atext`). RFC 6531 adds all octets above 127.
fn is_atext(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte) || byte >= 0x80
}

/// Returns whether this is a character outside ASCII that is allowed in an address. Characters that end lines, are
/// invisible, or change the direction of writing are not allowed, because a log line must show the true address.
pub fn is_fit(c: char) -> bool {
    let is_invisible = matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{70f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}');
    let is_character = u32::from(c) & 0xfffe != 0xfffe;
    !c.is_ascii() && !c.is_control() && !c.is_whitespace() && !is_invisible && is_character
}

/// Returns whether this is a domain name of ASCII letters, digits, hyphens and underscores (RFC 5321 does not allow
/// underscores, but they are common). It need not have a dot.
pub fn is_domain(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= MAX_DOMAIN && text.split('.').all(label)
}

/// Returns whether this is a domain name, in which letters outside ASCII are allowed (U-labels, RFC 6531 §3.3).
/// Characters other than `.` that IDNA treats as dots are not allowed.
fn is_unicode_domain(text: &str) -> bool {
    let is_letter = |c: char| match c.is_ascii() {
        true => c.is_ascii_alphanumeric() || c == '-' || c == '_',
        false => is_fit(c) && !matches!(c, '\u{3002}' | '\u{ff0e}' | '\u{ff61}'),
    };
    let label = |label: &str| {
        (1..=63).contains(&label.chars().count())
            && label.chars().all(is_letter)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= MAX_DOMAIN && text.split('.').all(label)
}

/// Returns whether this is an address literal (RFC 5321 §4.1.3): `[192.0.2.1]` or `[IPv6:2001:db8::1]`.
pub fn is_address_literal(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) else {
        return false;
    };
    match inner.get(..5) {
        Some(tag) if tag.eq_ignore_ascii_case("ipv6:") => inner[5..].parse::<Ipv6Addr>().is_ok(),
        _ => inner.parse::<Ipv4Addr>().is_ok(),
    }
}

/// Returns whether Weir accepts this name in EHLO or HELO. Many clients send no valid host name, and RFC 5321 §4.1.4
/// forbids servers to refuse mail for that reason. So Weir refuses only names that could break a header line.
pub fn is_host_name(name: &str) -> bool {
    let harmless = |b: u8| b.is_ascii_alphanumeric() || b".-_:[]+/~=%#$!*&^'{}|`?".contains(&b);
    (1..=255).contains(&name.len()) && name.bytes().all(harmless)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_paths_of_rfc_5321() {
        let long = format!("{}@b", "a".repeat(252));
        for (text, address, rest) in [
            ("<>", "", ""),
            ("<> SIZE=1", "", " SIZE=1"),
            ("<a@b>", "a@b", ""),
            ("<MiXeD@Example.org> X", "MiXeD@Example.org", " X"),
            ("<postMaster>", "postMaster", ""),
            ("<a@[192.0.2.1]>", "a@[192.0.2.1]", ""),
            ("<a@[IPv6:2001:db8::1]>", "a@[IPv6:2001:db8::1]", ""),
            ("<\"r T\"@b>", "\"r T\"@b", ""),
            ("<\"r@T\"@b>", "\"r@T\"@b", ""),
            ("<\"r>T\"@b>", "\"r>T\"@b", ""),
            ("<\"r\\\"\\\\T\"@b>", "\"r\\\"\\\\T\"@b", ""),
            ("<\"..\"@b>", "\"..\"@b", ""),
            ("<@a.example,@b.example:c@d>", "c@d", ""),
            ("<r!#$&'*+-/=?^_`{|}~T@b>", "r!#$&'*+-/=?^_`{|}~T@b", ""),
            ("<a@my_host>", "a@my_host", ""),
            ("<δοκιμή@παράδειγμα.example>", "δοκιμή@παράδειγμα.example", ""),
            ("<\"用 户\"@例子.example> X", "\"用 户\"@例子.example", " X"),
            ("<नमस्ते@उदाहरण.example>", "नमस्ते@उदाहरण.example", ""),
            (&format!("<{long}>"), &long, ""),
        ] {
            let (path, left) = parse_path(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((path.to_string().as_str(), left), (address, rest), "{text}");
        }
    }

    #[test]
    fn refuses_invalid_paths() {
        let long_path = format!("<{}@b>", "a".repeat(253));
        let long_domain = format!("<a@{}>", "d".repeat(64));
        for text in [
            "",
            "<",
            "<a",
            "<a@b",
            "a@b",
            "<a>",
            "<@b>",
            "<a@>",
            "<a@b@c>",
            "<a b@c>",
            "<a..b@c>",
            "<.a@b>",
            "<a.@b>",
            "<\"a@b>",
            "<a\x07b@c>",
            "<<a@b>>",
            "<a@b..c>",
            "<a@-b>",
            "<a@b-.c>",
            "<a,b@c>",
            "<a@b,c@d>",
            "<a@[1.2.3]>",
            "<a@[IPv6:x]>",
            "<@a:>",
            "<@a,b:c@d>",
            "<\"a\"b@c>",
            "<\"a\rb\"@c>",
            "<a@b c>",
            "<a\u{85}@b>",
            "<a\u{2028}@b>",
            "<a\u{202e}@b>",
            "<\"a\u{a0}\"@b>",
            "<a@b\u{200b}c>",
            "<a@b\u{3002}c>",
            "<a@é..c>",
            "<a@-é>",
            &long_path,
            &long_domain,
        ] {
            assert_eq!(parse_path(text), None, "{text}");
        }
    }

    #[test]
    fn separates_local_part_and_domain() {
        let Some((Path::Mailbox(mailbox), "")) = parse_path("<\"a@b\"@c.example>") else { panic!() };
        assert_eq!((mailbox.local_part(), mailbox.domain()), ("\"a@b\"", "c.example"));
    }
}
