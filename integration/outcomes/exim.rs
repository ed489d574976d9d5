//! Tests with a real Exim as the smart host.

use super::{DEFERRED, REJECTED, check_bounce_mails, counted, levels, read_log, send, site};
use crate::harness::{Client, EximServer, wait_for};

/// Exim bounces mail for gone.example after it has accepted the mail, defers mail for later.example, and rejects mail for
/// no.example. Other mail goes to a file. Exim's own bounces go to the folder `bounces`, each to a file of its own.
const SETTINGS: &str = "
acl_smtp_rcpt = recipient
acl_not_smtp = accept
keep_environment =
tls_advertise_hosts =
dsn_advertise_hosts = *
# By default, Exim delivers only the first ten messages of a connection at once.
smtp_accept_queue_per_connection = 0
begin acl
recipient:
  deny domains = no.example
  accept
begin routers
bounce:
  driver = accept
  senders = :
  transport = bounces
later:
  driver = redirect
  domains = later.example
  data = :defer: not now
  allow_defer
team:
  driver = redirect
  local_parts = team
  data = ann@gone.example, ben@gone.example
gone:
  driver = redirect
  domains = gone.example
  data = :fail: no such user
  allow_fail
all:
  driver = accept
  transport = file
begin retry
* * F,1d,1h
begin transports
file:
  driver = appendfile
  user = Debian-exim
  file = FOLDER/mail
bounces:
  driver = appendfile
  user = Debian-exim
  directory = FOLDER/bounces
";

/// Waits until Exim has tried to deliver this number of messages. Each stays in the queue for its deferred recipient.
fn wait_for_attempts(exim: &EximServer, messages: usize) {
    wait_for("attempts to deliver", || {
        let log = std::fs::read_to_string(exim.log()).ok()?;
        // Exim logs its own bounce as delivered before it ends the attempt.
        (log.matches("@later.example R=later defer").count() == messages
            && log.matches("T=bounces").count() == messages)
            .then_some(())
    });
}

#[test]
fn each_bounce_in_the_main_log_counts_once_for_the_user_who_sent_the_message() {
    // Messages of each user, and recipients of each message that bounce.
    let (messages, bounces) = (50, 20);
    let exim = EximServer::start(SETTINGS);
    let site = site(exim.address());
    let read = || read_log(&site, "exim", &exim.log(), "place");
    let weir = site.start();
    send(&weir, "alice", messages, bounces);
    send(&weir, "bob", messages / 2, bounces);
    wait_for_attempts(&exim, messages + messages / 2);
    read();
    let before = ["bounced", "deferred"].map(|kind| counted(&weir, kind));
    assert_eq!(before, [bounces, DEFERRED].map(|each| [(each * messages * 3 / 2) as f64, 0.0]));
    drop(weir);
    let weir = site.start();
    send(&weir, "bob", messages / 2, bounces);
    wait_for_attempts(&exim, 2 * messages);
    read();
    let of_rest = ["bounced", "deferred", "expired", "complained"].map(|kind| counted(&weir, kind));
    assert_eq!(of_rest, [bounces, DEFERRED, 0, 0].map(|each| [(each * messages / 2) as f64, 0.0]));
    // Exim's own bounces are no messages of Weir.
    assert_eq!(counted(&weir, "sent"), [(messages / 2) as f64; 2]);
    assert_eq!(levels(&site, "bounces"), [(bounces * messages) as i64; 2]);
    // The log has lines about these recipients, too, but they are no bounces.
    assert_eq!(levels(&site, "rejections"), [(REJECTED * messages) as i64; 2]);
    let log = std::fs::read_to_string(exim.log()).unwrap();
    assert_eq!(log.matches("rejected RCPT").count(), 2 * REJECTED * messages);
    // If the place in the log is lost, nothing counts twice.
    std::fs::remove_file(site.path("place")).unwrap();
    let said = read();
    assert!(said.starts_with("0 outcomes counted"), "{said}");
    assert_eq!(levels(&site, "bounces"), [(bounces * messages) as i64; 2]);
    // A message that another client gave to Exim.
    let mut client = Client::greeted(exim.address());
    for (line, reply) in [
        ("MAIL FROM:<alice@example.org>", "250"),
        ("RCPT TO:<a@gone.example>", "250"),
        ("RCPT TO:<a@later.example>", "250"),
        ("DATA", "354"),
        ("Message-ID: <alice0@example.org>\r\n\r\nhello\r\n.", "250"),
    ] {
        client.say(line, reply);
    }
    wait_for_attempts(&exim, 2 * messages + 1);
    let said = read();
    assert!(said.starts_with("0 outcomes counted, 0 counted before"), "{said}");
    assert_eq!(counted(&weir, "bounced")[1], 1.0);
    assert_eq!(levels(&site, "bounces"), [(bounces * messages) as i64; 2]);
}

/// Waits for the bounce that Exim has sent to this address, and returns it.
fn bounce_mail(exim: &EximServer, to: &str) -> Vec<u8> {
    wait_for("bounce", || {
        let files = std::fs::read_dir(exim.path("bounces")).ok()?.map(|entry| entry.unwrap());
        // Until a file is complete, its name begins with another letter.
        let mut complete = files.filter(|file| file.file_name().as_encoded_bytes().starts_with(b"q"));
        let has_recipient = |mail: &Vec<u8>| String::from_utf8_lossy(mail).contains(&format!("\nTo: {to}\n"));
        complete.find_map(|file| std::fs::read(file.path()).ok().filter(has_recipient))
    })
}

#[test]
fn bounce_mails_of_exim_count_like_its_log() {
    let exim = EximServer::start(SETTINGS);
    check_bounce_mails(exim.address(), ("exim", &exim.log(), " ** "), |to| bounce_mail(&exim, to));
}
