//! Reader of requests: lines `name=value`, and an empty line at the end. It keeps only the attributes that Weir uses, and
//! only values of a bounded length, so a connection needs bounded memory.

use super::attributes::{Attributes, ProtocolState};
use memchr::memchr;
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

/// Maximum octets of a line that is kept. Postfix itself shortens attributes to `line_length_limit`, by default 2048.
const MAX_LINE: usize = 4096;

/// Maximum octets of a request. Whatever sends more is not Postfix.
const MAX_REQUEST: usize = 16 * 1024 * 1024;

/// Value of the attribute `request`.
const REQUEST: &str = "smtpd_access_policy";

/// Reader of the requests of one connection.
#[derive(Default)]
pub struct RequestReader {
    attributes: Attributes,
    /// The former request. Mostly the next one is about the same message, and has the same texts.
    former: Arc<Attributes>,
    /// Beginning of a line whose end has not arrived.
    line: Vec<u8>,
    /// True while the rest of an overlong line is skipped.
    is_skipping: bool,
    /// Octets of the request so far.
    octets: usize,
    /// First error of the request.
    error: Option<RequestError>,
}

/// Result of reading.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// The end of the request has not arrived.
    Incomplete,
    Request(Arc<Attributes>),
    /// A request that cannot be used. The next request can follow.
    Unusable(RequestError),
    /// The octets are no request, so nothing after them can be used.
    Broken(RequestError),
}

/// Error in a request. The name is that of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    TooLong(&'static str),
    /// The value contains a control character, or is no number or address.
    Malformed(&'static str),
    Missing(&'static str),
    /// `request` is not `smtpd_access_policy`.
    OtherRequest,
    NoAttribute,
    TooLarge,
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong(name) => write!(f, "the value of {name} is longer than {MAX_LINE} octets"),
            Self::Malformed(name) => write!(f, "the value of {name} is malformed"),
            Self::Missing(name) => write!(f, "{name}= is missing"),
            Self::OtherRequest => write!(f, "request= is not {REQUEST}"),
            Self::NoAttribute => write!(f, "a line is no name=value"),
            Self::TooLarge => write!(f, "it is larger than {MAX_REQUEST} octets"),
        }
    }
}

impl RequestReader {
    /// Reads octets until the end of a request. Returns the number of octets that were read.
    pub fn read(&mut self, input: &[u8]) -> (usize, Read) {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let end = memchr(b'\n', rest);
            let octets = end.map_or(rest.len(), |end| end + 1);
            (used, self.octets) = (used + octets, self.octets + octets);
            if self.octets > MAX_REQUEST {
                return (used, Read::Broken(RequestError::TooLarge));
            }
            let Some(end) = end else {
                self.keep(rest);
                return (used, Read::Incomplete);
            };
            if std::mem::take(&mut self.is_skipping) {
                continue;
            }
            let taken = match self.line.is_empty() {
                true => self.take(&rest[..end]),
                false => {
                    let mut line = std::mem::take(&mut self.line);
                    line.extend_from_slice(&rest[..end]);
                    self.take(&line)
                }
            };
            if let Some(read) = taken {
                return (used, read);
            }
        }
    }

    /// Returns whether the beginning of a request has arrived, but not its end.
    pub fn is_within_request(&self) -> bool {
        self.octets > 0
    }

    /// Keeps the beginning of a line. Skips a line that is too long.
    fn keep(&mut self, part: &[u8]) {
        if self.is_skipping {
            return;
        }
        self.line.extend_from_slice(&part[..part.len().min(MAX_LINE + 1)]);
        if self.line.len() > MAX_LINE {
            let line = std::mem::take(&mut self.line);
            self.refuse_overlong(&line);
            self.is_skipping = true;
        }
    }

    fn refuse_overlong(&mut self, line: &[u8]) {
        let name = line.split(|byte| *byte == b'=').next().unwrap_or_default();
        if let Some(name) = known(name) {
            self.error.get_or_insert(RequestError::TooLong(name));
        }
    }

    /// Takes a line without its line feed. Returns the result at the end of the request.
    fn take(&mut self, line: &[u8]) -> Option<Read> {
        if line.is_empty() {
            return Some(self.end());
        }
        if line.len() > MAX_LINE {
            self.refuse_overlong(line);
            return None;
        }
        let Some(equals) = memchr(b'=', line) else {
            return Some(Read::Broken(RequestError::NoAttribute));
        };
        if let Some(name) = known(&line[..equals])
            && let Err(error) = set(&mut self.attributes, &self.former, name, &line[equals + 1..])
        {
            self.error.get_or_insert(error);
        }
        None
    }

    fn end(&mut self) -> Read {
        let (attributes, error) = (std::mem::take(&mut self.attributes), self.error.take());
        self.octets = 0;
        match (attributes.is_access_policy, error) {
            (None, _) => Read::Broken(RequestError::Missing("request")),
            (Some(false), _) => Read::Broken(RequestError::OtherRequest),
            (_, Some(error)) => Read::Unusable(error),
            _ if attributes.state.is_none() => Read::Unusable(RequestError::Missing("protocol_state")),
            _ => {
                self.former = Arc::new(attributes);
                Read::Request(self.former.clone())
            }
        }
    }
}

/// Returns the name of an attribute that Weir uses.
fn known(name: &[u8]) -> Option<&'static str> {
    Some(match name {
        b"request" => "request",
        b"protocol_state" => "protocol_state",
        b"client_address" => "client_address",
        b"client_port" => "client_port",
        b"server_address" => "server_address",
        b"server_port" => "server_port",
        b"helo_name" => "helo_name",
        b"sender" => "sender",
        b"recipient" => "recipient",
        b"size" => "size",
        b"instance" => "instance",
        b"sasl_username" => "sasl_username",
        b"sasl_method" => "sasl_method",
        b"encryption_protocol" => "encryption_protocol",
        _ => return None,
    })
}

/// Sets an attribute. If the same attribute comes twice, the last value counts. `former`: attributes of the former request.
fn set(attributes: &mut Attributes, former: &Attributes, name: &'static str, value: &[u8]) -> Result<(), RequestError> {
    let malformed = || RequestError::Malformed(name);
    let given = || match text(value) {
        Some(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        None => Err(malformed()),
    };
    // Both requests share a text that they have in common.
    let shared = |former: &Option<Arc<str>>| match former {
        Some(former) if former.as_bytes() == value => Ok(Some(former.clone())),
        _ => given().map(|text| text.map(Arc::from)),
    };
    match name {
        "request" => attributes.is_access_policy = given()?.map(|request| request == REQUEST),
        "protocol_state" => attributes.state = given()?.map(|state| ProtocolState::of(&state)),
        "client_address" => {
            let address = given()?.filter(|address| address != "unknown");
            let parse = |address: Cow<'_, str>| address.parse().map(|address: IpAddr| address.to_canonical());
            attributes.client = address.map(parse).transpose().map_err(|_| malformed())?;
        }
        // These three only name the SMTP session. Postfix sends "unknown" or 0 for a connection without a port.
        "client_port" => attributes.client_port = given()?.and_then(|port| port.parse().ok()),
        "server_address" => attributes.server_address = given()?.and_then(|address| address.parse().ok()),
        "server_port" => attributes.server_port = given()?.and_then(|port| port.parse().ok()),
        "helo_name" => attributes.helo = shared(&former.helo)?,
        "sender" => attributes.sender = shared(&former.sender)?,
        "recipient" => attributes.recipient = shared(&former.recipient)?,
        "size" => attributes.size = given()?.map(|size| size.parse()).transpose().map_err(|_| malformed())?,
        "instance" => attributes.instance = shared(&former.instance)?,
        "sasl_username" => attributes.user = shared(&former.user)?,
        "sasl_method" => attributes.mechanism = shared(&former.mechanism)?,
        _ => attributes.tls = shared(&former.tls)?,
    }
    Ok(())
}

/// Returns a value as text; `None` if it contains a control character.
fn text(value: &[u8]) -> Option<Cow<'_, str>> {
    if value.iter().any(|byte| byte.is_ascii_control()) {
        return None;
    }
    // Mostly the value is UTF-8, which this check finds faster than a conversion.
    Some(str::from_utf8(value).map_or_else(|_| String::from_utf8_lossy(value), Cow::Borrowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delegation::SessionName;

    const START: &str = "request=smtpd_access_policy\nprotocol_state=RCPT\n";

    fn read(text: impl AsRef<[u8]>) -> Read {
        let (mut reader, text) = (RequestReader::default(), text.as_ref());
        let whole = reader.read(text);
        // The result is the same if the octets arrive one by one.
        let mut reader = RequestReader::default();
        let single = text.iter().find_map(|byte| match reader.read(&[*byte]).1 {
            Read::Incomplete => None,
            end => Some(end),
        });
        assert_eq!(single.unwrap_or(Read::Incomplete), whole.1);
        whole.1
    }

    #[test]
    fn a_request_has_the_attributes_that_weir_uses() {
        let text = format!(
            "{START}client_address=::ffff:192.0.2.7\nclient_port=4711\nsender=\nrecipient=b@example.net\nsize=0\nunknown=1=2\n\
             instance=1.2.3.0\nsasl_username=alice\nrecipient=c@example.net\n\n"
        );
        let Read::Request(request) = read(text) else { panic!() };
        assert_eq!(request.client, Some("192.0.2.7".parse().unwrap()));
        assert_eq!((request.sender.as_deref(), request.recipient.as_deref()), (None, Some("c@example.net")));
        assert_eq!((request.size, request.user.as_deref()), (Some(0), Some("alice")));
        let client = ("192.0.2.7".parse().unwrap(), 4711.try_into().unwrap());
        assert_eq!(request.session_name(), SessionName::Connection { client, server: (None, None) });
    }

    #[test]
    fn consecutive_requests_share_texts_and_nothing_else() {
        let mut reader = RequestReader::default();
        let mut read = |attributes: &str| {
            let text = format!("{START}{attributes}\n\n").replace(' ', "\n");
            let (used, read) = reader.read(text.as_bytes());
            assert!(used == text.len() && !reader.is_within_request());
            read
        };
        let Read::Request(first) =
            read("client_address=192.0.2.7 helo_name=h sender=a recipient=b instance=1 sasl_username=alice size=9")
        else {
            panic!()
        };
        assert_eq!(read("sender=x\0 recipient=y instance=2"), Read::Unusable(RequestError::Malformed("sender")));
        let Read::Request(second) = read("helo_name= sender=alice recipient=a instance=1 sasl_username=alice") else {
            panic!()
        };
        let text = |text: &str| Some(Arc::from(text));
        let expected = Attributes {
            is_access_policy: Some(true),
            state: Some(ProtocolState::Rcpt),
            sender: text("alice"),
            recipient: text("a"),
            instance: text("1"),
            user: text("alice"),
            ..Attributes::default()
        };
        assert_eq!(*second, expected);
        let is_shared = |get: fn(&Attributes) -> &Option<Arc<str>>| {
            get(&first).as_ref().zip(get(&second).as_ref()).is_some_and(|(first, second)| Arc::ptr_eq(first, second))
        };
        assert!(is_shared(|request| &request.user) && is_shared(|request| &request.instance));
    }

    #[test]
    fn sessions_with_other_addresses_or_ports_have_other_names() {
        let name = |client, server| {
            let text = format!("{START}client_address={client}\nserver_address={server}\n\n").replace(' ', "\n");
            let Read::Request(request) = read(text) else { panic!() };
            request.session_name()
        };
        let names = [
            name("192.0.2.7 client_port=1", "192.0.2.1 server_port=25"),
            name("192.0.2.8 client_port=1", "192.0.2.1 server_port=25"),
            name("192.0.2.7 client_port=2", "192.0.2.1 server_port=25"),
            name("192.0.2.7 client_port=1", "192.0.2.2 server_port=25"),
            name("192.0.2.7 client_port=1", "192.0.2.1 server_port=587"),
            name("192.0.2.7 client_port=1", "unknown"),
        ];
        assert_eq!(std::collections::BTreeSet::from(names).len(), 6);
    }

    #[test]
    fn a_session_without_a_port_has_the_name_of_its_message() {
        for port in ["", "client_port=\n", "client_port=0\n", "client_port=unknown\n", "client_port=65536\n"] {
            let Read::Request(request) = read(format!("{START}client_address=192.0.2.7\n{port}instance=1.2.3.0\n\n"))
            else {
                panic!()
            };
            assert_eq!(request.session_name(), SessionName::Message(Some("1.2.3.0".into())), "{port:?}");
        }
    }

    #[test]
    fn a_request_that_is_wrong_gets_an_error() {
        use RequestError::{Malformed, Missing, NoAttribute, OtherRequest, TooLong};
        let long = "x".repeat(1 << 20);
        for (text, result) in [
            ("\n".to_owned(), Read::Broken(Missing("request"))),
            ("a=b\n\n".to_owned(), Read::Broken(Missing("request"))),
            ("request=other\n\n".to_owned(), Read::Broken(OtherRequest)),
            ("EHLO example\r\n".to_owned(), Read::Broken(NoAttribute)),
            ("request=smtpd_access_policy\n\n".to_owned(), Read::Unusable(Missing("protocol_state"))),
            (format!("{START}sender={long}\n\n"), Read::Unusable(TooLong("sender"))),
            (format!("{START}sender=a\0b\n\n"), Read::Unusable(Malformed("sender"))),
            (format!("{START}recipient=a\r\n\n"), Read::Unusable(Malformed("recipient"))),
            (format!("{START}size=-1\n\n"), Read::Unusable(Malformed("size"))),
            (format!("{START}client_address=example\n\n"), Read::Unusable(Malformed("client_address"))),
            (format!("{START}sender=a"), Read::Incomplete),
        ] {
            assert_eq!(read(&text), result, "{:.60}", text);
        }
    }

    #[test]
    fn an_unknown_attribute_of_any_length_is_skipped() {
        let long = "x".repeat(1 << 20);
        for text in [format!("{START}new={long}\n\n"), format!("{START}{long}\n\n"), format!("{START}\0\r=\0\n\n")] {
            assert!(matches!(read(&text), Read::Request(_)), "{:.60}", text);
        }
        let mut reader = RequestReader::default();
        reader.read(format!("{START}new={long}").as_bytes());
        assert!(reader.line.capacity() <= 2 * MAX_LINE + 2, "{}", reader.line.capacity());
    }

    #[test]
    fn a_request_without_end_is_broken_off() {
        let mut reader = RequestReader::default();
        let part = vec![b'x'; 1 << 20];
        let ends = (0..17).map(|_| reader.read(&part).1).collect::<Vec<_>>();
        assert_eq!(ends[16], Read::Broken(RequestError::TooLarge));
        assert!(ends[..16].iter().all(|end| *end == Read::Incomplete));
    }
}
