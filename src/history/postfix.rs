//! Parser of Postfix's log lines, from syslog or from `maillog_file`: lines of smtpd, pickup, cleanup, qmgr and the
//! delivery agents.

use super::entry::{Entry, Kind, LeftOut, Outcome, Parsed, bracketed_address, sender};
use super::syslog;
use crate::queue_id;
use std::net::IpAddr;

/// Delivery agents: each of their lines begins with a queue id and a recipient.
const AGENTS: [&str; 9] = ["smtp", "lmtp", "local", "virtual", "pipe", "error", "retry", "discard", "relay"];

/// Actions by which Postfix, a milter or a filter before the queue refuses or discards a recipient or a message.
const REFUSALS: [&str; 5] = ["reject", "milter-reject", "proxy-reject", "discard", "milter-discard"];

/// Commands that come before the first recipient.
const BEFORE_RECIPIENT: [&str; 11] =
    ["CONNECT", "HELO", "EHLO", "STARTTLS", "AUTH", "XCLIENT", "XFORWARD", "VRFY", "ETRN", "UNKNOWN", "MAIL"];

/// Parses the text of a line after its time. Lines about connections, TLS or statistics are irrelevant; so are
/// warnings.
pub fn parse(body: &str) -> Parsed<'_> {
    let Some(header) = syslog::header(body) else {
        let times = syslog::last_repeated(body);
        return times.map_or(Parsed::Foreign, |times| Parsed::LeftOut(LeftOut::NotWritten(times)));
    };
    // An instance of Postfix can have its own name before the service: `postfix-out/smtpd`, `postfix/submission/smtpd`.
    let Some((instance, _)) = header.program.split_once('/') else { return Parsed::Foreign };
    if !instance.starts_with("postfix") && !header.program.ends_with("/smtpd") {
        return Parsed::Foreign;
    }
    let service = header.program.rsplit('/').next().unwrap_or_default();
    of_service(service, header.text).with_header(&header)
}

/// Parses the text of a service such as smtpd.
fn of_service<'a>(service: &str, text: &'a str) -> Parsed<'a> {
    let (id, text) = match text.split_once(": ") {
        // Postfix before 2.0 wrote no id before a refusal. Postfix before 2.3 wrote no id before `proxy-accept`.
        Some((action, _)) if is_verdict(action) => ("", text),
        Some(("NOQUEUE", text)) => ("", text),
        Some((id, text)) if is_id(id) => (id, text),
        _ => return Parsed::Irrelevant,
    };
    match service {
        _ if text.split(": ").next().is_some_and(|action| REFUSALS.contains(&action)) => refusal(id, text),
        "smtpd" | "qmqpd" if text.starts_with("proxy-accept: ") => proxy_accept(text),
        "smtpd" | "qmqpd" if text.starts_with("client=") && !id.is_empty() => begin(id, text),
        "pickup" if text.starts_with("uid=") => {
            // `postsuper -r` puts a message into the queue again, under a new id.
            let is_continuation = text.contains(" orig_id=");
            let first_id = text.split_once(" orig_id=").map(|(_, id)| id.trim()).filter(|id| is_id(id));
            Parsed::Entry(Entry { kind: Kind::Begin, id: id.into(), first_id, is_continuation, ..Entry::default() })
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

/// Returns whether a text is an action on a command or a message, not a queue id.
fn is_verdict(text: &str) -> bool {
    text == "proxy-accept" || REFUSALS.contains(&text)
}

/// Returns whether a text is a queue id: short ids are hexadecimal, long ids are digits and consonants.
fn is_id(text: &str) -> bool {
    (6..=24).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

fn end(id: &str) -> Parsed<'_> {
    Parsed::Entry(Entry { kind: Kind::End, id: id.into(), ..Entry::default() })
}

/// Parses the first line of a message: `client=name[192.0.2.7]:1234, sasl_method=PLAIN, sasl_username=alice,
/// orig_queue_id=…, orig_client=…`.
fn begin<'a>(id: &'a str, text: &'a str) -> Parsed<'a> {
    let value = |name: &str| text.split(", ").find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    // With XFORWARD, a content filter says which client sent the message, and which queue id the message had before the
    // filter. A filter before the queue (smtpd_proxy_filter) gives no queue id.
    let first_id = value("orig_queue_id").filter(|first| is_id(first) && *first != "NOQUEUE");
    let client = value("orig_client").and_then(bracketed_address).or_else(|| bracketed_address(value("client")?));
    let user = value("sasl_username").map(Into::into);
    let is_continuation = first_id.is_some();
    Parsed::Entry(Entry {
        kind: Kind::Begin,
        id: id.into(),
        client,
        user,
        first_id,
        is_continuation,
        ..Entry::default()
    })
}

/// Parses a line of the queue manager: `from=<alice@example.org>, size=8200, nrcpt=2 (queue active)`, `removed`.
fn queue<'a>(id: &'a str, text: &'a str) -> Parsed<'a> {
    if text == "removed" {
        return end(id);
    }
    let Some(rest) = text.strip_prefix("from=<") else { return Parsed::Irrelevant };
    // A line `from=<…>, status=expired, returned to sender` does not change the outcomes of the recipients.
    if rest.ends_with(">, status=expired, returned to sender") {
        return Parsed::Entry(Entry { id: id.into(), is_expired: true, ..Entry::default() });
    }
    let Some((address, size)) = rest.split_once(">, size=") else { return Parsed::Irrelevant };
    let Some(size) = size.split(',').next().and_then(|size| size.parse().ok()) else {
        return Parsed::Bad("its size is not a number");
    };
    Parsed::Entry(Entry { id: id.into(), sender: Some(sender(address)), size: Some(size), ..Entry::default() })
}

/// Parses a line about a delivery: `to=<bob@example.net>, orig_to=<team@example.org>, relay=…, status=sent (250 2.0.0
/// Ok: queued as …)`.
fn delivery<'a>(id: &'a str, text: &'a str) -> Parsed<'a> {
    let recipient = text.strip_prefix("to=<").and_then(|rest| rest.split_once(">, "));
    let Some((recipient, rest)) = recipient else { return Parsed::Bad("its recipient is not of the form to=<…>") };
    // `orig_to` is the recipient that the client named, before Postfix replaced aliases.
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
    let relay = rest.split(", ").find_map(|field| field.strip_prefix("relay="));
    let next_host = relay.and_then(bracketed_address);
    let recipients = vec![(recipient.into(), outcome)];
    Parsed::Entry(Entry { id: id.into(), recipients, next_id, next_host, ..Entry::default() })
}

/// Returns the queue id from the reply of the next server, if that server is a Postfix.
fn queued_as(reply: &str) -> Option<&str> {
    queue_id::of_reply(reply).filter(|id| is_id(id))
}

/// Client, envelope and login in a line about a command of the client: `RCPT from name[192.0.2.7]: 554 5.7.1 …;
/// from=<a> to=<b> proto=ESMTP helo=<c> sasl_username=<d>`.
struct Command<'a> {
    client: Option<IpAddr>,
    sender: Option<&'a str>,
    recipient: Option<&'a str>,
    user: Option<&'a str>,
}

impl<'a> Command<'a> {
    fn parse(text: &'a str) -> Self {
        let (before, envelope) = text.split_once("; from=<").map_or((text, ""), |(before, _)| {
            // The fields of the envelope follow the reply and begin with `from=<`. The reply can contain text that the
            // client chose.
            (before, &text[before.len() + 2..])
        });
        // In a line about an SMTP command, the client comes before the reply. In a line about a header or the body, the
        // client comes after the text of the header or of the body.
        let is_of_content = before.starts_with(|c: char| c.is_ascii_lowercase());
        let client = if is_of_content { before.rsplit_once(" from ") } else { before.split_once(" from ") };
        let client = client.and_then(|(_, rest)| {
            let end = rest.find("]")?;
            bracketed_address(&rest[..=end])
        });
        let value = |name: &str| {
            let start = envelope.find(name)? + name.len();
            Some(&envelope[start..start + envelope[start..].find('>')?])
        };
        let recipient = value(" to=<").filter(|recipient| !recipient.is_empty());
        Self { client, sender: value("from=<"), recipient, user: value(" sasl_username=<") }
    }
}

/// Parses a line about the refusal of a command or of a whole message: `reject: RCPT from …`, `milter-reject:
/// END-OF-MESSAGE from …`, `reject: header …`. If a message has several recipients, the line about its refusal names no
/// recipient.
fn refusal<'a>(id: &'a str, text: &'a str) -> Parsed<'a> {
    let (action, text) = text.split_once(": ").unwrap_or((text, ""));
    let command = Command::parse(text);
    let stage = text.split([' ', ':']).next().unwrap_or_default();
    if command.recipient.is_none() && BEFORE_RECIPIENT.contains(&stage) {
        return Parsed::LeftOut(LeftOut::RefusedBeforeRecipient);
    }
    let outcome = if action.ends_with("discard") { Outcome::Discarded } else { Outcome::Refused };
    // A refused RCPT concerns only its recipient; the message continues with the other recipients.
    let is_whole = !id.is_empty() && stage != "RCPT";
    Parsed::Entry(Entry {
        kind: if is_whole { Kind::End } else { Kind::Progress },
        id: id.into(),
        client: command.client,
        user: command.user.map(Into::into),
        sender: command.sender.map(sender),
        unnamed: command.recipient.is_none().then_some((1, outcome)),
        recipients: command.recipient.map(|recipient| (recipient.into(), outcome)).into_iter().collect(),
        ..Entry::default()
    })
}

/// Parses a line about a message that a filter before the queue accepted. The filter passes the message to a second
/// smtpd, which does not know the login.
fn proxy_accept(text: &str) -> Parsed<'_> {
    let command = Command::parse(text);
    let reply = text.split("; from=<").next().unwrap_or(text);
    let Some(id) = queued_as(reply) else { return Parsed::Irrelevant };
    let (client, user) = (command.client, command.user.map(Into::into));
    Parsed::Entry(Entry { id: id.into(), client, user, ..Entry::default() })
}
