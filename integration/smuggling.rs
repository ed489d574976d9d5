//! SMTP smuggling (CVE-2023-51764 to 51766): whatever somebody could take for the end of a message, the upstream sees one message or
//! none, however the octets are cut into packets.

use crate::harness::{Client, Site, Upstream};

/// What servers have taken for the end of data, but for the one there is.
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
    let site = Site::new(&format!(
        "listener.s = {{ address = \"127.0.0.1:0\", tls = \"none\", auth = \"none\" }}\n\
         upstream = [{{ address = \"{}\", tls = \"none\" }}]\n",
        upstream.address()
    ));
    let weir = site.start();
    for end in ENDS {
        let text = [b"Subject: seen\r\n\r\nhello", end, HIDDEN].concat();
        let begins = text.len() - end.len() - HIDDEN.len();
        for cut in begins..=begins + end.len() {
            for in_pieces in [false, true] {
                let said = upstream.commands().len();
                let mut client = Client::connect(weir.address("s"));
                client.say("EHLO client.example", "250");
                client.say("MAIL FROM:<a@example.org>", "250");
                client.say("RCPT TO:<b@example.net>", "250");
                match in_pieces {
                    true => client.send(format!("BDAT {} LAST\r\n", text.len()).as_bytes()),
                    false => _ = client.say("DATA", "354"),
                }
                client.send(&text[..cut]);
                // It may have hung up by then.
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
