//! Transcript of a talk, for comparison with a golden file: every line of clients, every reply, and the envelopes and
//! messages that the upstreams get. Placeholders replace the text that differs from run to run: references, waiting
//! times and levels.

use crate::harness::Upstream;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use weir::reference::Reference;

/// Transcript, shared by all clients of a talk.
#[derive(Clone, Default)]
pub struct Transcript(Rc<RefCell<Lines>>);

#[derive(Default)]
struct Lines {
    lines: Vec<String>,
    /// All replies that clients have read.
    replies: Vec<String>,
    /// For each upstream, the number of its commands and of its messages that the transcript already contains.
    noted: HashMap<&'static str, (usize, usize)>,
}

impl Transcript {
    /// Adds a line of the script.
    pub fn remark(&self, line: &str) {
        self.0.borrow_mut().lines.push(line.to_owned());
    }

    /// Adds a line that a client has sent.
    pub fn said(&self, client: &str, line: &str) {
        // Show only the first line of a whole message, and the number of its octets.
        let line = match line.split_once("\r\n") {
            Some((first, _)) => format!("{first} … ({} octets and a dot)", line.len() - 1),
            None => line.to_owned(),
        };
        self.0.borrow_mut().lines.push(format!("{client} -> {line}"));
    }

    /// Adds a reply that a client has read.
    pub fn heard(&self, client: &str, reply: &str) {
        self.0.borrow_mut().replies.push(reply.to_owned());
        let line = match reply.split_once('\n') {
            Some((first, _)) => format!("{first} …"),
            None => with_placeholders(reply),
        };
        self.0.borrow_mut().lines.push(format!("{client} <- {line}"));
    }

    /// Adds the envelopes and messages that an upstream has got since the last call. Leaves out other commands (EHLO,
    /// RSET), because Weir sends them at no fixed time.
    pub fn note(&self, name: &'static str, upstream: &Upstream) {
        let (commands, messages) = (upstream.commands(), upstream.acknowledged());
        let mut written = self.0.borrow_mut();
        let (command, message) = written.noted.get(name).copied().unwrap_or_default();
        let mut got = Vec::new();
        for line in &commands[command..] {
            let verb = line.get(..4).unwrap_or_default();
            if ["MAIL", "RCPT", "DATA"].contains(&verb) {
                got.push(format!("        {name} <- {line}"));
            }
        }
        got.extend(messages[message..].iter().map(|text| format!("        {name} <- ({} octets)", octets_of(text))));
        written.noted.insert(name, (commands.len(), messages.len()));
        written.lines.extend(got);
    }

    /// Returns the replies that clients have read since the last call.
    pub fn take_replies(&self) -> Vec<String> {
        std::mem::take(&mut self.0.borrow_mut().replies)
    }

    /// Returns the transcript, with repeated lines shortened by [`folded`].
    pub fn text(&self) -> String {
        folded(&self.0.borrow().lines).join("\n") + "\n"
    }
}

/// Returns the length of a message in octets, without the `Received:` header that Weir has added.
fn octets_of(message: &[u8]) -> usize {
    let text = String::from_utf8_lossy(message);
    let mut lines = text.split_inclusive("\r\n").peekable();
    let mut header = lines.next_if(|line| line.starts_with("Received:")).map_or(0, str::len);
    while let Some(line) = lines.next_if(|line| header > 0 && line.starts_with([' ', '\t'])) {
        header += line.len();
    }
    text.len() - header
}

/// Replaces by placeholders those parts of a reply that differ from run to run.
fn with_placeholders(reply: &str) -> String {
    let mut words: Vec<String> = reply.split(' ').map(str::to_owned).collect();
    let mut at = 0;
    while at < words.len() {
        let follows = |words: &[String], before: &[&str]| at >= before.len() && words[at - before.len()..at] == *before;
        let word = words[at].clone();
        if is_reference(&word) {
            words[at] = "(REFERENCE)".to_owned();
        } else if follows(&words, &["again", "in"]) || follows(&words, &["for", "another"]) {
            let end = word.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
            words[at] = format!("WAIT{end}");
        } else if follows(&words, &["until"]) && word.starts_with("20") {
            // The end of a suspension has three words: date, hour and time zone.
            let zone = words.drain(at + 1..(at + 3).min(words.len())).next_back().unwrap_or_default();
            let end = zone.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "+-".contains(c));
            words[at] = format!("TIME{end}");
        } else if word.parse::<f64>().is_ok() && words.get(at + 1).is_some_and(|next| next == "of") {
            // Replace the level, because it decays with time.
            words[at] = "LEVEL".to_owned();
        }
        at += 1;
    }
    words.join(" ")
}

/// Tests whether a word is the reference of a refusal, such as `(mp3x9abc-k3f7q2-1x7k)`, or a session such as
/// `(hocvofwl8x005)`.
fn is_reference(word: &str) -> bool {
    let inner = word.strip_prefix('(').and_then(|word| word.strip_suffix(')')).unwrap_or_default();
    if inner.parse::<Reference>().is_ok() {
        return true;
    }
    let is_base_36 = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    inner.len() > 8 && inner.bytes().all(is_base_36)
}

/// Shortens lines, or pairs of lines, that occur more than three times in succession: keeps only the first and the
/// last. Lines that differ only in numbers that grow by one also count as repeated.
fn folded(lines: &[String]) -> Vec<String> {
    let (mut text, mut at) = (Vec::new(), 0);
    while at < lines.len() {
        let times = |unit: usize| (unit, repeats(&lines[at..], unit));
        match [times(1), times(2)].into_iter().find(|(_, times)| *times > 3) {
            Some((unit, times)) => {
                text.extend_from_slice(&lines[at..at + unit]);
                text.push(format!("… {} more of these", times - 2));
                at += unit * times;
                text.extend_from_slice(&lines[at - unit..at]);
            }
            None => {
                text.push(lines[at].clone());
                at += 1;
            }
        }
    }
    text
}

/// Counts how often the first `unit` lines occur in succession. From one occurrence to the next, each number in the
/// lines either stays the same or grows by one. The same numbers must grow each time.
fn repeats(lines: &[String], unit: usize) -> usize {
    let blocks: Vec<Vec<Piece<'_>>> =
        lines.chunks_exact(unit).map(|block| block.iter().flat_map(|line| pieces(line)).collect()).collect();
    let step = |a: &[Piece<'_>], b: &[Piece<'_>]| -> Option<Vec<u64>> {
        (a.len() == b.len()).then_some(())?;
        a.iter()
            .zip(b)
            .map(|pair| match pair {
                (Piece::Text(a), Piece::Text(b)) => (a == b).then_some(0),
                (Piece::Number(a), Piece::Number(b)) => b.checked_sub(*a).filter(|step| *step < 2),
                _ => None,
            })
            .collect()
    };
    let Some(first) = blocks.get(1).and_then(|second| step(&blocks[0], second)) else { return 1 };
    1 + blocks.windows(2).take_while(|pair| step(&pair[0], &pair[1]).as_ref() == Some(&first)).count()
}

enum Piece<'a> {
    Text(&'a str),
    Number(u64),
}

fn pieces(line: &str) -> Vec<Piece<'_>> {
    let runs = line.as_bytes().chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
    let mut from = 0;
    runs.map(|run| {
        let text = &line[from..from + run.len()];
        from += run.len();
        text.parse().map_or(Piece::Text(text), Piece::Number)
    })
    .collect()
}

#[test]
fn repeated_lines_fold_to_the_first_and_the_last() {
    let lines = |text: &[&str]| text.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    let pair = |n: u32| [format!("a -> RCPT TO:<{n}@d>"), "a <- 250 2.1.5 Ok".to_owned()];
    let told = folded(&(1..=9).flat_map(pair).collect::<Vec<_>>());
    let [first, last] = [pair(1), pair(9)];
    assert_eq!(told, [&first[..], &["… 7 more of these".to_owned()], &last[..]].concat());
    for others in [&["1@d", "2@d", "4@d", "5@d"][..], &["1@d", "2@d", "3@e", "4@d"], &["1@d", "2@d", "3@d"]] {
        assert_eq!(folded(&lines(others)), lines(others));
    }
}

#[test]
fn text_that_differs_from_run_to_run_has_a_placeholder() {
    for (reply, told) in [
        (
            "450 4.7.1 99 of 99 recipients used, 100 more per day; try again in 14m24s (mp3x9abc-k3f7q2-1x7k)",
            "450 4.7.1 LEVEL of 99 recipients used, 100 more per day; try again in WAIT (REFERENCE)",
        ),
        ("535 5.7.8 User name or password wrong (hocvofwl8x005)", "535 5.7.8 User name or password wrong (REFERENCE)"),
        (
            "550 5.7.1 suspended for another 1h, until 2026-11-26 12:24 CET, by x",
            "550 5.7.1 suspended for another WAIT, until TIME, by x",
        ),
        ("450 4.7.1 later; try again in 1h, or not", "450 4.7.1 later; try again in WAIT, or not"),
        ("550 5.1.1 No such user (really)", "550 5.1.1 No such user (really)"),
    ] {
        assert_eq!(with_placeholders(reply), told);
    }
}
