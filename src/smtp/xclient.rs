//! Parser of XCLIENT, with which a proxy in front of Weir tells Weir who the client is (Postfix's XCLIENT_README).

use super::address::is_host_name;
use super::reply::Reply;
use super::sasl::is_user_name;
use std::net::IpAddr;
use std::sync::Arc;

/// Attributes of a client in one XCLIENT command. A proxy can send several such commands with different attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Xclient {
    /// ADDR: IP address of the client.
    pub address: Attribute<IpAddr>,
    /// HELO: name that the client gave in EHLO or HELO.
    pub helo: Attribute<Arc<str>>,
    /// LOGIN: user name of the client, whose password the proxy has checked.
    pub login: Attribute<Arc<str>>,
}

/// Value of an attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attribute<T> {
    /// The command does not contain the attribute.
    #[default]
    Absent,
    /// The proxy does not know the value: `[UNAVAILABLE]` or `[TEMPUNAVAIL]`.
    Unknown,
    Known(T),
}

impl<T> Attribute<T> {
    /// Replaces the value of an earlier command, unless this command does not contain the attribute.
    pub fn put_into(self, value_before: &mut Option<T>) {
        match self {
            Self::Absent => {}
            Self::Unknown => *value_before = None,
            Self::Known(value) => *value_before = Some(value),
        }
    }
}

/// Names of the attributes that Weir accepts, as in its reply to EHLO.
pub const ATTRIBUTES: &str = "NAME ADDR PORT PROTO HELO LOGIN DESTADDR DESTPORT";

impl Xclient {
    /// Parses the arguments of XCLIENT. Returns the reply to the proxy as the error.
    pub fn parse(arguments: &str) -> Result<Self, Reply> {
        let mut read = Self::default();
        let mut seen: Vec<String> = Vec::new();
        for attribute in arguments.split(' ').filter(|word| !word.is_empty()) {
            let (name, value) = attribute.split_once('=').unwrap_or((attribute, ""));
            let name = name.to_ascii_uppercase();
            let known = ATTRIBUTES.split(' ').any(|known| known == name);
            let value = decode(value).filter(|_| known && !seen.contains(&name)).ok_or_else(|| bad(&name))?;
            let is_unknown = ["[UNAVAILABLE]", "[TEMPUNAVAIL]"].iter().any(|word| value.eq_ignore_ascii_case(word));
            match (is_unknown, name.as_str()) {
                (false, name) => read.take(name, &value).ok_or_else(|| bad(name))?,
                (true, "ADDR") => read.address = Attribute::Unknown,
                (true, "HELO") => read.helo = Attribute::Unknown,
                (true, "LOGIN") => read.login = Attribute::Unknown,
                (true, _) => {}
            }
            seen.push(name);
        }
        if seen.is_empty() { Err(bad("")) } else { Ok(read) }
    }

    fn take(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "ADDR" => self.address = Attribute::Known(Some(address(value)?).filter(is_of_a_client)?),
            "HELO" => self.helo = Attribute::Known(Some(value).filter(|name| is_host_name(name))?.into()),
            "LOGIN" => self.login = Attribute::Known(Some(value).filter(|name| is_user_name(name))?.into()),
            "PROTO" => return ["SMTP", "ESMTP"].iter().any(|word| word.eq_ignore_ascii_case(value)).then_some(()),
            // The values of these attributes are checked, but not used.
            "PORT" | "DESTPORT" => return value.parse::<u16>().ok().map(|_| ()),
            "DESTADDR" => return address(value).map(|_| ()),
            _ => {}
        }
        Some(())
    }
}

/// Returns whether a client can connect from this address.
fn is_of_a_client(address: &IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast()
}

fn bad(name: &str) -> Reply {
    Reply::new(501, format!("5.5.4 Bad XCLIENT attribute {name}"))
}

fn address(value: &str) -> Option<IpAddr> {
    let tagged = value.get(..5).is_some_and(|tag| tag.eq_ignore_ascii_case("IPV6:"));
    let address: IpAddr = value[if tagged { 5 } else { 0 }..].parse().ok()?;
    Some(address.to_canonical()).filter(|_| !tagged || address.is_ipv6())
}

/// Decodes xtext (RFC 3461 §4). `None` if the text is empty or has octets that could break a line, a log or a header.
fn decode(text: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => {
                let digits = [bytes.next()?, bytes.next()?];
                let hexadecimal = digits.iter().all(u8::is_ascii_hexdigit);
                let digits = std::str::from_utf8(&digits).ok().filter(|_| hexadecimal)?;
                u8::from_str_radix(digits, 16).ok()?
            }
            byte => byte,
        });
    }
    let text = String::from_utf8(out).ok()?;
    Some(text).filter(|text| !text.is_empty() && !text.contains(char::is_control))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_attributes() {
        let read = Xclient::parse("NAME=a.example addr=192.0.2.7 PORT=4711 PROTO=ESMTP HELO=pc+2Eexample LOGIN=al+40b");
        let expected = Xclient {
            address: Attribute::Known("192.0.2.7".parse().unwrap()),
            helo: Attribute::Known("pc.example".into()),
            login: Attribute::Known("al@b".into()),
        };
        assert_eq!(read, Ok(expected));
        for (text, address) in [
            ("ADDR=IPV6:2001:db8::1", Some("2001:db8::1")),
            ("ADDR=2001:db8::1", Some("2001:db8::1")),
            ("ADDR=::ffff:192.0.2.1", Some("192.0.2.1")),
            ("DESTADDR=192.0.2.1 DESTPORT=25", None),
            ("NAME=[TEMPUNAVAIL]", None),
        ] {
            let address = address.map_or(Attribute::Absent, |text| Attribute::Known(text.parse().unwrap()));
            assert_eq!(Xclient::parse(text), Ok(Xclient { address, ..Xclient::default() }), "{text}");
        }
    }

    #[test]
    fn an_unknown_attribute_is_not_an_absent_one() {
        let read = Xclient::parse("ADDR=[UNAVAILABLE] LOGIN=[TEMPUNAVAIL]").unwrap();
        assert_eq!((read.address, read.helo, read.login), (Attribute::Unknown, Attribute::Absent, Attribute::Unknown));
    }

    #[test]
    fn refuses_bad_attributes() {
        for text in [
            "",
            " ",
            "ADDR",
            "ADDR=",
            "ADDR=host.example",
            "ADDR=0.0.0.0",
            "ADDR=224.0.0.1",
            "ADDR=IPV6:192.0.2.1",
            "ADDR=192.0.2.1 ADDR=192.0.2.2",
            "FOO=bar",
            "PORT=65536",
            "PROTO=HTTP",
            "HELO=a(b",
            "HELO=a+0D+0Ab",
            "LOGIN=a+00b",
            "LOGIN=a+0Ab",
            "LOGIN=a+2",
            "LOGIN=a++41",
            "LOGIN=a:b",
            "NAME=a+0Ab",
            "NAME=+FF",
        ] {
            assert_eq!(Xclient::parse(text).map_err(|reply| reply.code()), Err(501), "{text}");
        }
    }
}
