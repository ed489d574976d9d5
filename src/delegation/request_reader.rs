//! Reader of requests: lines `name=value`, and an empty line at the end. It keeps only the attributes that Weir uses, and
//! only values of a bounded length, so a connection needs bounded memory.

use super::attributes::{AttributeName, AttributeSet, Attributes, ProtocolState};
use super::former_request::{FormerRequest, MAX_KEPT_OCTETS, ParsedLines};
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
    /// Attributes of the request. Those that have not come so far still have the values of the former request.
    attributes: Arc<Attributes>,
    /// Attributes that have come in this request.
    seen: AttributeSet,
    former: FormerRequest,
    /// True if the request can share lines with the former one, and can be kept for the next one: it begins with the
    /// present input, and no attribute comes twice.
    can_be_kept: bool,
    /// Lines so far, if the request can be kept.
    lines: ParsedLines,
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
        self.can_be_kept = self.octets == 0 && input.len() <= MAX_KEPT_OCTETS;
        self.lines.clear();
        let (used, read) = self.read_lines(input);
        match read {
            Read::Incomplete => {}
            Read::Request(_) if self.can_be_kept => self.former.replace(&input[..used], &mut self.lines),
            _ => self.former.clear(),
        }
        (used, read)
    }

    /// Returns whether the beginning of a request has arrived, but not its end.
    pub fn is_within_request(&self) -> bool {
        self.octets > 0
    }

    fn read_lines(&mut self, input: &[u8]) -> (usize, Read) {
        let mut used = 0;
        loop {
            if self.can_be_kept {
                let octets = self.former.share_lines(&input[used..], &mut self.lines, &mut self.seen);
                (used, self.octets) = (used + octets, self.octets + octets);
            }
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
        if let Some(name) = AttributeName::of(name) {
            self.error.get_or_insert(RequestError::TooLong(name.text()));
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
        let name = AttributeName::of(&line[..equals]);
        if let Some(name) = name {
            self.can_be_kept &= self.seen.add(name.into());
            let attributes = Arc::make_mut(&mut self.attributes);
            if let Err(error) = set(attributes, name, &line[equals + 1..]) {
                attributes.remove(name);
                self.error.get_or_insert(error);
            }
        }
        if self.can_be_kept {
            self.lines.add(line.len() + 1, name.map(AttributeSet::from).unwrap_or_default());
        }
        None
    }

    fn end(&mut self) -> Read {
        let seen = std::mem::take(&mut self.seen);
        seen.missing().for_each(|name| Arc::make_mut(&mut self.attributes).remove(name));
        self.octets = 0;
        match (self.attributes.is_access_policy, self.error.take()) {
            (None, _) => Read::Broken(RequestError::Missing("request")),
            (Some(false), _) => Read::Broken(RequestError::OtherRequest),
            (_, Some(error)) => Read::Unusable(error),
            _ if self.attributes.state.is_none() => Read::Unusable(RequestError::Missing("protocol_state")),
            _ => Read::Request(self.attributes.clone()),
        }
    }
}

/// Sets an attribute. If the same attribute comes twice, the last value counts.
fn set(attributes: &mut Attributes, name: AttributeName, value: &[u8]) -> Result<(), RequestError> {
    let malformed = || RequestError::Malformed(name.text());
    let given = || match text(value) {
        Some(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        None => Err(malformed()),
    };
    let kept = || given().map(|text| text.map(Arc::from));
    match name {
        AttributeName::Request => attributes.is_access_policy = given()?.map(|request| request == REQUEST),
        AttributeName::State => attributes.state = given()?.map(|state| ProtocolState::of(&state)),
        AttributeName::Client => {
            let address = given()?.filter(|address| address != "unknown");
            let parse = |address: Cow<'_, str>| address.parse().map(|address: IpAddr| address.to_canonical());
            attributes.client = address.map(parse).transpose().map_err(|_| malformed())?;
        }
        // These three only name the SMTP session. Postfix sends "unknown" or 0 for a connection without a port.
        AttributeName::ClientPort => attributes.client_port = given()?.and_then(|port| port.parse().ok()),
        AttributeName::ServerAddress => attributes.server_address = given()?.and_then(|address| address.parse().ok()),
        AttributeName::ServerPort => attributes.server_port = given()?.and_then(|port| port.parse().ok()),
        AttributeName::Helo => attributes.helo = kept()?,
        AttributeName::Sender => attributes.sender = kept()?,
        AttributeName::Recipient => attributes.recipient = kept()?,
        AttributeName::Size => {
            attributes.size = given()?.map(|size| size.parse()).transpose().map_err(|_| malformed())?
        }
        AttributeName::Instance => attributes.instance = kept()?,
        AttributeName::User => attributes.user = kept()?,
        AttributeName::Mechanism => attributes.mechanism = kept()?,
        AttributeName::Tls => attributes.tls = kept()?,
    }
    Ok(())
}

/// Returns a value as text; `None` if it contains a control character.
fn text(value: &[u8]) -> Option<Cow<'_, str>> {
    // A loop that never stops early checks several octets at once.
    if value.iter().fold(false, |found, byte| found | byte.is_ascii_control()) {
        return None;
    }
    // Mostly the value is UTF-8, which this check finds faster than a conversion.
    Some(str::from_utf8(value).map_or_else(|_| String::from_utf8_lossy(value), Cow::Borrowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delegation::SessionName;
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert_eq, proptest};
    use proptest::sample::Index;

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
    fn consecutive_requests_share_texts() {
        let mut reader = RequestReader::default();
        let mut read = |text: &str| {
            let (used, read) = reader.read(text.as_bytes());
            assert!(used == text.len() && !reader.is_within_request());
            let Read::Request(request) = read else { panic!("{read:?}") };
            request
        };
        let first = read(&format!("{START}sender=a\nrecipient=b\nsasl_username=alice\n\n"));
        let second = read(&format!("{START}sender=a\nrecipient=c\nsasl_username=alice\n\n"));
        assert_eq!((second.sender.as_deref(), second.recipient.as_deref()), (Some("a"), Some("c")));
        let is_shared = |get: fn(&Attributes) -> &Option<Arc<str>>| {
            get(&first).as_ref().zip(get(&second).as_ref()).is_some_and(|(first, second)| Arc::ptr_eq(first, second))
        };
        assert!(is_shared(|request| &request.sender) && is_shared(|request| &request.user));
    }

    /// Lines of requests. Some are wrong, and `~` makes a line overlong.
    const LINES: [&str; 36] = [
        "request=smtpd_access_policy",
        "request=other",
        "request=\r",
        "protocol_state=",
        "protocol_state=RCPT",
        "protocol_state=MAIL",
        "client_address=192.0.2.7",
        "client_address=unknown",
        "client_port=1",
        "client_port=2",
        "server_address=192.0.2.1",
        "server_address=192.0.2.2",
        "server_port=25",
        "server_port=587",
        "helo_name=alice",
        "helo_name=h",
        "sender=",
        "sender=alice",
        "sender=~",
        "recipient=alice",
        "recipient=bb",
        "recipient=a\r",
        "size=9",
        "size=10",
        "size=x",
        "instance=1.0",
        "instance=2.0",
        "sasl_username=alice",
        "sasl_username=bob",
        "sasl_method=PLAIN",
        "sasl_method=LOGIN",
        "encryption_protocol=TLSv1.3",
        "encryption_protocol=TLSv1.2",
        "other=b",
        "other=~",
        "no attribute",
    ];

    /// Returns the results of all requests, up to one that is broken, and the octets that were read.
    fn read_all(mut reader: impl FnMut(&[u8]) -> (usize, Read), pieces: &[&[u8]]) -> (Vec<Read>, usize) {
        let (mut results, mut octets) = (Vec::new(), 0);
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let (used, read) = reader(rest);
                (rest, octets) = (&rest[used..], octets + used);
                let is_broken = matches!(read, Read::Broken(_));
                results.extend(Some(read).filter(|read| *read != Read::Incomplete));
                if is_broken {
                    return (results, octets);
                }
            }
        }
        (results, octets)
    }

    proptest! {
        /// Requests that have most lines in common, one after the other, in pieces.
        #[test]
        fn the_former_request_changes_no_result(
            usual in vec(0..LINES.len(), 1..8),
            changes in vec(vec((any::<Index>(), 0..LINES.len(), 0..3), 0..3), 1..8),
            cuts in vec(any::<Index>(), 0..4),
        ) {
            let requests = changes.iter().map(|changes| {
                let mut lines: Vec<&str> = START.lines().chain(usual.iter().map(|line| LINES[*line])).collect();
                for (at, line, change) in changes {
                    let (at, line) = (at.index(lines.len()), LINES[*line]);
                    match change {
                        0 => lines.insert(at, line),
                        1 => lines[at] = line,
                        _ if lines.len() > 1 => _ = lines.remove(at),
                        _ => {}
                    }
                }
                let lines = lines.into_iter().map(|line| line.replace('~', &"x".repeat(5000)) + "\n");
                (lines.collect::<String>() + "\n").into_bytes()
            });
            let requests: Vec<Vec<u8>> = requests.collect();
            let all = requests.concat();
            // A new reader for each request.
            let expected = read_all(|input| RequestReader::default().read(input), &[&all]);
            let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(all.len())).collect();
            ends.sort_unstable();
            let pieces = std::iter::once(0).chain(ends.clone()).zip(ends.iter().copied().chain([all.len()]));
            let pieces: Vec<&[u8]> = pieces.map(|(begin, end)| &all[begin..end]).collect();
            let whole: Vec<&[u8]> = requests.iter().map(Vec::as_slice).collect();
            for pieces in [pieces, whole] {
                let mut reader = RequestReader::default();
                prop_assert_eq!(&read_all(|input| reader.read(input), &pieces), &expected);
            }
        }
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
        let kept = reader.line.capacity();
        assert!(kept <= 2 * MAX_LINE + 2, "{kept}");
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
