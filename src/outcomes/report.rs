//! Reports in mails: delivery status notifications (DSN, RFC 3464) and complaints (ARF, RFC 5965).
//!
//! The parts of a report are found here, because mail-parser 0.11 panics on some malformed mails ("Invalid part ID").

use super::{Kind, Outcome};
use crate::queue_id;

/// Maximum octets of a report that are read. The fields come before the returned message, so the rest is not needed.
pub const MAX_REPORT: usize = 1 << 20;

/// Maximum number of outcomes, and of queue ids, of one report.
const MAX_OUTCOMES: usize = 1000;
const MAX_QUEUE_IDS: usize = 50;

/// Maximum number of parts, and their maximum depth.
const MAX_PARTS: usize = 50;
const MAX_DEPTH: usize = 4;

/// Reason why a mail is no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportError {
    /// The mail is neither a DSN nor a complaint.
    NoReport,
    /// The report names no message: it returns no headers with a queue id or a `Message-ID`.
    NoMessage,
}

/// Parts of a report.
#[derive(Default)]
struct Parts {
    /// Kinds, recipients, and other names of the recipients.
    outcomes: Vec<(Kind, Option<String>, Option<String>)>,
    is_report: bool,
    queue_ids: Vec<String>,
    message_id: Option<String>,
}

/// Parses a mail. A report that asks for no action, such as one about a message that is no spam, has no outcomes.
pub fn parse_report(mail: &[u8]) -> Result<Vec<Outcome>, ReportError> {
    let mail = String::from_utf8_lossy(mail).replace("\r\n", "\n");
    let (mut parts, mut left) = (Parts::default(), MAX_PARTS);
    parts.add_part(&mail, 0, &mut left);
    parts.outcomes()
}

impl Parts {
    fn outcomes(self) -> Result<Vec<Outcome>, ReportError> {
        let Self { outcomes, is_report, queue_ids, message_id } = self;
        if !is_report {
            return Err(ReportError::NoReport);
        }
        if queue_ids.is_empty() && message_id.is_none() {
            return Err(ReportError::NoMessage);
        }
        let outcome = |(kind, recipient, other_name)| Outcome {
            kind,
            recipient,
            other_name,
            queue_ids: queue_ids.clone(),
            message_id: message_id.clone(),
            at: None,
        };
        Ok(outcomes.into_iter().take(MAX_OUTCOMES).map(outcome).collect())
    }

    /// Adds the fields of a DSN: a block about the message, and a block for each recipient, separated by blank lines.
    fn add_status(&mut self, text: &str) {
        self.is_report = true;
        for block in blocks(text) {
            let fields = fields(&block);
            if let Some(id) = value(&fields, "x-postfix-queue-id") {
                self.add_queue_id(id);
            }
            let named = ["original-recipient", "final-recipient"].map(|name| value(&fields, name).map(address));
            let mut names = named.into_iter().flatten();
            let (Some(action), Some(recipient)) = (value(&fields, "action"), names.next()) else { continue };
            let other_name = names.next().filter(|other| *other != recipient);
            let is_permanent = value(&fields, "status").is_some_and(|status| status.starts_with('5'));
            let kind = match action.to_ascii_lowercase().as_str() {
                "failed" if is_permanent => Kind::Bounced,
                "failed" => Kind::Expired,
                "delayed" => Kind::Deferred,
                "delivered" | "relayed" | "expanded" => Kind::Sent,
                _ => continue,
            };
            self.add_outcome(kind, Some(recipient), other_name);
        }
    }

    /// Adds the fields of a complaint.
    fn add_feedback(&mut self, text: &str) {
        self.is_report = true;
        let fields: Vec<_> = blocks(text).iter().flat_map(|block| fields(block)).collect();
        let is_complaint = value(&fields, "feedback-type")
            .is_some_and(|kind| ["abuse", "fraud", "virus", "other"].contains(&kind.to_ascii_lowercase().as_str()));
        if !is_complaint {
            return;
        }
        let recipients = fields.iter().filter(|(name, _)| name == "original-rcpt-to" || name == "removal-recipient");
        let mut recipients: Vec<String> = recipients.map(|(_, recipient)| address(recipient)).collect();
        recipients.dedup();
        if recipients.is_empty() {
            self.add_outcome(Kind::Complained, None, None);
        }
        recipients.into_iter().for_each(|recipient| self.add_outcome(Kind::Complained, Some(recipient), None));
    }

    /// Adds a part with its headers; of a multipart, its parts.
    fn add_part(&mut self, part: &str, depth: usize, left: &mut usize) {
        if *left == 0 || depth > MAX_DEPTH {
            return;
        }
        *left -= 1;
        // A part without headers begins with a blank line.
        let (head, body) = match part.strip_prefix('\n') {
            Some(body) => ("", body),
            None => part.split_once("\n\n").unwrap_or((part, "")),
        };
        let head = fields(&unfolded(head));
        let content_type = value(&head, "content-type").unwrap_or_default();
        let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match kind.as_str() {
            "message/delivery-status" | "message/global-delivery-status" => self.add_status(body),
            "message/feedback-report" => self.add_feedback(body),
            "message/rfc822" | "message/global" | "text/rfc822-headers" | "message/global-headers" => {
                self.add_returned(body);
            }
            kind if kind.starts_with("multipart/") => {
                let Some(boundary) = boundary(content_type) else { return };
                for part in multipart(body, &boundary) {
                    self.add_part(part, depth + 1, left);
                }
            }
            _ => {}
        }
    }

    /// Adds the headers of the message that the report is about.
    fn add_returned(&mut self, returned: &str) {
        let head = returned.trim_start_matches('\n').split("\n\n").next().unwrap_or_default();
        for (name, value) in fields(&unfolded(head)) {
            if name == "message-id" && self.message_id.is_none() {
                self.message_id = Some(address(&value));
            }
            if name == "received" {
                let mut words = value.split_ascii_whitespace();
                if words.any(|word| word.eq_ignore_ascii_case("id"))
                    && let Some(id) = words.next()
                {
                    self.add_queue_id(id);
                }
            }
        }
    }

    fn add_queue_id(&mut self, id: &str) {
        let id = id.trim_end_matches(';');
        if queue_id::is_queue_id(id)
            && self.queue_ids.len() < MAX_QUEUE_IDS
            && !self.queue_ids.iter().any(|known| known == id)
        {
            self.queue_ids.push(id.to_owned());
        }
    }

    fn add_outcome(&mut self, kind: Kind, recipient: Option<String>, other_name: Option<String>) {
        if self.outcomes.len() < MAX_OUTCOMES {
            self.outcomes.push((kind, recipient, other_name));
        }
    }
}

/// Returns the boundary of a multipart (RFC 2046 §5.1.1).
fn boundary(content_type: &str) -> Option<String> {
    content_type.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim().trim_matches('"');
        (name.trim().eq_ignore_ascii_case("boundary") && !value.is_empty()).then(|| value.to_owned())
    })
}

/// Returns the parts of a multipart. The last part can lack its end, because the report was cut.
fn multipart<'a>(body: &'a str, boundary: &str) -> Vec<&'a str> {
    let (mut parts, mut start, mut at) = (Vec::new(), None, 0);
    for line in body.split_inclusive('\n') {
        let end = at;
        at += line.len();
        let Some(rest) = line.trim_end().strip_prefix("--").and_then(|rest| rest.strip_prefix(boundary)) else {
            continue;
        };
        if !matches!(rest, "" | "--") || parts.len() >= MAX_PARTS {
            continue;
        }
        parts.extend(start.map(|start| &body[start..end]));
        start = (rest.is_empty()).then_some(at);
    }
    parts.extend(start.map(|start| &body[start..]));
    parts
}

/// Joins continued lines (RFC 5322 §2.2.3).
fn unfolded(text: &str) -> String {
    text.replace("\n ", " ").replace("\n\t", " ")
}

/// Divides a text at its blank lines, and joins continued lines.
fn blocks(text: &str) -> Vec<String> {
    unfolded(text).split("\n\n").take(MAX_OUTCOMES + 1).map(str::to_owned).collect()
}

/// Returns the fields of a block, with names in lower case.
fn fields(block: &str) -> Vec<(String, String)> {
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
    };
    block.lines().filter_map(field).collect()
}

fn value<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Returns the address of `rfc822; bob@example.net` or `<bob@example.net>`.
fn address(recipient: &str) -> String {
    let address = recipient.split_once(';').map_or(recipient, |(_, address)| address);
    address.trim().trim_start_matches('<').trim_end_matches('>').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DSN: &str = "From: MAILER-DAEMON@mx.example\r\nSubject: Undelivered\r\nMIME-Version: 1.0\r\n\
        Content-Type: multipart/report; report-type=delivery-status; boundary=\"b\"\r\n\r\n\
        --b\r\nContent-Type: text/plain\r\n\r\nSorry\r\n\
        --b\r\nContent-Type: message/delivery-status\r\n\r\n\
        Reporting-MTA: dns; mx.example\r\nX-Postfix-Queue-ID: 4A8D2280F15\r\n\r\n\
        Final-Recipient: rfc822; bob@example.net\r\nOriginal-Recipient: rfc822;team@example.net\r\nAction: failed\r\nStatus: 5.1.1\r\n\r\n\
        Final-Recipient: rfc822; eve@example.net\r\nAction: failed\r\nStatus: 4.4.1\r\n\r\n\
        Final-Recipient: rfc822; ann@example.net\r\nAction: delayed\r\nStatus: 4.4.1\r\n\
        \r\n--b\r\nContent-Type: message/rfc822\r\n\r\n\
        Received: from weir by mx.example (Postfix) with ESMTP id 4A8D2280F15; date\r\nMessage-ID: <1@example.org>\r\n\r\nhello\r\n--b--\r\n";

    const ARF: &str = "From: fbl@isp.example\r\nMIME-Version: 1.0\r\n\
        Content-Type: multipart/report; report-type=feedback-report; boundary=\"b\"\r\n\r\n\
        --b\r\nContent-Type: text/plain\r\n\r\nThis is spam\r\n\
        --b\r\nContent-Type: message/feedback-report\r\n\r\n\
        Feedback-Type: abuse\r\nUser-Agent: x/1\r\nVersion: 1\r\nOriginal-Rcpt-To: <bob@example.net>\r\n\r\n\
        --b\r\nContent-Type: text/rfc822-headers\r\n\r\n\
        Received: from mx.example by isp.example with ESMTP id q123456; date\r\n\
        Received: from weir by mx.example with esmtp (Exim 4.96)\r\n\tid 1tKz0D-0005vi-00; date\r\nMessage-ID: <1@example.org>\r\n\r\n--b--\r\n";

    fn kinds(mail: &str) -> Vec<(Kind, Option<String>)> {
        parse_report(mail.as_bytes()).unwrap().into_iter().map(|outcome| (outcome.kind, outcome.recipient)).collect()
    }

    #[test]
    fn a_dsn_gives_an_outcome_for_each_recipient() {
        let to = |name: &str| Some(format!("{name}@example.net"));
        let expected = [(Kind::Bounced, to("team")), (Kind::Expired, to("eve")), (Kind::Deferred, to("ann"))];
        assert_eq!(kinds(DSN), expected);
        let outcomes = parse_report(DSN.as_bytes()).unwrap();
        let others: Vec<_> = outcomes.iter().map(|outcome| outcome.other_name.as_deref()).collect();
        assert_eq!(others, [Some("bob@example.net"), None, None]);
        let outcome = &outcomes[0];
        assert_eq!(
            (&*outcome.queue_ids, outcome.message_id.as_deref()),
            (&["4A8D2280F15".into()][..], Some("1@example.org"))
        );
    }

    #[test]
    fn a_complaint_names_the_queue_ids_of_the_returned_headers() {
        assert_eq!(kinds(ARF), [(Kind::Complained, Some("bob@example.net".into()))]);
        let outcome = &parse_report(ARF.as_bytes()).unwrap()[0];
        assert_eq!(outcome.queue_ids, ["q123456", "1tKz0D-0005vi-00"]);
        assert_eq!(kinds(&ARF.replace("Original-Rcpt-To: <bob@example.net>\r\n", "")), [(Kind::Complained, None)]);
        assert_eq!(kinds(&ARF.replace("abuse", "not-spam")), []);
    }

    #[test]
    fn other_mail_is_no_report() {
        for mail in
            ["", "\r\n", "Subject: hello\r\n\r\nhello\r\n", "Content-Type: multipart/report; boundary=b\r\n\r\n--b--"]
        {
            assert_eq!(parse_report(mail.as_bytes()), Err(ReportError::NoReport), "{mail}");
        }
        let bare = ARF.replace("Received", "X-Received").replace("Message-ID", "X-Id");
        assert_eq!(parse_report(bare.as_bytes()), Err(ReportError::NoMessage));
    }

    #[test]
    fn the_parser_never_panics() {
        // A fixed generator, so that a failure can be repeated.
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for round in 0..5_000 {
            let mut mail = if round % 2 == 0 { DSN } else { ARF }.as_bytes().to_vec();
            for _ in 0..=random(20) {
                let at = random(mail.len());
                match random(4) {
                    0 => mail[at] = random(256) as u8,
                    1 => mail.truncate(at.max(1)),
                    2 => _ = mail.remove(at.min(mail.len() - 1)).to_owned(),
                    _ => {
                        let copy: Vec<u8> = mail[at..(at + random(200)).min(mail.len())].to_vec();
                        mail.splice(at..at, copy);
                    }
                }
                if mail.is_empty() {
                    mail.push(b'\n');
                }
            }
            if let Ok(outcomes) = parse_report(&mail) {
                assert!(outcomes.len() <= MAX_OUTCOMES);
            }
        }
    }
}
