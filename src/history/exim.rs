//! Parser of Exim's main log (`mainlog`, `exim_mainlog`), also of lines that Exim sent to syslog.

use super::entry::{Entry, Kind, LeftOut, Outcome, Parsed, bracketed_address, sender};
use super::stamp::is_date;
use super::syslog;
use crate::queue_id;
use std::borrow::Cow;
use std::net::IpAddr;

/// Parses the text of a line after its time: `1tKz0D-000000003p2-1Gxn <= alice@example.org H=… A=… S=8200 id=… for …`.
pub fn parse(body: &str) -> Parsed<'_> {
    let body = body.trim_start();
    match syslog::header(body) {
        Some(header) if header.program.starts_with("exim") => of_part(header.text).with_header(&header),
        // In Exim's own main log, a host name and `program[pid]:` never follow the time. So this line is from syslog,
        // and another program wrote it.
        Some(header) if is_name(header.host) && is_name(header.program) && !is_id(header.host) => Parsed::Foreign,
        _ => match syslog::last_repeated(body) {
            Some(times) => Parsed::LeftOut(LeftOut::NotWritten(times)),
            None => of_line(own_text(body)),
        },
    }
}

/// Returns the text of a line from syslog if the line reports a refusal. With `syslog_duplication` (the default), Exim
/// writes each refusal twice: once for its main log and once for its reject log.
pub fn refusal_in_syslog(body: &str) -> Option<&str> {
    let header = syslog::header(body.trim_start()).filter(|header| header.program.starts_with("exim"))?;
    let text = own_text(part(header.text).map_or(header.text, |(_, text)| text));
    text.contains("rejected ").then_some(text)
}

/// Parses a line from syslog. Exim divides a long line into parts.
fn of_part(text: &str) -> Parsed<'_> {
    match part(text) {
        None => of_line(own_text(text)),
        Some((1, text)) => match of_line(own_text(text)) {
            // The list of recipients can continue in the next part, so the last address here can be incomplete: remove
            // it. The lines about the deliveries name all recipients.
            Parsed::Entry(mut entry) if entry.has_all_recipients => {
                entry.recipients.pop();
                Parsed::Entry(Entry { has_all_recipients: false, ..entry })
            }
            other => other,
        },
        Some(_) => Parsed::Irrelevant,
    }
}

/// Parses one part of a divided line. Returns the number of the part, and its text. The form is `[1/3] text`, or `[1\3]
/// text` if the log entry had several lines.
fn part(text: &str) -> Option<(u32, &str)> {
    let (mark, rest) = text.strip_prefix('[')?.split_once("] ")?;
    let (number, parts) = mark.split_once(['/', '\\'])?;
    parts.parse::<u32>().ok()?;
    Some((number.parse().ok()?, rest))
}

/// Parses the text of a line after its times and its process id.
fn of_line(text: &str) -> Parsed<'_> {
    let (id, rest) = text.split_once(' ').filter(|(id, _)| is_id(id)).unwrap_or(("", text));
    let (flag, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    match flag {
        "<=" | "(=" if !id.is_empty() => begin(id, rest),
        "=>" | "->" | ">>" | "*>" => delivery(id, rest, Outcome::Sent),
        "==" => delivery(id, rest, Outcome::Deferred),
        "**" => delivery(id, rest, Outcome::Bounced),
        "Completed" => Parsed::Entry(Entry { kind: Kind::End, id: id.into(), ..Entry::default() }),
        _ => refusal(id, text[id.len()..].trim_start()),
    }
}

/// Removes the fields that Exim itself writes after syslog's time: its own time, the offset from UTC and the process
/// id.
fn own_text(mut text: &str) -> &str {
    if let Some((_, rest)) = text.split_once(' ').filter(|(word, _)| word.len() == 10 && is_date(word)) {
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

/// Returns whether a word is a message id: three parts of 6, 6 and 2 characters; since Exim 4.97, of 6, 11 and 4
/// characters.
fn is_id(word: &str) -> bool {
    let lengths: Vec<usize> = word.splitn(4, '-').map(str::len).collect();
    matches!(lengths[..], [6, 6, 2] | [6, 11, 4]) && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Returns the fields of a line. A value in quotes can contain spaces: `T="Order 66"`, `C="250 OK id=…"`.
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

/// Removes the name that the client gave in HELO, which is in parentheses after the host: `H=name (helo) [192.0.2.7]`.
/// The client chooses this name, so an address in the name must not be used as the client's address.
fn without_helo<'a>(fields: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    let (mut is_after_host, mut is_helo) = (false, false);
    fields.filter(move |field| {
        is_helo |= field.starts_with("H=(") || is_after_host && field.starts_with('(');
        is_after_host = field.starts_with("H=");
        let is_left_out = is_helo;
        is_helo &= !field.ends_with(')');
        !is_left_out
    })
}

/// Returns the address of the client, if the field has it: `H=[192.0.2.7]:57781`, or `[192.0.2.7]` after the name.
fn client(field: &str) -> Option<IpAddr> {
    bracketed_address(field.strip_prefix("H=").unwrap_or(field)).filter(|_| field.starts_with(['[', 'H']))
}

/// Returns the user in the value of the field A: `dovecot_login:alice`.
fn user(login: &str) -> Option<Cow<'_, str>> {
    login.split(':').nth(1).filter(|user| !user.is_empty()).map(Into::into)
}

/// Parses a line about the arrival of a message.
fn begin<'a>(id: &'a str, text: &'a str) -> Parsed<'a> {
    let mut fields = without_helo(fields(text));
    let Some(address) = fields.next() else { return Parsed::Bad("it has no sender") };
    let mut entry = Entry { kind: Kind::Begin, id: id.into(), sender: Some(sender(bare(address))), ..Entry::default() };
    while let Some(field) = fields.next() {
        match field.split_once('=').unwrap_or((field, "")) {
            ("for", "") => {
                entry.recipients = fields.map(|address| (address.into(), Outcome::Unknown)).collect();
                entry.has_all_recipients = true;
                break;
            }
            // Exim made this message itself, as a bounce. R is the id of the message that bounced.
            ("R", _) => entry.kind = Kind::Process,
            ("A", login) => entry.user = user(login),
            ("S", size) => entry.size = size.parse().ok(),
            // In the example of Exim's documentation, a content scanner returns a message to Exim with such a protocol.
            ("P", protocol) => entry.is_continuation = protocol.ends_with("-scanned"),
            _ => entry.client = entry.client.or_else(|| client(field)),
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
    // An ACL accepted the message and discarded it: `blackhole (DATA ACL discarded recipients): reason`.
    if text.starts_with("blackhole (") {
        return Parsed::Entry(Entry { id: id.into(), unnamed: Some((1, Outcome::Discarded)), ..Entry::default() });
    }
    let before_fields = before_fields(text);
    // The recipient that the client named, before any redirection, is in angle brackets.
    let original = || before_fields.rsplit_once(" <").and_then(|(_, rest)| rest.split('>').next());
    let first = fields(before_fields).next().unwrap_or_default();
    let recipient = quoted_recipient(text).or_else(original).unwrap_or_else(|| bare(first));
    let recipient: Cow<'a, str> = recipient.into();
    if recipient.is_empty() || id.is_empty() {
        return Parsed::Bad("it names no recipient");
    }
    let next_id = (outcome == Outcome::Sent).then(|| next_id(text)).flatten();
    let next_host = fields(text).find_map(client);
    let is_expired = outcome == Outcome::Bounced && text.contains("retry timeout exceeded");
    let recipients = vec![(recipient, outcome)];
    Parsed::Entry(Entry { id: id.into(), recipients, next_id, next_host, is_expired, ..Entry::default() })
}

/// Returns the addresses of a line about a delivery: the text before its fields and before the reason.
fn before_fields(text: &str) -> &str {
    let end = [" R=", ": "].into_iter().filter_map(|end| text.find(end)).min();
    end.map_or(text, |end| &text[..end])
}

/// Returns the recipient that the client named, if its local part is in quotes: `a: b@example.net <"a: b"@example.net>`.
/// Exim writes the address without its quotes first, so this text can look like a field.
fn quoted_recipient(text: &str) -> Option<&str> {
    let (before, rest) = text.split_once(" <\"")?;
    let mut is_escaped = false;
    let local_part = rest.split(|c: char| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    });
    let local_part = local_part.into_iter().next()?;
    let (domain, _) = rest[local_part.len()..].strip_prefix("\"@")?.split_once('>')?;
    let is_first = before.eq_ignore_ascii_case(&format!("{}@{domain}", local_part.replace('\\', "")));
    // After a redirection, the first address is another one.
    let is_recipient = is_first || before_fields(before) == before;
    let start = before.len() + " <".len();
    is_recipient.then(|| &text[start..start + local_part.len() + domain.len() + "\"\"@".len()])
}

/// Returns the id from the reply of the next server, if that server is an Exim: `C="250 OK
/// id=1tKz0D-000000003p2-1Gxn"`.
fn next_id(text: &str) -> Option<&str> {
    queue_id::of_reply(text).filter(|id| is_id(id))
}

/// Lines about clients that Exim refused before the client named a sender: beginning of the line, and text that the
/// line must contain.
const REFUSED_CLIENTS: [(&str, &str); 4] = [
    ("refused connection from ", ""),
    ("Connection from ", " refused: "),
    ("SMTP call from ", " dropped: "),
    ("SMTP protocol synchronization error", "rejected "),
];

/// Texts after `rejected ` in lines about the refusal of whole messages.
const OF_MESSAGE: [&str; 7] =
    ["after DATA", "DATA", "PRDR", "during MIME", "by local_scan", "by non-SMTP ACL", "from <"];

/// Parses a line about a refusal: `H=name [192.0.2.7] A=plain:alice F=<alice@example.org> rejected RCPT
/// <bob@example.net>: reason`, `… rejected after DATA: reason`. The second form does not name the recipients.
fn refusal<'a>(id: &'a str, text: &'a str) -> Parsed<'a> {
    if REFUSED_CLIENTS.iter().any(|(start, part)| text.starts_with(start) && text.contains(part)) {
        return Parsed::LeftOut(LeftOut::RefusedBeforeRecipient);
    }
    let head = text.split(": ").next().unwrap_or(text);
    let words: Vec<&str> = without_helo(fields(head)).collect();
    let is_discarded = text[head.len()..].starts_with(": discarded by ");
    let verb = if is_discarded { "RCPT" } else { "rejected" };
    let is_from_client = ["H=", "U=", "F=", "rejected "].iter().any(|start| head.starts_with(start));
    let Some(at) = words.iter().position(|word| *word == verb).filter(|_| is_from_client) else {
        return Parsed::Irrelevant;
    };
    // The refused command or message: `RCPT <bob@example.net>`, `after DATA`, `from <alice@example.org> H=…`.
    let refused = if is_discarded { &words[at..] } else { &words[at + 1..] };
    let outcome = if is_discarded { Outcome::Discarded } else { Outcome::Refused };
    let recipient = refused.get(1).filter(|_| refused[0] == "RCPT").map(|address| bare(address).into());
    let refused = refused.join(" ");
    let is_message = OF_MESSAGE.iter().any(|start| refused.starts_with(start));
    if recipient.is_none() && !is_message {
        return Parsed::LeftOut(LeftOut::RefusedBeforeRecipient);
    }
    let mut entry = Entry { kind: Kind::Whole, id: id.into(), ..Entry::default() };
    entry.unnamed = is_message.then_some((1, outcome));
    entry.recipients.extend(recipient.map(|recipient| (recipient, outcome)));
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.split_once('=').unwrap_or((word, "")) {
            ("A", login) => entry.user = user(login),
            ("F", address) => entry.sender = Some(sender(bare(address))),
            ("from", "") => entry.sender = words.next().map(|address| sender(bare(address))),
            _ => entry.client = entry.client.or_else(|| client(word)),
        }
    }
    Parsed::Entry(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_local_part_may_look_like_fields() {
        for (text, expected) in [
            (r#"a: b@example.net <"a: b"@example.net> R=gone: no such user"#, r#""a: b"@example.net"#),
            (r#"a R=b <c@d>@Example.net <"A R=b <c@d>"@Example.net> R=gone"#, r#""A R=b <c@d>"@Example.net"#),
            (r#"a" b@example.net <"a\" b"@example.net>: no"#, r#""a\" b"@example.net"#),
            (r#"ann@example.net <"a: b"@example.org> R=gone: no"#, r#""a: b"@example.org"#),
            // Other quotes are those of the next server.
            (r#"ann@example.net <ben@example.net> R=gone: said: 550 <"a"@example.net> no"#, "ben@example.net"),
            (r#"ann@example.net R=gone: said: 550 <"a"@example.net> no"#, "ann@example.net"),
            (r#"ann@example.net: said: 550 <"a"#, "ann@example.net"),
        ] {
            let line = format!("1tKz0D-000000003p2-1Gxn ** {text}");
            let Parsed::Entry(entry) = parse(&line) else { panic!("{line}") };
            assert_eq!(entry.recipients, [(expected.into(), Outcome::Bounced)], "{line}");
        }
    }
}
