//! Reports on outcomes of deliveries that arrive by SMTP, at the report address.

use crate::harness::{Client, Fault, PASSWORD, Postfix, Process, Site, Stage, Upstream, wait_for};

const LIMITS: &str = r#"
[outcomes]
report-address = "Reports@weir.example"
[[limit]]
name = "bounces"
count = "bounces"
per = ["user"]
rate = "100000 / 3000d"
algorithm = "leaky-bucket"
[[limit]]
name = "complaints"
count = "complaints"
per = ["user"]
rate = "1 / 3000d"
algorithm = "leaky-bucket"
  [[limit.action]]
  suspend = "1d"
"#;

const ADDRESS: &str = "RCPT TO:<reports@WEIR.example>";

/// Queue id in the upstream's reply to each message.
const QUEUED: &str = "250 2.0.0 Ok: queued as 4A8D2280F15";

/// An upstream that names the queue id, and a Weir with a listener for users, where a login is required, and a listener
/// for other servers. `more`: further configuration.
fn site(more: &str) -> (Upstream, Site) {
    let upstream = Upstream::start();
    upstream.fail(Some((Stage::End, Fault::Say(QUEUED))));
    let site = Site::builder()
        .listener("users", "tls = \"none\", auth = \"required\"")
        .listener("servers", "tls = \"none\", auth = \"none\"")
        .upstream(upstream.address(), "")
        .more(&format!("{LIMITS}{more}"))
        .users(&[("alice", PASSWORD, ""), ("bob", PASSWORD, "")])
        .build();
    (upstream, site)
}

/// Sends a message of a user to these recipients.
fn send(weir: &Process, user: &str, recipients: &[&str]) {
    let mut client = Client::logged_in(weir.address("users"), user);
    client.say(&format!("MAIL FROM:<{user}@example.org>"), "250");
    for recipient in recipients {
        client.say(&format!("RCPT TO:<{recipient}>"), "250");
    }
    client.say("DATA", "354");
    client.say(&format!("Message-ID: <{user}@example.org>\r\n\r\nhello\r\n."), "250");
}

/// Returns a complaint of a recipient about a message with this queue id.
fn complaint(recipient: &str, queue_id: &str) -> String {
    format!(
        "From: fbl@isp.example\r\nMIME-Version: 1.0\r\nContent-Type: multipart/report; \
         report-type=feedback-report; boundary=\"b\"\r\n\r\n--b\r\nContent-Type: message/feedback-report\r\n\r\n\
         Feedback-Type: abuse\r\nVersion: 1\r\nOriginal-Rcpt-To: <{recipient}>\r\n\r\n\
         --b\r\nContent-Type: text/rfc822-headers\r\n\r\n\
         Received: from weir by mx.example (Postfix) with ESMTP id {queue_id}; date\r\n\r\n--b--\r\n"
    )
}

/// Returns the level of a limit's budget for a user.
fn level(site: &Site, limit: &str, user: &str) -> i64 {
    let is_of = |row: &&serde_json::Value| row["limit"] == limit && row.to_string().contains(&format!("\"{user}\""));
    site.dump().iter().find(is_of).map_or(0, |row| row["level"].as_f64().unwrap().round() as i64)
}

/// Sends a mail to the report address after EHLO, by DATA; returns the reply.
fn report(client: &mut Client, mail: &str) -> String {
    client.say("MAIL FROM:<>", "250");
    client.say(ADDRESS, "250");
    client.say("DATA", "354");
    client.ask(&format!("{mail}\r\n."))
}

#[test]
fn a_complaint_from_a_stranger_counts_for_the_sender_at_each_listener() {
    let (upstream, site) = site("");
    let weir = site.start();
    send(&weir, "alice", &["carol@example.net", "dave@example.net"]);
    for (listener, recipient) in [("servers", "carol@example.net"), ("users", "Dave@example.net")] {
        let mut client = Client::greeted(weir.address(listener));
        let reply = report(&mut client, &complaint(recipient, "4A8D2280F15"));
        assert!(reply.starts_with("250 2.0.0 Report taken ("), "{reply}");
    }
    assert_eq!((level(&site, "complaints", "alice"), level(&site, "complaints", "bob")), (2, 0));
    let mut client = Client::logged_in(weir.address("users"), "alice");
    let reply = client.ask("MAIL FROM:<alice@example.org>");
    assert!(reply.contains("suspended"), "{reply}");
    assert_eq!(weir.metric("weir_outcomes_total{kind=\"complained\"}"), 2.0);
    assert_eq!(weir.metric("weir_messages_total{result=\"report\"}"), 2.0);
    assert_eq!(upstream.acknowledged().len(), 1, "no report reaches the upstream");
}

#[test]
fn bounces_of_a_postfix_count_for_the_user_who_sent_the_message() {
    let postfix = Postfix::start_with("smtpd_reject_unlisted_recipient = no\n");
    let site = Site::builder()
        .listener("users", "tls = \"none\", auth = \"required\"")
        .upstream(postfix.address(), "")
        .more(LIMITS)
        .users(&[("alice", PASSWORD, ""), ("bob", PASSWORD, "")])
        .build();
    let weir = site.start();
    // Bounces go to the sender, who is the report address here. Their copies go there, too.
    let settings = format!(
        "transport_maps = inline:{{ gone.example=error:5.1.1:no_such_user, weir.example=smtp:[127.0.0.1]:{} }}\n\
         notify_classes = bounce\nbounce_notice_recipient = reports@weir.example\n",
        weir.address("users").port()
    );
    let main = postfix.path("conf/main.cf");
    let before = std::fs::read_to_string(&main).unwrap();
    std::fs::write(&main, before + &settings).unwrap();
    postfix.reload();
    let messages = [
        ("alice", "reports@weir.example", ["a@gone.example", "b@gone.example", "c@good.example"]),
        ("bob", "bob@good.example", ["d@good.example", "e@gone.example", "f@good.example"]),
    ];
    for (user, sender, recipients) in messages {
        let mut client = Client::logged_in(weir.address("users"), user);
        client.say(&format!("MAIL FROM:<{sender}>"), "250");
        recipients.iter().for_each(|recipient| drop(client.say(&format!("RCPT TO:<{recipient}>"), "250")));
        client.say("DATA", "354");
        client.say(&format!("Message-ID: <{user}@example.org>\r\n\r\nhello\r\n."), "250");
    }
    // The bounce and its copy for alice, and the copy alone for bob, whose bounce goes to his mailbox.
    wait_for("three reports", || (weir.metric("weir_messages_total{result=\"report\"}") == 3.0).then_some(()));
    assert_eq!((level(&site, "bounces", "alice"), level(&site, "bounces", "bob")), (2, 1));
    assert_eq!(weir.metric("weir_outcomes_total{kind=\"bounced\"}"), 3.0);
    assert_eq!(weir.metric("weir_outcomes_repeated_total"), 2.0);
    postfix.message_for("bob@good.example");
}

#[test]
fn a_listener_relays_nothing_for_strangers_because_of_the_report_address() {
    let (upstream, site) = site("");
    let weir = site.start();
    let mut client = Client::greeted(weir.address("users"));
    client.say("MAIL FROM:<alice@example.org>", "250");
    client.say("RCPT TO:<carol@example.net>", "530 5.7.0");
    client.say("RCPT TO:<reports+x@weir.example>", "530 5.7.0");
    client.say("RCPT TO:<reports@weir.example.net>", "530 5.7.0");
    client.say("DATA", "554 5.5.1");
    client.say("AUTH PLAIN AGFsaWNlAHNlc2FtZQ==", "503");
    client.say("RSET", "250");
    client.send(
        format!("MAIL FROM:<>\r\nRCPT TO:<c@example.net>\r\n{ADDRESS}\r\nRCPT TO:<d@example.net>\r\n").as_bytes(),
    );
    for reply in ["250", "530", "250", "530"] {
        client.expect(reply);
    }
    client.say("DATA", "354");
    client.say("Subject: hello\r\n\r\nhello\r\n.", "554 5.6.0");
    // Weir has asked the upstream for its extensions, as for each client.
    assert!(!upstream.commands().iter().any(|command| command.starts_with("MAIL")));
    // The session can still log in.
    client.log_in("alice", PASSWORD);
    client.say("MAIL FROM:<alice@example.org>", "250");
    client.say("RCPT TO:<carol@example.net>", "250");
}

#[test]
fn a_message_is_either_a_report_or_goes_to_the_upstream() {
    let (upstream, site) = site("");
    let weir = site.start();
    let mut client = Client::greeted(weir.address("servers"));
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say(ADDRESS, "250");
    client.say("RCPT TO:<carol@example.net>", "452 4.5.3");
    client.say(ADDRESS, "250");
    client.say("RSET", "250");
    client.send(
        format!("MAIL FROM:<a@example.org>\r\nRCPT TO:<carol@example.net>\r\n{ADDRESS}\r\nRCPT TO:<dave@example.net>\r\nDATA\r\n")
            .as_bytes(),
    );
    for reply in ["250", "250", "452 4.5.3", "250", "354"] {
        client.expect(reply);
    }
    client.say(&format!("{}\r\n.", complaint("carol@example.net", "4A8D2280F15")), "250 2.0.0 Ok: queued as");
    assert_eq!(upstream.acknowledged().len(), 1);
    assert_eq!(weir.metric("weir_outcomes_total{kind=\"complained\"}"), 0.0);
    // A refused recipient is no recipient of the message.
    upstream.fail(Some((Stage::Rcpt, Fault::Say("550 5.1.1 no"))));
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<nobody@example.net>", "550");
    client.say(ADDRESS, "250");
    client.say("DATA", "354");
    client.say(&format!("{}\r\n.", complaint("carol@example.net", "4A8D2280F15")), "250 2.0.0 Report taken");
    assert_eq!(weir.metric("weir_outcomes_total{kind=\"complained\"}"), 1.0);
    assert_eq!(upstream.acknowledged().len(), 1);
}
