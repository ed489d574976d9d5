//! The mail of the past, from CSV or JSON lines, plain or gzipped: rows in, messages out.

use crate::time::{Timestamp, parse_time};
use csv::ByteRecord;
use flate2::bufread::MultiGzDecoder;
use indicatif::ProgressBar;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal as _, Read};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// A message: rows of equal time and sender.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub at: Timestamp,
    /// The login; where there is none, the sender stands for it.
    pub user: Arc<str>,
    pub client: Option<IpAddr>,
    pub recipients: Vec<Arc<str>>,
}

/// Messages in the order of their time.
pub struct History {
    rows: Rows,
    next: Option<Row>,
    /// Of the last row that was good.
    latest: Option<Timestamp>,
    /// The user of the last row: most rows have the same again.
    user: Arc<str>,
    pub bad: Bad,
    progress: ProgressBar,
}

/// Rows that could not be used.
#[derive(Debug, Default)]
pub struct Bad {
    pub count: u64,
    /// Of the first few: line and reason.
    pub named: Vec<(u64, String)>,
}

/// How many bad rows are named.
const NAMED: usize = 10;

enum Rows {
    Csv { reader: csv::Reader<Box<dyn BufRead>>, columns: Columns, record: ByteRecord },
    Json { lines: Box<dyn BufRead>, line: u64, text: String },
}

/// Where in a record each value stands.
struct Columns {
    t: usize,
    sender: usize,
    recipient: usize,
    client: Option<usize>,
    user: Option<usize>,
    message: Option<usize>,
}

/// A row: one recipient of a message.
struct Row {
    at: Timestamp,
    sender: Box<str>,
    recipient: Arc<str>,
    client: Option<IpAddr>,
    user: Option<Box<str>>,
    /// Tells messages of one sender at one time apart.
    message: Option<Box<str>>,
}

/// A row, or why it cannot be used.
type Parsed = Result<Row, String>;

/// Why a history cannot be read at all.
#[derive(Debug)]
pub enum ReadError {
    Io(std::io::Error),
    /// The header lacks these columns.
    Columns(String),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Columns(missing) => write!(
                f,
                "the first line names no column {missing}; it must have t, sender and recipient, and may have client, user, size and message"
            ),
        }
    }
}

impl From<csv::Error> for ReadError {
    fn from(error: csv::Error) -> Self {
        match error.into_kind() {
            csv::ErrorKind::Io(error) => Self::Io(error),
            other => Self::Io(std::io::Error::other(format!("{other:?}"))),
        }
    }
}

impl History {
    /// Opens a file, or standard input where its name is `-`.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let (input, length): (Box<dyn Read>, _) = if path == Path::new("-") {
            (Box::new(std::io::stdin()), None)
        } else {
            let file = File::open(path).map_err(ReadError::Io)?;
            let length = file.metadata().map_err(ReadError::Io)?.len();
            (Box::new(file), Some(length))
        };
        let progress = match length {
            Some(length) if std::io::stderr().is_terminal() => ProgressBar::new(length),
            _ => ProgressBar::hidden(),
        };
        let mut history = Self::read(progress.wrap_read(input))?;
        history.progress = progress;
        Ok(history)
    }

    fn read(input: impl Read + 'static) -> Result<Self, ReadError> {
        let mut input: Box<dyn BufRead> = Box::new(BufReader::with_capacity(BUFFER, input));
        if input.fill_buf().map_err(ReadError::Io)?.starts_with(&GZIP) {
            input = Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(input)));
        }
        let is_json = input.fill_buf().map_err(ReadError::Io)?.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
        let rows = if is_json {
            Rows::Json { lines: input, line: 0, text: String::new() }
        } else {
            let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::Headers).from_reader(input);
            let columns = Columns::of(reader.byte_headers()?)?;
            Rows::Csv { reader, columns, record: ByteRecord::new() }
        };
        let (bad, progress) = (Bad::default(), ProgressBar::hidden());
        let mut history = Self { rows, next: None, latest: None, user: "".into(), bad, progress };
        history.next = history.good_row()?;
        Ok(history)
    }

    /// When the next message was; `None` after the last.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.next.as_ref().map(|row| row.at)
    }

    /// The next message; `None` after the last.
    pub fn next(&mut self) -> Result<Option<Message>, ReadError> {
        let Some(first) = self.next.take() else {
            self.progress.finish_and_clear();
            return Ok(None);
        };
        let user = first.user.as_deref().unwrap_or(&first.sender);
        if *self.user != *user {
            self.user = user.into();
        }
        let mut message = Message {
            at: first.at,
            user: self.user.clone(),
            client: first.client,
            recipients: vec![first.recipient.clone()],
        };
        loop {
            match self.good_row()? {
                Some(row) if row.at == first.at && row.sender == first.sender && row.message == first.message => {
                    message.recipients.push(row.recipient);
                }
                other => {
                    self.next = other;
                    return Ok(Some(message));
                }
            }
        }
    }

    fn good_row(&mut self) -> Result<Option<Row>, ReadError> {
        loop {
            let (line, row) = match self.rows.next()? {
                None => return Ok(None),
                Some(row) => row,
            };
            let row = row.and_then(|row| match self.latest {
                Some(latest) if row.at < latest => Err("it is earlier than the row before it".to_owned()),
                _ => Ok(row),
            });
            match row {
                Ok(row) => {
                    self.latest = Some(row.at);
                    return Ok(Some(row));
                }
                Err(why) => {
                    self.bad.count += 1;
                    if self.bad.named.len() < NAMED {
                        self.bad.named.push((line, why));
                    }
                }
            }
        }
    }
}

const BUFFER: usize = 1 << 16;

/// What a gzip file begins with (RFC 1952 §2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

impl Columns {
    fn of(header: &ByteRecord) -> Result<Self, ReadError> {
        let place = |name: &str| header.iter().position(|column| column == name.as_bytes());
        let required = |name: &str| place(name).ok_or_else(|| ReadError::Columns(format!("\"{name}\"")));
        Ok(Self {
            t: required("t")?,
            sender: required("sender")?,
            recipient: required("recipient")?,
            client: place("client"),
            user: place("user"),
            message: place("message"),
        })
    }
}

impl Rows {
    /// The next row, with its line; `None` after the last.
    fn next(&mut self) -> Result<Option<(u64, Parsed)>, ReadError> {
        match self {
            Self::Csv { reader, columns, record } => {
                if !reader.read_byte_record(record)? {
                    return Ok(None);
                }
                let value = |at: usize| match record.get(at).map(std::str::from_utf8) {
                    Some(Ok(text)) => Ok(text.trim_ascii()),
                    Some(Err(_)) => Err("it is not UTF-8".to_owned()),
                    None => Err(format!("it has {} columns", record.len())),
                };
                let more = |at: Option<usize>| at.map_or(Ok(""), value);
                let row = || {
                    Row::new(
                        value(columns.t)?,
                        value(columns.sender)?,
                        value(columns.recipient)?,
                        more(columns.client)?,
                        more(columns.user)?,
                        more(columns.message)?,
                    )
                };
                let row = row();
                Ok(Some((record.position().map_or(0, csv::Position::line), row)))
            }
            Self::Json { lines, line, text } => loop {
                text.clear();
                *line += 1;
                match lines.read_line(text) {
                    Ok(0) => return Ok(None),
                    Ok(_) if text.trim().is_empty() => {}
                    Ok(_) => return Ok(Some((*line, Row::of_json(text)))),
                    Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                        return Ok(Some((*line, Err("it is not UTF-8".to_owned()))));
                    }
                    Err(error) => return Err(ReadError::Io(error)),
                }
            },
        }
    }
}

impl Row {
    /// A row of texts; those that may be missing are empty then.
    fn new(t: &str, sender: &str, recipient: &str, client: &str, user: &str, message: &str) -> Result<Self, String> {
        let at = parse_time(t).map_err(|error| error.to_string())?;
        let given = |text: &str| Some(text).filter(|text| !text.is_empty()).map(Box::from);
        if sender.is_empty() && user.is_empty() {
            return Err("it has neither sender nor user".to_owned());
        }
        if recipient.is_empty() {
            return Err("it has no recipient".to_owned());
        }
        if [sender, user].iter().any(|text| text.contains(char::is_control)) {
            return Err("a name has control characters".to_owned());
        }
        let client = match client {
            "" => None,
            text => Some(text.parse::<IpAddr>().map_err(|_| format!("\"{text}\" is no address of a client"))?),
        };
        let client = client.map(|address| address.to_canonical());
        let recipient = match recipient.bytes().any(|b| b.is_ascii_uppercase() || !b.is_ascii()) {
            true => recipient.to_lowercase().into(),
            false => recipient.into(),
        };
        Ok(Self { at, sender: sender.into(), recipient, client, user: given(user), message: given(message) })
    }

    fn of_json(text: &str) -> Result<Self, String> {
        let record: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let value = |name: &str| match &record[name] {
            Value::Null => Ok(String::new()),
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) => Ok(number.to_string()),
            other => Err(format!("{name} is {other}")),
        };
        let [t, sender, recipient] = [value("t")?, value("sender")?, value("recipient")?];
        Self::new(&t, &sender, &recipient, &value("client")?, &value("user")?, &value("message")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn all(input: &[u8]) -> (Vec<Message>, Bad) {
        let mut history = History::read(std::io::Cursor::new(input.to_vec())).unwrap();
        let mut messages = Vec::new();
        while let Some(message) = history.next().unwrap() {
            messages.push(message);
        }
        (messages, history.bad)
    }

    fn message(seconds: i64, user: &str, recipients: &[&str]) -> Message {
        let recipients = recipients.iter().map(|recipient| (*recipient).into()).collect();
        Message { at: Timestamp::from_micros(seconds * 1_000_000), user: user.into(), client: None, recipients }
    }

    #[test]
    fn rows_of_one_time_and_sender_are_one_message() {
        let text = "recipient,t,sender\nb,1,a\nC,1,a\nb,1,d\nb,2,a\nb,3,a\n";
        let expected =
            [message(1, "a", &["b", "c"]), message(1, "d", &["b"]), message(2, "a", &["b"]), message(3, "a", &["b"])];
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        zipped.write_all(text.as_bytes()).unwrap();
        let json = "{\"t\":1,\"sender\":\"a\",\"recipient\":\"b\"}\n{\"t\":1.0,\"sender\":\"a\",\"recipient\":\"C\"}\n\n\
            {\"t\":\"1\",\"sender\":\"d\",\"recipient\":\"b\"}\n{\"t\":2,\"sender\":\"a\",\"recipient\":\"b\"}\n\
            {\"t\":3,\"sender\":\"x\",\"user\":\"a\",\"recipient\":\"b\"}";
        for input in [text.as_bytes(), &zipped.finish().unwrap(), json.as_bytes()] {
            let (messages, bad) = all(input);
            assert_eq!((messages, bad.count), (expected.to_vec(), 0));
        }
    }

    #[test]
    fn clients_users_and_messages_are_read_where_they_stand() {
        let text = "t,sender,recipient,client,user,size,message\n\
            1,a,b,::ffff:192.0.2.1,u,10,m1\n1,a,c,192.0.2.1,u,10,m1\n1,a,c,192.0.2.1,u,10,m2\n";
        let (messages, _) = all(text.as_bytes());
        assert_eq!(messages.iter().map(|m| m.recipients.len()).collect::<Vec<_>>(), [2, 1]);
        assert!(messages.iter().all(|m| &*m.user == "u" && m.client == "192.0.2.1".parse().ok()));
    }

    #[test]
    fn bad_rows_are_counted_and_named() {
        let text =
            b"t,sender,recipient,client\nx,a,b,\n1,a,b,\n0,a,b,\n2,,b,\n2,a,,\n2,a,b,here\n2,a\n2,\xff,b,\n3,a,b,\n";
        let (messages, bad) = all(text);
        assert_eq!(messages.len(), 2);
        assert_eq!(bad.count, 7);
        for (line, words) in [
            (2, "\"x\" is not a time"),
            (4, "earlier"),
            (5, "neither"),
            (6, "no recipient"),
            (7, "\"here\""),
            (8, "2 columns"),
            (9, "UTF-8"),
        ] {
            assert!(bad.named.iter().any(|(at, why)| *at == line && why.contains(words)), "{words}: {:?}", bad.named);
        }
        assert_eq!(all(b"{\"t\":1}\n{\"t\":[],\"sender\":\"a\",\"recipient\":\"b\"}\nhello\n").1.count, 3);
    }

    #[test]
    fn a_header_that_lacks_a_column_is_an_error() {
        for text in ["", "t,from,to\n1,a,b\n"] {
            let error = History::read(std::io::Cursor::new(text.as_bytes().to_vec())).err().unwrap().to_string();
            assert!(error.contains("no column"), "{error}");
        }
    }
}
