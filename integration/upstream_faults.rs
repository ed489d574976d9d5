//! Tests of Weir's replies to clients when the upstream fails or sends invalid replies. `fault_matrix` tests every
//! fault at every stage.

use crate::harness::{Client, Fault, Process, Site, Stage, Upstream, free_port, wait_for};
use std::fmt::Display;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// Returns a site with `upstream-timeout` of one second.
fn impatient_site(upstream: impl Display) -> Site {
    Site::builder().open_listener().upstream(upstream, "").more("session = { upstream-timeout = \"1s\" }\n").build()
}

/// Starts an upstream, and a Weir with `upstream-timeout` of one second.
fn impatient() -> (Upstream, Site, Process) {
    let upstream = Upstream::start();
    let site = impatient_site(upstream.address());
    let weir = site.start();
    (upstream, site, weir)
}

/// Sends MAIL, RCPT and a message until a step fails; returns the last reply.
fn send(client: &mut Client, body: &[u8]) -> String {
    client.say("MAIL FROM:<a@example.org>", "250");
    for line in ["RCPT TO:<b@example.net>", "DATA"] {
        let reply = client.ask(line);
        if !reply.starts_with(['2', '3']) {
            return reply;
        }
    }
    client.send(body);
    client.send(b".\r\n");
    client.reply()
}

/// Sends MAIL, RCPT and a message in two BDAT chunks until a step fails; returns the last reply.
fn send_in_pieces(client: &mut Client, body: &[u8]) -> String {
    client.say("MAIL FROM:<a@example.org>", "250");
    let reply = client.ask("RCPT TO:<b@example.net>");
    if !reply.starts_with('2') {
        return reply;
    }
    let (one, other) = body.split_at(body.len() / 2);
    for (piece, last) in [(one, ""), (other, " LAST")] {
        client.send(&[format!("BDAT {}{last}\r\n", piece.len()).as_bytes(), piece].concat());
        let reply = client.reply();
        if !reply.starts_with('2') || !last.is_empty() {
            return reply;
        }
    }
    unreachable!()
}

const BODY: &[u8] = b"Subject: x\r\n\r\nhello\r\n";

#[test]
fn after_the_final_dot_weir_waits_for_the_outcome_and_reports_it_truthfully() {
    let (upstream, _site, weir) = impatient();
    upstream.fail(Some((Stage::End, Fault::Silence)));
    let mut client = Client::in_transaction(&weir);
    client.say("DATA", "354");
    let began = Instant::now();
    client.send(b"hello\r\n.\r\n");
    // Wait three times as long as `upstream-timeout`: this time-out does not apply after the final dot.
    assert!(client.is_silent(Duration::from_secs(3)));
    upstream.cut_silent();
    client.expect("451 4.4.1");
    assert!(began.elapsed().as_secs() >= 3);
    assert_eq!(upstream.acknowledged().len(), 0);
}

#[test]
fn a_refused_upstream_connection_is_reported_soon() {
    let site = impatient_site(format!("127.0.0.1:{}", free_port()));
    let weir = site.start();
    let mut client = Client::greeted_by(&weir);
    assert!(send(&mut client, BODY).starts_with("451 4.4.1"));
    client.say("RSET", "250");
    assert!(weir.logged("upstream away").contains("refused"));
    assert!(weir.metric("weir_upstream_failures_total{upstream=\"127.0.0.1\"}") >= 1.0);
    assert_eq!(weir.metric("weir_upstream_up{upstream=\"127.0.0.1\"}"), 0.0);
}

#[test]
fn an_upstream_connection_closed_between_two_messages_fails_no_message() {
    let (upstream, _site, weir) = impatient();
    let mut client = Client::greeted_by(&weir);
    let before = upstream.connections();
    upstream.fail(Some((Stage::End, Fault::SayAndClose("250 2.0.0 Queued, bye"))));
    assert!(send(&mut client, BODY).starts_with("250"));
    upstream.fail(None);
    assert!(send(&mut client, BODY).starts_with("250 2.0.0 Queued"));
    assert_eq!(upstream.connections() - before, 2);
}

#[test]
fn a_client_that_leaves_in_mid_message_delivers_nothing() {
    let (upstream, _site, weir) = impatient();
    let mut client = Client::in_transaction(&weir);
    client.say("DATA", "354");
    client.send(b"half a mess");
    drop(client);
    let line = weir.logged("message=\"message ended\"");
    assert!(line.contains("result=client-gone"), "{line}");
    assert_eq!(upstream.acknowledged().len(), 0);
    wait_for("end of the session", || (weir.metric("weir_sessions{listener=\"s\"}") == 0.0).then_some(()));
}

#[test]
fn half_a_message_by_bdat_is_never_delivered() {
    let (upstream, _site, weir) = impatient();
    let begin = |client: &mut Client| {
        client.begin_transaction();
        client.send(b"BDAT 7\r\nhello\r\n");
        client.expect("250");
    };
    // The client leaves between two chunks, or within a chunk.
    for within in [&b""[..], b"BDAT 100 LAST\r\nhalf"] {
        let mut client = Client::greeted_by(&weir);
        begin(&mut client);
        client.send(within);
        drop(client);
        wait_for("end of the session", || (weir.metric("weir_sessions{listener=\"s\"}") == 0.0).then_some(()));
    }
    // The client resets the transaction, and sends another message.
    let mut client = Client::greeted_by(&weir);
    begin(&mut client);
    client.say("RSET", "250");
    assert_eq!(upstream.acknowledged().len(), 0);
    assert!(send_in_pieces(&mut client, BODY).starts_with("250 2.0.0 Queued"));
    let [message] = &upstream.acknowledged()[..] else { panic!("not one message") };
    assert!(message.ends_with(BODY) && message.starts_with(b"Received: "));
    assert_eq!(message.windows(9).filter(|part| part == b"Received:").count(), 1);
    // The client sends a chunk, RSET and the next transaction in one write.
    client.send(
        b"MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.net>\r\nBDAT 7\r\nhello\r\nRSET\r\nMAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.net>\r\n",
    );
    for _ in 0..6 {
        client.expect("250");
    }
    client.say("DATA", "354");
    client.send(BODY);
    client.say(".", "250 2.0.0 Queued");
    assert_eq!(upstream.acknowledged().len(), 2);
}

#[test]
fn a_mail_loop_is_refused() {
    let (upstream, _site, weir) = impatient();
    let mut client = Client::greeted_by(&weir);
    let passed = |hops| [&b"Received: from a by b; Fri, 20 Nov 2026 10:00:00 +0000\r\n".repeat(hops), BODY].concat();
    for send in [send, send_in_pieces] {
        assert!(send(&mut client, &passed(99)).starts_with("250"));
        assert!(send(&mut client, &passed(100)).starts_with("554 5.4.6"));
    }
    assert_eq!(upstream.acknowledged().len(), 2);
}

#[test]
fn the_upstream_gets_no_octet_of_a_short_message_that_is_refused_at_its_end() {
    let upstream = Upstream::start();
    let limit = "limit = [{ name = \"small\", count = \"bytes\", per = [], rate = \"1K / 1d\", stage = \"end\" }]\n";
    let site = Site::builder().open_listener().upstream(upstream.address(), "").more(limit).build();
    let weir = site.start();
    let mut client = Client::greeted_by(&weir);
    let body = [BODY, &b"line\r\n".repeat(300)].concat();
    client.begin_transaction();
    client.say("DATA", "354");
    client.send(&[&body, &b".\r\n"[..]].concat());
    client.expect("552");
    client.begin_transaction();
    client.send(&[format!("BDAT {} LAST\r\n", body.len()).as_bytes(), &body].concat());
    client.expect("552");
    let unfinished = || Some(upstream.unfinished()).filter(|messages| messages.len() == 2);
    assert_eq!(wait_for("end of both upstream connections", unfinished), [b"", b""]);
    assert_eq!(upstream.acknowledged().len(), 0);
}

#[test]
fn an_extension_that_the_upstream_lost_is_neither_ignored_nor_announced() {
    let upstream = Upstream::start();
    upstream.offer(&["PIPELINING", "8BITMIME", "SMTPUTF8", "DSN", "SIZE 1000000", "LIMITS RCPTMAX=7"]);
    let site = impatient_site(upstream.address());
    let weir = site.start();
    let mut clients =
        [Client::greeted_by(&weir), Client::greeted_by(&weir), Client::greeted_by(&weir), Client::greeted_by(&weir)];
    let announced = clients[0].ask("EHLO client.example");
    for line in ["250-8BITMIME", "250-SMTPUTF8", "250-DSN", "250-SIZE 1000000", "LIMITS RCPTMAX=7"] {
        assert!(announced.contains(line), "{line}: {announced}");
    }
    upstream.offer(&["PIPELINING"]);
    let said = upstream.commands().len();
    for (client, parameter) in clients.iter_mut().zip(["BODY=8BITMIME", "SMTPUTF8", "RET=HDRS"]) {
        client.say(&format!("MAIL FROM:<a@example.org> {parameter}"), "250");
        client.say("RCPT TO:<b@example.net>", "451 4.3.5");
    }
    clients[3].say("MAIL FROM:<a@example.org>", "250");
    clients[3].say("RCPT TO:<b@example.net> NOTIFY=NEVER", "451 4.3.5");
    assert!(send_rest(&mut clients[3]).starts_with("250 2.0.0 Queued"));
    assert!(upstream.commands()[said..].iter().all(|line| !line.contains('>') || line.ends_with('>')));
    let announced = Client::connect(weir.address("s")).ask("EHLO client.example");
    assert!(!announced.contains("DSN") && !announced.contains("8BITMIME"), "{announced}");
    // The upstream offers DSN again: Weir offers it to the next clients.
    upstream.offer(&["PIPELINING", "DSN"]);
    wait_for("DSN", || Client::connect(weir.address("s")).ask("EHLO client.example").contains("250-DSN").then_some(()));
}

/// Sends RCPT and the message after MAIL was accepted; returns the reply to the message.
fn send_rest(client: &mut Client) -> String {
    client.say("RCPT TO:<c@example.net>", "250");
    client.say("DATA", "354");
    client.send(BODY);
    client.send(b".\r\n");
    client.reply()
}

#[test]
fn a_late_reply_of_the_upstream_is_never_taken_for_the_reply_to_the_next_message() {
    let (upstream, _site, weir) = impatient();
    for odd in [Fault::Say("354 odd"), Fault::Say("354 odd\r\n250 2.0.0 of which message?")] {
        upstream.fail(Some((Stage::End, odd)));
        let mut client = Client::greeted_by(&weir);
        assert!(send(&mut client, BODY).starts_with("451 4.4.1"));
        // Weir must not reuse the connection: it would mistake the late 250 for the reply to this message.
        upstream.fail(Some((Stage::End, Fault::Say("554 5.7.1 refused"))));
        assert!(send(&mut client, BODY).starts_with("554 5.7.1 refused"));
        upstream.fail(Some((Stage::Data, Fault::Say("250 2.0.0 what?"))));
        assert!(send(&mut client, BODY).starts_with("451 4.4.1"));
        client.say("RSET", "250");
    }
    assert_eq!(upstream.acknowledged().len(), 0);
}

#[test]
fn the_upstreams_reply_in_mid_message_reaches_the_client() {
    let (upstream, _site, weir) = impatient();
    // The upstream stops reading after the first line and replies with the reason, while Weir is blocked in a write.
    let long = [BODY, &b"0123456789abcdefghijklmnopqrstuvwxyz\r\n".repeat(500_000)].concat();
    upstream.fail(Some((Stage::Body, Fault::SayAndClose("552 5.3.4 Too big for me"))));
    assert!(send(&mut Client::greeted_by(&weir), &long).starts_with("552 5.3.4 Too big for me"));
    // Weir also passes on the text of the upstream's last reply if the upstream closes the connection at another stage.
    upstream.fail(Some((Stage::Rcpt, Fault::SayAndClose("421 4.3.2 Shutting down at noon"))));
    assert!(send(&mut Client::greeted_by(&weir), BODY).starts_with("451 4.3.2 Shutting down at noon"));
}

#[test]
fn one_long_refusal_for_many_recipients_costs_little_memory_and_log() {
    let (upstream, _site, weir) = impatient();
    let refusal: String = (0..250).map(|_| format!("550-5.7.1 {}\r\n", "x".repeat(1900))).collect();
    upstream.fail(Some((Stage::Mail, Fault::Say(Box::leak(format!("{refusal}550 5.7.1 no").into_boxed_str())))));
    let mut client = Client::greeted_by(&weir);
    let recipients: String = (0..400).map(|n| format!("RCPT TO:<r{n}@example.net>\r\n")).collect();
    client.send(format!("MAIL FROM:<a@example.org>\r\n{recipients}").as_bytes());
    client.expect("250");
    for _ in 0..400 {
        let reply = client.expect("550-5.7.1 xxx");
        assert!(reply.ends_with("\n550 5.7.1 no") && reply.len() < 10_000, "{} octets", reply.len());
    }
    client.say("QUIT", "221");
    let log: usize = weir.log_lines().iter().map(String::len).sum();
    assert!(log < 5_000, "{log} octets of log");
}

/// Starts an upstream that answers RCPT with a gigabyte. It repeats `reply`, so that the answer is one long line or
/// many lines.
fn endless(reply: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            let _ = stream.write_all(b"220 upstream\r\n");
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
                let said = if line.starts_with("RCPT") {
                    let piece = reply.repeat(100_000 / reply.len());
                    (0..10_000)
                        .try_for_each(|_| stream.write_all(&piece))
                        .and_then(|()| stream.write_all(b"\r\n550 no\r\n"))
                } else {
                    stream.write_all(b"250 ok\r\n")
                };
                if said.is_err() {
                    break;
                }
                line.clear();
            }
        }
    });
    address
}

#[test]
fn a_reply_of_a_gigabyte_costs_next_to_no_memory() {
    let peak = |weir: &Process| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", weir.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    for reply in [&b"550-5.7.1 this is not the last line\r\n"[..], b"550 this line has no end "] {
        let site = Site::builder()
            .open_listener()
            .upstream(endless(reply), "")
            .more("session = { upstream-timeout = \"2m\" }\n")
            .build();
        let weir = site.start();
        let mut client = Client::greeted_by(&weir);
        client.say("MAIL FROM:<a@example.org>", "250");
        let before = peak(&weir);
        let told = client.ask("RCPT TO:<b@example.net>");
        assert!(told.len() < 10_000 && told.starts_with(['4', '5']), "{} octets", told.len());
        assert!(peak(&weir) < before + 10_000, "{before} kB, then {} kB", peak(&weir));
        eprintln!("{before} kB, then {} kB; {}", peak(&weir), &told[..told.len().min(80)]);
    }
}

#[test]
fn an_address_harvester_is_disconnected_and_does_not_fill_the_log() {
    let (upstream, _site, weir) = impatient();
    upstream.fail(Some((Stage::Rcpt, Fault::Say("550 5.1.1 no such user"))));
    let mut client = Client::greeted_by(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    let mut refused = 0;
    let last = loop {
        let reply = client.ask(&format!("RCPT TO:<r{refused}@example.net>"));
        if !reply.starts_with("550") || refused > 2000 {
            break reply;
        }
        refused += 1;
    };
    assert!((refused, last.starts_with("421 4.7.0")) == (1001, true), "{refused} {last}");
    assert!(client.is_closed());
    let line = weir.logged("refused more often than is logged");
    assert!(line.contains("refusals=901"), "{line}");
    // Weir logs at most 100 refusals per session. For a client without a login, it logs 20 refusals at once, then one
    // refusal a second.
    let lines = weir.times_logged("refused by upstream");
    assert!((20..50).contains(&lines), "{lines} lines");
    assert_eq!(weir.metric("weir_recipients_total{result=\"upstream-refused\"}"), 1001.0);
    // Weir also ends a session in which DATA is refused too often.
    upstream.fail(Some((Stage::Data, Fault::Say("451 4.3.0 not now"))));
    let mut client = Client::in_transaction(&weir);
    let replies = (0..300).map_while(|_| client.try_send(b"DATA\r\n").ok().and_then(|()| client.try_reply().ok()));
    assert_eq!(replies.filter(|reply| reply.starts_with("451")).count(), 199);
}

#[test]
fn a_message_goes_to_its_accepted_recipients_although_others_were_refused() {
    let upstream = Upstream::start();
    let site = Site::builder()
        .open_listener()
        .upstream(upstream.address(), "")
        .more("limit = [{ name = \"few\", count = \"recipients\", per = [\"client\"], rate = \"5 / 1d\" }]\n")
        .build();
    let weir = site.start();
    let mut client = Client::greeted_by(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    let replies: Vec<String> = (0..1300).map(|n| client.ask(&format!("RCPT TO:<r{n}@example.net>"))).collect();
    let count = |code: &str| replies.iter().filter(|reply| reply.starts_with(code)).count();
    assert_eq!((count("250"), count("450 4.7.1"), count("452 4.5.3")), (5, 1001, 294));
    client.say("DATA", "354");
    client.send(BODY);
    client.say(".", "250 2.0.0 Queued");
    client.say("NOOP", "250");
}

#[test]
fn a_slow_message_by_bdat_times_out() {
    let upstream = Upstream::start();
    let site = Site::builder()
        .open_listener()
        .upstream(upstream.address(), "")
        .more("session = { data-timeout = \"1s\", idle-timeout = \"1m\" }\n")
        .build();
    let weir = site.start();
    // In the first round, the client sends a chunk of one octet every 50 ms. In the second round, it sends nothing
    // after the first chunk.
    for drips in [true, false] {
        let mut client = Client::in_transaction(&weir);
        let began = Instant::now();
        client.send(b"BDAT 1\r\nx");
        client.expect("250");
        while drips && client.is_silent(Duration::from_millis(50)) && client.try_send(b"BDAT 1\r\nx").is_ok() {
            assert!(began.elapsed().as_secs() < 20);
            if !client.try_reply().is_ok_and(|reply| reply.starts_with("250")) {
                break;
            }
        }
        // Weir has ended the session within a chunk, or between two chunks.
        let words: Vec<String> = std::iter::from_fn(|| client.try_reply().ok()).collect();
        assert!(drips || words.iter().any(|reply| reply.starts_with("421 4.4.2")), "{words:?}");
    }
    // The client announces a chunk before any recipient, and never sends the chunk's octets.
    let mut client = Client::greeted_by(&weir);
    client.send(b"BDAT 1000000 LAST\r\n");
    client.expect("421 4.4.2");
    assert_eq!(upstream.acknowledged().len(), 0);
}

/// A client waits at most five minutes for a reply, and the upstream can take four minutes for a batch.
#[test]
fn the_replies_of_a_batch_do_not_wait_for_the_next_batch() {
    let upstream = Upstream::start();
    let session = "session = { upstream-timeout = \"2m\" }\n";
    let site = Site::builder().open_listener().upstream(upstream.address(), "").more(session).build();
    let weir = site.start();
    // A batch has 100 commands: MAIL and 99 recipients.
    upstream.fail_after(99, Stage::Rcpt, Fault::Silence);
    let mut client = Client::greeted_by(&weir);
    let recipients: String = (0..150).map(|n| format!("RCPT TO:<{n}@example.net>\r\n")).collect();
    client.send(format!("MAIL FROM:<a@example.org>\r\n{recipients}").as_bytes());
    for _ in 0..100 {
        client.expect("250");
    }
    upstream.fail(None);
    upstream.cut_silent();
    for _ in 0..51 {
        client.expect("250");
    }
}
