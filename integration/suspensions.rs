//! Tests of suspensions that let some mail pass, and of those that a new password ends.

use crate::harness::{Client, Outcome, PASSWORD, Process, Site, Upstream, field, wait_for};

/// Rules of suspensions, and a limit that suspends a user after three recipients.
const RULES: &str = "\
    timezone = \"UTC\"\n\
    suspensions = { allow-recipients = [\"postmaster\", \"list:internal\"], \
      contact = \"helpdesk@example.org or +44 1223 123456\", end-on-new-password = true }\n\
    list.internal = { items = [\"*@example.org\"] }\n\
    limit = [{ name = \"flood\", count = \"recipients\", per = [\"user\"], algorithm = \"token-bucket\", \
      rate = \"3 / 1d\", charge = \"accepted\", action = [{ suspend = \"1d\" }] }]\n";

/// Password that alice gets in a test.
const NEW_PASSWORD: &str = "a-new-and-better-password";

fn running() -> (Upstream, Site, Process) {
    let upstream = Upstream::start();
    let site = Site::builder().listener("s", "tls = \"none\"").upstream(upstream.address(), "").more(RULES).build();
    let weir = site.start();
    (upstream, site, weir)
}

fn logged_in(weir: &Process, password: &str) -> Client {
    let mut client = Client::greeted_by(weir);
    client.log_in("alice", password);
    client
}

/// Sends a message to these recipients; returns the replies to RCPT.
fn send(client: &mut Client, recipients: &[&str]) -> Vec<String> {
    client.say("MAIL FROM:<alice@example.org>", "250");
    let rcpt = |recipient: &&str| client.ask(&format!("RCPT TO:<{recipient}>"));
    let replies: Vec<String> = recipients.iter().map(rcpt).collect();
    if replies.iter().any(|reply| reply.starts_with("250")) {
        client.say("DATA", "354");
        client.send(b"Subject: x\r\n\r\nx\r\n.\r\n");
        client.expect("250");
    } else {
        client.say("RSET", "250");
    }
    replies
}

/// Logs in and makes the limit suspend alice.
fn suspend_by_flood(weir: &Process) {
    let mut thief = logged_in(weir, PASSWORD);
    thief.say("MAIL FROM:<alice@example.org>", "250");
    thief.say("RCPT TO:<1@example.net>", "250");
    thief.say("RCPT TO:<2@example.net>", "250");
    thief.say("RCPT TO:<3@example.net>", "250");
    let words = "550 5.7.1 3 of 3 recipients used, 3 more per day; suspended for 1d, until 20";
    let reply = thief.say("RCPT TO:<4@example.net>", words);
    assert!(reply.contains(" UTC; contact: helpdesk@example.org or +44 1223 123456 ("), "{reply}");
    // The transaction goes on, but its accepted recipients are not allowed any more.
    thief.say("RCPT TO:<postmaster>", "250");
    thief.say("DATA", "550 5.7.1 This user is suspended");
}

fn done(site: &Site, arguments: &[&str], input: &str) -> String {
    let Outcome { code, out, err } = site.run(arguments, input);
    assert_eq!(code, Some(0), "{arguments:?}: {out}{err}");
    out
}

fn change_password(site: &Site, password: &str) {
    done(site, &["user", "passwd", "alice"], &format!("{password}\n"));
}

fn exceptions(site: &Site) -> String {
    done(site, &["exceptions"], "")
}

/// Waits until the state file has the fingerprint of the password of the suspended user.
fn wait_for_fingerprint(site: &Site) -> String {
    wait_for("fingerprint", || {
        let of_suspension = |line: &serde_json::Value| Some(line["password-fingerprint"].as_str()?.to_owned());
        site.dump().iter().find_map(of_suspension)
    })
}

fn wait_until_released(site: &Site) {
    wait_for("end of the suspension", || (exceptions(site) == "no grants, no suspensions\n").then_some(()));
}

#[test]
fn a_stolen_account_writes_to_the_help_desk_alone_until_it_has_a_new_password() {
    let (upstream, site, weir) = running();
    suspend_by_flood(&weir);
    for (recipient, code) in [("helpdesk@example.org", 0), ("4@example.net", 1)] {
        let from = ["test", "--live", "--client", "127.0.0.1", "--user", "alice", "--mail-from", "alice@example.org"];
        let Outcome { code: got, out, err } = site.run(&[&from[..], &["--rcpt-to", recipient]].concat(), "");
        assert_eq!((got, out.contains("This user is suspended")), (Some(code), code == 1), "{out}{err}");
    }
    let mut alice = logged_in(&weir, PASSWORD);
    let replies = send(&mut alice, &["4@example.net", "helpdesk@example.org", "Postmaster"]);
    let [refused, helpdesk, postmaster] = &replies[..] else { unreachable!() };
    assert!(helpdesk.starts_with("250") && postmaster.starts_with("250"), "{replies:?}");
    for words in [
        "550 5.7.1 This user is suspended for another ",
        ", until 20",
        " UTC, by the limit flood: 4 of 3; contact: helpdesk@example.org or +44 1223 123456 (",
    ] {
        assert!(refused.contains(words), "{refused}");
    }
    assert_eq!(upstream.acknowledged().len(), 1);
    let list = exceptions(&site);
    assert!(list.contains("    sends only to postmaster, list:internal; a new password ends it\n"), "{list}");
    let show = done(&site, &["show", "alice"], "");
    assert!(show.contains("sends only to postmaster, list:internal,"), "{show}");

    let reference = refused.rsplit_once('(').unwrap().1.trim_end().trim_end_matches(')');
    let why = done(&site, &["why", reference], "").replace(['\n', ' '], "");
    for words in
        ["It allows mail to postmaster, list:internal. It ends at 20", ", with a new password of the user, or with"]
    {
        assert!(why.contains(&words.replace(' ', "")), "{why}");
    }
    let explained = done(&site, &["check", "--explain"], "").replace(['\n', ' '], "");
    assert!(explained.contains("issuspendedfor1d,exceptfrommailtopostmaster,list:internal"), "{explained}");

    let fingerprint = wait_for_fingerprint(&site);
    assert_eq!(fingerprint.len(), 4);
    // Lines in another order, and a user that is disabled and enabled again, are no new password.
    let users = std::fs::read_to_string(site.path("users")).unwrap();
    site.put("users", &format!("# moved\nbob:*\n{users}"));
    done(&site, &["user", "disable", "alice"], "");
    done(&site, &["user", "enable", "alice"], "");
    done(&site, &["reload"], "");
    assert!(exceptions(&site).starts_with("suspended: 1\n"));
    // The three recipients that were allowed have used up what the limit allows.
    alice.say("MAIL FROM:<alice@example.org>", "550 5.7.1 3 of 3 recipients used, 3 more per day (");

    change_password(&site, NEW_PASSWORD);
    wait_until_released(&site);
    let line = weir.logged("suspension ended");
    assert_eq!(field(&line, "reason").as_deref(), Some("the password has changed"), "{line}");
    let trail = done(&site, &["exceptions", "--audit"], "");
    for words in ["ended      user=alice  by limit flood: the password has changed\n", "reset      flood  user=alice"] {
        assert!(trail.contains(words), "{trail}");
    }
    let replies = send(&mut logged_in(&weir, NEW_PASSWORD), &["6@example.net", "7@example.net"]);
    assert!(replies.iter().all(|reply| reply.starts_with("250")), "{replies:?}");
}

#[test]
fn a_password_that_changes_while_weir_is_stopped_ends_the_suspension_at_the_next_start() {
    let (_upstream, site, weir) = running();
    suspend_by_flood(&weir);
    wait_for_fingerprint(&site);
    weir.kill();
    let weir = site.start();
    let replies = send(&mut logged_in(&weir, PASSWORD), &["4@example.net", "postmaster@example.net"]);
    assert!(replies[0].starts_with("550") && replies[1].starts_with("250"), "{replies:?}");
    assert_eq!(weir.terminate(), Some(0));
    change_password(&site, NEW_PASSWORD);
    let weir = site.start();
    wait_until_released(&site);
    let replies = send(&mut logged_in(&weir, NEW_PASSWORD), &["5@example.net", "6@example.net"]);
    assert!(replies.iter().all(|reply| reply.starts_with("250")), "{replies:?}");
}

#[test]
fn an_administrator_suspends_until_a_new_password_or_in_spite_of_it_or_strictly() {
    let (_upstream, site, weir) = running();
    let suspend = |more: &[&str]| {
        done(&site, &[&["suspend", "alice", "--for", "1h", "--reason", "spam (ticket 7)"], more].concat(), "")
    };
    let refused = |password: &str, recipient: &str| {
        let mut client = logged_in(&weir, password);
        let mail = client.ask("MAIL FROM:<alice@example.org>");
        if mail.starts_with("250") { client.ask(&format!("RCPT TO:<{recipient}>")) } else { mail }
    };
    let out = suspend(&["--strict"]);
    assert!(
        out.starts_with("suspended: user=alice sends nothing, for 1h until 20") && !out.contains("password"),
        "{out}"
    );
    let reply = refused(PASSWORD, "postmaster");
    for words in ["550 5.7.1 This user is suspended", "by the administrator: spam (ticket 7); contact: helpdesk@"] {
        assert!(reply.contains(words), "{reply}");
    }
    let out = suspend(&["--keep"]);
    assert!(out.starts_with("suspended: user=alice sends only to postmaster, list:internal, for 1h"), "{out}");
    assert!(refused(PASSWORD, "postmaster").starts_with("250"));
    change_password(&site, NEW_PASSWORD);
    let out = suspend(&[]);
    assert!(out.contains("; a new password ends it\n"), "{out}");
    wait_for_fingerprint(&site);
    change_password(&site, PASSWORD);
    wait_until_released(&site);
    let trail = done(&site, &["exceptions", "--audit"], "");
    assert_eq!(trail.matches("the password has changed").count(), 1, "{trail}");
    suspend(&["--strict"]);
    assert!(done(&site, &["release", "alice"], "").starts_with("released: user=alice may send again"));
    assert!(refused(PASSWORD, "1@example.net").starts_with("250"));
}

#[test]
fn a_dump_keeps_the_kind_of_a_suspension_and_older_lines_are_strict() {
    let (_upstream, site, weir) = running();
    suspend_by_flood(&weir);
    let fingerprint = wait_for_fingerprint(&site);
    done(&site, &["suspend", "user=bob", "--for", "1h", "--reason", "x", "--keep", "--force"], "");
    done(&site, &["suspend", "user=carol", "--for", "1h", "--reason", "x", "--strict", "--force"], "");
    assert_eq!(weir.terminate(), Some(0));
    let suspensions = |site: &Site| {
        let lines = site.dump().into_iter().filter(|line| line["exception"] == "suspension");
        lines.map(|line| line.to_string()).collect::<Vec<_>>()
    };
    let dumped = suspensions(&site);
    assert!(dumped[0].contains(&format!("\"password-fingerprint\":\"{fingerprint}\"")), "{dumped:?}");
    assert!(dumped[0].contains("\"strict\":false") && dumped[2].contains("\"strict\":true"), "{dumped:?}");
    std::fs::remove_file(site.path("state.db")).unwrap();
    let old = dumped[1]
        .replace("\"strict\":false,", "")
        .replace(",\"strict\":false", "")
        .replace("user\":\"bob", "user\":\"dave");
    done(&site, &["state", "load"], &format!("{}\n{old}\n", dumped.join("\n")));
    let loaded = suspensions(&site);
    assert_eq!(loaded[..3], dumped);
    assert!(loaded[3].contains("dave") && loaded[3].contains("\"strict\":true"), "{loaded:?}");
    let wrong = dumped[0].replace(&fingerprint, "12");
    let Outcome { code, err, .. } = site.run(&["state", "load"], &wrong);
    assert_eq!(code, Some(65), "{err}");
    assert!(err.contains("\"password-fingerprint\" must be four hexadecimal digits"), "{err}");
}
