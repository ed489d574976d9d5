//! Postfix: lines of smtpd, pickup, cleanup, qmgr and the delivery agents, from syslog or from `maillog_file`.

use super::entry::{Entry, Kind, Outcome, Parsed, bracketed_address, sender};
use super::syslog;
use std::net::IpAddr;

/// Delivery agents, whose lines begin with the recipient.
const AGENTS: [&str; 9] = ["smtp", "lmtp", "local", "virtual", "pipe", "error", "retry", "discard", "relay"];

/// Parses a line, after its time. Irrelevant lines are those of connections, TLS, statistics and warnings.
pub fn parse(body: &str) -> Parsed<'_> {
    let Some(header) = syslog::header(body) else { return Parsed::Foreign };
    // An instance of Postfix has a name of its own: `postfix-out/smtpd`, `postfix/submission/smtpd`.
    let Some((instance, _)) = header.program.split_once('/') else { return Parsed::Foreign };
    if !instance.starts_with("postfix") && !header.program.ends_with("/smtpd") {
        return Parsed::Foreign;
    }
    let service = header.program.rsplit('/').next().unwrap_or_default();
    of_service(service, header.text).of_host(header.host)
}

/// Parses the text of a service such as smtpd.
fn of_service<'a>(service: &str, text: &'a str) -> Parsed<'a> {
    let Some((id, text)) = text.split_once(": ").filter(|(id, _)| is_id(id)) else { return Parsed::Irrelevant };
    let id = if id == "NOQUEUE" { "" } else { id };
    match service {
        _ if text.starts_with("reject: ") || text.starts_with("milter-reject: ") => refusal(id, text),
        "smtpd" | "qmqpd" if text.starts_with("proxy-accept: ") => proxy_accept(text),
        "smtpd" | "qmqpd" if text.starts_with("client=") && !id.is_empty() => begin(id, text),
        "pickup" if text.starts_with("uid=") => {
            Parsed::Entry(Entry { kind: Kind::Begin, id: id.into(), ..Entry::default() })
        }
        "cleanup" if text.starts_with("message-id=") => {
            Parsed::Entry(Entry { kind: Kind::Process, id: id.into(), ..Entry::default() })
        }
        "qmgr" | "oqmgr" => queue(id, text),
        "postsuper" if text.starts_with("removed") => end(id),
        agent if text.starts_with("to=<") || AGENTS.contains(&agent) && text.contains(", status=") => {
            delivery(id, text)
        }
        _ => Parsed::Irrelevant,
    }
}

/// Queue ids are hexadecimal, or, if long, of digits and consonants.
fn is_id(text: &str) -> bool {
    text == "NOQUEUE" || (6..=24).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

fn end(id: &str) -> Parsed<'_> {
    Parsed::Entry(Entry { kind: Kind::End, id: id.into(), ..Entry::default() })
}

/// `client=name[192.0.2.7]:1234, sasl_method=PLAIN, sasl_username=alice, orig_queue_id=…, orig_client=…`.
fn begin<'a>(id: &'a str, text: &'a str) -> Parsed<'a> {
    let value = |name: &str| text.split(", ").find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    // XFORWARD names the client and the queue id of the message before a content filter. A filter before the queue gives no id.
    let first_id = value("orig_queue_id").filter(|first| is_id(first) && *first != "NOQUEUE");
    let client = value("orig_client").and_then(bracketed_address).or_else(|| bracketed_address(value("client")?));
    let user = value("sasl_username").map(Into::into);
    let is_continuation = first_id.is_some();
    Parsed::Entry(Entry { kind: Kind::Begin, id: id.into(), client, user, is_continuation, ..Entry::default() })
}

/// `from=<alice@example.org>, size=8200, nrcpt=2 (queue active)`, `removed`.
fn queue<'a>(id: &'a str, text: &'a str) -> Parsed<'a> {
    if text == "removed" {
        return end(id);
    }
    let Some(rest) = text.strip_prefix("from=<") else { return Parsed::Irrelevant };
    // `from=<…>, status=expired, returned to sender`: the recipients keep their outcome.
    let Some((address, size)) = rest.split_once(">, size=") else { return Parsed::Irrelevant };
    let Some(size) = size.split(',').next().and_then(|size| size.parse().ok()) else {
        return Parsed::Bad("its size is not a number");
    };
    Parsed::Entry(Entry { id: id.into(), sender: Some(sender(address)), size: Some(size), ..Entry::default() })
}

/// `to=<bob@example.net>, orig_to=<team@example.org>, relay=…, status=sent (250 2.0.0 Ok: queued as …)`.
fn delivery<'a>(id: &'a str, text: &'a str) -> Parsed<'a> {
    let recipient = text.strip_prefix("to=<").and_then(|rest| rest.split_once(">, "));
    let Some((recipient, rest)) = recipient else { return Parsed::Bad("its recipient is not of the form to=<…>") };
    // The client named the recipient before aliases.
    let original = rest.strip_prefix("orig_to=<").and_then(|rest| rest.split_once(">, "));
    let recipient = original.map_or(recipient, |(original, _)| original);
    let Some((_, status)) = rest.split_once("status=") else { return Parsed::Bad("it has no status") };
    let (status, reply) = status.split_once(' ').unwrap_or((status, ""));
    let outcome = match status {
        "sent" | "deliverable" => Outcome::Sent,
        "deferred" | "SOFTBOUNCE" => Outcome::Deferred,
        "bounced" | "undeliverable" => Outcome::Bounced,
        _ => return Parsed::Bad("its status is unknown"),
    };
    let next_id = (outcome == Outcome::Sent).then(|| queued_as(reply)).flatten();
    Parsed::Entry(Entry { id: id.into(), recipients: vec![(recipient.into(), outcome)], next_id, ..Entry::default() })
}

/// Returns the queue id in the reply of another Postfix.
fn queued_as(reply: &str) -> Option<&str> {
    let (_, rest) = reply.rsplit_once("queued as ")?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
    Some(&rest[..end]).filter(|id| is_id(id))
}

/// Client, envelope and login of a line about a command:
/// `RCPT from name[192.0.2.7]: 554 5.7.1 …; from=<a> to=<b> proto=ESMTP helo=<c> sasl_username=<d>`.
struct Command<'a> {
    client: Option<IpAddr>,
    sender: Option<&'a str>,
    recipient: Option<&'a str>,
    user: Option<&'a str>,
}

impl<'a> Command<'a> {
    fn parse(text: &'a str) -> Self {
        let (before, envelope) = text.split_once("; from=<").map_or((text, ""), |(before, _)| {
            // The reply may contain text of the client, but nothing after it does before `from=`.
            (before, &text[before.len() + 2..])
        });
        let client = before.split_once(" from ").and_then(|(_, rest)| {
            let end = rest.find("]")?;
            bracketed_address(&rest[..=end])
        });
        let value = |name: &str| {
            let start = envelope.find(name)? + name.len();
            Some(&envelope[start..start + envelope[start..].find('>')?])
        };
        Self { client, sender: value("from=<"), recipient: value(" to=<"), user: value(" sasl_username=<") }
    }
}

/// Refusal of a command or of a whole message.
fn refusal<'a>(id: &'a str, text: &'a str) -> Parsed<'a> {
    let command = Command::parse(text);
    let Some(recipient) = command.recipient else { return Parsed::Irrelevant };
    // A refused RCPT concerns one recipient; the others go on.
    let is_whole = !id.is_empty() && !text.contains("reject: RCPT");
    Parsed::Entry(Entry {
        kind: if is_whole { Kind::End } else { Kind::Progress },
        id: id.into(),
        client: command.client,
        user: command.user.map(Into::into),
        sender: command.sender.map(sender),
        recipients: vec![(recipient.into(), Outcome::Refused)],
        ..Entry::default()
    })
}

/// A filter before the queue has passed the message on to a second smtpd, which knows no login.
fn proxy_accept(text: &str) -> Parsed<'_> {
    let command = Command::parse(text);
    let reply = text.split("; from=<").next().unwrap_or(text);
    let Some(id) = queued_as(reply) else { return Parsed::Irrelevant };
    let (client, user) = (command.client, command.user.map(Into::into));
    Parsed::Entry(Entry { id: id.into(), client, user, ..Entry::default() })
}
