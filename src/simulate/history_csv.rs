//! History of mail, as input of a simulation: reads CSV or JSON lines, plain or gzipped, one row for each recipient,
//! and groups the rows into messages.

use super::origin::Origin;
use crate::policy::request::NULL_SENDER;
use crate::time::{Timestamp, parse_time};
use csv::ByteRecord;
use flate2::read::MultiGzDecoder;
use indicatif::ProgressBar;
use serde_json::Value;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Read};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// Message of the history: the rows with the same time, sender, user, client and message id.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub at: Timestamp,
    /// Login name in lower case; `None`: a session without a login.
    pub user: Option<Arc<str>>,
    pub client: Option<IpAddr>,
    pub recipients: Vec<Arc<str>>,
    /// Size in octets.
    pub size: Option<u64>,
    /// Message id in the rows, to distinguish messages of one sender at the same time.
    id: Option<Box<str>>,
    /// Envelope sender in lower case, `<>` for bounces; `None`: the row names no sender.
    pub sender: Option<Arc<str>>,
    /// Number of the message in a simulation, from 0. The reader of a history sets it to 0.
    pub number: u64,
}

/// Meaning of a row that names no user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingUser {
    /// The client did not log in.
    #[default]
    NoLogin,
    /// The client logged in under the name of the sender.
    Sender,
}

/// Reader that returns the messages in order of time.
pub struct History {
    rows: Rows,
    missing_user: MissingUser,
    /// Complete messages, all of the same time, to be returned next.
    ready: VecDeque<Message>,
    /// First row with a later time than the messages in `ready`. This row shows that all rows of these messages have been
    /// read.
    next: Option<Message>,
    /// Time of the last row that could be used.
    latest: Option<Timestamp>,
    pub bad: BadRows,
    progress: ProgressBar,
}

/// Rows that could not be used.
#[derive(Debug, Default)]
pub struct BadRows {
    pub count: u64,
    /// Number of rows read, bad or not.
    pub rows: u64,
    /// Line number and reason for each of the first bad rows.
    pub named: Vec<(u64, String)>,
}

/// Maximum number of bad rows in `named`.
const MAX_NAMED: usize = 10;
/// Maximum number of characters of the reason for a bad row.
const MAX_REASON_LENGTH: usize = 160;

/// Rows of the input.
struct Rows {
    input: Box<dyn std::io::BufRead>,
    format: Format,
    /// Last line read.
    line: Vec<u8>,
    /// Number of that line, from 1.
    number: u64,
}

enum Format {
    Csv(Columns),
    Json,
}

/// Columns of a CSV file.
struct Columns {
    /// For each column, the index of its name in [`VALUES`]; `None`: the column is not used.
    values: Vec<Option<usize>>,
    /// Minimum number of columns of a line: all used columns are among these.
    min_columns: usize,
}

/// Names of the values of a row.
const VALUES: [&str; 7] = ["t", "sender", "recipient", CLIENT, "user", "size", "message"];
/// Number of the values that each row must have, from the first one on.
const REQUIRED: usize = 3;
const CLIENT: &str = "client";

/// Maximum length of a line, in octets.
const MAX_LINE: u64 = 64 << 10;

/// Error that stops the reading of a history.
#[derive(Debug)]
pub enum ReadError {
    Io(std::io::Error),
    /// The first line of the CSV has no column of this name.
    Column(&'static str),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Column(missing) => write!(
                f,
                "the first line names no column \"{missing}\"; separated by commas, it must name t, sender and recipient, \
                 and may name client, user, size and message; or each line is a JSON object of these"
            ),
        }
    }
}

impl History {
    /// Opens a file, or standard input if the path is `-`.
    pub fn open(path: &Path, missing_user: MissingUser) -> Result<Self, ReadError> {
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
        let mut history = Self::read(progress.wrap_read(input), missing_user)?;
        history.progress = progress;
        Ok(history)
    }

    fn read(input: impl Read + 'static, missing_user: MissingUser) -> Result<Self, ReadError> {
        let rows = Rows::begin(input)?;
        let (bad, progress) = (BadRows::default(), ProgressBar::hidden());
        let ready = VecDeque::new();
        let mut history = Self { rows, missing_user, ready, next: None, latest: None, bad, progress };
        history.next = history.good_row()?;
        history.gather()?;
        Ok(history)
    }

    /// Returns whether rows of the history can name a client.
    pub fn has_clients(&self) -> bool {
        !matches!(&self.rows.format, Format::Csv(columns) if !columns.have(CLIENT))
    }

    /// Returns the time of the history's next message; `None` after the last one.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.ready.front().map(|message| message.at)
    }

    /// Returns the history's next message; `None` after the last one.
    pub fn next_message(&mut self) -> Result<Option<Message>, ReadError> {
        let message = self.ready.pop_front();
        if self.ready.is_empty() {
            self.gather()?;
        }
        if message.is_none() {
            self.progress.finish_and_clear();
        }
        Ok(message)
    }

    /// Reads all rows of the next time and groups them into messages. The rows of several messages can alternate,
    /// because logs have times in whole seconds and several senders can send in the same second.
    fn gather(&mut self) -> Result<(), ReadError> {
        let Some(first) = self.next.take() else { return Ok(()) };
        let at = first.at;
        self.ready.push_back(first);
        loop {
            match self.good_row()? {
                Some(row) if row.at == at => match self.ready.iter_mut().rev().find(|message| message.is_that_of(&row))
                {
                    Some(message) => {
                        message.recipients.extend(row.recipients);
                        message.size = message.size.max(row.size);
                    }
                    None => self.ready.push_back(row),
                },
                other => {
                    self.next = other;
                    return Ok(());
                }
            }
        }
    }

    fn good_row(&mut self) -> Result<Option<Message>, ReadError> {
        loop {
            let row = match self.rows.next()? {
                None => return Ok(None),
                Some(row) => row,
            };
            self.bad.rows += 1;
            let row = row.and_then(|row| match self.latest {
                Some(latest) if row.at < latest => Err("it is earlier than the row before it".to_owned()),
                _ => Ok(row),
            });
            match row {
                Ok(mut row) => {
                    self.latest = Some(row.at);
                    if self.missing_user == MissingUser::Sender {
                        row.user = row.user.or_else(|| row.sender.clone().filter(|sender| **sender != *NULL_SENDER));
                    }
                    return Ok(Some(row));
                }
                Err(why) => {
                    self.bad.count += 1;
                    if self.bad.named.len() < MAX_NAMED {
                        // Replace control characters: text from the file must not control the administrator's terminal.
                        let plain = why.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
                        self.bad.named.push((self.rows.number, plain.take(MAX_REASON_LENGTH).collect()));
                    }
                }
            }
        }
    }
}

/// Magic number of a gzip file (RFC 1952 §2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

impl Columns {
    fn of(header: &ByteRecord) -> Result<Self, ReadError> {
        let mut values = vec![None; header.len()];
        for (value, name) in VALUES.into_iter().enumerate() {
            match header.iter().position(|column| column.trim_ascii() == name.as_bytes()) {
                Some(column) => values[column] = Some(value),
                None if value < REQUIRED => return Err(ReadError::Column(name)),
                None => {}
            }
        }
        let min_columns = values.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        Ok(Self { values, min_columns })
    }

    fn have(&self, name: &str) -> bool {
        self.values.iter().flatten().any(|value| VALUES[*value] == name)
    }
}

impl Rows {
    fn begin(mut input: impl Read + 'static) -> Result<Self, ReadError> {
        let mut first = Vec::new();
        input.by_ref().take(2).read_to_end(&mut first).map_err(ReadError::Io)?;
        let is_gzip = first == GZIP;
        let input = std::io::Cursor::new(first).chain(input);
        let input: Box<dyn Read> = if is_gzip { Box::new(MultiGzDecoder::new(input)) } else { Box::new(input) };
        let input = Box::new(BufReader::with_capacity(1 << 16, input));
        let mut rows = Self { input, format: Format::Json, line: Vec::new(), number: 0 };
        // Skip empty lines before the CSV header or the first JSON row.
        while rows.read_line()? && rows.line.is_empty() {}
        let byte_order_mark = "\u{feff}".as_bytes();
        if rows.line.starts_with(byte_order_mark) {
            rows.line.drain(..byte_order_mark.len());
        }
        if !rows.line.starts_with(b"{") {
            rows.format = Format::Csv(Columns::of(&record(&rows.line))?);
            rows.line.clear();
        }
        Ok(rows)
    }

    /// Reads a line into `line`, without its line end. Returns false at the end of the input. If the line is too long,
    /// only its first [`MAX_LINE`] octets are kept.
    fn read_line(&mut self) -> Result<bool, ReadError> {
        self.line.clear();
        self.number += 1;
        let read = self.input.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.line).map_err(ReadError::Io)?;
        if self.line.last() != Some(&b'\n') && read as u64 == MAX_LINE {
            self.input.skip_until(b'\n').map_err(ReadError::Io)?;
        } else {
            self.line.truncate(self.line.trim_ascii_end().len());
        }
        Ok(read > 0)
    }

    /// Returns the next row, or the reason why that row cannot be used; `None` after the last row.
    fn next(&mut self) -> Result<Option<Result<Message, String>>, ReadError> {
        // `begin` has already read the first JSON row into `line`.
        while self.line.is_empty() {
            if !self.read_line()? {
                return Ok(None);
            }
        }
        let row = match (&self.format, self.line.len() as u64) {
            (_, MAX_LINE) => Err(format!("it is longer than {MAX_LINE} octets")),
            (Format::Json, _) => row_of_json(&self.line),
            (Format::Csv(columns), _) => row_of_csv(&self.line, columns),
        };
        self.line.clear();
        Ok(Some(row))
    }
}

/// Splits a CSV line into values. A quoted value never continues on the next line. Otherwise, after a missing quote,
/// the rest of the file would be read as one value.
fn record(line: &[u8]) -> ByteRecord {
    let reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(line);
    reader.into_byte_records().next().and_then(Result::ok).unwrap_or_default()
}

fn row_of_csv(line: &[u8], columns: &Columns) -> Result<Message, String> {
    // Few lines have quotes, and a CSV reader for each line takes long.
    let quoted = memchr::memchr(b'"', line).map(|_| record(line));
    let (mut values, mut count) = ([""; VALUES.len()], 0);
    let mut read = |text| -> Result<(), String> {
        if let Some(Some(value)) = columns.values.get(count) {
            values[*value] = std::str::from_utf8(text).map_err(|_| "it is not UTF-8".to_owned())?.trim_ascii();
        }
        count += 1;
        Ok(())
    };
    match &quoted {
        None => line.split(|b| *b == b',').try_for_each(&mut read)?,
        Some(record) => record.iter().try_for_each(&mut read)?,
    }
    if count < columns.min_columns {
        return Err(format!("it has {count} columns"));
    }
    row(values)
}

fn row_of_json(line: &[u8]) -> Result<Message, String> {
    let record: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let value = |name: &str| match &record[name] {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(format!("{name} is {other}")),
    };
    let mut values = VALUES.map(|_| String::new());
    for (text, name) in values.iter_mut().zip(VALUES) {
        *text = value(name)?;
    }
    row(values.each_ref().map(String::as_str))
}

/// Makes a message with one recipient from the values of a row, in the order of [`VALUES`]. A missing optional value is
/// passed as an empty text.
fn row([t, sender, recipient, client, user, size, message]: [&str; VALUES.len()]) -> Result<Message, String> {
    let at = parse_time(t).map_err(|error| error.to_string())?;
    let given = |text: &str| (!text.is_empty()).then(|| lower_case(text));
    if sender.is_empty() && user.is_empty() {
        return Err("it has neither sender nor user".to_owned());
    }
    if recipient.is_empty() {
        return Err("it has no recipient".to_owned());
    }
    if user.contains(char::is_control) || sender.contains(char::is_control) {
        return Err("a name has control characters".to_owned());
    }
    let client = match client {
        "" => None,
        text => Some(text.parse::<IpAddr>().map_err(|_| format!("\"{text}\" is no address of a client"))?),
    };
    let size = match size {
        "" => None,
        text => Some(text.parse::<u64>().map_err(|_| format!("\"{text}\" is no size in octets"))?),
    };
    Ok(Message {
        at,
        user: given(user),
        client: client.map(|address| address.to_canonical()),
        recipients: vec![lower_case(recipient)],
        size,
        id: Some(message).filter(|id| !id.is_empty()).map(Box::from),
        sender: given(sender),
        number: 0,
    })
}

fn lower_case(text: &str) -> Arc<str> {
    let is_lower = text.bytes().all(|b| b.is_ascii() && !b.is_ascii_uppercase());
    if is_lower { text.into() } else { text.to_lowercase().into() }
}

impl Message {
    /// Creates a message that does not come from a history. Its sender is the user's name.
    pub fn new(at: Timestamp, user: &Arc<str>, client: IpAddr, recipients: Vec<Arc<str>>) -> Self {
        let user = Some(user.clone());
        Self { at, sender: user.clone(), user, client: Some(client), recipients, size: None, id: None, number: 0 }
    }

    pub fn origin(&self) -> Origin {
        match &self.user {
            Some(user) => Origin::User(user.clone()),
            None => Origin::Sender(self.sender.clone().unwrap_or_default()),
        }
    }

    /// Returns whether a row with the same time belongs to this message.
    fn is_that_of(&self, row: &Self) -> bool {
        (&self.sender, &self.user, self.client, &self.id) == (&row.sender, &row.user, row.client, &row.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn all(input: &[u8]) -> (Vec<Message>, BadRows) {
        let mut history = History::read(std::io::Cursor::new(input.to_vec()), MissingUser::NoLogin).unwrap();
        let mut messages = Vec::new();
        while let Some(message) = history.next_message().unwrap() {
            messages.push(message);
        }
        (messages, history.bad)
    }

    fn message(seconds: i64, sender: &str, recipients: &[&str]) -> Message {
        let recipients = recipients.iter().map(|recipient| (*recipient).into()).collect();
        let at = Timestamp::from_micros(seconds * 1_000_000);
        let sender = Some(sender.into());
        Message { at, user: None, client: None, recipients, size: None, id: None, sender, number: 0 }
    }

    #[test]
    fn rows_of_one_time_and_sender_are_one_message() {
        let text = "recipient,t,sender\r\nb,1,a\r\nb,1,d\nC,1,a\n\n\"b\",2,a\nb,3,a";
        let expected =
            [message(1, "a", &["b", "c"]), message(1, "d", &["b"]), message(2, "a", &["b"]), message(3, "a", &["b"])];
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        zipped.write_all(text.as_bytes()).unwrap();
        let json = "{\"t\":1,\"sender\":\"a\",\"recipient\":\"b\"}\n{\"t\":1.0,\"sender\":\"a\",\"recipient\":\"C\"}\n\n\
            {\"t\":\"1\",\"sender\":\"d\",\"recipient\":\"b\"}\n{\"t\":2,\"sender\":\"a\",\"recipient\":\"b\"}\n\
            {\"t\":3,\"sender\":\"a\",\"recipient\":\"b\"}";
        for input in [text.as_bytes(), &zipped.finish().unwrap(), json.as_bytes()] {
            let (messages, bad) = all(input);
            assert_eq!((messages, bad.count), (expected.to_vec(), 0));
        }
    }

    #[test]
    fn optional_columns_are_read() {
        let text = "t,sender,recipient,client,user,size,message\n\
            1,a,b,::ffff:192.0.2.1,U,10,m1\n1,a,c,192.0.2.1,u,,m2\n1,a,c,192.0.2.1,u,30,m1\n";
        let (messages, _) = all(text.as_bytes());
        assert_eq!(messages.iter().map(|m| m.recipients.len()).collect::<Vec<_>>(), [2, 1]);
        assert!(messages.iter().all(|m| m.user.as_deref() == Some("u") && m.client == "192.0.2.1".parse().ok()));
        assert_eq!(messages.iter().map(|m| m.size).collect::<Vec<_>>(), [Some(30), None]);
        let (_, bad) = all(b"t,sender,recipient,size\n1,a,b,-1\n1,a,b,1.5\n1,a,b,10M\n1,a,b,10\n");
        assert!(bad.count == 3 && bad.named[2].1 == "\"10M\" is no size in octets", "{bad:?}");
    }

    #[test]
    fn users_and_clients_are_not_mixed_up_in_one_message() {
        let text = "t,sender,recipient,user,client\n1,,x,alice,\n1,,y,bob,\n1,,z,alice,\n1,s,x,carol,10.0.0.1\n1,s,x,carol,10.0.0.2\n";
        let (messages, _) = all(text.as_bytes());
        let found: Vec<_> = messages.iter().map(|m| (m.user.as_deref().unwrap(), m.recipients.len())).collect();
        assert_eq!(found, [("alice", 2), ("bob", 1), ("carol", 1), ("carol", 1)]);
        assert!(messages[0].sender.is_none() && messages[2].sender.as_deref() == Some("s"));
    }

    #[test]
    fn a_sender_is_a_user_only_on_request() {
        let text = "t,sender,recipient,user\n1,A@example.org,x,\n2,<>,x,\n3,b@example.org,x,bob\n";
        let users = |missing_user| {
            let mut history = History::read(std::io::Cursor::new(text.as_bytes()), missing_user).unwrap();
            let next = || history.next_message().unwrap().map(|message| message.user.as_deref().map(str::to_owned));
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        let bob = || Some("bob".to_owned());
        assert_eq!(users(MissingUser::NoLogin), [None, None, bob()]);
        assert_eq!(users(MissingUser::Sender), [Some("a@example.org".to_owned()), None, bob()]);
    }

    #[test]
    fn a_bad_row_does_not_affect_other_rows() {
        let text = format!(
            "\u{feff}t,sender,recipient\n1,a,b\n2,\"a,b\n{},a,b\n\x1b[2J,a,b\n1700000000000,a,b\n3,a,b\n",
            "9".repeat(70_000)
        );
        let (messages, bad) = all(text.as_bytes());
        assert_eq!((messages.len(), bad.count, bad.rows), (2, 4, 6));
        for (line, words) in [(3, "2 columns"), (4, "longer than 65536"), (5, "\u{fffd}[2J"), (6, "milliseconds")] {
            assert!(bad.named.iter().any(|(at, why)| *at == line && why.contains(words)), "{words}: {:?}", bad.named);
        }
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
            let error = History::read(std::io::Cursor::new(text.as_bytes().to_vec()), MissingUser::NoLogin);
            let error = error.err().unwrap().to_string();
            assert!(error.contains("no column"), "{error}");
        }
    }
}
