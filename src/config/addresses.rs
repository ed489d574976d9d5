//! `[addresses]` and `timezone`: how addresses and times are normalized.

use super::section::Section;
use super::values::text;
use crate::policy::address::AddressNormalizer;
use crate::policy::matching::Zone;
use crate::smtp::address::{self, Path};
use jiff::tz::TimeZone;

pub fn normalizer(mut s: Section<'_>) -> AddressNormalizer {
    let subaddress = s.value("subaddress", "\"+\"", |value| separator(&text(value)?));
    let default_domain = s.optional("default-domain", |value| domain(&text(value)?));
    s.finish();
    AddressNormalizer::new(subaddress, default_domain.as_ref().map(|domain| &*domain.value))
}

/// Reads the character that begins the sub-address in a local part, such as `+`. The character must be permitted in a
/// local part without quotes, and must not be a letter or a digit. An empty text means that addresses have no
/// sub-addresses.
fn separator(text: &str) -> Result<Option<char>, String> {
    let mut chars = text.chars();
    let is_fit = |c: &char| ".!#$%&'*+-/=?^_`{|}~".contains(*c);
    match (chars.next(), chars.next()) {
        (None, _) => Ok(None),
        (Some(c), None) if is_fit(&c) => Ok(Some(c)),
        _ => {
            Err(format!("\"{text}\" does not begin sub-addresses: write one character, as in \"+\", or \"\" for none"))
        }
    }
}

fn domain(text: &str) -> Result<String, String> {
    let mailbox = format!("<a@{text}>");
    match address::parse_path(&mailbox) {
        Some((Path::Mailbox(mailbox), "")) if !text.starts_with('[') => Ok(mailbox.domain().to_owned()),
        _ => Err(format!("\"{text}\" is not a domain")),
    }
}

/// Reads `timezone`, the time zone for hours of the day; the default is the time zone of the system.
pub fn zone(root: &mut Section<'_>) -> Zone {
    let named = root.optional("timezone", |value| {
        let name = text(value)?;
        let unknown = |_| format!("\"{name}\" is not a time zone: write one as in \"Europe/Vienna\" or \"UTC\"");
        TimeZone::get(&name).map_err(unknown)
    });
    Zone::new(named.map_or_else(TimeZone::system, |named| named.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_character_or_none_begins_sub_addresses() {
        for (text, expected) in [("", Ok(None)), ("+", Ok(Some('+'))), ("-", Ok(Some('-'))), (".", Ok(Some('.')))] {
            assert_eq!(separator(text), expected);
        }
        for text in ["++", "a", "7", "@", "\"", "\\", " ", "ä", "\0"] {
            assert!(separator(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_default_domain_is_one_that_addresses_may_have() {
        for (text, good) in [
            ("example.org", true),
            ("例子.example", true),
            ("", false),
            ("a b", false),
            ("[192.0.2.1]", false),
            ("b> c", false),
        ] {
            assert_eq!(domain(text).is_ok(), good, "{text}");
        }
    }
}
