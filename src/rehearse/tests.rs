use super::rehearsal::Rehearsal;
use super::*;
use crate::policy::address::AddressNormalizer;
use crate::policy::limit::{Algorithm, Charge, Count, Limit, Mode, Quota};
use crate::policy::matching::{Field, Zone};
use crate::policy::request::Stage;
use crate::session::{Options, ReportAddress, Requirement, Security, SenderMismatch};
use crate::time::{Units, parse_rate};

fn limit(name: &str, count: Count, rate: &str) -> Limit {
    let rate = parse_rate(rate, Units::Things).unwrap();
    Limit::new(name, count, vec![Field::User], Quota::rate(Algorithm::TokenBucket, rate, None))
}

fn listener(tls: Security, auth: Requirement) -> Options {
    Options {
        name: "s".into(),
        hostname: "weir.example".to_owned(),
        tls,
        auth,
        trusted: Vec::new(),
        xclient: Vec::new(),
        sender_mismatch: SenderMismatch::Allow,
        report_address: None,
        max_message_size: 1000,
        max_recipients: 2,
    }
}

/// Returns a test message with three recipients and these additional keys.
fn test_message(more: &str) -> TestMessage {
    let text = format!(
        r#"{{"client":"192.0.2.7","mail-from":"a@example.org","rcpt-to":["b@example.net","c@example.net","d@example.net"]{more}}}"#
    );
    parse(&text)
}

fn parse(text: &str) -> TestMessage {
    TestMessage::from_json(&serde_json::from_str(text).unwrap()).unwrap()
}

fn rehearse(limits: Vec<Limit>, listener: Options, test_message: &TestMessage) -> Rehearsal {
    let policy = Policy::new(limits, AddressNormalizer::default(), Zone::default());
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    super::run(test_message, &policy, &[Arc::new(listener)], now).unwrap().rehearsal
}

fn whats(rehearsal: &Rehearsal) -> Vec<&str> {
    rehearsal.events.iter().map(|event| &*event.what).collect()
}

#[test]
fn commands_are_counted_as_a_real_client_sends_them() {
    let mut commands = limit("commands", Count::Commands, "100 / 1d");
    commands.per = Vec::new();
    let listener = listener(Security::StartTls, Requirement::Required);
    let rehearsal = rehearse(vec![commands], listener, &test_message(r#","user":"alice""#));
    // The third recipient exceeds the maximum, but its RCPT still counts as a command.
    let expected = [
        "connection from 192.0.2.7",
        "EHLO",
        "STARTTLS",
        "EHLO",
        "AUTH as alice",
        "login of alice",
        "MAIL FROM:<a@example.org>",
        "RCPT TO:<b@example.net>",
        "RCPT TO:<c@example.net>",
        "RCPT TO:<d@example.net>",
        "DATA",
        "end of the message",
    ];
    assert_eq!(whats(&rehearsal), expected);
    let stages: Vec<Stage> = rehearsal.events.iter().map(|event| event.stage).collect();
    assert_eq!(stages[8..11], [Stage::Rcpt, Stage::Command, Stage::Data]);
    let level = rehearsal.events[10].explained[0].said.as_ref().unwrap().after;
    // A bucket leaks a little between the commands.
    assert!((9.0 - level).abs() < 1e-3, "{level}");
}

#[test]
fn refusals_of_the_listener_end_what_the_client_can_do() {
    let plain = |auth| listener(Security::None, auth);
    for (listener, more, last, refused) in [
        (plain(Requirement::Optional), "", "end of the message", "RCPT: max-recipients is 2"),
        (
            plain(Requirement::Required),
            "",
            "connection from 192.0.2.7",
            "MAIL: the listener s wants a login, and there is no --user",
        ),
        (
            Options { report_address: Some(ReportAddress::new("r@weir.example")), ..plain(Requirement::Required) },
            "",
            "MAIL FROM:<a@example.org>",
            "RCPT: the listener s wants a login, and there is no --user",
        ),
        (
            plain(Requirement::Optional),
            r#","size":1001"#,
            "connection from 192.0.2.7",
            "MAIL: max-message-size is 1000 octets",
        ),
        (
            plain(Requirement::None),
            r#","user":"alice""#,
            "connection from 192.0.2.7",
            "AUTH: 502 5.5.1 AUTH is not offered here",
        ),
        (
            plain(Requirement::Optional),
            r#","helo":"(my pc)""#,
            "connection from 192.0.2.7",
            "EHLO: 501 5.5.4 Say EHLO and your host name",
        ),
    ] {
        let rehearsal = rehearse(vec![limit("l", Count::Recipients, "100 / 1d")], listener, &test_message(more));
        assert_eq!(rehearsal.refused_by_listener, [refused]);
        assert_eq!(whats(&rehearsal).last(), Some(&last), "{refused}");
    }
}

#[test]
fn a_recipient_that_another_limit_refuses_is_refunded_in_shadow_limits() {
    let mut shadow = limit("shadow", Count::Recipients, "100 / 1d");
    (shadow.mode, shadow.charge) = (Mode::Shadow, Charge::Sent);
    let limits = vec![shadow, limit("strict", Count::Recipients, "1 / 1d")];
    let mut test_message = test_message(r#","user":"alice""#);
    test_message.stage = Some(Stage::Rcpt);
    let rehearsal = rehearse(limits, listener(Security::None, Requirement::Optional), &test_message);
    let recipients: Vec<_> = rehearsal.events.iter().filter(|event| event.stage == Stage::Rcpt).collect();
    let refused: Vec<bool> = recipients.iter().map(|event| event.refused.is_some()).collect();
    assert_eq!(refused, [false, true, true]);
    let levels = recipients.iter().map(|event| event.explained[0].said.as_ref().unwrap().level.round());
    assert_eq!(levels.collect::<Vec<_>>(), [0.0, 1.0, 1.0]);
}

fn report_of<'a>(policy: &'a Policy, listeners: &'a [Arc<Options>], test_message: &'a TestMessage) -> Report<'a> {
    super::run(test_message, policy, listeners, Timestamp::from_micros(1_700_000_000_000_000)).unwrap()
}

fn policy(limits: Vec<Limit>) -> Policy {
    Policy::new(limits, AddressNormalizer::default(), Zone::default())
}

#[test]
fn an_average_passes_its_amount_one_by_one_and_one_less_at_the_same_instant() {
    let mut average = limit("average", Count::Recipients, "3 / 1d");
    average.quota = Quota::rate(Algorithm::Ewma, parse_rate("3 / 1d", Units::Things).unwrap(), None);
    let (policy, test_message) = (policy(vec![average]), test_message(r#","user":"alice""#));
    let listeners = [Arc::new(Options { max_recipients: 9, ..listener(Security::None, Requirement::Optional) })];
    let report = report_of(&policy, &listeners, &test_message);
    assert!(!report.is_refused());
    let text = report.text();
    let words = "\nnote: if all commands arrive at the same instant (PIPELINING), RCPT TO:<d@example.net> is refused: \
                 450 4.7.1 2 of 2 recipients used, 3 more per day; try again in 1s (test)\n\
                 apart from that, nothing is refused: the smart host has the last word\n";
    assert!(text.ends_with(words), "{text}");
    assert_eq!(report.json()["refused-at-once"][0]["what"], "RCPT TO:<d@example.net>");
}

#[test]
fn limits_that_need_a_missing_option_are_named() {
    let octets = limit("octets", Count::Bytes, "10000 / 1d");
    let mut named = limit("named", Count::Messages, "10 / 1d");
    named.per = vec![Field::Helo];
    let (policy, listeners) =
        (policy(vec![octets, named]), [Arc::new(listener(Security::None, Requirement::Optional))]);
    let alice = |more: &str| parse(&format!(r#"{{"client":"192.0.2.7","user":"alice"{more}}}"#));
    let to_bob = r#","mail-from":"a@example.org","rcpt-to":["b@example.net"]"#;
    for (more, not_judged, ends) in [
        (
            to_bob.to_owned(),
            &[("octets", "--size"), ("named", "--helo")][..],
            "\nnote: not judged without --helo: named\nnote: not judged without --size: octets\napart from that, nothing \
             is refused: the smart host has the last word\n",
        ),
        (
            format!(r#"{to_bob},"size":500,"helo":"pc.example""#),
            &[],
            "\nnothing is refused: the smart host has the last word\n",
        ),
        (
            r#","mail-from":"a@example.org","size":500,"helo":"pc.example""#.to_owned(),
            &[("octets", "--rcpt-to"), ("named", "--rcpt-to")],
            "\nnote: not judged without --rcpt-to: octets, named\napart from that, nothing is refused up to the stage mail\n",
        ),
        (
            r#","helo":"pc.example""#.to_owned(),
            &[("octets", "--mail-from"), ("named", "--mail-from")],
            "apart from that, nothing is refused up to the stage auth\n",
        ),
        (
            r#","mail-from":"a@example.org","size":500,"stage":"mail","helo":"pc.example""#.to_owned(),
            &[],
            "\nnothing is refused up to the stage mail\n",
        ),
    ] {
        let test_message = alice(&more);
        let report = report_of(&policy, &listeners, &test_message);
        let found = report.not_judged();
        let found: Vec<(&str, &str)> = found.iter().map(|(name, option)| (&**name, *option)).collect();
        assert_eq!(found, not_judged, "{more}");
        let text = report.text();
        assert!(text.ends_with(ends), "{text}");
    }
    let test_message = alice(to_bob);
    let text = report_of(&policy, &listeners, &test_message).text();
    assert!(text.contains("\n  octets: not judged: the size is not known; add --size\n"), "{text}");
    assert!(!text.contains("octets: does not hold"), "{text}");
}
