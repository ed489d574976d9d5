//! Normal forms of senders, recipients and logins. Patterns, budget keys and filters of known values compare these
//! forms.

use super::domain::{lower_nfc, normal};
use std::borrow::Cow;
use unicode_normalization::{UnicodeNormalization as _, is_nfc};

/// Null sender, the sender of bounces. It has no domain, and matches only the patterns `<>` and `*`.
pub const NULL_SENDER: &str = "<>";

/// Normalizer of addresses and logins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressNormalizer {
    /// Character before a sub-address: the `+` of `bob+lists@example.org`.
    subaddress: Option<char>,
    /// Domain in its normal form, which is added to an address without a domain.
    default_domain: Option<Box<str>>,
}

impl AddressNormalizer {
    /// Creates a normalizer. `subaddress` is the character before a sub-address. `default_domain` is the domain that is
    /// added to addresses without a domain.
    pub fn new(subaddress: Option<char>, default_domain: Option<&str>) -> Self {
        Self { subaddress, default_domain: default_domain.map(|domain| normal(domain).into()) }
    }

    /// Returns a normalizer that keeps sub-addresses, and is otherwise the same.
    pub fn with_subaddresses(&self) -> Self {
        Self { subaddress: None, default_domain: self.default_domain.clone() }
    }

    /// Returns whether addresses without a domain get this normalized domain. `None`: whether they stay without one.
    pub fn is_default_domain(&self, domain: Option<&str>) -> bool {
        self.default_domain.as_deref() == domain
    }

    /// Returns the normal form of a sender or recipient: lower case, NFC, no sub-address, no needless quotes, the
    /// domain in A-labels, the default domain if the address has none. The empty address becomes [`NULL_SENDER`]. An
    /// address that already has this form is returned without allocation.
    pub fn address<'a>(&self, address: &'a str) -> Cow<'a, str> {
        if address.is_empty() || address == NULL_SENDER {
            return NULL_SENDER.into();
        }
        let (local, domain) = split(address);
        // Convert to NFC before the sub-address is removed: NFC turns U+1FEF into a "`", which can be the separator.
        let kept = match composed(unquoted(local)) {
            Cow::Borrowed(text) => Cow::Borrowed(self.without_subaddress(text)),
            Cow::Owned(text) => Cow::Owned(self.without_subaddress(&text).to_owned()),
        };
        // Convert to lower case after the sub-address is removed: the lower case of a capital sigma depends on the
        // letter after it.
        let kept = lower_case(kept);
        let normal_local = if is_dot_string(&kept) { kept } else { quoted(&kept).into() };
        self.joined(address, (local, domain), normal_local)
    }

    /// Returns the normal form of a login: lower case, NFC, the domain in A-labels, the default domain if the login has
    /// none. A sub-address is kept, because it is part of the user's name.
    pub fn user<'a>(&self, login: &'a str) -> Cow<'a, str> {
        if login.is_empty() {
            return login.into();
        }
        let (local, domain) = split(login);
        self.joined(login, (local, domain), lower_case(local.into()))
    }

    fn without_subaddress<'a>(&self, local: &'a str) -> &'a str {
        let Some(separator) = self.subaddress else { return local };
        // A separator at the beginning does not start a sub-address, because the local part would then be empty.
        let first = local.chars().next().map_or(0, char::len_utf8);
        local[first..].find(separator).map_or(local, |at| &local[..first + at])
    }

    /// Joins a normalized local part and a domain. This function normalizes the domain.
    fn joined<'a>(
        &self,
        whole: &'a str,
        (local, domain): (&str, Option<&'a str>),
        normal_local: Cow<'a, str>,
    ) -> Cow<'a, str> {
        let normal_domain = match domain {
            Some(domain) => Some(normal(domain)),
            None => self.default_domain.as_deref().map(Cow::Borrowed),
        };
        match normal_domain {
            None => normal_local,
            Some(normal_domain) if normal_local == local && Some(&*normal_domain) == domain => whole.into(),
            Some(normal_domain) => {
                let mut joined = String::with_capacity(normal_local.len() + 1 + normal_domain.len());
                joined.push_str(&normal_local);
                joined.push('@');
                joined.push_str(&normal_domain);
                joined.into()
            }
        }
    }
}

/// Returns the domain of a normalized address; `None` for [`NULL_SENDER`], and for a login without a domain.
pub fn domain_of(address: &str) -> Option<&str> {
    split(address).1
}

/// Splits an address at its last `@` into local part and domain. An `@` within quotes is part of the local part.
pub fn split(address: &str) -> (&str, Option<&str>) {
    match memchr::memrchr2(b'@', b'"', address.as_bytes()) {
        Some(at) if address.as_bytes()[at] == b'@' => (&address[..at], Some(&address[at + 1..])),
        _ => (address, None),
    }
}

/// Converts a text, which can contain non-ASCII letters, to lower case and NFC.
pub fn lower_case(text: Cow<'_, str>) -> Cow<'_, str> {
    let is_lower = text.bytes().all(|b| b.is_ascii() && !b.is_ascii_uppercase())
        || text.chars().all(|c| c.to_lowercase().eq([c])) && is_nfc(&text);
    if is_lower { text } else { lower_nfc(&text).into() }
}

/// Converts a text to NFC.
fn composed(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.is_ascii() || is_nfc(&text) { text } else { text.nfc().collect::<String>().into() }
}

/// Returns a local part without quotes and backslashes (RFC 5321 §4.1.2).
fn unquoted(local: &str) -> Cow<'_, str> {
    let Some(inner) = local.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return local.into();
    };
    if !inner.contains('\\') {
        return inner.into();
    }
    let mut said = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        said.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    said.into()
}

fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    quoted
}

/// Returns whether a local part needs no quotes (RFC 5321 §4.1.2, RFC 6531 §3.3).
fn is_dot_string(text: &str) -> bool {
    let is_atext = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&b) || b >= 0x80;
    let bytes = text.as_bytes();
    let has_empty_atom =
        || bytes.starts_with(b".") || bytes.ends_with(b".") || bytes.windows(2).any(|two| two == b"..");
    !bytes.is_empty() && bytes.iter().all(|b| is_atext(*b) || *b == b'.') && !has_empty_atom()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> AddressNormalizer {
        AddressNormalizer::new(Some('+'), Some("Example.ORG"))
    }

    #[test]
    fn spellings_of_one_address_are_one() {
        for (address, normal) in [
            ("bob@d", "bob@d"),
            ("Bob@D.Example", "bob@d.example"),
            ("bob+x@d", "bob@d"),
            ("bob+x+y@d", "bob@d"),
            ("bob+@d", "bob@d"),
            ("+x@d", "+x@d"),
            ("+x+y@d", "+x@d"),
            ("++@d", "+@d"),
            ("ΔΟΚΙΜΉ+x@ΠΑΡΆΔΕΙΓΜΑ.example", "δοκιμή@xn--hxajbheg2az3al.example"),
            ("A\u{308}nne@BU\u{308}cher.example", "änne@xn--bcher-kva.example"),
            ("änne@XN--BCHER-KVA.example", "änne@xn--bcher-kva.example"),
            ("ΛΌΓΟΣ+ΛΌΓΟΣ@d", "λόγος@d"),
            ("\"Bob\"@d", "bob@d"),
            ("\"b\\ob+x\"@d", "bob@d"),
            ("\"A  b\"@D", "\"a  b\"@d"),
            ("\"a b+c d\"@d", "\"a b\"@d"),
            ("\"bob+c d\"@d", "bob@d"),
            ("\"a\\\"\\\\b\"@d", "\"a\\\"\\\\b\"@d"),
            ("\"A@B\"@d", "\"a@b\"@d"),
            ("\"\"@d", "\"\"@d"),
            ("a.+b@d", "\"a.\"@d"),
            ("\"a.\"@d", "\"a.\"@d"),
            ("Bob", "bob@example.org"),
            ("Bob+x", "bob@example.org"),
            ("\"a@b\"", "\"a@b\"@example.org"),
            ("a@[IPv6:2001:DB8::1]", "a@[ipv6:2001:db8::1]"),
            ("a@[IPv6:2001:DB8:0:0::1]", "a@[ipv6:2001:db8::1]"),
            ("", NULL_SENDER),
            (NULL_SENDER, NULL_SENDER),
        ] {
            assert_eq!(example().address(address), normal, "{address}");
        }
    }

    #[test]
    fn without_configuration_only_the_spelling_changes() {
        let normalizer = AddressNormalizer::default();
        for (address, normal) in [("Bob+x@D", "bob+x@d"), ("Bob", "bob"), ("\"A b\"", "\"a b\""), ("\"B\"", "b")] {
            assert_eq!(normalizer.address(address), normal, "{address}");
        }
        assert_eq!(AddressNormalizer::new(Some('-'), None).address("bob-x@d-e"), "bob@d-e");
    }

    #[test]
    fn a_login_keeps_its_sub_address() {
        for (login, normal) in [
            ("Alice", "alice@example.org"),
            ("Alice+X@D", "alice+x@d"),
            ("ÄNNE@d", "änne@d"),
            ("a\u{308}nne@BÜCHER", "änne@xn--bcher-kva"),
            ("", ""),
        ] {
            assert_eq!(example().user(login), normal, "{login}");
        }
        assert_eq!(AddressNormalizer::default().user("Alice"), "alice");
    }

    #[test]
    fn the_domain_follows_the_last_at_outside_quotes() {
        for (address, expected) in
            [("bob@d", Some("d")), ("\"a@b\"@d", Some("d")), ("\"a@b\"", None), ("bob", None), (NULL_SENDER, None)]
        {
            assert_eq!(domain_of(address), expected, "{address}");
        }
    }

    #[test]
    fn a_normal_address_is_not_copied() {
        for address in ["bob@d.example", "änne@d.example", "+x@d", NULL_SENDER] {
            assert!(matches!(example().address(address), Cow::Borrowed(_)), "{address}");
            assert!(matches!(example().user("alice@d"), Cow::Borrowed(_)));
        }
        // Removing only a sub-address does not allocate either.
        assert!(matches!(AddressNormalizer::new(Some('+'), None).address("bob+x"), Cow::Borrowed("bob")));
    }

    proptest! {
        #[test]
        fn normalizing_twice_is_normalizing_once(address in r#"([aBÄΣİß+."\\@ \u{308}\u{1fef}\u{37e}]|\PC){0,10}"#, separator in "[+.`-]?") {
            let normalizer = AddressNormalizer::new(separator.chars().next(), Some("Σ.example"));
            let once = normalizer.address(&address).into_owned();
            prop_assert_eq!(&normalizer.address(&once), &once);
            let once = normalizer.user(&address).into_owned();
            prop_assert_eq!(&normalizer.user(&once), &once);
        }
    }
}
