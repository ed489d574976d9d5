//! Tests of slow clients: Weir ends the session of a client that sends its message too slowly or never. In this way,
//! Weir frees the upstream connection.

use crate::harness::{Client, Process, Site, Upstream, wait_for};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// Returns a site whose section `[session]` has these keys.
fn site_with_session(upstream: SocketAddr, session: &str) -> Site {
    Site::builder()
        .open_listener()
        .upstream(upstream, "name = \"u\", max-idle-connections = 0")
        .more(&format!("session = {{ {session} }}\n"))
        .build()
}

/// Sends these octets 20 times a second until Weir sends a reply other than 250; returns that reply. `is_answered` is
/// true if Weir replies to the octets each time.
fn drip(client: &mut Client, octets: &[u8], is_answered: bool) -> String {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < Duration::from_secs(60), "Weir goes on for ever");
        let pause = Duration::from_millis(50);
        if is_answered {
            client.send(octets);
            let reply = client.reply();
            if !reply.starts_with("250") {
                return reply;
            }
            std::thread::sleep(pause);
        } else if client.is_silent(pause) && client.try_send(octets).is_ok() {
            continue;
        } else {
            return client.reply();
        }
    }
}

fn none_left(weir: &Process) {
    wait_for("end of the connection to the upstream", || {
        (weir.metric("weir_upstream_connections{upstream=\"u\"}") == 0.0).then_some(())
    });
}

#[test]
fn a_message_below_the_minimum_rate_is_ended() {
    let upstream = Upstream::start();
    let site = site_with_session(upstream.address(), "data-timeout = \"0.5s\", min-data-rate = \"100K\"");
    let weir = site.start();
    for (begin, octets, is_answered) in
        [("DATA\r\n", &b"Subject: some 800 octets a second\r\n\r\n"[..], false), ("BDAT 1\r\nx", b"BDAT 1\r\nx", true)]
    {
        let mut client = Client::in_transaction(&weir);
        client.send(begin.as_bytes());
        client.reply();
        let last = drip(&mut client, octets, is_answered);
        assert!(last.starts_with("421 4.4.2 weir.example The message came too slowly: below 102400 octets"), "{last}");
        assert!(client.is_closed());
        none_left(&weir);
    }
    weir.wait_for_metric("weir_messages_total{result=\"too-slow\"}", 2.0);
    // The message of a client that is fast enough is accepted.
    Client::connect(weir.address("s")).send_message();
    assert_eq!(upstream.acknowledged().len(), 1);
}

#[test]
fn a_message_takes_no_longer_than_the_message_timeout_whatever_the_client_says_meanwhile() {
    let upstream = Upstream::start();
    let site = site_with_session(upstream.address(), "message-timeout = \"1s\", min-data-rate = \"1\"");
    let weir = site.start();
    for (begin, octets, is_answered) in [
        ("DATA\r\n", &b"x"[..], false),
        ("BDAT 1\r\nx", b"BDAT 1\r\nx", true),
        // The client never sends DATA, so that the upstream waits for this command.
        ("NOOP\r\n", b"NOOP\r\n", true),
        ("RCPT TO:<c@example.net>\r\n", b"RCPT TO:<c@example.net>\r\n", true),
    ] {
        let mut client = Client::in_transaction(&weir);
        client.send(begin.as_bytes());
        client.reply();
        let last = drip(&mut client, octets, is_answered);
        assert!(last.starts_with("421 4.4.2 weir.example The message took too long: more than 1s"), "{begin}: {last}");
        assert!(client.is_closed());
        none_left(&weir);
    }
    // `message-timeout` is for one message only: a session of several messages can last longer.
    let mut client = Client::connect(weir.address("s"));
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        client.send_message();
    }
}

#[test]
fn time_in_which_the_upstream_is_slow_does_not_count_for_the_client() {
    let (upstream, received) = slow_upstream(Duration::from_secs(3));
    let site = site_with_session(upstream, "data-timeout = \"0.5s\", min-data-rate = \"10M\"");
    let weir = site.start();
    let mut client = Client::in_transaction(&weir);
    client.say("DATA", "354");
    // The message is larger than the buffers of the client's and the upstream's connection together, so Weir must wait
    // for the upstream.
    let line = [&[b'x'; 998][..], b"\r\n"].concat();
    let message = line.repeat(20_000);
    client.send(&message);
    client.say(".", "250");
    assert!(received.recv().unwrap() > message.len());
}

/// Starts an upstream that waits for `pause` before it reads a message. The receiver gets the size of the message.
fn slow_upstream(pause: Duration) -> (SocketAddr, std::sync::mpsc::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            std::thread::spawn(move || slow_dialogue(stream, pause, &sender));
        }
    });
    (address, receiver)
}

fn slow_dialogue(
    mut stream: std::net::TcpStream,
    pause: Duration,
    sender: &std::sync::mpsc::Sender<usize>,
) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?);
    let (mut reply, mut size, mut in_message) = ("220 upstream", 0, false);
    loop {
        if !reply.is_empty() {
            stream.write_all(format!("{reply}\r\n").as_bytes()).ok()?;
        }
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line).ok()? == 0 {
            return None;
        }
        reply = match (in_message, &line[..]) {
            (true, b".\r\n") => {
                sender.send(size).ok()?;
                in_message = false;
                "250 2.0.0 Queued"
            }
            (true, _) => {
                if size == 0 {
                    std::thread::sleep(pause);
                }
                size += line.len();
                ""
            }
            (false, b"DATA\r\n") => {
                in_message = true;
                "354 Go on"
            }
            (false, _) => "250 2.0.0 Ok",
        };
    }
}
