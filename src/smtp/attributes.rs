//! Writer of XCLIENT and XFORWARD commands, with which Weir tells the upstream who the client is (Postfix's
//! XCLIENT_README and XFORWARD_README).

use std::net::IpAddr;

/// Set of attributes that a server accepts, as listed in its reply to EHLO. The set has one bit for each name in
/// [`NAMES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes(u16);

/// Attributes of XCLIENT or XFORWARD that Weir knows.
const NAMES: [&str; 10] = ["NAME", "ADDR", "PORT", "PROTO", "HELO", "LOGIN", "DESTADDR", "DESTPORT", "SOURCE", "IDENT"];

/// Maximum octets of a command line, with its CRLF (RFC 5321 §4.5.3.1.4).
const MAX_LINE: usize = 512;

/// Maximum octets of a value, before it is encoded (XFORWARD_README).
const MAX_VALUE: usize = 255;

/// Value of an attribute that is unknown or cannot be sent.
const UNAVAILABLE: &str = "[UNAVAILABLE]";

impl Attributes {
    pub const NONE: Self = Self(0);

    /// Reads the words of the XCLIENT or XFORWARD line in a reply to EHLO. Unknown words are ignored.
    pub fn named<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        let bit = |word: &str| NAMES.iter().position(|name| name.eq_ignore_ascii_case(word)).map_or(0, |at| 1 << at);
        Self(words.fold(0, |bits, word| bits | bit(word)))
    }

    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    pub fn has(self, name: &str) -> bool {
        NAMES.iter().position(|known| *known == name).is_some_and(|at| self.0 & 1 << at != 0)
    }

    /// Returns the names of the attributes, separated by spaces, as in a reply to EHLO.
    pub fn names(self) -> String {
        NAMES.into_iter().filter(|name| self.has(name)).collect::<Vec<_>>().join(" ")
    }
}

/// Returns the command lines that send these values in this order. Attributes that the server does not accept (not in
/// `taken`) are left out. The value `None` means unknown. A value that is too long is sent as unknown, because its
/// beginning alone could be the value of another client.
pub fn commands(verb: &str, taken: Attributes, values: &[(&str, Option<String>)]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (name, value) in values.iter().filter(|(name, _)| taken.has(name)) {
        let value = value.as_deref().filter(|value| (1..=MAX_VALUE).contains(&value.len())).map(xtext);
        let mut word = format!(" {name}={}", value.as_deref().unwrap_or(UNAVAILABLE));
        if verb.len() + word.len() + 2 > MAX_LINE {
            word = format!(" {name}={UNAVAILABLE}");
        }
        match lines.last_mut().filter(|line| line.len() + word.len() + 2 <= MAX_LINE) {
            Some(line) => line.push_str(&word),
            None => lines.push(format!("{verb}{word}")),
        }
    }
    lines.iter_mut().for_each(|line| line.push_str("\r\n"));
    lines
}

/// Returns the value of ADDR. `None` for 0.0.0.0, which means that a proxy did not give the client's address.
pub fn address(address: IpAddr) -> Option<String> {
    match address.to_canonical() {
        address if address.is_unspecified() => None,
        IpAddr::V4(address) => Some(address.to_string()),
        IpAddr::V6(address) => Some(format!("IPV6:{address}")),
    }
}

/// Encodes a value as xtext (RFC 3461 §4).
fn xtext(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for octet in value.bytes() {
        match octet {
            b'+' | b'=' => text.push_str(&format!("+{octet:02X}")),
            b'!'..=b'~' => text.push(char::from(octet)),
            _ => text.push_str(&format!("+{octet:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smtp::xclient::{ATTRIBUTES, Attribute, Xclient};

    fn all() -> Attributes {
        Attributes::named(ATTRIBUTES.split(' '))
    }

    #[test]
    fn only_accepted_attributes_are_sent() {
        let taken = Attributes::named("helo ADDR FOO SOURCE".split(' '));
        assert_eq!(taken.names(), "ADDR HELO SOURCE");
        let some = |text: &str| Some(text.to_owned());
        let values = [("NAME", None), ("ADDR", some("192.0.2.7")), ("LOGIN", some("a")), ("HELO", None)];
        assert_eq!(commands("XFORWARD", taken, &values), ["XFORWARD ADDR=192.0.2.7 HELO=[UNAVAILABLE]\r\n"]);
        assert_eq!(commands("XFORWARD", Attributes::named("FOO".split(' ')), &values), [""; 0]);
    }

    #[test]
    fn octets_that_could_break_a_line_are_encoded_and_decoded() {
        let name = "al+i=c é@b";
        let [line] = &commands("XCLIENT", all(), &[("NAME", Some(name.to_owned()))])[..] else { panic!() };
        assert_eq!(line, "XCLIENT NAME=al+2Bi+3Dc+20+C3+A9@b\r\n");
        let values = [
            ("ADDR", address("2001:db8::7".parse().unwrap())),
            ("HELO", Some("a=b+c".to_owned())),
            ("LOGIN", Some("ál+ice@b".to_owned())),
        ];
        let [line] = &commands("XCLIENT", all(), &values)[..] else { panic!() };
        let expected = Xclient {
            address: Attribute::Known("2001:db8::7".parse().unwrap()),
            helo: Attribute::Known("a=b+c".into()),
            login: Attribute::Known("ál+ice@b".into()),
        };
        assert_eq!(Xclient::parse(line.strip_prefix("XCLIENT ").unwrap().trim_end()), Ok(expected));
        assert!(commands("XCLIENT", all(), &[("NAME", Some("a\r\nQUIT".to_owned()))])[0].ends_with("=a+0D+0AQUIT\r\n"));
    }

    #[test]
    fn lines_are_no_longer_than_a_server_must_accept() {
        let long = |n: usize| Some("x".repeat(n));
        let values = [("NAME", long(255)), ("HELO", long(255)), ("LOGIN", Some("é".repeat(127))), ("ADDR", long(256))];
        let lines = commands("XCLIENT", all(), &values);
        let expected = [
            format!("XCLIENT NAME={}\r\n", "x".repeat(255)),
            format!("XCLIENT HELO={} LOGIN=[UNAVAILABLE] ADDR=[UNAVAILABLE]\r\n", "x".repeat(255)),
        ];
        assert_eq!(lines, expected);
        for n in 0..=255 {
            let lines = commands("XCLIENT", all(), &[("HELO", long(n)), ("LOGIN", long(255 - n)), ("NAME", long(255))]);
            assert!(lines.iter().all(|line| line.len() <= MAX_LINE), "{lines:?}");
        }
    }

    #[test]
    fn addresses_are_written_in_the_form_of_their_family() {
        for (text, said) in [
            ("192.0.2.7", Some("192.0.2.7")),
            ("::ffff:192.0.2.7", Some("192.0.2.7")),
            ("2001:db8::7", Some("IPV6:2001:db8::7")),
            ("0.0.0.0", None),
        ] {
            assert_eq!(address(text.parse().unwrap()).as_deref(), said);
        }
    }
}
