//! Tests of notifications: a real Weir, receivers of webhooks on this machine, commands, and a real Postfix.

use crate::harness::{
    Behaviour, Client, Fault, Process, Received, Receiver, Site, SiteBuilder, Stage, Upstream, wait_for,
};
use ring::hmac;
use serde_json::Value;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Returns a site in which one recipient per client passes in this period, and each further recipient is refused and is
/// the reason of a notice.
fn builder(upstream: &Upstream, period: &str, notify: &str) -> SiteBuilder {
    Site::builder().open_listener().upstream(upstream.address(), "").more(&format!(
        "notify.ops = {{ {notify} }}\n\
         [[limit]]\nname = \"l\"\ncount = \"recipients\"\nper = [\"client\"]\nrate = \"1 / {period}\"\n\
         algorithm = \"token-bucket\"\naction = [{{ at = 1, notify = \"ops\" }}, {{ at = 1, defer = true }}]\n"
    ))
}

fn site(upstream: &Upstream, period: &str, notify: &str) -> Site {
    let site = builder(upstream, period, notify).build();
    site.put("secret", SECRET);
    site
}

/// Returns the keys of a webhook with signatures.
fn hook(receiver: &Receiver) -> String {
    format!("webhook = \"{}\", secret-file = \"secret\"", receiver.url())
}

/// Sends recipients until this number of them is refused.
fn flood(weir: &Process, refusals: usize) {
    let mut refused = 0;
    while refused < refusals {
        let mut client = Client::greeted_by(weir);
        // A client without any room left is refused at MAIL.
        if client.ask("MAIL FROM:<a@example.org>").starts_with('4') {
            refused += 1;
            continue;
        }
        for _ in 0..10 {
            refused += usize::from(client.ask("RCPT TO:<b@example.net>").starts_with('4'));
        }
    }
}

fn json(received: &Received) -> Value {
    serde_json::from_str(&received.body).unwrap()
}

/// Checks the signature as a receiver does.
fn verify(received: &Received) {
    let signature = received.signature.as_deref().unwrap();
    let (time, digest) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    let octets: Vec<u8> =
        (0..digest.len()).step_by(2).map(|at| u8::from_str_radix(&digest[at..at + 2], 16).unwrap()).collect();
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    hmac::verify(&key, format!("{time}.{}", received.body).as_bytes(), &octets).unwrap();
}

fn deliveries(weir: &Process, kind: &str, outcome: &str) -> f64 {
    weir.metric(&format!("weir_notice_deliveries_total{{kind=\"{kind}\",outcome=\"{outcome}\"}}"))
}

/// Waits until no delivery waits.
fn wait_until_delivered(weir: &Process) {
    wait_for("empty spool", || (weir.metric("weir_notices_waiting") == 0.0).then_some(()));
}

#[test]
fn a_flood_of_refusals_makes_one_signed_notice() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Accept));
    let site = site(&upstream, "1h", &hook(&receiver));
    let weir = site.start();
    flood(&weir, 1_000);
    let received = receiver.wait_for_accepted(1);
    wait_until_delivered(&weir);
    assert_eq!(receiver.received().len(), 1);
    verify(&received[0]);
    let notice = json(&received[0]);
    assert_eq!(notice["id"], received[0].id.as_str());
    for (key, value) in
        [("event", "begin"), ("notify", "ops"), ("limit", "l"), ("host", "weir.example"), ("client", "127.0.0.1")]
    {
        assert_eq!(notice[key], value, "{key} in {notice}");
    }
    assert_eq!(
        (&notice["used"], &notice["allowed"], &notice["owner"]["client"]),
        (&2.into(), &1.into(), &"127.0.0.1".into())
    );
    let text = notice["text"].as_str().unwrap();
    assert!(text.contains("2 recipients") && text.contains("1 recipient per hour"), "{text}");
    assert_eq!((weir.times_logged("message=notice"), weir.metric("weir_notice_episodes")), (1, 1.0));
    assert_eq!(weir.metric("weir_notices_total{limit=\"l\",notify=\"ops\"}"), 1.0);
}

#[test]
fn an_episode_ends_after_a_quiet_period_and_the_next_flood_makes_another_notice() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Accept));
    let site = site(&upstream, "2s", &format!("{}, at-end = true", hook(&receiver)));
    let weir = site.start();
    flood(&weir, 20);
    let events = |received: Vec<Received>| -> Vec<String> {
        received.iter().map(|one| json(one)["event"].as_str().unwrap().to_owned()).collect()
    };
    let received = receiver.wait_for_accepted(2);
    let end = json(&received[1]);
    assert!(end["times"].as_u64().unwrap() >= 20, "{end}");
    assert!(end["since"].is_string());
    assert_eq!(weir.metric("weir_notice_episodes"), 0.0);
    flood(&weir, 1);
    let received = receiver.wait_for_accepted(3);
    let ids: std::collections::BTreeSet<_> = received.iter().map(|one| one.id.clone()).collect();
    assert_eq!(ids.len(), 3);
    assert_eq!(events(received)[..3], ["begin", "end", "begin"]);
}

#[test]
fn a_receiver_that_fails_hangs_or_is_down_gets_each_notice_once_it_recovers() {
    let (upstream, mut receiver) = (Upstream::start(), Receiver::start(Behaviour::Answer(500)));
    let site = site(&upstream, "1h", &hook(&receiver));
    let weir = site.start();
    flood(&weir, 1);
    let first = receiver.wait_for(2);
    weir.logged("a notice is not delivered");
    assert!(deliveries(&weir, "webhook", "failed") >= 1.0);
    receiver.behave(Behaviour::Redirect);
    let before = receiver.received().len();
    receiver.wait_for(before + 1);
    receiver.behave(Behaviour::Hang);
    let before = receiver.received().len();
    receiver.wait_for(before + 1);
    // The answer to the last attempt is lost.
    receiver.stop();
    receiver.behave(Behaviour::Accept);
    receiver.start_again();
    receiver.wait_for_accepted(1);
    wait_until_delivered(&weir);
    weir.logged("notices are delivered again");
    assert_eq!(receiver.accepted().len(), 1);
    for received in receiver.received() {
        verify(&received);
        assert_eq!((&received.id, &received.body), (&first[0].id, &first[0].body));
    }
    assert_eq!((deliveries(&weir, "webhook", "delivered"), deliveries(&weir, "webhook", "lost")), (1.0, 0.0));
}

#[test]
fn mail_and_other_targets_do_not_wait_for_a_receiver_that_hangs() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Hang));
    let command = "command = [\"/bin/sh\", \"-c\", \"cat > $0\", \"FILE\"]";
    let site =
        builder(&upstream, "1h", &format!("webhook = \"{}\", mail = [\"ops@example.org\"], {command}", receiver.url()))
            .build();
    site.edit("FILE", site.path("notice.json").to_str().unwrap());
    let weir = site.start();
    flood(&weir, 1);
    receiver.wait_for(1);
    wait_for("deliveries to the other targets", || {
        let done = ["mail", "command"].map(|kind| deliveries(&weir, kind, "delivered"));
        (done == [1.0, 1.0]).then_some(())
    });
    let notice: Value = serde_json::from_slice(&std::fs::read(site.path("notice.json")).unwrap()).unwrap();
    assert_eq!(notice["limit"], "l");
    let mails = upstream.acknowledged();
    let mail = String::from_utf8(mails[0].clone()).unwrap();
    assert!(mail.contains("Auto-Submitted: auto-generated\r\n"), "{mail}");
    assert!(mail.contains(&format!("Message-ID: <{}@weir.example>", notice["id"].as_str().unwrap())), "{mail}");
    assert!(upstream.commands().iter().any(|command| command.starts_with("MAIL FROM:<>")));
    // The mail of clients passes, and is not mixed with the notice.
    let mut other = Client::connect_from([127, 0, 0, 2].into(), weir.address("s"));
    other.send_message();
    assert_eq!((weir.metric("weir_messages_total{result=\"delivered\"}"), upstream.acknowledged().len()), (1.0, 2));
}

#[test]
fn a_kill_loses_no_notice_and_begins_no_second_episode() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Hang));
    let site = site(&upstream, "1h", &hook(&receiver));
    let weir = site.start();
    flood(&weir, 1);
    let first = receiver.wait_for(1);
    weir.kill();
    receiver.behave(Behaviour::Accept);
    let weir = site.start();
    let accepted = receiver.wait_for_accepted(1);
    wait_until_delivered(&weir);
    assert_eq!((&accepted[0].id, accepted.len()), (&first[0].id, 1));
    flood(&weir, 20);
    assert_eq!((weir.times_logged("message=notice"), weir.metric("weir_notice_episodes")), (0, 1.0));
    assert_eq!(weir.terminate(), Some(0));
    let weir = site.start();
    assert_eq!(weir.metric("weir_notices_waiting"), 0.0);
    assert_eq!(receiver.accepted().len(), 1);
}

#[test]
fn a_notice_that_cannot_be_delivered_is_given_up_and_logged() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Answer(503)));
    let site = site(&upstream, "1h", &format!("{}, retry-for = \"2s\"", hook(&receiver)));
    let weir = site.start();
    flood(&weir, 1);
    let line = weir.logged("a notice is lost");
    assert!(line.contains("503"), "{line}");
    wait_until_delivered(&weir);
    assert_eq!(deliveries(&weir, "webhook", "lost"), 1.0);
}

#[test]
fn an_upstream_that_is_away_delays_the_mail_of_a_notice_and_a_refused_recipient_loses_it() {
    let upstream = Upstream::start();
    let site = site(&upstream, "1h", "mail = [\"ops@example.org\"]");
    let weir = site.start();
    upstream.fail(Some((Stage::Data, Fault::Say("451 later"))));
    flood(&weir, 1);
    weir.logged("a notice is not delivered");
    upstream.fail(None);
    wait_for("mail", || (deliveries(&weir, "mail", "delivered") == 1.0).then_some(()));
    upstream.fail(Some((Stage::Data, Fault::Say("554 no"))));
    let mut other = Client::connect_from([127, 0, 0, 3].into(), weir.address("s"));
    other.say("EHLO client.example", "250");
    other.say("MAIL FROM:<a@example.org>", "250");
    other.say("RCPT TO:<b@example.net>", "250");
    other.say("RCPT TO:<c@example.net>", "4");
    let line = weir.logged("a notice is lost");
    assert!(line.contains("554 no"), "{line}");
}
