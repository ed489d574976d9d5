//! Normal form of domains and address literals: A-labels in lower case (UTS 46), canonical IP addresses. With this
//! form, all spellings of one domain are charged to one budget.

use idna::punycode;
use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use unicode_normalization::UnicodeNormalization as _;

/// Characters that no label may contain. Without this list, the mapping of UTS 46 would turn U+FF20 into an `@`, and
/// U+FF0A into a `*`.
const NOT_IN_LABELS: AsciiDenyList = AsciiDenyList::new(true, r##"!"#$%&'()*+,/:;<=>?@[\]^`{|}~"##);

/// Prefix of an A-label (RFC 5890 §2.3.2.1).
const ACE_PREFIX: &str = "xn--";

/// Returns the normal form of a domain or address literal. Normalizing the result again does not change it. A label
/// that UTS 46 refuses is converted to lower case and NFC, and encoded as an A-label if it is not ASCII. An ASCII
/// domain in lower case without A-labels is returned unchanged, without allocation.
pub fn normal(domain: &str) -> Cow<'_, str> {
    if is_normal(domain) {
        return domain.into();
    }
    if domain.is_ascii() {
        let lower = domain.to_ascii_lowercase();
        if lower.starts_with('[') {
            return literal(&lower).unwrap_or(lower).into();
        }
        if is_normal(&lower) {
            return lower.into();
        }
    }
    each_label(domain, |label| a_label(label)).into()
}

/// Returns the normal form of a pattern for domains, such as `*.example.org`. Labels without `*` are normalized. If a
/// label with a `*` contains non-ASCII characters, all labels become U-labels, and the pattern must be compared with
/// the [`unicode`] form of domains.
pub fn pattern(pattern: &str) -> Cow<'_, str> {
    if !pattern.contains('*') {
        return normal(pattern);
    }
    if pattern.starts_with('[') {
        return lower_nfc(pattern).into();
    }
    let has_star = |label: &str| label.contains('*');
    // The lower case of some characters is ASCII, such as that of the Kelvin sign.
    let is_unicode = pattern.split('.').any(|label| has_star(label) && !lower_nfc(label).is_ascii());
    let normalized = each_label(pattern, |label| match (has_star(label), is_unicode) {
        (true, _) => lower_nfc(label).into(),
        (false, true) => unicode(&normal(label)).into_owned().into(),
        (false, false) => normal(label),
    });
    normalized.into()
}

/// Returns a normalized domain with U-labels in place of its A-labels. An A-label stays if its U-label is a spelling of
/// another label: `xn--91g` encodes U+210A, which UTS 46 maps to `g`.
pub fn unicode(domain: &str) -> Cow<'_, str> {
    if !has_a_label(domain) {
        return domain.into();
    }
    let decoded = |label| u_label(label).filter(|decoded| a_label(decoded) == label);
    each_label(domain, |label| decoded(label).map_or(label.into(), Cow::Owned)).into()
}

/// Converts a text to lower case, then to NFC.
pub fn lower_nfc(text: &str) -> String {
    text.to_lowercase().nfc().collect()
}

/// Returns `true` only for a domain in its normal form. The check is quick, and returns `false` for some normal
/// domains.
fn is_normal(domain: &str) -> bool {
    let is_lower = domain.bytes().all(|b| b.is_ascii() && !b.is_ascii_uppercase());
    is_lower && !domain.starts_with('[') && !has_a_label(domain)
}

fn has_a_label(domain: &str) -> bool {
    domain.as_bytes().windows(ACE_PREFIX.len()).any(|window| window == ACE_PREFIX.as_bytes())
}

/// Returns an address literal in lower case, with its address in canonical form. An IPv4-mapped IPv6 address becomes an
/// IPv4 address.
fn literal(text: &str) -> Option<String> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    let address = match inner.strip_prefix("ipv6:") {
        Some(address) => address.parse::<Ipv6Addr>().ok()?.to_canonical(),
        None => inner.parse::<Ipv4Addr>().ok()?.into(),
    };
    Some(match address {
        IpAddr::V4(address) => format!("[{address}]"),
        IpAddr::V6(address) => format!("[ipv6:{address}]"),
    })
}

fn each_label<'d>(domain: &'d str, change: impl Fn(&'d str) -> Cow<'d, str>) -> String {
    let mut changed = String::with_capacity(domain.len() + 16);
    for (n, label) in domain.split('.').enumerate() {
        if n > 0 {
            changed.push('.');
        }
        changed.push_str(&change(label));
    }
    changed
}

/// Normalizes one label. Each label is converted separately, so that an invalid label does not prevent the conversion
/// of the other labels.
fn a_label(label: &str) -> Cow<'_, str> {
    if is_normal(label) {
        return label.into();
    }
    if let Some(mapped) = mapped(label) {
        return mapped.into();
    }
    let lower = lower_nfc(label);
    let text = match u_label(&lower) {
        Some(decoded) => lower_nfc(&decoded),
        None if lower.is_ascii() => return lower.into(),
        None => lower,
    };
    let encoded = match text.is_ascii() {
        true => text,
        false => punycode::encode_str(&text).map_or(text, |code| format!("{ACE_PREFIX}{code}")),
    };
    // UTS 46 refuses some labels in their original form, but accepts the same labels in lower case and NFC.
    mapped(&encoded).unwrap_or(encoded).into()
}

/// Maps a label by UTS 46; `None` if the label is not valid.
fn mapped(label: &str) -> Option<String> {
    let mapped = Uts46::new().to_ascii(label.as_bytes(), NOT_IN_LABELS, Hyphens::Allow, DnsLength::Ignore);
    Some(mapped.ok()?.into_owned())
}

/// Decodes an A-label, even if the A-label is not valid; `None` if the result is ASCII only.
fn u_label(label: &str) -> Option<String> {
    punycode::decode_to_string(label.strip_prefix(ACE_PREFIX)?).filter(|decoded| !decoded.is_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings_of_one_domain_have_one_normal_form() {
        for (expected, spellings) in [
            ("example.org", &["example.org", "Example.ORG"][..]),
            ("_my_host.-x-.d--e", &["_my_host.-x-.d--e", "_MY_host.-X-.d--E"]),
            (
                "xn--bcher-kva.example",
                &[
                    "bücher.example",
                    "BÜCHER.Example",
                    "bu\u{308}cher.example",
                    "XN--BCHER-KVA.example",
                    "ｂücher.example",
                ],
            ),
            // No registry accepts an A-label that encodes NFD or capital letters. Such a label gets no budget of its
            // own.
            ("xn--bcher-kva", &["xn--bucher-xyd", "xn--bcher-2pa"]),
            ("xn--strae-oqa.example", &["straße.example", "xn--strae-oqa.example"]),
            ("xn--fsqu00a.a_b", &["例子.a_b", "xn--fsqu00a.A_B"]),
            ("xn--ls8h.example", &["💩.example", "xn--ls8h.example"]),
            // A label of private-use characters is refused. The other label is normalized nevertheless.
            ("xn--bcher-kva.xn--0y0c", &["bücher.\u{e000}", "xn--bcher-kva.\u{e000}", "BÜCHER.xn--0y0c"]),
            ("[192.0.2.1]", &["[192.0.2.1]", "[IPv6:::ffff:192.0.2.1]", "[IPv6:::FFFF:c000:201]"]),
            ("[ipv6:2001:db8::1]", &["[IPv6:2001:DB8::1]", "[ipv6:2001:db8:0:0:0:0:0:1]", "[IPV6:2001:0db8::0.0.0.1]"]),
        ] {
            for spelling in spellings {
                assert_eq!(normal(spelling), expected, "{spelling}");
                assert_eq!(pattern(spelling), expected, "{spelling}");
            }
        }
    }

    #[test]
    fn a_name_that_is_no_domain_becomes_lower_case_only() {
        for (text, expected) in [
            ("", ""),
            ("[x", "[x"),
            ("[A]", "[a]"),
            ("[ipv6:X]", "[ipv6:x]"),
            ("A b", "a b"),
            ("xn--", "xn--"),
            ("XN--A-", "xn--a-"),
            ("axn--b", "axn--b"),
        ] {
            assert_eq!(normal(text), expected, "{text}");
        }
        // No character is mapped to `@`, `*` or `[`.
        for text in ["a＠b", "a＊b", "ａ［b"] {
            assert!(!normal(text).contains(['@', '*', '[']), "{text}");
        }
    }

    #[test]
    fn labels_of_patterns_without_a_star_are_normal() {
        for (text, expected) in [
            ("*", "*"),
            ("*.Example.org", "*.example.org"),
            ("*.BÜCHER.example", "*.xn--bcher-kva.example"),
            ("mail*.bu\u{308}cher.example", "mail*.xn--bcher-kva.example"),
            ("xn--*.example", "xn--*.example"),
            ("*bücher.xn--mller-kva.example", "*bücher.müller.example"),
            ("*BU\u{308}cher.Müller.example", "*bücher.müller.example"),
            ("[192.0.2.*]", "[192.0.2.*]"),
        ] {
            assert_eq!(pattern(text), expected, "{text}");
            assert_eq!(pattern(expected), expected, "{text}");
        }
        assert_eq!(unicode("a.xn--bcher-kva.xn--mller-kva"), "a.bücher.müller");
    }

    #[test]
    fn a_pattern_whose_labels_have_other_u_labels_or_become_ascii_is_normalized_once() {
        for (text, expected) in [
            ("\u{985}*.xn--91G", "\u{985}*.xn--91g"),
            ("\u{212a}*.b\u{fc}cher", "k*.xn--bcher-kva"),
            ("\u{985}*.xn--0y0c", "\u{985}*.\u{e000}"),
        ] {
            assert_eq!(pattern(text), expected, "{text}");
            assert_eq!(pattern(expected), expected, "{text}");
        }
    }

    #[test]
    fn a_plain_domain_is_not_copied() {
        for domain in ["example.org", "d", "a-b.x_n--y.example", "", "192.0.2.1"] {
            assert!(matches!(normal(domain), Cow::Borrowed(_)), "{domain}");
        }
    }

    /// Letters that have capital, composed and decomposed forms, and letters that have none of these forms.
    const LABEL: &str =
        "[a-zäöüñéèçåøßæœčšžőűabcαβγδεζηθικλμνξοπρτυφχψωабвгдежзийклмнопрстуфхцчшщъыьэюяיהוהअआइ例子日本語]{1,8}";

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn normalizing_twice_is_normalizing_once(text in r#"(xn--|XN--)?\PC{0,6}(\.|\[|@|\*)?(xn--)?[-a-zA-Z0-9ßΣİς\u{300}-\u{370}.]{0,9}"#) {
            let once = normal(&text).into_owned();
            prop_assert_eq!(&normal(&once), &once);
            let once = pattern(&text).into_owned();
            prop_assert_eq!(&pattern(&once), &once);
        }

        #[test]
        fn all_spellings_have_one_form(labels in proptest::collection::vec(LABEL, 1..4)) {
            let domain = labels.join(".");
            let expected = normal(&domain).into_owned();
            prop_assert!(expected.is_ascii());
            let upper: String = domain.chars().map(|c| if c == 'ß' { "ß".into() } else { c.to_uppercase().to_string() }).collect();
            let nfd: String = domain.nfd().collect();
            let upper_nfd: String = upper.nfd().collect();
            for spelling in [upper, nfd, upper_nfd, expected.to_uppercase(), unicode(&expected).into_owned()] {
                prop_assert_eq!(&normal(&spelling), &expected, "{}", spelling);
            }
        }

        #[test]
        fn a_plain_domain_keeps_its_form(domain in "[a-z0-9_-]{1,9}(\\.[a-z0-9_-]{1,9}){0,3}") {
            prop_assume!(!has_a_label(&domain));
            prop_assert_eq!(normal(&domain), &*domain);
            let upper = domain.to_uppercase();
            prop_assert_eq!(normal(&upper), &*domain);
        }

        #[test]
        fn an_address_literal_has_one_form(address: [u16; 8]) {
            let address = Ipv6Addr::from(address);
            let expected = normal(&format!("[IPv6:{address}]")).into_owned();
            let groups = address.segments();
            let long = groups.map(|group| format!("{group:04X}")).join(":");
            let short = groups.map(|group| format!("{group:x}")).join(":");
            for spelling in [format!("[IPv6:{long}]"), format!("[ipv6:{short}]")] {
                prop_assert_eq!(normal(&spelling), &*expected);
            }
        }
    }
}
