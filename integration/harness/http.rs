//! Client of the admin API over HTTP. It sends each request over a connection of its own, octet for octet.

use super::Process;
use serde::Deserialize as _;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;
use weir::time::Timestamp;

/// Answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Returns the value of a header, which is in the answer once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut values = lines.filter(|(one, _)| one.eq_ignore_ascii_case(name)).map(|(_, value)| value);
        let value = values.next();
        assert_eq!(values.next(), None, "{name} is there twice: {self:?}");
        value
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the code of the error.
    pub fn code(&self) -> String {
        let body = self.json();
        let message = body["error"]["message"].as_str();
        assert!(message.is_some_and(|message| !message.is_empty()), "{self:?}");
        assert!(self.head.to_lowercase().contains("\r\ncontent-type: application/json"), "{self:?}");
        body["error"]["code"].as_str().unwrap().to_owned()
    }
}

/// Reads an answer, after which Weir closes the connection.
pub fn read(mut stream: impl std::io::Read) -> Answer {
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    Answer { status: head[9..12].parse().unwrap(), head: head.to_owned(), body: body.to_owned() }
}

/// Sends raw octets over TCP.
pub fn raw(weir: &Process, request: impl AsRef<[u8]>) -> Answer {
    let mut stream = TcpStream::connect(weir.address("admin")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // Weir may close before it has read everything.
    let _ = stream.write_all(request.as_ref());
    read(stream)
}

/// Sends a request with these further headers, each with its line end, and this body.
pub fn ask(weir: &Process, request: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    let head = format!("{request} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}");
    raw(weir, format!("{head}\r\n{body}"))
}

/// Sends a request, and reads only the head of the answer: the stream of events does not end.
pub fn ask_head(weir: &Process, request: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(weir.address("admin")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "{request} HTTP/1.1\r\n{headers}\r\n").unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut octet = [0];
        stream.read_exact(&mut octet).unwrap();
        head.extend(octet);
    }
    read(&*head)
}

/// Returns the time of an answer. Texts of times do not sort as times: "10:00:00.12Z" sorts after "10:00:00.123Z".
pub fn time(value: &Value) -> Timestamp {
    Timestamp::deserialize(value).unwrap_or_else(|error| panic!("{error}: {value}"))
}
