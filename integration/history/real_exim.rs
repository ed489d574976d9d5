//! Test with a real Exim: `weir history` reads its main log, and finds what the clients sent.

use super::zipped;
use crate::harness::{Client, EximServer, PASSWORD, run, wait_for, weir};
use std::path::Path;

/// Settings. Exim cannot deliver mail for `later` and `gone`; other mail goes to a file. After DATA, Exim refuses messages
/// with the subject `spam`, and discards messages with the subject `nothing`.
const SETTINGS: &str = "
acl_smtp_mail = sender
acl_smtp_rcpt = recipient
acl_smtp_data = message
acl_not_smtp = accept
keep_environment =
tls_advertise_hosts =
begin acl
sender:
  deny senders = bad@example.org
  accept
recipient:
  deny local_parts = no
  defer local_parts = slow
  discard local_parts = void
  accept
message:
  deny condition = ${if eq{$h_subject:}{spam}}
  discard condition = ${if eq{$h_subject:}{nothing}}
  accept
begin routers
later:
  driver = redirect
  local_parts = later
  data = :defer: not now
  allow_defer
gone:
  driver = redirect
  local_parts = gone
  data = :fail: no such user
  allow_fail
team:
  driver = redirect
  local_parts = team
  data = ann@example.net, ben@example.net
all:
  driver = accept
  transport = file
begin retry
* * F,1d,1h
begin authenticators
plain:
  driver = plaintext
  public_name = PLAIN
  server_set_id = $auth2
  server_condition = true
begin transports
file:
  driver = appendfile
  user = Debian-exim
  file = FOLDER/mail
";

/// Sends the messages of the test, and waits until Exim has tried to deliver all of them.
fn send_messages(exim: &EximServer) {
    let mut client = Client::connect(exim.address());
    client.say("EHLO [192.0.2.99]", "250");
    client.log_in("alice", PASSWORD);
    client.say("MAIL FROM:<alice@example.org>", "250");
    for (recipient, reply) in
        [("team", "250"), ("bob", "250"), ("no", "550"), ("later", "250"), ("gone", "250"), ("slow", "451")]
    {
        client.say(&format!("RCPT TO:<{recipient}@example.net>"), reply);
    }
    client.say("DATA", "354");
    client.say("Subject: order for x@example.com\r\n\r\nhello\r\n.", "250");
    let mut client = Client::connect(exim.address());
    client.say("EHLO client.example", "250");
    client.say("MAIL FROM:<bad@example.org>", "550");
    for (sender, subject, reply) in
        [("", "hello", "250"), ("carol@example.org", "spam", "550"), ("dora@example.org", "nothing", "250")]
    {
        client.say(&format!("MAIL FROM:<{sender}>"), "250");
        client.say("RCPT TO:<eve@example.net>", "250");
        if sender.is_empty() {
            client.say("RCPT TO:<void@example.net>", "250");
        }
        client.say("DATA", "354");
        client.say(&format!("Subject: {subject}\r\n\r\nhello\r\n."), reply);
    }
    wait_for("attempts to deliver", || {
        let log = std::fs::read_to_string(exim.log()).ok()?;
        let is_tried = log.contains("== later@example.net") && log.contains("** gone@example.net");
        // Three messages are completed: the message to eve, the discarded message, and the bounce of the message to
        // gone.
        (is_tried && log.matches(" Completed").count() == 3).then_some(())
    });
}
/// Runs `weir history` on logs; returns the rows without time, size and id, sorted, and the summary.
fn history(logs: &[&Path]) -> (Vec<String>, String) {
    let found = run(weir().args(["history", "exim", "--refused"]).args(logs), "");
    assert_eq!(found.code, Some(0), "{}", found.err);
    let mut rows: Vec<String> = Vec::new();
    for row in found.out.lines().skip(1) {
        let [_, client, user, sender, recipient, size, id, outcome] = row.split(',').collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        assert!(size.is_empty() == matches!((recipient, outcome), (_, "refused") | ("void@example.net", _)), "{row}");
        let recipient = recipient.replace(&format!(".{id}@"), "@");
        rows.push([client, user, sender, &recipient, outcome].join(","));
    }
    rows.sort();
    (rows, found.err)
}

/// Returns the rows of the messages of the test. Without the log selector `received_recipients`, Exim does not log the
/// recipients of a discarded message.
fn expected(discarded: &str) -> Vec<String> {
    let rows = [
        "127.0.0.1,,<>,eve@example.net,sent",
        "127.0.0.1,,<>,void@example.net,discarded",
        "127.0.0.1,,carol@example.org,recipient-1@unnamed.invalid,refused",
        &format!("127.0.0.1,,dora@example.org,{discarded},discarded"),
        "127.0.0.1,alice,alice@example.org,bob@example.net,sent",
        "127.0.0.1,alice,alice@example.org,gone@example.net,bounced",
        "127.0.0.1,alice,alice@example.org,later@example.net,deferred",
        "127.0.0.1,alice,alice@example.org,no@example.net,refused",
        "127.0.0.1,alice,alice@example.org,slow@example.net,refused",
        "127.0.0.1,alice,alice@example.org,team@example.net,sent",
    ];
    rows.map(str::to_owned).into()
}

#[test]
fn the_main_log_gives_the_history_of_what_was_sent() {
    for (settings, discarded) in [
        ("", "recipient-1@unnamed.invalid"),
        ("log_selector = +all +millisec\nlog_timezone = yes\n", "eve@example.net"),
    ] {
        let exim = EximServer::start(&format!("{settings}{SETTINGS}"));
        send_messages(&exim);
        let log = std::fs::read_to_string(exim.log()).unwrap();
        let (rows, summary) = history(&[&exim.log()]);
        assert_eq!(rows, expected(discarded), "{summary}{log}");
        for words in [" 0 not understood", "1 refusal left out", "1 message left out: made by the server itself"] {
            assert!(summary.contains(words), "{words}: {summary}{log}");
        }
        // The compressed copy changes nothing.
        let copy = exim.path("mainlog.1.gz");
        std::fs::write(&copy, zipped(log.as_bytes())).unwrap();
        let (rows, summary) = history(&[&exim.log(), &copy]);
        assert_eq!(rows, expected(discarded), "{summary}");
        assert!(summary.contains(&format!(", {} repeated", log.lines().count())), "{summary}");
        // If a log begins after the arrival of a message, the summary says that the message is left out.
        let later = exim.path("later");
        let rest: Vec<&str> = log.lines().skip_while(|line| !line.contains("A=plain:alice S=")).skip(1).collect();
        std::fs::write(&later, rest.join("\n")).unwrap();
        let (rows, summary) = history(&[&later]);
        assert!(rows.iter().all(|row| !row.contains("alice")), "{summary}");
        let words = "1 message left out: the line of the arrival is not in the logs (recipients: 2 sent, 1 deferred, 1 bounced)";
        assert!(summary.contains(words), "{summary}{log}");
    }
}
