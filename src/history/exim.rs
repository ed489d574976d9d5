//! Exim: lines of the main log (`mainlog`, `exim_mainlog`), also if syslog wrote them.

use super::entry::{Entry, Kind, Outcome, Parsed, bracketed_address, sender};
use super::syslog;
use std::borrow::Cow;

/// Parses the text of a line after its time: `1tKz0D-000000003p2-1Gxn <= alice@example.org H=… A=… S=8200 id=… for …`.
pub fn parse(body: &str) -> Parsed<'_> {
    let body = body.trim_start();
    match syslog::header(body) {
        Some(header) if header.program.starts_with("exim") => of_line(own_text(header.text)).of_host(header.host),
        // In Exim's own main log, a host name and `program[pid]:` never follow the time: this line is from syslog, and
        // of another program.
        Some(header) if is_name(header.host) && is_name(header.program) && !is_id(header.host) => Parsed::Foreign,
        _ => of_line(own_text(body)),
    }
}

/// Parses a line without its times and its process id.
fn of_line(text: &str) -> Parsed<'_> {
    let (id, rest) = text.split_once(' ').filter(|(id, _)| is_id(id)).unwrap_or(("", text));
    let (flag, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    match flag {
        "<=" | "(=" if !id.is_empty() => begin(id, rest),
        "=>" | "->" | ">>" | "*>" => delivery(id, rest, Outcome::Sent),
        "==" => delivery(id, rest, Outcome::Deferred),
        "**" => delivery(id, rest, Outcome::Bounced),
        "Completed" => Parsed::Entry(Entry { kind: Kind::End, id: id.into(), ..Entry::default() }),
        _ => refusal(&text[id.len()..]),
    }
}

/// Removes what Exim writes itself after the time of syslog: its own time, the offset from UTC and the process id.
fn own_text(mut text: &str) -> &str {
    let is_date = |word: &str| word.len() == 10 && word.as_bytes()[4] == b'-' && word.as_bytes()[7] == b'-';
    if let Some((_, rest)) = text.split_once(' ').filter(|(word, _)| is_date(word)) {
        text = rest.split_once(' ').map_or("", |(_, rest)| rest);
    }
    let is_extra = |word: &str| word.starts_with(['[', '+', '-']) && word.len() > 2;
    let is_digits = |word: &str| word.trim_matches(['[', ']', '+', '-']).bytes().all(|b| b.is_ascii_digit());
    while let Some((_, rest)) = text.split_once(' ').filter(|(word, _)| is_extra(word) && is_digits(word)) {
        text = rest;
    }
    text
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/()".contains(&b))
}

/// Returns whether a word is a message id: three parts of 6, 6 and 2 characters; since Exim 4.97 of 6, 11 and 4.
fn is_id(word: &str) -> bool {
    let lengths: Vec<usize> = word.splitn(4, '-').map(str::len).collect();
    matches!(lengths[..], [6, 6, 2] | [6, 11, 4]) && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Returns the fields of a line. A value in quotes may contain spaces: `T="Order 66"`, `C="250 OK id=…"`.
fn fields(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let mut is_quoted = false;
        let mut is_escaped = false;
        let end = rest.find(|c: char| {
            let is_end = c == ' ' && !is_quoted;
            is_quoted ^= c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        });
        let (field, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        (!field.is_empty()).then_some(field)
    })
}

/// Parses a line about the arrival of a message.
fn begin<'a>(id: &'a str, text: &'a str) -> Parsed<'a> {
    let mut fields = fields(text);
    let Some(address) = fields.next() else { return Parsed::Bad("it has no sender") };
    let mut entry = Entry { kind: Kind::Begin, id: id.into(), sender: Some(sender(bare(address))), ..Entry::default() };
    let (mut is_host, mut is_helo) = (false, false);
    while let Some(field) = fields.next() {
        // The name in parentheses is from HELO: the client chooses it, so that an address in it is not taken for the
        // client's.
        is_helo |= is_host && field.starts_with('(');
        if is_helo {
            is_helo = !field.ends_with(')');
            continue;
        }
        match field.split_once('=').unwrap_or((field, "")) {
            ("for", "") => {
                entry.recipients = fields.map(|address| (address.into(), Outcome::Unknown)).collect();
                entry.has_all_recipients = true;
                break;
            }
            // Exim made this message itself, as a bounce. R is the id of the message that bounced.
            ("R", _) => entry.kind = Kind::Process,
            ("A", login) => entry.user = login.split(':').nth(1).filter(|user| !user.is_empty()).map(Into::into),
            ("S", size) => entry.size = size.parse().ok(),
            // With this protocol a scanner returns a message to Exim, in the example of Exim's documentation.
            ("P", protocol) => entry.is_continuation = protocol.ends_with("-scanned"),
            ("H", name) => {
                is_helo = name.starts_with('(') && !name.ends_with(')');
                entry.client = bracketed_address(name).filter(|_| name.starts_with('['));
                is_host = entry.client.is_none();
            }
            _ if is_host && field.starts_with('[') => {
                entry.client = bracketed_address(field);
                is_host = false;
            }
            _ => {}
        }
    }
    Parsed::Entry(entry)
}

fn bare(address: &str) -> &str {
    address.trim_start_matches('<').trim_end_matches('>')
}

/// Parses a line about a delivery: `bob@example.net R=dnslookup T=remote_smtp`, `bob <team@example.org> R=localuser …`,
/// `bob@example.net: reason`.
fn delivery<'a>(id: &'a str, text: &'a str, outcome: Outcome) -> Parsed<'a> {
    let end = [" R=", ": "].into_iter().filter_map(|end| text.find(end)).min();
    let before_fields = end.map_or(text, |end| &text[..end]);
    // The recipient that the client named, before redirections, is in angle brackets.
    let original = before_fields.rsplit_once(" <").and_then(|(_, rest)| rest.split('>').next());
    let first = fields(before_fields).next().unwrap_or_default();
    let recipient: Cow<'a, str> = original.unwrap_or_else(|| bare(first)).into();
    if recipient.is_empty() || id.is_empty() {
        return Parsed::Bad("it names no recipient");
    }
    let next_id = (outcome == Outcome::Sent).then(|| next_id(text)).flatten();
    Parsed::Entry(Entry { id: id.into(), recipients: vec![(recipient, outcome)], next_id, ..Entry::default() })
}

/// Returns the id from the reply of the next server, if that is an Exim: `C="250 OK id=1tKz0D-000000003p2-1Gxn"`.
fn next_id(text: &str) -> Option<&str> {
    let (_, rest) = text.rsplit_once(" id=")?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(rest.len());
    Some(&rest[..end]).filter(|id| is_id(id))
}

/// Parses a line about a refusal: `H=name [192.0.2.7] A=plain:alice F=<alice@example.org> rejected RCPT
/// <bob@example.net>: reason`.
fn refusal(text: &str) -> Parsed<'_> {
    let Some((before, after)) = text.split_once("rejected RCPT ") else { return Parsed::Irrelevant };
    let recipient = after.split(": ").next().unwrap_or(after).trim_end_matches(':');
    let (mut client, mut user, mut from) = (None, None, None);
    for field in fields(before) {
        match field.split_once('=').unwrap_or((field, "")) {
            ("A", login) => user = login.split(':').nth(1).map(Into::into),
            ("F", address) => from = Some(sender(bare(address))),
            ("H", name) if name.starts_with('[') => client = bracketed_address(name),
            _ if field.starts_with('[') && client.is_none() => client = bracketed_address(field),
            _ => {}
        }
    }
    let recipients = vec![(bare(recipient).into(), Outcome::Refused)];
    Parsed::Entry(Entry { client, user, sender: from, recipients, ..Entry::default() })
}
