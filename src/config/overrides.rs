//! Override tables: CSV files with rates for particular clients, users and so on. These rates replace the rate of a
//! limit. The first line of a file names the columns.

use super::files::{self, Files, LineErrors, MAX_ITEM, TOO_LONG, check_item};
use super::values::choose;
use csv::{ReaderBuilder, StringRecord, Trim};
use std::path::{Path, PathBuf};

/// An override table as read. Patterns and rates are still text; they are parsed with the limit that uses the table.
#[derive(Debug)]
pub struct Overrides {
    /// The column whose patterns decide which row applies: one of [`MATCH_FIELDS`].
    pub field: &'static str,
    pub rows: Vec<Override>,
    path: PathBuf,
}

/// A row of an override table; it has a rate, a burst or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Line number in the file, from 1.
    pub line: usize,
    pub pattern: Box<str>,
    pub rate: Option<Box<str>>,
    pub burst: Option<Box<str>>,
}

/// The columns whose patterns can decide which row applies.
pub const MATCH_FIELDS: [&str; 12] = [
    "user",
    "user-domain",
    "group",
    "client",
    "sender",
    "sender-domain",
    "recipient",
    "recipient-domain",
    "helo",
    "listener",
    "country",
    "asn",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Field(&'static str),
    Rate,
    Burst,
    /// A column for notes of the administrator; its values are ignored.
    Comment,
}

impl Overrides {
    /// Reads an override table from the file `name`. Each error begins with the path.
    pub fn read(name: &str, files: &mut Files) -> Result<Self, Vec<String>> {
        let (path, text) = files.read(name).map_err(|why| vec![why])?;
        Self::parse(&path, &text)
    }

    /// Formats an error of one row.
    pub fn wrong(&self, row: &Override, why: &str) -> String {
        files::at(&self.path, row.line, why)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Vec<String>> {
        let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line));
        let mut lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        let Some((n, header)) = lines.next() else {
            let why = "there is no header: the first line names the columns, as in client,rate";
            return Err(vec![format!("{}: {why}", path.display())]);
        };
        let header = values(header).and_then(|names| names.iter().map(column).collect::<Result<Vec<_>, _>>());
        let columns = header.and_then(|columns| Ok((match_field(&columns)?, columns)));
        let (field, columns) = columns.map_err(|why| vec![files::at(path, n, &why)])?;
        let (mut rows, mut errors) = (Vec::new(), LineErrors::new(path));
        for (n, line) in lines {
            match values(line).and_then(|values| row(n, &columns, &values)) {
                Ok(row) => rows.push(row),
                Err(why) => errors.line(n, &why),
            }
        }
        errors.or(Self { field, rows, path: path.to_owned() })
    }
}

/// Returns the values of one line. Each line is parsed alone, so that an unclosed quote does not make the next lines
/// part of its value.
pub(super) fn values(line: &str) -> Result<StringRecord, String> {
    match line {
        _ if line.len() > MAX_ITEM => return Err(TOO_LONG.to_owned()),
        // The CSV reader would treat a carriage return as the end of a line.
        _ if line.contains('\r') => return Err("there is a control character in it".to_owned()),
        // Few lines have quotes. Lines without quotes are split here, because a CSV reader is slow to create.
        _ if !line.contains('"') => return Ok(line.split(',').map(str::trim).collect()),
        _ => {}
    }
    let mut reader = ReaderBuilder::new();
    // With `flexible`, the reader accepts any number of values. The caller compares this number with the number of
    // columns, because the caller's error message is plainer than the reader's.
    reader.has_headers(false).flexible(true).trim(Trim::All).buffer_capacity(MAX_ITEM);
    let first = reader.from_reader(line.as_bytes()).into_records().next();
    first.unwrap_or_else(|| Ok(StringRecord::new())).map_err(|error| error.to_string())
}

fn column(name: &str) -> Result<Column, String> {
    let others = [("rate", Column::Rate), ("burst", Column::Burst), ("comment", Column::Comment)];
    let known: Vec<(&str, Column)> =
        MATCH_FIELDS.map(|name| (name, Column::Field(name))).into_iter().chain(others).collect();
    if name.contains([';', '\t']) {
        return Err(format!("\"{name}\" is no column: columns are separated by commas"));
    }
    choose(name, &known).map_err(|why| format!("column {why}"))
}

/// Returns the one column whose patterns decide which row applies. Reports columns that occur twice, and a table that
/// has neither `rate` nor `burst`.
fn match_field(columns: &[Column]) -> Result<&'static str, String> {
    let fields: Vec<&'static str> =
        columns.iter().filter_map(|c| if let Column::Field(name) = c { Some(*name) } else { None }).collect();
    let count = |wanted| columns.iter().filter(|column| **column == wanted).count();
    let counts = [("rate", count(Column::Rate)), ("burst", count(Column::Burst)), ("comment", count(Column::Comment))];
    if let Some((name, _)) = counts.iter().find(|(_, count)| *count > 1) {
        return Err(format!("there are two columns \"{name}\""));
    }
    match fields[..] {
        [] => Err(format!("no column to match by: one of {} is needed", MATCH_FIELDS.join(", "))),
        [_] if counts[0].1 + counts[1].1 == 0 => Err("there is no column \"rate\", nor \"burst\"".to_owned()),
        [name] => Ok(name),
        [one, other, ..] => Err(format!("only one column to match by is allowed, not both \"{one}\" and \"{other}\"")),
    }
}

fn row(line: usize, columns: &[Column], record: &StringRecord) -> Result<Override, String> {
    if record.len() != columns.len() {
        return Err(format!("the number of values is {}, of columns {}", record.len(), columns.len()));
    }
    let mut row = Override { line, pattern: Box::default(), rate: None, burst: None };
    for (column, value) in columns.iter().zip(record) {
        check_item(value)?;
        let number = Some(value).filter(|value| !value.is_empty()).map(Box::from);
        match column {
            Column::Field(name) if value.is_empty() => return Err(format!("{name} is empty")),
            Column::Field(_) => row.pattern = value.into(),
            Column::Rate => row.rate = number,
            Column::Burst => row.burst = number,
            Column::Comment => {}
        }
    }
    let has_numbers = row.rate.is_some() || row.burst.is_some();
    has_numbers.then_some(row).ok_or_else(|| "there is neither a rate nor a burst".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Overrides, Vec<String>> {
        Overrides::parse(Path::new("t.csv"), text)
    }

    fn row(line: usize, pattern: &str, rate: Option<&str>, burst: Option<&str>) -> Override {
        Override { line, pattern: pattern.into(), rate: rate.map(Box::from), burst: burst.map(Box::from) }
    }

    #[test]
    fn rows_are_read_with_their_lines() {
        let text = "# bulk hosts\r\n\r\nclient, rate, burst, comment\r\n192.0.2.1, 500 / 1h, , attic\r\n\r\n# off\r\n192.0.2.0/24,x0.5,20,\"a, b\"\r\n2001:db8::/32,,7,\r\n";
        let table = parse(text).unwrap();
        assert_eq!(table.field, "client");
        let expected = [
            row(4, "192.0.2.1", Some("500 / 1h"), None),
            row(7, "192.0.2.0/24", Some("x0.5"), Some("20")),
            row(8, "2001:db8::/32", None, Some("7")),
        ];
        assert_eq!(table.rows, expected);
        assert_eq!(table.wrong(&table.rows[1], "bad"), "t.csv, line 7: bad");
    }

    #[test]
    fn rows_may_match_by_every_field_in_any_column() {
        for name in MATCH_FIELDS {
            let table = parse(&format!("rate,{name}\n5 / 1d,x\n")).unwrap();
            assert_eq!((table.field, table.rows), (name, vec![row(2, "x", Some("5 / 1d"), None)]));
        }
    }

    #[test]
    fn a_table_may_have_bursts_alone_and_no_rows_yet() {
        assert_eq!(parse("burst,user\n5,a").unwrap().rows, [row(2, "a", None, Some("5"))]);
        assert_eq!(parse("user,rate").unwrap().rows, []);
    }

    #[test]
    fn a_text_that_is_no_table_is_refused_with_the_line() {
        let long = format!("user,rate\n{},5\n", "x".repeat(1_001));
        for (text, words) in [
            ("", "t.csv: there is no header"),
            ("# nothing\n", "t.csv: there is no header"),
            (",\n", "line 1: column \"\" is not one of"),
            ("user,rate\n,\n", "line 2: user is empty"),
            ("user,rat\n", "t.csv, line 1: column \"rat\" is not one of \"user\""),
            ("\nuser,rat\n", "t.csv, line 2: column \"rat\" is not one of \"user\""),
            ("usr,rate\n", "did you mean \"user\"?"),
            ("user;rate\n", "line 1: \"user;rate\" is no column: columns are separated by commas"),
            ("user,\n", "line 1: column \"\" is not one of"),
            ("rate,burst\n", "line 1: no column to match by: one of user, user-domain, group,"),
            ("user,client,rate\n", "line 1: only one column to match by is allowed, not both \"user\" and \"client\""),
            ("user,user,rate\n", "not both \"user\" and \"user\""),
            ("user,rate,rate\n", "line 1: there are two columns \"rate\""),
            ("user,comment\n", "line 1: there is no column \"rate\", nor \"burst\""),
            ("user\n", "line 1: there is no column \"rate\""),
            ("user,rate\na\n", "line 2: the number of values is 1, of columns 2"),
            ("user,rate\na,5 / 1h,x\n", "line 2: the number of values is 3, of columns 2"),
            ("user,rate\n,5 / 1h\n", "line 2: user is empty"),
            ("user,rate\na,\n", "line 2: there is neither a rate nor a burst"),
            ("user,rate\n\"a,5 / 1h\nb,5 / 1h\n", "line 2: the number of values is 1, of columns 2"),
            ("user,rate\na,5 / 1h\n\"b\nc\",5 / 1h\n", "line 3: the number of values is 1, of columns 2"),
            ("user,rate\na\rb,5 / 1h\n", "line 2: there is a control character in it"),
            ("user,rate\na\0b,5 / 1h\n", "line 2: there is a control character in it"),
            ("user\trate\n", "is no column: columns are separated by commas"),
            (&long, "line 2: it is longer than 1000 octets"),
        ] {
            let said = parse(text).unwrap_err().join("\n");
            assert!(said.contains(words), "{text}: {said}");
        }
    }

    #[test]
    fn every_wrong_row_is_named() {
        let said = parse("user,rate\na,\nb,5 / 1h\nc\n").unwrap_err();
        assert_eq!(said.len(), 2, "{said:?}");
    }

    #[test]
    fn a_table_that_is_not_there_is_refused_and_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::new(folder.path());
        assert!(Overrides::read("none.csv", &mut files).unwrap_err()[0].ends_with("none.csv: there is no such file"));
        std::fs::write(folder.path().join("t.csv"), "\u{feff}user,rate\na,5 / 1h\n").unwrap();
        assert_eq!(Overrides::read("t.csv", &mut files).unwrap().rows.len(), 1);
        assert_eq!(files.into_watched().len(), 2);
    }
}
