//! Tests with a real Postfix as the smart host.

use super::{DEFERRED, REJECTED, check_bounce_mails, counted, levels, read_log, report, send, site};
use crate::harness::{Client, PASSWORD, Postfix, wait_for};
use std::path::Path;

/// Postfix bounces mail for gone.example after it has accepted the mail, defers mail for later.example, and rejects mail
/// for no.example. It delivers other mail, and its own bounces, to a Maildir.
const SETTINGS: &str = "smtpd_reject_unlisted_recipient = no\n\
    smtpd_recipient_restrictions = check_recipient_access inline:{ no.example=REJECT }, permit\n\
    transport_maps = inline:{ gone.example=error:5.1.1:no_such_user, later.example=retry:4.4.1:later }\n\
    virtual_alias_maps = inline:{ {team@alias.example=ann@gone.example, ben@gone.example} }\n\
    smtpd_recipient_limit = 2000\n\
    smtpd_soft_error_limit = 2000\n\
    smtpd_hard_error_limit = 2000\n";

/// Waits until Postfix has logged this number of bounces, and of messages that stay in the queue for their deferred
/// recipient.
fn wait_for_bounces(log: &Path, messages: usize, bounces: usize) {
    wait_for("bounces", || {
        let text = std::fs::read_to_string(log).ok()?;
        let found =
            ["@gone.example>, relay=none", "@later.example>, relay=none"].map(|line| text.matches(line).count());
        (found == [messages * bounces, messages * DEFERRED]).then_some(())
    });
}

#[test]
fn each_of_ten_thousand_bounces_counts_once_for_the_user_who_sent_the_message() {
    // Messages of each user, and recipients of each message that bounce.
    let (messages, bounces) = (100, 50);
    let postfix = Postfix::start_with(SETTINGS);
    let (site, log) = (site(postfix.address()), postfix.path("log"));
    let read = || read_log(&site, "postfix", &log, "place");
    let weir = site.start();
    send(&weir, "alice", messages, bounces);
    send(&weir, "bob", messages / 2, bounces);
    wait_for_bounces(&log, messages * 3 / 2, bounces);
    read();
    let before = ["bounced", "deferred"].map(|kind| counted(&weir, kind));
    assert_eq!(before, [bounces, DEFERRED].map(|each| [(each * messages * 3 / 2) as f64, 0.0]));
    drop(weir);
    let weir = site.start();
    send(&weir, "bob", messages / 2, bounces);
    wait_for_bounces(&log, 2 * messages, bounces);
    read();
    let of_rest = ["bounced", "deferred", "expired", "complained"].map(|kind| counted(&weir, kind));
    assert_eq!(of_rest, [bounces, DEFERRED, 0, 0].map(|each| [(each * messages / 2) as f64, 0.0]));
    let expected = (bounces * messages) as i64;
    assert_eq!(levels(&site, "bounces"), [expected, expected]);
    // The log has lines about these recipients, too, but they are no bounces.
    assert_eq!(levels(&site, "rejections"), [(REJECTED * messages) as i64; 2]);
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.matches(": reject: RCPT").count(), 2 * REJECTED * messages);
    // If the place in the log is lost, nothing counts twice.
    std::fs::remove_file(site.path("place")).unwrap();
    let said = read();
    assert!(said.starts_with("0 outcomes counted"), "{said}");
    assert_eq!(levels(&site, "bounces"), [expected, expected]);
    assert_eq!(counted(&weir, "bounced")[1], 0.0);
    // The queue id of another server.
    let forged = "2026-11-22T10:00:00Z mx postfix/error[1]: ABCDEF0123: to=<a@gone.example>, relay=none, delay=1, dsn=5.1.1, status=bounced (no)\n";
    site.put("forged", forged);
    let said = read_log(&site, "postfix", &site.path("forged"), "other");
    assert_eq!(said, "0 outcomes counted, 0 counted before, 1 of no message that Weir knows\n");
    assert_eq!(counted(&weir, "bounced")[1], 1.0);
}

#[test]
fn complaints_about_delivered_mail_suspend_its_sender_and_a_forged_one_does_not() {
    let postfix = Postfix::start_with(SETTINGS);
    let site = site(postfix.address());
    let weir = site.start();
    send(&weir, "alice", 3, 0);
    for message in 0..3 {
        let to = format!("alice{message}@good.example");
        let delivered = String::from_utf8(postfix.message_for(&to)).unwrap();
        let (head, _) = delivered.split_once("\n\n").unwrap();
        let complaint = |to: &str| {
            format!(
                "From: fbl@isp.example\nMIME-Version: 1.0\nContent-Type: multipart/report; report-type=feedback-report; \
                 boundary=\"b\"\n\n--b\nContent-Type: message/feedback-report\n\nFeedback-Type: abuse\nVersion: 1\n\
                 Original-Rcpt-To: <{to}>\n\n--b\nContent-Type: text/rfc822-headers\n\n{head}\n\n--b--\n"
            )
        };
        let forged = report(&site, complaint("stranger@example.net"));
        assert!(forged.out.starts_with("0 outcomes counted"), "{}", forged.said());
        let found = report(&site, complaint(&to));
        assert!(found.out.starts_with("1 outcome counted"), "{}", found.said());
        let again = report(&site, complaint(&to));
        assert!(again.out.starts_with("0 outcomes counted, 1 counted before"), "{}", again.said());
    }
    assert_eq!(levels(&site, "complaints")[1], 0);
    let mut client = Client::greeted(weir.address("plain"));
    client.log_in("alice", PASSWORD);
    let reply = client.ask("MAIL FROM:<alice@example.org>");
    assert!(reply.starts_with(['4', '5']), "{reply}");
    let big = "x".repeat(100 << 20);
    let found = report(&site, big);
    assert_eq!(found.code, Some(65), "{}", found.said());
}

#[test]
fn bounce_mails_of_postfix_count_like_its_log() {
    let postfix = Postfix::start_with(SETTINGS);
    check_bounce_mails(postfix.address(), ("postfix", &postfix.path("log"), "status=bounced"), |to| {
        postfix.message_for(to)
    });
}
