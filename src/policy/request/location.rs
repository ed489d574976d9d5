//! Location of a client: the country and the autonomous system that a database gives for the client's address.

use std::fmt;
use std::str::FromStr;

/// Location of a client. `None`: no database is configured, or the database does not know the address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Location {
    pub country: Option<Country>,
    pub asn: Option<Asn>,
}

/// Country code of two letters (ISO 3166-1 alpha-2), in lower case: `at`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Country([u8; 2]);

/// Number of an autonomous system, written as `AS1853`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asn(pub u32);

impl Country {
    pub fn as_str(&self) -> &str {
        // All countries have ASCII letters only, so the text is valid.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl FromStr for Country {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match *text.as_bytes() {
            [first, second] if first.is_ascii_alphabetic() && second.is_ascii_alphabetic() => {
                Ok(Self([first.to_ascii_lowercase(), second.to_ascii_lowercase()]))
            }
            _ => Err(()),
        }
    }
}

impl fmt::Display for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Country({self})")
    }
}

/// Accepts `AS1853`, `as1853` and `1853`.
impl FromStr for Asn {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits = text.strip_prefix("AS").or_else(|| text.strip_prefix("as")).unwrap_or(text);
        let is_plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        digits.parse().ok().filter(|_| is_plain).map(Self).ok_or(())
    }
}

impl fmt::Display for Asn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AS{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_has_one_form() {
        for (text, country) in [("AT", Some("at")), ("at", Some("at")), ("AUT", None), ("a1", None), ("\u{e4}", None)] {
            assert_eq!(text.parse().ok().map(|country: Country| country.to_string()).as_deref(), country, "{text}");
        }
        for (text, asn) in [
            ("AS1853", Some("AS1853")),
            ("as01853", Some("AS1853")),
            ("1853", Some("AS1853")),
            ("4294967295", Some("AS4294967295")),
            ("4294967296", None),
            ("+1853", None),
            ("AS", None),
            ("", None),
            ("ACONET", None),
        ] {
            assert_eq!(text.parse().ok().map(|asn: Asn| asn.to_string()).as_deref(), asn, "{text}");
        }
    }
}
