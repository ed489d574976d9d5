//! The upstream fails at every stage: the client never hears 2xx for a message that was not acknowledged, and nothing hangs.

use crate::harness::{Client, Fault, Process, Site, Stage, Upstream, free_port};
use std::time::Instant;

fn site(upstream: &str) -> Site {
    Site::new(&format!(
        "listener.s = {{ address = \"127.0.0.1:0\", tls = \"none\", auth = \"none\" }}\n\
         upstream = [{{ address = \"{upstream}\", tls = \"none\" }}]\n\
         session = {{ upstream-timeout = \"1s\" }}\n"
    ))
}

/// Sends a message as far as it goes; the last reply.
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

fn connect(weir: &Process) -> Client {
    let mut client = Client::connect(weir.address("s"));
    client.say("EHLO client.example", "250");
    client
}

const BODY: &[u8] = b"Subject: x\r\n\r\nhello\r\n";

#[test]
fn no_fault_of_the_upstream_becomes_a_success_or_a_silence() {
    let upstream = Upstream::start();
    let site = site(&upstream.address().to_string());
    let weir = site.start();
    // More than socket buffers hold: the fault is met while octets are on their way.
    let long = [BODY, &b"0123456789abcdefghijklmnopqrstuvwxyz\r\n".repeat(300_000)].concat();
    let stages = [Stage::Greeting, Stage::Ehlo, Stage::Mail, Stage::Rcpt, Stage::Data, Stage::Body, Stage::End];
    let faults = [
        Fault::Cut,
        Fault::Silence,
        Fault::SayAndClose("421 4.3.2 Shutting down"),
        Fault::Say("what?"),
        Fault::SayAndClose("451 4.3.0 Later"),
    ];
    for stage in stages {
        for fault in faults {
            if (stage, fault) == (Stage::End, Fault::Silence) {
                // Waited for much longer: a test of its own.
                continue;
            }
            upstream.fail(Some((stage, fault)));
            let mut client = connect(&weir);
            let reply = send(&mut client, if stage == Stage::Body { &long } else { BODY });
            assert!(reply.starts_with("451 4."), "{stage:?} {fault:?}: {reply}");
            assert_eq!(upstream.acknowledged().len(), 0, "{stage:?} {fault:?}");
            // The same session goes on as soon as the upstream does.
            upstream.fail(None);
            client.say("RSET", "250");
            assert!(send(&mut client, BODY).starts_with("250 2.0.0 Queued"), "{stage:?} {fault:?}");
            assert_eq!(upstream.acknowledged().len(), 1);
            client.say("QUIT", "221");
            upstream.forget();
        }
    }
}

#[test]
fn after_the_final_dot_weir_waits_and_tells_the_truth_at_the_end() {
    let upstream = Upstream::start();
    let site = site(&upstream.address().to_string());
    let weir = site.start();
    upstream.fail(Some((Stage::End, Fault::Silence)));
    let mut client = connect(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<b@example.net>", "250");
    client.say("DATA", "354");
    let began = Instant::now();
    client.send(b"hello\r\n.\r\n");
    // Three of the time-outs that hold elsewhere.
    client.assert_silent(std::time::Duration::from_secs(3));
    upstream.cut_silent();
    client.expect("451 4.4.1");
    assert!(began.elapsed().as_secs() >= 3);
    assert_eq!(upstream.acknowledged().len(), 0);
}

#[test]
fn where_nothing_listens_the_client_is_told_soon() {
    let site = site(&format!("127.0.0.1:{}", free_port()));
    let weir = site.start();
    let mut client = connect(&weir);
    assert!(send(&mut client, BODY).starts_with("451 4.4.1"));
    client.say("RSET", "250");
    assert!(weir.logged("upstream away").contains("refused"));
    assert_eq!(weir.metric("weir_upstream_failures_total"), 1.0);
}

#[test]
fn an_upstream_connection_closed_between_two_messages_costs_the_client_nothing() {
    let upstream = Upstream::start();
    let site = site(&upstream.address().to_string());
    let weir = site.start();
    let mut client = connect(&weir);
    upstream.fail(Some((Stage::End, Fault::SayAndClose("250 2.0.0 Queued, bye"))));
    assert!(send(&mut client, BODY).starts_with("250"));
    upstream.fail(None);
    assert!(send(&mut client, BODY).starts_with("250 2.0.0 Queued"));
    assert_eq!(upstream.connections(), 2);
}

#[test]
fn two_messages_of_a_session_share_a_connection_and_quit_reaches_it() {
    let upstream = Upstream::start();
    let site = site(&upstream.address().to_string());
    let weir = site.start();
    let mut client = connect(&weir);
    assert!(send(&mut client, BODY).starts_with("250"));
    assert!(send(&mut client, BODY).starts_with("250"));
    client.say("QUIT", "221");
    crate::harness::wait_for("QUIT upstream", || upstream.commands().contains(&"QUIT".to_owned()).then_some(()));
    assert_eq!(upstream.connections(), 1);
    assert_eq!(upstream.commands()[1..4], ["MAIL FROM:<a@example.org>", "RCPT TO:<b@example.net>", "DATA"]);
}

#[test]
fn a_client_that_leaves_in_mid_message_leaves_nothing_behind() {
    let upstream = Upstream::start();
    let site = site(&upstream.address().to_string());
    let weir = site.start();
    let mut client = connect(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<b@example.net>", "250");
    client.say("DATA", "354");
    client.send(b"half a mess");
    drop(client);
    let line = weir.logged("message=\"message ended\"");
    assert!(line.contains("result=client-gone"), "{line}");
    assert_eq!(upstream.acknowledged().len(), 0);
    crate::harness::wait_for("end of the session", || {
        (weir.metric("weir_sessions{listener=\"s\"}") == 0.0).then_some(())
    });
}
