//! Outcomes of deliveries, from the logs and the mails of real smart hosts.

mod exim;
mod postfix;

use crate::harness::{Client, Outcome, PASSWORD, Process, Site, succeed, wait_for};
use std::net::SocketAddr;
use std::path::Path;

const LIMITS: &str = r#"
[outcomes]
keep = "7d"
[[limit]]
name = "bounces"
count = "bounces"
per = ["user"]
rate = "100000 / 3000d"
algorithm = "leaky-bucket"
[[limit]]
name = "rejections"
count = "rejections"
per = ["user"]
rate = "100000 / 3000d"
algorithm = "leaky-bucket"
[[limit]]
name = "complaints"
count = "complaints"
per = ["user"]
rate = "2 / 3000d"
algorithm = "leaky-bucket"
  [[limit.action]]
  suspend = "1d"
"#;

const USERS: [&str; 2] = ["alice", "bob"];

/// Number of recipients of each message that the smart host defers, and of recipients that it rejects at RCPT.
const DEFERRED: usize = 1;
const REJECTED: usize = 1;

fn site(smart_host: SocketAddr) -> Site {
    Site::builder()
        .listener("plain", "tls = \"none\", auth = \"optional\"")
        .upstream(smart_host, "")
        .more(LIMITS)
        .users(&USERS.map(|user| (user, PASSWORD, "")))
        .build()
}

/// Sends messages, each to this number of recipients that bounce, one that is rejected, one that is deferred, and one that
/// gets the message.
fn send(weir: &Process, user: &str, messages: usize, bounces: usize) {
    let mut client = Client::greeted(weir.address("plain"));
    client.log_in(user, PASSWORD);
    for message in 0..messages {
        client.say(&format!("MAIL FROM:<{user}@example.org>"), "250");
        for number in 0..bounces {
            client.say(&format!("RCPT TO:<{user}{message}x{number}@gone.example>"), "250");
        }
        client.say(&format!("RCPT TO:<{user}{message}@no.example>"), "55");
        client.say(&format!("RCPT TO:<{user}{message}@later.example>"), "250");
        client.say(&format!("RCPT TO:<{user}{message}@good.example>"), "250");
        client.say("DATA", "354");
        client.say(&format!("Message-ID: <{user}{message}@example.org>\r\n\r\nhello\r\n."), "250");
    }
}

/// Recipients of one message, with the parameters of RCPT, who bounce after the smart host has accepted the message. The
/// smart host replaces `team` by two recipients. The client is itself a mail server, and has replaced `list` by `ann`.
const BOUNCED: [&str; 6] = [
    "<Bob+Tag@Gone.Example>",
    "<\"a: b\"@gone.example>",
    "<b\u{fc}cher@gone.example>",
    "<carl+x@gone.example> ORCPT=rfc822;carl+2Bx@gone.example",
    "<team@alias.example>",
    "<ann@gone.example> ORCPT=rfc822;list@example.org",
];

/// Checks that the bounces of a smart host count once, in its log and in the mails that it writes about them. `logged` is
/// part of each line about a bounce, and `mail_to` returns the mail to a sender.
fn check_bounce_mails(
    smart_host: SocketAddr,
    (program, log, logged): (&str, &Path, &str),
    mail_to: impl Fn(&str) -> Vec<u8>,
) {
    let site = site(smart_host);
    let weir = site.start();
    let bounce = |user: &str| {
        let mut client = Client::greeted(weir.address("plain"));
        client.log_in(user, PASSWORD);
        client.say(&format!("MAIL FROM:<{user}@example.org> SMTPUTF8"), "250");
        for to in BOUNCED {
            client.say(&format!("RCPT TO:{to}"), "250");
        }
        client.say("DATA", "354");
        client.say(&format!("Message-ID: <{user}@example.org>\r\n\r\nhello\r\n."), "250");
        String::from_utf8(mail_to(&format!("{user}@example.org"))).unwrap()
    };
    let said = |answer: &str| format!("{answer} of no message that Weir knows\n");
    let each = BOUNCED.len() as i64;
    // The mail comes before the log is read.
    let mail = bounce("alice");
    let forged = mail.replace("gone.example", "other.example").replace("alias.example", "other.example");
    let forged = forged.replace("Gone.Example", "other.example");
    assert_eq!(report(&site, forged).out, said("0 outcomes counted, 0 counted before, 7"));
    // Both addresses of the team are one recipient of the message.
    assert_eq!(report(&site, &mail).out, said("6 outcomes counted, 1 counted before, 0"), "{mail}");
    assert_eq!(report(&site, &mail).out, said("0 outcomes counted, 7 counted before, 0"));
    assert_eq!(levels(&site, "bounces"), [each, 0]);
    read_log(&site, program, log, "place");
    assert_eq!((levels(&site, "bounces"), counted(&weir, "bounced")), ([each, 0], [each as f64, 7.0]));
    // The mail comes after the log was read.
    let mail = bounce("bob");
    wait_for("bounces in the log", || {
        (std::fs::read_to_string(log).unwrap().matches(logged).count() == 2 * 7).then_some(())
    });
    read_log(&site, program, log, "place");
    assert_eq!(levels(&site, "bounces"), [each, each]);
    assert_eq!(report(&site, &mail).out, said("0 outcomes counted, 7 counted before, 0"));
    assert_eq!((levels(&site, "bounces"), counted(&weir, "bounced")), ([each, each], [2.0 * each as f64, 7.0]));
}

/// Runs `weir outcomes PROGRAM LOG` with the file `position` for the place in the log. Returns what the command prints.
fn read_log(site: &Site, program: &str, log: &Path, position: &str) -> String {
    let position = site.path(position);
    let mut command = site.command(&["outcomes", program, "--timezone", "UTC"]);
    command.arg("--position").arg(position).arg(log);
    succeed(&mut command, "").out
}

/// Gives a mail to `weir outcomes report`.
fn report(site: &Site, mail: impl AsRef<[u8]> + Send) -> Outcome {
    site.run(&["outcomes", "report"], mail)
}

/// Returns the level of a limit's budget for each user.
fn levels(site: &Site, limit: &str) -> [i64; 2] {
    let dump = site.dump();
    USERS.map(|user| {
        let row = dump.iter().find(|row| row["limit"] == limit && row.to_string().contains(&format!("\"{user}\"")));
        row.map_or(0, |row| row["level"].as_f64().unwrap().round() as i64)
    })
}

/// Returns the number of outcomes of this kind that were attributed to a message, and of those that were not.
fn counted(weir: &Process, kind: &str) -> [f64; 2] {
    ["weir_outcomes_total", "weir_outcomes_unknown_total"]
        .map(|metric| weir.metric(&format!("{metric}{{kind=\"{kind}\"}}")))
}
