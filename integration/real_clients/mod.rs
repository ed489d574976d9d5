//! Tests in which real mail programs send through Weir to a real Postfix: the delivered message equals the sent
//! message, with Weir's `Received:` line added.
//!
//! The tests need root and several Debian packages. `integration/test` installs the packages, or names the tests that
//! it leaves out.

mod balancers;
mod programs;
mod relays;
mod upstreams;

use crate::harness::{Client, PASSWORD, Postfix, Site};
use std::path::Path;

/// Returns the messages that every client sends: name, and text with CRLF and without dot-stuffing.
fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let head = |more: &str| {
        format!(
            "From: Alice <alice@example.org>\r\nTo: Bob <bob@example.net>\r\nSubject: test\r\nMessage-ID: <1@example.org>\r\nDate: Sat, 21 Nov 2026 10:00:00 +0000\r\n{more}\r\n"
        )
    };
    let mime = head("MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=\"b\"\r\n");
    let encoded = "aGVsbG8gaGVsbG8gaGVsbG8gaGVsbG8gaGVsbG8gaGVsbG8gaGVsbG8gaGVsbG8gaGVsbG8gaGVs\r\n".repeat(800);
    let attachment = format!(
        "{mime}--b\r\nContent-Type: text/plain\r\n\r\nsee below\r\n--b\r\nContent-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n\r\n{encoded}--b--\r\n"
    );
    let eight_bit = head(
        "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=iso-8859-1\r\nContent-Transfer-Encoding: 8bit\r\n",
    );
    let latin: Vec<u8> = (0xa0..=0xffu8).cycle().take(70).chain(*b"\r\n").collect();
    let dots = head("") + ".\r\n..\r\n.x\r\n...\r\n\r\n.\r\nend.\r\n";
    let line = "0123456789 abcdefghijklmnopqrstuvwxyz .........................................\r\n";
    let large = head("") + &line.repeat(20_000_000 / line.len() + 1);
    vec![
        ("text", (head("") + "hello\r\n\r\nbye\r\n").into_bytes()),
        ("attachment", attachment.into_bytes()),
        ("eight-bit", [eight_bit.into_bytes(), latin.repeat(20)].concat()),
        ("dots", dots.into_bytes()),
        ("large", large.into_bytes()),
    ]
}

/// Converts a message in Postfix's mailbox file back to the message that the client sent: removes Postfix's own header
/// lines and all `Received:` lines, and makes line ends CRLF. Returns the `Received:` lines, newest first, and the
/// message.
fn unwrapped(delivered: &[u8]) -> (Vec<String>, Vec<u8>) {
    let mut headers: Vec<Vec<u8>> = Vec::new();
    let mut rest = delivered;
    loop {
        let end = rest.iter().position(|b| *b == b'\n').unwrap() + 1;
        let (line, after) = rest.split_at(end);
        let continues = line.starts_with(b"\t") || line.starts_with(b" ");
        let added = [&b"Return-Path:"[..], b"X-Original-To:", b"Delivered-To:", b"Received:"];
        match headers.last_mut() {
            Some(header) if continues => header.extend_from_slice(line),
            _ if added.iter().any(|name| line.starts_with(name)) => headers.push(line.to_vec()),
            _ => break,
        }
        rest = after;
    }
    let received: Vec<String> = headers
        .iter()
        .filter(|header| header.starts_with(b"Received:"))
        .map(|header| String::from_utf8(header.clone()).unwrap())
        .collect();
    let text: Vec<u8> = rest.iter().flat_map(|b| if *b == b'\n' { vec![b'\r', b'\n'] } else { vec![*b] }).collect();
    (received, text)
}

/// Way in which a client uses TLS with Weir.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Way {
    StartTls,
    Implicit,
}

impl Way {
    /// Returns the name of Weir's listener for clients that use TLS in this way.
    fn listener(self) -> &'static str {
        match self {
            Self::StartTls => "starttls",
            Self::Implicit => "implicit",
        }
    }
}

/// Message that a client must send, and how the client connects to Weir.
struct Sending<'a> {
    way: Way,
    /// Port of Weir's listener for `way`.
    port: u16,
    /// Certificate file that the client must trust.
    ca: &'a Path,
    recipient: &'a str,
    text: &'a [u8],
    /// File that contains `text`.
    file: &'a Path,
}

impl Sending<'_> {
    /// Returns the text of the message with LF instead of CRLF.
    fn with_unix_lines(&self) -> Vec<u8> {
        self.text.iter().copied().filter(|b| *b != b'\r').collect()
    }
}

/// Sends all [`messages`] with a client, in both ways of using TLS, and compares them with the delivered messages.
/// `before` is the number of `Received:` lines that the client itself adds.
fn compare(client: &str, before: usize, mut send: impl FnMut(&Sending)) {
    each(
        client,
        messages(),
        |sending| {
            send(sending);
            sending.text.to_vec()
        },
        before,
    );
}

/// Sends messages with a client, in both ways of using TLS, and compares the messages that `send` returns with the
/// delivered messages.
fn each(client: &str, messages: Vec<(&str, Vec<u8>)>, mut send: impl FnMut(&Sending) -> Vec<u8>, before: usize) {
    let postfix = Postfix::start();
    let upstream = format!(
        "{{ name = \"postfix\", address = \"localhost:{}\", tls = \"required\", ca = \"{}\" }}",
        postfix.address().port(),
        postfix.certificate().display()
    );
    let site = Site::builder()
        .listener("starttls", "tls = \"starttls\"")
        .listener("implicit", "tls = \"implicit\"")
        .upstream_tables([upstream])
        .build();
    let weir = site.start();
    let (file, ca) = (site.path("message.eml"), site.path("certificate.pem"));
    for way in [Way::StartTls, Way::Implicit] {
        for (name, text) in &messages {
            let recipient = format!("{client}-{name}-{}@example.net", way.listener());
            std::fs::write(&file, text).unwrap();
            let port = weir.address(way.listener()).port();
            let sent = send(&Sending { way, port, ca: &ca, recipient: &recipient, text, file: &file });
            let (received, arrived) = unwrapped(&postfix.message_for(&recipient));
            if arrived != sent {
                let at = arrived.iter().zip(&sent).take_while(|(a, b)| a == b).count();
                let near = |text: &[u8]| {
                    String::from_utf8_lossy(&text[at.saturating_sub(100)..text.len().min(at + 100)]).into_owned()
                };
                panic!("{recipient}: differs at octet {at}: sent {:?}, arrived {:?}", near(&sent), near(&arrived));
            }
            assert_eq!(received.len(), 2 + before, "one of Postfix, one of Weir, and the client's: {received:?}");
            assert!(received[0].contains("by postfix.example"), "{received:?}");
            for part in [
                "by weir.example (Weir) with ESMTPSA id ",
                "(authenticated user alice)",
                "(using TLSv1.3 with cipher TLS_",
            ] {
                assert!(received[1].contains(part), "{part:?} is not in {}", received[1]);
            }
        }
    }
    weir.wait_for_metric("weir_messages_total{result=\"delivered\"}", 2.0 * messages.len() as f64);
    let line = weir.logged("result=delivered");
    for part in [
        "user=alice",
        "from=alice@example.org",
        "asked=1",
        "accepted=1",
        "reply=250",
        "upstream=\"250 2.0.0 Ok: queued as",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(!weir.log_lines().concat().contains(PASSWORD));
    assert_eq!(weir.terminate(), Some(0));
}

#[test]
fn an_invalid_certificate_is_refused_with_required_tls_and_accepted_with_opportunistic_tls() {
    let postfix = Postfix::start();
    for (tls, reply) in [("required", "451 4.4.1"), ("opportunistic", "250"), ("none", "250")] {
        // The upstream has no key `ca`, so Weir trusts only the system's authorities: Postfix's certificate is invalid.
        let upstream = format!("{{ address = \"localhost:{}\", tls = \"{tls}\" }}", postfix.address().port());
        let site = Site::builder().open_listener().upstream_tables([upstream]).build();
        let weir = site.start();
        let mut client = Client::greeted_by(&weir);
        client.say("MAIL FROM:<alice@example.org>", "250");
        client.say("RCPT TO:<bob@example.net>", reply);
        if tls == "required" {
            assert!(weir.logged("upstream away").contains("TLS"));
        }
    }
    let log = std::fs::read_to_string(postfix.path("log")).unwrap();
    assert!(log.contains("connect from"), "{log}");
}

#[test]
fn smtputf8_dsn_and_chunking_reach_postfix() {
    let postfix = Postfix::start();
    let site = Site::builder().open_listener().upstream(format!("localhost:{}", postfix.address().port()), "").build();
    let weir = site.start();
    let mut client = Client::connect(weir.address("s"));
    let announced = client.ask("EHLO client.example");
    for extension in ["8BITMIME", "SMTPUTF8", "DSN", "CHUNKING"] {
        assert!(announced.contains(extension), "{extension} is not in {announced}");
    }
    client.say("MAIL FROM:<alice@example.net> SMTPUTF8 RET=HDRS ENVID=QQ+2B314", "250");
    client.say("RCPT TO:<grüße@example.net> NOTIFY=SUCCESS ORCPT=utf-8;grüße@example.net", "250");
    let text = "From: Alice <alice@example.net>\r\nTo: Grüße <grüße@example.net>\r\nMessage-ID: <1@example.org>\r\nDate: Sat, 21 Nov 2026 10:00:00 +0000\r\n\r\n.\r\n..x\r\n";
    let (one, other) = text.as_bytes().split_at(text.len() - 6);
    for (piece, last) in [(one, ""), (other, " LAST")] {
        client.send(&[format!("BDAT {}{last}\r\n", piece.len()).as_bytes(), piece].concat());
        client.expect("250");
    }
    let (received, arrived) = unwrapped(&postfix.message_for("grüße@example.net"));
    assert_eq!(String::from_utf8(arrived).unwrap(), text);
    assert!(received[1].contains("with UTF8SMTP id"), "{received:?}");
    let report = String::from_utf8(postfix.message_for("alice@example.net")).unwrap();
    for part in ["Original-Envelope-Id: QQ+314", "Original-Recipient: utf-8;grüße@example.net", "Action: delivered"] {
        assert!(report.contains(part), "{part} is not in {report}");
    }
}
