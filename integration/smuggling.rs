//! Tests of SMTP smuggling (CVE-2023-51764 to 51766): a client sends octets that some servers mistake for the end of a
//! message. The upstream must get one message or none, in whatever way the octets are divided into packets. In another
//! attack, the first line of a message begins with white space, so that a server would read it as a part of Weir's
//! `Received:` line above. Weir refuses such messages.

use crate::harness::{Client, Site, Upstream};

/// Wrong sequences of octets that some mail servers have mistaken for the end of a message.
const ENDS: [&[u8]; 18] = [
    b"\n.\n",
    b"\n.\r\n",
    b"\r\n.\n",
    b"\r.\r",
    b"\r\n.\r",
    b"\r.\r\n",
    b"\r.\n",
    b"\n.\r",
    b"\r\n\0.\r\n",
    b"\r\n.\0\r\n",
    b"\r\n.\r\0\n",
    b"\r\r\n.\r\r\n",
    b"\r\n.\r\r\n",
    b"\r\n\n.\r\n",
    b"\n\n.\n\n",
    b"\r\n.\n\r\n",
    b"\r\n\r.\r\n",
    b"\x85.\x85\n",
];

const HIDDEN: &[u8] =
    b"MAIL FROM:<evil@example.org>\r\nRCPT TO:<victim@example.net>\r\nDATA\r\nSubject: hidden\r\n\r\nx\r\n.\r\n";

#[test]
fn nothing_but_a_dot_between_two_crlf_ends_a_message() {
    let upstream = Upstream::start();
    let site = Site::builder().open_listener().upstream(upstream.address(), "").build();
    let weir = site.start();
    for end in ENDS {
        let text = [b"Subject: seen\r\n\r\nhello", end, HIDDEN].concat();
        let begins = text.len() - end.len() - HIDDEN.len();
        for cut in begins..=begins + end.len() {
            for in_pieces in [false, true] {
                let said = upstream.commands().len();
                let mut client = Client::in_transaction(&weir);
                match in_pieces {
                    true => client.send(format!("BDAT {} LAST\r\n", text.len()).as_bytes()),
                    false => _ = client.say("DATA", "354"),
                }
                client.send(&text[..cut]);
                // The write fails if Weir has closed the connection after the first part.
                let _ = client.try_send(&text[cut..]);
                let reply = client.try_reply().unwrap_or_default();
                assert!(reply.is_empty() || reply.starts_with("550 5.6.11"), "{end:?} cut at {cut}: {reply}");
                assert!(client.is_closed(), "{end:?}");
                let commands = upstream.commands();
                let mails = commands[said..].iter().filter(|line| line.starts_with("MAIL ")).count();
                assert_eq!(mails, 1, "{end:?} cut at {cut}: {:?}", &commands[said..]);
                assert_eq!(upstream.acknowledged().len(), 0, "{end:?}");
            }
        }
    }
}

/// Beginnings of a message that an upstream would read as a continuation of the header line above them. The flag is
/// true if this also happens when the client sends the message by BDAT, where no leading dot is removed.
const CONTINUATIONS: [(&[u8], bool); 6] = [
    (b" (authenticated user director)\r\n\tby other; Thu, 1 Jan 1970 00:00:00 +0000\r\n", true),
    (b"\t(authenticated user director)\r\n", true),
    (b" \r\n", true),
    (b"\x0b(authenticated user director)\r\n", true),
    (b". (authenticated user director)\r\n", false),
    (b".\t(authenticated user director)\r\n", false),
];

#[test]
fn no_message_continues_the_received_line() {
    let upstream = Upstream::start();
    let site = Site::builder().open_listener().upstream(upstream.address(), "").build();
    let weir = site.start();
    let mut client = Client::greeted_by(&weir);
    for (beginning, also_in_pieces) in CONTINUATIONS {
        let text = [beginning, b"Subject: x\r\n\r\ny\r\n"].concat();
        for in_pieces in [false, true] {
            client.begin_transaction();
            let is_refused = !in_pieces || also_in_pieces;
            match in_pieces {
                true => {
                    client.say("BDAT 0", "250");
                    client.send(format!("BDAT {} LAST\r\n", text.len()).as_bytes());
                    client.send(&text);
                }
                false => {
                    client.say("DATA", "354");
                    client.send(&text[..1]);
                    client.send(&text[1..]);
                    client.send(b".\r\n");
                }
            }
            client.expect(if is_refused { "550 5.6.0" } else { "250" });
            let acknowledged = upstream.acknowledged();
            upstream.forget();
            assert_eq!(acknowledged.len(), usize::from(!is_refused), "{beginning:?}");
            for message in acknowledged {
                // By BDAT the dot is part of the message, so Weir adds a second dot before it (dot-stuffing).
                let message = String::from_utf8(message).unwrap();
                assert!(message.contains("\r\n..") && !message.contains("\r\n. "), "{message}");
            }
        }
    }
    // Weir has counted each of the ten refused messages once, and the session can still send messages.
    weir.wait_for_metric("weir_messages_total{result=\"continuation\"}", 10.0);
    for text in ["\r\n body\r\n.", "hello\r\n there\r\n."] {
        client.begin_transaction();
        client.say("DATA", "354");
        client.say(text, "250");
    }
    for message in upstream.acknowledged() {
        let message = String::from_utf8(message).unwrap();
        let own = message.split("\r\n").take_while(|line| line.starts_with("Received:") || line.starts_with('\t'));
        assert_eq!(own.count(), 3, "{message}");
    }
}
