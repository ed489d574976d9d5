//! Tests with a real Postfix, which asks Weir over TCP or over a Unix socket.

use crate::harness::{Client, Postfix, Site, free_port, wait_for};
use crate::policy_service;
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;

/// Way from Postfix to Weir.
#[derive(Clone, Copy, Debug)]
enum Way {
    Tcp,
    Unix,
}

/// A Postfix that asks Weir, and the Weir's site.
struct Pair {
    postfix: Postfix,
    site: Site,
    /// Folder of the Unix socket, which Postfix can reach.
    _folder: tempfile::TempDir,
}

/// Place at which Weir listens.
struct Place {
    /// Folder of the Unix socket, which Postfix can reach.
    folder: tempfile::TempDir,
    /// Address in Weir's configuration.
    address: String,
    /// Name of the service in Postfix's configuration.
    service: String,
}

impl Place {
    fn new(way: Way) -> Self {
        let folder = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
        let (address, service) = match way {
            Way::Tcp => {
                let address = format!("127.0.0.1:{}", free_port());
                (address.clone(), format!("inet:{address}"))
            }
            Way::Unix => {
                let address = format!("unix:{}", folder.path().join("policy.sock").display());
                (address.clone(), address)
            }
        };
        Self { folder, address, service }
    }
}

impl Pair {
    /// Returns a Postfix that asks at RCPT and END-OF-MESSAGE. `policy`: text of Weir's configuration. `settings`: further
    /// settings of Postfix, in which `$weir` asks Weir.
    fn new(way: Way, policy: &str, settings: &str) -> Self {
        let place = Place::new(way);
        let mode = if matches!(way, Way::Unix) { "socket-mode = \"0666\", " } else { "" };
        let policy = format!(
            "listener.postfix = {{ protocol = \"postfix-policy\", address = \"{}\", {mode}\
             last-stage = \"end-of-message\" }}\n{policy}",
            place.address
        );
        let settings = format!(
            "weir = check_policy_service {}\n\
             smtpd_recipient_restrictions = reject_unauth_destination, $weir\n\
             smtpd_end_of_data_restrictions = $weir\n{settings}",
            place.service
        );
        Self::at(place, &policy, &settings)
    }

    fn at(place: Place, policy: &str, settings: &str) -> Self {
        let site = Site::new(policy);
        let postfix = Postfix::start_with(&format!(
            "virtual_mailbox_domains = example.net\n\
             smtpd_authorized_xclient_hosts = 127.0.0.0/8\n\
             smtpd_relay_restrictions = permit\n\
             smtpd_recipient_limit = 2000\n\
             smtpd_hard_error_limit = 2000\n\
             smtpd_error_sleep_time = 0\n\
             smtpd_policy_service_retry_delay = 1s\n{settings}"
        ));
        Self { postfix, site, _folder: place.folder }
    }

    /// Connects to Postfix as a client that has logged in as `user`.
    fn client(&self, user: &str) -> Client {
        let mut client = Client::connect(self.postfix.address());
        client.say(&format!("XCLIENT ADDR=192.0.2.7 LOGIN={user}"), "220");
        client.say("EHLO client.example", "250");
        client
    }

    /// Returns the level of the limit's budget of the user.
    fn level(&self, limit: &str, user: &str) -> f64 {
        let budget = self.site.dump().into_iter().find(|line| line["limit"] == limit && line["owner"]["user"] == user);
        budget.map_or(0.0, |budget| budget["level"].as_f64().unwrap())
    }
}

/// Sends RCPT for this number of recipients. Returns the number of accepted ones, and the replies to the others.
fn name_recipients(client: &mut Client, recipients: usize) -> (usize, Vec<String>) {
    let replies = (0..recipients).map(|n| client.ask(&format!("RCPT TO:<r{n}@example.net>")));
    let refused: Vec<String> = replies.filter(|reply| !reply.starts_with("250")).collect();
    (recipients - refused.len(), refused)
}

/// The example of the Vienna policy for Postfix.
const VIENNA: &str = include_str!("../conf/examples/postfix-vienna.toml");

/// Path of the socket in the example.
const SOCKET: &str = "/run/weir/postfix.sock";

/// Returns a Postfix with the two lines for main.cf from the example, and a Weir with the example as it stands, but for
/// the address and the permissions of the socket.
fn vienna(way: Way) -> Pair {
    let place = Place::new(way);
    let main_cf: String = VIENNA
        .lines()
        .filter_map(|line| line.strip_prefix("#   smtpd_"))
        .map(|line| format!("smtpd_{}\n", line.replace(&format!("unix:{SOCKET}"), &place.service)))
        .collect();
    assert_eq!(main_cf.lines().count(), 2);
    let keys = |text: &str| match way {
        Way::Tcp => text.replace("socket-mode = \"0660\"", ""),
        Way::Unix => text.replace("0660", "0666"),
    };
    let policy = keys(VIENNA).replace(&format!("unix:{SOCKET}"), &place.address);
    Pair::at(place, &policy, &main_cf)
}

#[test]
fn postfix_refuses_what_is_above_the_tokens_of_the_vienna_policy() {
    for way in [Way::Tcp, Way::Unix] {
        let pair = vienna(way);
        let weir = pair.site.start();
        let mut client = pair.client("alice");
        client.say("MAIL FROM:<alice@example.org>", "250");
        let (accepted, refused) = name_recipients(&mut client, 120);
        assert_eq!(accepted, 100, "{way:?}: {refused:?}");
        let is_right = |reply: &String| {
            reply.starts_with("554 5.7.1 <r")
                && reply.ends_with("Recipient address rejected: not enough tokens available")
        };
        assert!(refused.iter().all(is_right), "{refused:?}");
        client.say("DATA", "354");
        client.say("Subject: tokens\r\n\r\nhello\r\n.", "250");
        // Another user has other tokens, and alice has none in another session.
        let mut bob = pair.client("bob");
        bob.say("MAIL FROM:<bob@example.org>", "250");
        assert_eq!(name_recipients(&mut bob, 1).0, 1);
        let mut again = pair.client("alice");
        again.say("MAIL FROM:<alice@example.org>", "250");
        assert_eq!(name_recipients(&mut again, 1).0, 0);
        let line = weir.logged("result=passed");
        assert!(line.contains("accepted=100") && line.contains("user=alice") && line.contains("asked=120"), "{line}");
        assert_eq!(weir.terminate(), Some(0));
        assert!((pair.level("tokens", "alice") - 100.0).abs() < 0.1, "{way:?}: {}", pair.level("tokens", "alice"));
    }
}

/// Sends a message to this recipient. Returns the reply that ended it: to RCPT, or to the message.
fn send(client: &mut Client, sender: &str, recipient: &str) -> String {
    client.say(&format!("MAIL FROM:<{sender}>"), "250");
    let reply = client.ask(&format!("RCPT TO:<{recipient}>"));
    if !reply.starts_with("250") {
        client.say("RSET", "250");
        return reply;
    }
    client.say("DATA", "354");
    client.ask("Subject: hello\r\n\r\nhello\r\n.")
}

fn limit(name: &str, count: &str, rate: &str, actions: &str) -> String {
    format!(
        "[[limit]]\nname = \"{name}\"\ncount = \"{count}\"\nper = [\"user\"]\nalgorithm = \"token-bucket\"\n\
         rate = \"{rate}\"\naction = [{actions}]\n"
    )
}

#[test]
fn postfix_settles_sent_messages_and_gets_refunds_of_the_others() {
    let policy = limit("messages", "messages", "9 / 1d", "") + &limit("recipients", "recipients", "9 / 1d", "");
    // Postfix asks at every stage.
    let settings = "smtpd_delay_reject = no\n\
         smtpd_client_restrictions = $weir\n\
         smtpd_helo_restrictions = $weir\n\
         smtpd_sender_restrictions = $weir\n\
         smtpd_data_restrictions = $weir\n";
    for way in [Way::Tcp, Way::Unix] {
        let pair = Pair::new(way, &policy, settings);
        let weir = pair.site.start();
        let mut client = pair.client("alice");
        assert!(send(&mut client, "alice@example.org", "b@example.net").starts_with("250"));
        // The second message of the session is given up.
        client.say("MAIL FROM:<alice@example.org>", "250");
        client.say("RCPT TO:<b@example.net>", "250");
        client.say("RCPT TO:<c@example.net>", "250");
        client.say("RSET", "250");
        assert!(send(&mut client, "alice@example.org", "d@example.net").starts_with("250"));
        client.say("QUIT", "221");
        for (result, times) in [("passed", 2), ("abandoned", 1)] {
            let result = format!("result={result}");
            weir.logged_times(&result, times);
        }
        assert_eq!(weir.terminate(), Some(0));
        for name in ["messages", "recipients"] {
            assert!((pair.level(name, "alice") - 2.0).abs() < 0.1, "{way:?} {name}: {}", pair.level(name, "alice"));
        }
    }
}

#[test]
fn postfix_waits_for_delays_and_hears_of_grants_and_suspensions() {
    let policy = limit(
        "slow",
        "recipients",
        "2 / 1d",
        "{ at = 0.5, delay = \"1s\" }, { at = 1.0, defer = \"{level} of {limit}; wait {wait} ({reference})\" }",
    );
    let pair = Pair::new(Way::Tcp, &policy, "");
    let weir = pair.site.start();
    let mut client = pair.client("alice");
    client.say("MAIL FROM:<alice@example.org>", "250");
    client.say("RCPT TO:<a@example.net>", "250");
    let began = std::time::Instant::now();
    client.say("RCPT TO:<b@example.net>", "250");
    assert!(began.elapsed() >= std::time::Duration::from_secs(1), "{:?}", began.elapsed());
    let reply =
        client.say("RCPT TO:<c@example.net>", "450 4.7.1 <c@example.net>: Recipient address rejected: 2 of 2; wait ");
    let reference = reply.rsplit('(').next().unwrap().trim_end_matches(')').to_owned();
    let why = pair.site.run(&["why", &reference], "");
    assert!(why.code == Some(0) && why.out.contains("c@example.net") && why.out.contains("slow"), "{}", why.out);

    let grant = ["grant", "slow", "alice", "5 / 1d", "--for", "1h", "--reason", "newsletter"];
    assert_eq!(pair.site.run(&grant, "").code, Some(0));
    client.say("RCPT TO:<c@example.net>", "250");
    client.say("RSET", "250");

    let suspend = ["suspend", "user=alice", "--for", "1h", "--reason", "stolen"];
    let suspended = pair.site.run(&suspend, "");
    assert_eq!(suspended.code, Some(0), "{}", suspended.err);
    client.say("MAIL FROM:<alice@example.org>", "250");
    let reply = client.ask("RCPT TO:<d@example.net>");
    assert!(
        reply.starts_with("550 5.7.1 <d@example.net>: Recipient address rejected: This user is suspended"),
        "{reply}"
    );
    weir.logged_times("message=refused", 2);
}

#[test]
fn postfix_defers_while_weir_is_away_and_no_acknowledged_charge_is_lost() {
    let policy = limit("recipients", "recipients", "1000 / 1d", "");
    for way in [Way::Tcp, Way::Unix] {
        let pair = Pair::new(way, &policy, "");
        let mut weir = pair.site.start();
        let mut client = pair.client("alice");
        let mut acknowledged = 0.0;
        for round in 0..3 {
            for n in 0..10 {
                let reply = send(&mut client, "alice@example.org", &format!("r{n}@example.net"));
                assert!(reply.starts_with("250"), "{way:?} {round} {n}: {reply}");
                acknowledged += 1.0;
            }
            // The client has named a recipient when Weir goes away.
            client.say("MAIL FROM:<alice@example.org>", "250");
            client.say("RCPT TO:<b@example.net>", "250");
            acknowledged += 1.0;
            match round {
                0 => assert_eq!(weir.terminate(), Some(0)),
                _ => weir.kill(),
            }
            let level = pair.level("recipients", "alice");
            assert!((level - acknowledged).abs() < 0.5, "{way:?} {round}: {level} instead of {acknowledged}");
            let reply = client.ask("RCPT TO:<c@example.net>");
            assert!(reply.starts_with("451 4.3.5 "), "{reply}");
            client.say("RSET", "250");
            weir = pair.site.start();
        }
        let reply = send(&mut client, "alice@example.org", "last@example.net");
        assert!(reply.starts_with("250"), "{way:?}: {reply}");
        drop(weir);
    }
}

#[test]
fn postfix_defers_while_weir_hangs_and_goes_on_with_weir() {
    let policy = limit("recipients", "recipients", "1000 / 1d", "");
    for way in [Way::Tcp, Way::Unix] {
        let pair = Pair::new(way, &policy, "smtpd_policy_service_timeout = 1s\n");
        let weir = pair.site.start();
        let mut client = pair.client("alice");
        let mut send = |recipient: &str| send(&mut client, "alice@example.org", recipient);
        let sent = send("a@example.net");
        assert!(sent.starts_with("250"), "{way:?}: {sent}");
        weir.signal(Signal::STOP);
        wait_for("stopped process", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", weir.id())).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('T').then_some(())
        });
        let deferred = send("b@example.net");
        assert!(deferred.starts_with("451 4.3.5 "), "{way:?}: {deferred}");
        weir.signal(Signal::CONT);
        // Postfix has asked twice, and has gone. The recipient counts once until the message is given up.
        wait_for("late decision", || (policy_service::level(&pair.site, "recipients") > 1.5).then_some(()));
        let sent = send("c@example.net");
        assert!(sent.starts_with("250"), "{way:?}: {sent}");
        weir.logged_times("result=abandoned", 1);
        assert_eq!(weir.terminate(), Some(0));
        let level = pair.level("recipients", "alice");
        assert!((level - 2.0).abs() < 0.1, "{way:?}: {level}");
    }
}

#[test]
fn postfix_notices_only_the_new_limits_of_a_reload() {
    let pair = Pair::new(Way::Unix, &limit("recipients", "recipients", "1001 / 1d", ""), "");
    let weir = pair.site.start();
    let mut client = pair.client("alice");
    let mut sent = 0.0;
    for round in 1001..1006 {
        let sending = |client: &mut Client| -> Vec<String> {
            (0..20).map(|n| send(client, "alice@example.org", &format!("r{n}@example.net"))).collect()
        };
        let replies = std::thread::scope(|scope| {
            let sending = scope.spawn(|| sending(&mut client));
            let [former, next] = [round, round + 1].map(|rate| format!("{rate} / 1d"));
            pair.site.reload(&weir, &former, &next, "limits read again");
            sending.join().unwrap()
        });
        assert!(replies.iter().all(|reply| reply.starts_with("250")), "{round}: {replies:?}");
        sent += replies.len() as f64;
    }
    pair.site.reload(&weir, "1006 / 1d", "50 / 1d", "limits read again");
    let refused = send(&mut client, "alice@example.org", "b@example.net");
    assert!(refused.starts_with("450 4.7.1 "), "{refused}");
    assert_eq!(weir.terminate(), Some(0));
    let level = pair.level("recipients", "alice");
    assert!((level - sent).abs() < 0.5, "{level} instead of {sent}");
}
