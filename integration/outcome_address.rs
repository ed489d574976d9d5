//! Reports on outcomes of deliveries that arrive by SMTP, at the report address.

use crate::harness::{Client, Fault, PASSWORD, Postfix, Process, Running, Site, Stage, Upstream, free_port, wait_for};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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
        .more(&format!("{more}{LIMITS}"))
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
    weir.wait_for_metric("weir_messages_total{result=\"report\"}", 2.0);
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
    weir.wait_for_metric("weir_messages_total{result=\"report\"}", 3.0);
    assert_eq!((level(&site, "bounces", "alice"), level(&site, "bounces", "bob")), (2, 1));
    assert_eq!(weir.metric("weir_outcomes_total{kind=\"bounced\"}"), 3.0);
    assert_eq!(weir.metric("weir_outcomes_repeated_total"), 2.0);
    postfix.message_for("bob@good.example");
}

/// Starts an Exim at this port that keeps its files in this folder, bounces mail for gone.example, and sends mail for
/// weir.example to the port of Weir.
fn start_exim(folder: &Path, port: u16, weir: u16) -> Running {
    let exim = std::env::var_os("WEIR_TEST_EXIM").map_or_else(|| PathBuf::from("exim4"), PathBuf::from);
    // Exim gives up its root privileges before it writes its log and the mail.
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
    let text = format!(
        "primary_hostname = mail.example\nexim_path = {0}\nspool_directory = {1}/spool\nlog_file_path = {1}/%slog\n\
         errors_copy = *@* reports@weir.example\nkeep_environment =\ntls_advertise_hosts =\n\
         acl_smtp_rcpt = accept\nacl_not_smtp = accept\nbegin acl\nbegin routers\n\
         gone:\n driver = redirect\n domains = gone.example\n data = :fail: no such user\n allow_fail\n\
         weir:\n driver = manualroute\n domains = weir.example\n route_data = 127.0.0.1::{weir}\n self = send\n \
         transport = weir\n\
         all:\n driver = accept\n transport = file\n\
         begin transports\n\
         weir:\n driver = smtp\n allow_localhost\n hosts_try_fastopen =\n\
         file:\n driver = appendfile\n user = Debian-exim\n file = {1}/mail\n",
        exim.display(),
        folder.display()
    );
    let settings = folder.join("exim.conf");
    std::fs::write(&settings, text).unwrap();
    let mut command = Command::new(&exim);
    command.arg("-C").arg(&settings).args(["-bdf", "-oX", &format!("127.0.0.1.{port}")]);
    let exim = Running(command.spawn().unwrap());
    wait_for("greeting of Exim", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    exim
}

#[test]
fn bounces_of_an_exim_count_for_the_user_who_sent_the_message() {
    let ([exim, weir], folder) = ([free_port(), free_port()], tempfile::tempdir().unwrap());
    let _exim = start_exim(folder.path(), exim, weir);
    let listener = format!("{{ address = \"127.0.0.1:{weir}\", tls = \"none\", auth = \"required\" }}");
    let site = Site::builder()
        .upstream(format!("127.0.0.1:{exim}"), "")
        .more(&format!("listener.users = {listener}\n{LIMITS}"))
        .users(&[("alice", PASSWORD, "")])
        .build();
    let weir = site.start();
    send(&weir, "alice", &["a@gone.example", "b@gone.example", "c@good.example"]);
    weir.wait_for_metric("weir_messages_total{result=\"report\"}", 1.0);
    assert_eq!(level(&site, "bounces", "alice"), 2);
    assert_eq!(weir.metric("weir_outcomes_total{kind=\"bounced\"}"), 2.0);
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

#[test]
fn a_dead_upstream_keeps_no_report_out() {
    let (upstream, site) = site("");
    let weir = site.start();
    send(&weir, "alice", &["carol@example.net"]);
    upstream.fail(Some((Stage::Greeting, Fault::Cut)));
    upstream.cut_all();
    let mut client = Client::greeted(weir.address("servers"));
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<carol@example.net>", "451 4.4.1");
    client.say(ADDRESS, "250");
    client.say("RSET", "250");
    assert!(report(&mut client, &complaint("carol@example.net", "4A8D2280F15")).starts_with("250 2.0.0 Report taken"));
    assert_eq!(level(&site, "complaints", "alice"), 1);
}

#[test]
fn a_mail_that_tells_no_outcome_of_a_known_message_counts_nothing() {
    let (_upstream, site) = site("");
    let weir = site.start();
    send(&weir, "alice", &["carol@example.net"]);
    let mut client = Client::greeted(weir.address("servers"));
    let good = complaint("carol@example.net", "4A8D2280F15");
    let nameless = good.replace("Original-Rcpt-To: <carol@example.net>\r\n", "");
    let anonymous = good.replace("Received", "X-Received");
    for (mail, reply) in [
        (complaint("eve@example.net", "4A8D2280F15"), "250 2.0.0 Report taken"),
        (complaint("carol@example.net", "4A8D2280F16"), "250 2.0.0 Report taken"),
        // Strangers can guess a queue id, but not a recipient.
        (nameless.clone(), "250 2.0.0 Report taken"),
        (anonymous, "554 5.6.0 The report returns no headers"),
        ("Subject: Out of office\r\n\r\nBack on Monday".to_owned(), "554 5.6.0 This address takes only"),
        (String::new(), "554 5.6.0 This address takes only"),
        (" continued".to_owned(), "550 5.6.0"),
        (format!("{}{good}", "Received: from a by b\r\n".repeat(200)), "554 5.4.6"),
    ] {
        let got = report(&mut client, &mail);
        assert!(got.starts_with(reply), "{mail}: {got}");
    }
    assert_eq!(weir.metric("weir_outcomes_unknown_total{kind=\"complained\"}"), 3.0);
    weir.wait_for_metric("weir_messages_total{result=\"no-report\"}", 3.0);
    assert_eq!(level(&site, "complaints", "alice"), 0);
    // The administrator has received the complaint from a known sender.
    let found = site.run(&["outcomes", "report"], &nameless);
    assert!(found.out.starts_with("1 outcome counted"), "{}", found.said());
}

#[test]
fn a_report_in_pieces_with_stuffed_dots_or_of_two_megabytes_is_read() {
    let (_upstream, site) = site("session.max-message-size = \"2100K\"\n");
    let weir = site.start();
    send(&weir, "alice", &["carol@example.net", "dave@example.net"]);
    let mut client = Client::greeted(weir.address("servers"));
    let in_pieces = complaint("carol@example.net", "4A8D2280F15");
    let with_dot = complaint("dave@example.net", "4A8D2280F15").replace("Original-Rcpt-To", ".Original-Rcpt-To");
    for mail in [&in_pieces, &with_dot] {
        client.send(format!("MAIL FROM:<>\r\n{ADDRESS}\r\n").as_bytes());
        let (pieces, half) = (mail.as_bytes(), mail.len() / 2);
        for (piece, last) in [(&pieces[..half], ""), (&pieces[half..], " LAST")] {
            client.send(format!("BDAT {}{last}\r\n", piece.len()).as_bytes());
            client.send(piece);
        }
        for reply in ["250 2.1.0", "250 2.1.5", "250 2.0.0", "250 2.0.0 Report taken"] {
            client.expect(reply);
        }
    }
    // In BDAT, the dot belongs to the line. After DATA, it does not (RFC 5321 §4.5.2).
    let metric = |kind: &str| weir.metric(&format!("weir_outcomes{kind}_total{{kind=\"complained\"}}"));
    assert_eq!((metric(""), metric("_unknown")), (1.0, 1.0));
    assert!(report(&mut client, &with_dot).starts_with("250 2.0.0 Report taken"));
    assert_eq!((metric(""), metric("_unknown")), (2.0, 1.0));
    let rest = "x".repeat(998) + "\r\n";
    let large = complaint("eve@example.net", "4A8D2280F15") + &rest.repeat(2048);
    assert!(report(&mut client, &large).starts_with("250 2.0.0 Report taken"));
    assert!(report(&mut client, &(large + &rest.repeat(110))).starts_with("552 5.3.4"));
    assert!(
        report(&mut client, &(rest.repeat(1100) + &complaint("eve@example.net", "4A8D2280F15")))
            .starts_with("554 5.6.0")
    );
    assert_eq!((metric(""), metric("_unknown")), (2.0, 2.0));
    client.say("MAIL FROM:<> SIZE=3000000", "552 5.3.4");
    // A bare LF ends the session, so that nothing after it can be taken for a command.
    client.say("MAIL FROM:<>", "250");
    client.say(ADDRESS, "250");
    client.say("DATA", "354");
    client.send(b"x\n.\r\nMAIL FROM:<b@example.org>\r\n");
    client.expect("550 5.6.11");
    assert!(client.is_closed());
}

#[test]
fn a_report_after_half_a_message_neither_completes_nor_continues_it() {
    let (upstream, site) = site("");
    let weir = site.start();
    send(&weir, "alice", &["carol@example.net"]);
    let mail = complaint("carol@example.net", "4A8D2280F15");
    let half = "MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.net>\r\nBDAT 6\r\nhalf\r\nRSET\r\n";
    let envelope = format!("MAIL FROM:<>\r\n{ADDRESS}\r\n");
    let whole = "MAIL FROM:<a@example.org>\r\nRCPT TO:<c@example.net>\r\nBDAT 7 LAST\r\nwhole\r\n";
    let reports = [(format!("BDAT {} LAST\r\n{mail}", mail.len()), 9), ("BDAT 4\r\nhalfRSET\r\n".to_owned(), 10)];
    for (report, replies) in reports {
        let mut client = Client::greeted(weir.address("servers"));
        client.send(format!("{half}{envelope}{report}{whole}").as_bytes());
        (0..replies).for_each(|_| drop(client.expect("250")));
        client.expect("250 2.0.0 Ok: queued as");
    }
    let messages = upstream.acknowledged();
    assert_eq!(messages.len(), 3);
    for message in &messages[1..] {
        let message = String::from_utf8_lossy(message);
        assert!(message.ends_with("\r\nwhole\r\n") && !message.contains("half"), "{message}");
    }
    assert_eq!(weir.metric("weir_outcomes_total{kind=\"complained\"}"), 1.0);
    assert_eq!(level(&site, "complaints", "alice"), 1);
}

#[test]
fn reports_beyond_the_maximum_at_once_are_deferred() {
    let (_upstream, site) = site("");
    let weir = site.start();
    send(&weir, "alice", &["carol@example.net"]);
    let begin = || {
        let mut client = Client::greeted(weir.address("servers"));
        client.say("MAIL FROM:<>", "250");
        client.say(ADDRESS, "250");
        client.say("DATA", "354");
        client
    };
    let mail = complaint("carol@example.net", "4A8D2280F15");
    let clients: Vec<Client> = (0..40).map(|_| begin()).collect();
    // Weir begins to take a report right after its reply to DATA, so that the last of these clients come too late.
    let replies = clients.into_iter().rev().map(|mut client| client.ask(&format!("{mail}\r\n.")));
    let (taken, deferred): (Vec<_>, Vec<_>) = replies.partition(|reply| reply.starts_with("250 2.0.0 Report taken"));
    assert!((32..40).contains(&taken.len()), "{}", taken.len());
    assert!(deferred.iter().all(|reply| reply.starts_with("451 4.3.2 Too many reports at once")), "{deferred:?}");
    begin().say(&format!("{mail}\r\n."), "250");
    assert_eq!(level(&site, "complaints", "alice"), 1);
}

#[test]
fn a_report_that_cannot_be_stored_is_deferred_and_counts_later() {
    let (_upstream, site) = site("");
    let weir = site.start();
    send(&weir, "alice", &["carol@example.net"]);
    let mut client = Client::greeted(weir.address("servers"));
    // The queue id is in the file when the first outcome of another message has been looked up.
    assert!(report(&mut client, &complaint("carol@example.net", "4A8D2280F16")).starts_with("250"));
    let file = rusqlite::Connection::open(site.path("state.db")).unwrap();
    file.execute_batch("ALTER TABLE sent RENAME TO lost").unwrap();
    let mail = complaint("carol@example.net", "4A8D2280F15");
    let reply = report(&mut client, &mail);
    assert!(reply.starts_with("451 4.3.0 The report cannot be counted now"), "{reply}");
    weir.wait_for_metric("weir_messages_total{result=\"undecided\"}", 1.0);
    weir.logged("report not counted");
    file.execute_batch("ALTER TABLE lost RENAME TO sent").unwrap();
    // Another process writes for a long time.
    file.execute_batch("BEGIN IMMEDIATE").unwrap();
    let reply = report(&mut client, &mail);
    assert!(reply.starts_with("451 4.3.0 The report cannot be counted now"), "{reply}");
    assert_eq!(weir.metric("weir_outcomes_total{kind=\"complained\"}"), 0.0);
    file.execute_batch("ROLLBACK").unwrap();
    wait_for("a counted report", || report(&mut client, &mail).starts_with("250").then_some(()));
    assert_eq!(weir.metric("weir_outcomes_total{kind=\"complained\"}"), 1.0);
    assert_eq!(level(&site, "complaints", "alice"), 1);
}

#[test]
fn a_limit_can_refuse_the_reports_of_unknown_servers() {
    let (_upstream, site) = site("");
    let limit = "[list.report-servers]\nitems = [\"127.0.0.2\"]\n\
        [[limit]]\nname = \"reports-of-others\"\ncount = \"recipients\"\nper = [\"client\"]\nrate = \"0\"\n\
        match = { recipient = \"reports@weir.example\" }\nexcept = [{ client = \"list:report-servers\" }]\n";
    site.edit("[outcomes]", &format!("{limit}[outcomes]"));
    let weir = site.start();
    send(&weir, "alice", &["carol@example.net"]);
    let mail = complaint("carol@example.net", "4A8D2280F15");
    let mut stranger = Client::greeted(weir.address("servers"));
    stranger.say("MAIL FROM:<>", "250");
    let reply = stranger.say(ADDRESS, "550 5.7.1");
    assert!(reply.contains("reports-of-others"), "{reply}");
    stranger.say("DATA", "554 5.5.1");
    let mut known = Client::connect_from([127, 0, 0, 2].into(), weir.address("servers"));
    known.say("EHLO fbl.example", "250");
    assert!(report(&mut known, &mail).starts_with("250 2.0.0 Report taken"));
    assert_eq!(level(&site, "complaints", "alice"), 1);
}

#[test]
fn without_a_report_address_a_mail_to_such_an_address_is_relayed() {
    let (upstream, site) = site("");
    site.edit("report-address", "# report-address");
    let weir = site.start();
    Client::greeted(weir.address("users")).say("MAIL FROM:<>", "530 5.7.0");
    let mut client = Client::greeted(weir.address("servers"));
    let reply = report(&mut client, &complaint("carol@example.net", "4A8D2280F15"));
    assert!(reply.starts_with(QUEUED), "{reply}");
    assert_eq!(upstream.acknowledged().len(), 1);
}

#[test]
fn a_report_with_the_most_recipients_and_queue_ids_takes_little_time() {
    let (_upstream, site) = site("");
    let weir = site.start();
    send(&weir, "alice", &["carol@example.net"]);
    let received: String = (0..50).map(|n| format!("Received: from a by b with ESMTP id AB{n:06}; date\r\n")).collect();
    let recipients: String = (0..1000)
        .map(|n| format!("\r\nFinal-Recipient: rfc822; r{n}@example.net\r\nAction: failed\r\nStatus: 5.1.1\r\n"))
        .collect();
    let mail = format!(
        "Content-Type: multipart/report; boundary=\"b\"\r\n\r\n--b\r\nContent-Type: message/delivery-status\r\n\r\n\
         Reporting-MTA: dns; x\r\n{recipients}\r\n--b\r\nContent-Type: text/rfc822-headers\r\n\r\n{received}\r\n--b--\r\n"
    );
    let began = std::time::Instant::now();
    let mut client = Client::greeted(weir.address("servers"));
    for _ in 0..5 {
        let reply = report(&mut client, &mail);
        assert!(reply.starts_with("250"), "{reply}");
    }
    println!("took {:?}", began.elapsed());
    assert_eq!(weir.metric("weir_outcomes_unknown_total{kind=\"bounced\"}"), 5000.0);
}
