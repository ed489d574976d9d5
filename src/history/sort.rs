//! External merge sort of rows by time: sorted parts (runs) are written to temporary files, so that memory is bounded.

use super::HistoryError;
use crate::time::Timestamp;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek as _, Write};

/// Rows that are being collected to be written in order of time.
#[derive(Default)]
pub struct Sorter {
    rows: Vec<Row>,
    /// Size of `rows` in memory, in octets.
    octets: usize,
    runs: Vec<File>,
}

/// Time in microseconds since 1970, and the line.
type Row = (i64, Vec<u8>);

/// Maximum size in octets of the rows in memory.
const MAX_OCTETS: usize = if cfg!(test) { 1 << 10 } else { 64 << 20 };

/// Memory in octets that a row needs in addition to its text.
const ROW_OVERHEAD: usize = size_of::<Row>();

/// Maximum number of runs. When this number is reached, all runs are merged into one run, so that few files are open.
const MAX_RUNS: usize = if cfg!(test) { 4 } else { 64 };

impl Sorter {
    pub fn add(&mut self, at: Timestamp, line: Vec<u8>) -> io::Result<()> {
        self.octets += line.capacity() + ROW_OVERHEAD;
        self.rows.push((at.micros(), line));
        if self.octets < MAX_OCTETS {
            return Ok(());
        }
        let mut run = tempfile::tempfile()?;
        self.rows.sort_by_key(|(at, _)| *at);
        let mut out = BufWriter::new(&mut run);
        self.rows.drain(..).try_for_each(|row| write_row(&mut out, &row))?;
        out.flush()?;
        drop(out);
        self.octets = 0;
        self.runs.push(run);
        if self.runs.len() == MAX_RUNS { self.merge_runs() } else { Ok(()) }
    }

    fn merge_runs(&mut self) -> io::Result<()> {
        let mut merged = tempfile::tempfile()?;
        let mut out = BufWriter::new(&mut merged);
        let mut merge = Merge::new(std::mem::take(&mut self.runs), Vec::new())?;
        while let Some(row) = merge.next()? {
            write_row(&mut out, &row)?;
        }
        out.flush()?;
        drop(out);
        self.runs.push(merged);
        Ok(())
    }

    /// Writes all lines sorted by time; lines of the same time keep the order in which they were added.
    pub fn write(mut self, out: &mut impl Write) -> Result<(), HistoryError> {
        self.rows.sort_by_key(|(at, _)| *at);
        let mut merge = Merge::new(self.runs, self.rows).map_err(HistoryError::Sort)?;
        while let Some((_, line)) = merge.next().map_err(HistoryError::Sort)? {
            out.write_all(&line).map_err(HistoryError::Output)?;
        }
        Ok(())
    }
}

/// Merge of the sorted runs in files and of the sorted rows in memory. If rows have the same time, the rows in memory
/// come last.
struct Merge {
    runs: Vec<BufReader<File>>,
    rows: std::vec::IntoIter<Row>,
    /// The next row of each run: time, index of the run, and line. The rows in memory have the index after the last
    /// run.
    next: BinaryHeap<Reverse<(i64, usize, Vec<u8>)>>,
}

impl Merge {
    fn new(runs: Vec<File>, rows: Vec<Row>) -> io::Result<Self> {
        let count = runs.len();
        let rewound = runs.into_iter().map(|mut run| run.rewind().map(|()| BufReader::new(run)));
        let runs = rewound.collect::<io::Result<_>>()?;
        let mut merge = Self { runs, rows: rows.into_iter(), next: BinaryHeap::new() };
        (0..=count).try_for_each(|run| merge.read(run))?;
        Ok(merge)
    }

    fn next(&mut self) -> io::Result<Option<Row>> {
        let Some(Reverse((at, run, line))) = self.next.pop() else { return Ok(None) };
        self.read(run)?;
        Ok(Some((at, line)))
    }

    fn read(&mut self, run: usize) -> io::Result<()> {
        let row = match self.runs.get_mut(run) {
            Some(run) => read_row(run)?,
            None => self.rows.next(),
        };
        self.next.extend(row.map(|(at, line)| Reverse((at, run, line))));
        Ok(())
    }
}

/// Writes the time, the length and the text of a row to a run.
fn write_row(out: &mut impl Write, (at, line): &Row) -> io::Result<()> {
    let length = u32::try_from(line.len()).map_err(io::Error::other)?;
    out.write_all(&at.to_le_bytes())?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(line)
}

/// Reads a row of a run; `None` at the end of the run.
fn read_row(input: &mut impl Read) -> io::Result<Option<Row>> {
    let (mut at, mut length) = ([0; 8], [0; 4]);
    if let Err(error) = input.read_exact(&mut at) {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    }
    input.read_exact(&mut length)?;
    let mut line = vec![0; u32::from_le_bytes(length) as usize];
    input.read_exact(&mut line)?;
    Ok(Some((i64::from_le_bytes(at), line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_beyond_the_memory_are_sorted_and_those_of_one_time_keep_their_order() {
        let mut sorter = Sorter::default();
        let rows: Vec<(i64, String)> = (0..2000).map(|n: i64| (n * 7919 % 100 - 50, format!("{n}\n"))).collect();
        for (at, line) in &rows {
            sorter.add(Timestamp::from_micros(*at), line.clone().into_bytes()).unwrap();
        }
        assert!((1..MAX_RUNS).contains(&sorter.runs.len()), "{} runs", sorter.runs.len());
        let mut out = Vec::new();
        sorter.write(&mut out).unwrap();
        let mut expected = rows;
        expected.sort_by_key(|(at, _)| *at);
        let expected: String = expected.into_iter().map(|(_, line)| line).collect();
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
