//! Tests of grants and suspensions: `weir grant`, `revoke`, `suspend`, `release`, `reset`, `exceptions`.

use crate::harness::{Client, Outcome, Process, Site, Upstream, run, wait_for, weir};
use crate::state::{TEN, accepted, running, site_with_limits};
use std::net::Ipv4Addr;

const ALICE: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 1);
const BOB: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 2);

/// One limit of each kind that a command can name.
const KINDS: &str = "\
    { name = \"ten\", count = \"recipients\", per = [\"client\"], algorithm = \"token-bucket\", rate = \"10 / 1d\", charge = \"accepted\" }, \
    { name = \"new\", count = \"recipients\", per = [\"client\"], rate = \"100 / 1d\", distinct = \"recipient\", remember = \"30d\" }, \
    { name = \"both\", count = \"messages\", per = [\"user\", \"client/24/56\"], rate = [\"50 / 1h\", \"100 / 1d\"] }, \
    { name = \"all\", count = \"bytes\", per = [], rate = \"1G / 1d\" }, \
    { name = \"message\", count = \"recipients\", per = [\"sender\"], rate = \"50 / message\" }, \
    { name = \"there\", count = \"sessions\", per = [\"client\"], rate = \"50 at once\" }, \
    { name = \"bounced\", count = \"rejections\", of = \"recipients\", at-least = 20, per = [\"client\"], rate = \"30% / 1d\" }, \
    { name = \"watcher\", watch = \"ten\", stage = \"mail\", action = [{ at = 0.5, warn = true }] }";

/// Runs a control command as the system user `night-shift`. Adds `--force` if the command has this option, because Weir
/// has no record of most names in these tests.
fn order(site: &Site, arguments: &[&str]) -> Outcome {
    let force: &[&str] = if ["grant", "suspend", "reset"].contains(&arguments[0]) { &["--force"] } else { &[] };
    order_without_force(site, &[arguments, force].concat())
}

fn order_without_force(site: &Site, arguments: &[&str]) -> Outcome {
    let mut command = site.command(arguments);
    run(command.env_remove("SUDO_USER").env("USER", "night-shift"), "")
}

/// Runs a control command that must succeed; returns its standard output.
fn done(site: &Site, arguments: &[&str]) -> String {
    let Outcome { code, out, err } = order(site, arguments);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}: {out}");
    out
}

fn exceptions(site: &Site) -> Vec<serde_json::Value> {
    done(site, &["exceptions", "--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_command_reports_its_effect() {
    let (_upstream, site, _weir) = running(KINDS);
    let term = ["--for", "8h", "--reason", "a mailing"];
    for (arguments, words) in [
        (
            &["grant", "ten", "127.2.0.1", "500 / 1d"][..],
            "granted: ten for client=127.2.0.1: 500 / 1d, for 8h until 20",
        ),
        (&["grant", "ten", "client=127.2.0.1", "0"], "it takes the place of 500 / 1d until 20"),
        (&["grant", "new", "2001:db8::1", "unlimited"], "granted: new for client=2001:db8::/64: unlimited"),
        (
            &["grant", "both", "client=192.0.2.7, user=Alice", "1K / 1d"],
            "client=192.0.2.0/24, user=alice: 1K / 1d, for 8h",
        ),
        (&["grant", "both", "user=bob,client=192.0.2.0/24", "0"], "meanwhile it stands for all 2 rates"),
        (&["grant", "all", "all", "2G / 1d"], "granted: all for all: 2G / 1d"),
        (&["grant", "message", "<>", "90 / message"], "granted: message for sender=<>: 90 / message"),
        (&["grant", "there", "127.2.0.1", "9 at once"], "granted: there for client=127.2.0.1: 9 at once"),
        (&["grant", "bounced", "127.2.0.1", "90% / 1d"], "granted: bounced for client=127.2.0.1: 90% / 1d"),
        (&["suspend", "Alice"], "suspended: user=alice sends nothing, for 8h until 20"),
        (&["suspend", "client=127.2.0.0/16"], "suspended: client=127.2.0.0/16 sends"),
        (&["suspend", "sender=Bob@Example.ORG"], "suspended: sender=bob@example.org sends"),
        (&["suspend", "user-domain=d"], "suspended: user-domain=d sends"),
        (&["suspend", "user-domain=d"], "before that it was until 20"),
    ] {
        let out = done(&site, &[arguments, &term[..]].concat());
        assert!(out.contains(words), "{arguments:?}: {out}");
    }
    let list = done(&site, &["exceptions"]);
    for words in [
        "suspended: 4\n",
        "granted: 8\n",
        "  client=127.2.0.0/16  ",
        " left, until 20",
        "  ten  client=127.2.0.1  0  ",
        " by night-shift: a mailing\n",
    ] {
        assert!(list.contains(words), "{words}: {list}");
    }
    for (arguments, words) in [
        (&["revoke", "ten", "127.2.0.1"][..], "revoked: ten for client=127.2.0.1: 0, by night-shift, "),
        (&["revoke", "both", "user=alice,client=192.0.2.9", "--reason", "over"], "from now on as before"),
        (&["release", "alice"], "released: user=alice may send again; it was by night-shift, "),
        (&["release", "client=127.2.0.0/16", "--reason", "a mistake"], "until 20"),
        (&["reset", "ten", "127.2.0.1"], "reset: ten for client=127.2.0.1 is empty; nothing was counted"),
    ] {
        let out = done(&site, arguments);
        assert!(out.contains(words), "{arguments:?}: {out}");
    }
    assert_eq!(exceptions(&site).len(), 8);
    let trail = done(&site, &["exceptions", "--audit", "--last", "3"]);
    assert_eq!(trail.lines().count(), 3, "{trail}");
    assert!(trail.ends_with("reset      ten  client=127.2.0.1  was empty  by night-shift\n"), "{trail}");
    assert!(trail.contains("released   client=127.2.0.0/16  until 20"), "{trail}");
    let all = done(&site, &["exceptions", "--audit"]);
    assert_eq!(all.lines().count(), 14 + 5, "{all}");
    let json = done(&site, &["exceptions", "--audit", "--json"]);
    let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!((first["audit"].as_str(), first["reason"].as_str()), (Some("granted"), Some("a mailing")));
}

#[test]
fn invalid_commands_are_refused_without_effect() {
    let (_upstream, site, process) = running(KINDS);
    let term = ["--for", "8h", "--reason", "x"];
    for (arguments, words) in [
        (&["grant", "nine", "alice", "9/1d"][..], "there is no limit \"nine\"; known: ten, new, both, all, message"),
        (&["grant", "watcher", "127.2.0.1", "9/1d"], "it looks at those of \"ten\": name that one"),
        (&["grant", "ten", "alice", "9/1d"], "\"alice\" is no address of a client"),
        (&["grant", "ten", "all", "9/1d"], "it counts per client: write client=…"),
        (&["grant", "both", "alice", "9/1d"], "counts per client and user: write client=…,user=…, and not \"alice\""),
        (&["grant", "all", "alice", "9/1d"], "one budget for all: write all"),
        (&["grant", "ten", "127.2.0.1", "many"], "many"),
        (&["grant", "ten", "127.2.0.1", "5 / message"], "another kind of rate than the 10 per 1d of limit \"ten\""),
        (&["grant", "message", "a@d", "5 / 1d"], "another kind of rate than the 50 per message"),
        (&["grant", "ten", "127.2.0.1", "5 at once"], "recipients are not there at once"),
        (&["grant", "new", "127.2.0.1", "1G / 1d"], "\"1G / 1d\" is too much to remember"),
        (&["suspend", "127.2.0.1"], "is an address: write client=127.2.0.1"),
        (&["suspend", "helo=x"], "\"helo\" is not who sends"),
        (&["suspend", "usr=alice"], "there is no \"usr\": did you mean user=alice?"),
        (&["suspend", "a\u{1f}b"], "control character"),
    ] {
        let Outcome { code, out, err } = order(&site, &[arguments, &term[..]].concat());
        assert_eq!((code, out.as_str()), (Some(65), ""), "{arguments:?}: {err}");
        assert!(err.starts_with("weir: ") && err.contains(words), "{arguments:?}: {err}");
    }
    for (arguments, code, words) in [
        (&["grant", "ten", "127.2.0.1", "9/1d", "--reason", "x"][..], 64, "--for <TIME>"),
        (&["grant", "ten", "127.2.0.1", "9/1d", "--for", "8h"], 64, "--reason <TEXT>"),
        (&["suspend", "alice", "--reason", "x"], 64, "--for <TIME>"),
        (&["exceptions", "--last", "3"], 64, "--audit"),
        (&["grant", "ten", "127.2.0.1", "9/1d", "--for", "8h", "--reason", " "], 65, "the reason is empty"),
        (&["grant", "ten", "127.2.0.1", "9/1d", "--for", "8h", "--reason", "a\nb"], 65, "reason has a control"),
        (&["grant", "ten", "127.2.0.1", "9/1d", "--for", "soon", "--reason", "x"], 65, "soon"),
        (&["suspend", "alice", "--for", "0s", "--reason", "x"], 65, "\"0s\" is no time at all"),
        (&["suspend", "alice", "--for", "4000d", "--reason", "x"], 65, "4000d is too long, 3650d at most"),
        (&["revoke", "ten", "127.2.0.1"], 65, "there is no grant of ten for client=127.2.0.1"),
        (&["revoke", "nine", "127.2.0.1"], 65, "there is no limit \"nine\""),
        (&["release", "alice"], 65, "user=alice is not suspended"),
        (&["reset", "message", "a@d"], 65, "limit \"message\" counts within a message"),
        (&["reset", "there", "127.2.0.1"], 65, "limit \"there\" counts what is there at the moment"),
    ] {
        let Outcome { code: got, out, err } = order(&site, arguments);
        assert_eq!((got, out.as_str()), (Some(code), ""), "{arguments:?}: {err}");
        assert!(err.contains(words), "{arguments:?}: {err}");
    }
    assert_eq!(done(&site, &["exceptions"]), "no grants, no suspensions\n");
    assert_eq!(done(&site, &["exceptions", "--audit"]), "nothing was done so far\n");
    assert_eq!(process.terminate(), Some(0));
    let Outcome { code, err, .. } = order(&site, &["exceptions"]);
    assert_eq!(code, Some(69), "{err}");
    assert!(err.contains("no running Weir answers"), "{err}");
    let missing = run(weir().args(["exceptions", "-c"]).arg(site.path("none.toml")), "");
    assert_eq!(missing.code, Some(66));
}

#[test]
fn hostile_names_and_reasons_are_printed_as_escapes() {
    let (_upstream, site, _weir) = running(KINDS);
    let reason = ["--for", "8h", "--reason", "it\u{202e}s \u{5d0}"];
    let name = "al\u{202e}ice\u{5e9}";
    let mut printed = done(&site, &[&["suspend", name][..], &reason].concat());
    for arguments in [
        &["exceptions"][..],
        &["exceptions", "--json"],
        &["exceptions", "--audit"],
        &["exceptions", "--audit", "--json"],
        &["logins", name],
        &["release", name],
    ] {
        printed += &done(&site, arguments);
    }
    let Outcome { err, .. } = order(&site, &["release", name]);
    printed += &err;
    let has_escape = |text: &str| printed.contains(text);
    assert!(has_escape("user=al\\u{202e}ice\\u{5e9}") && has_escape("it\\u{202e}s \\u{5d0}"), "{printed}");
    assert!(has_escape("al\\u202eice"), "{printed}");
    assert!(!has_escape("\u{202e}"), "{printed}");
}

#[test]
fn the_audit_names_the_user_behind_sudo() {
    let (_upstream, site, _weir) = running(TEN);
    let suspend = |user_to_suspend: &str, sudo: Option<&str>, user: Option<&str>| {
        let mut command = site.command(&["suspend", user_to_suspend, "--for", "1d", "--reason", "x", "--force"]);
        for (name, value) in [("SUDO_USER", sudo), ("USER", user), ("LOGNAME", None)] {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        run(&mut command, "")
    };
    assert_eq!(suspend("a", Some("carol"), Some("root")).code, Some(0));
    assert_eq!(suspend("b", None, Some("root")).code, Some(0));
    assert_eq!(suspend("c", None, None).code, Some(0));
    let Outcome { code, err, .. } = suspend("d", Some("two words"), None);
    assert_eq!(code, Some(65), "{err}");
    let by = exceptions(&site).iter().map(|one| one["by"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(by, ["carol".to_owned(), "root".to_owned(), format!("uid-{}", rustix::process::getuid().as_raw())]);
}

#[test]
fn a_name_that_weir_does_not_know_needs_force() {
    let (_upstream, site, weir) = running(&format!(
        "{KINDS}, {{ name = \"guesses\", count = \"login-failures\", per = [\"user\"], rate = \"50 / 1d\" }}"
    ));
    assert_eq!(accepted(&weir, ALICE, 1), 1);
    let mut guesser = Client::connect_from(ALICE, weir.address("s"));
    guesser.say("EHLO client.example", "250");
    assert!(guesser.try_log_in("root", "guess").starts_with("535"));
    let term = ["--for", "8h", "--reason", "x"];
    for (arguments, words) in [
        (
            &["suspend", "alcie"][..],
            "no account, no budget, no grant and no suspension has user=alcie (did you mean alice?)",
        ),
        // A failed login as "root" does not make this name known: attackers can guess any name.
        (&["suspend", "root"], "no account, no budget, no grant and no suspension has user=root"),
        (&["suspend", "user-domain=example.org"], "no account, no budget, no grant and no suspension has user-domain="),
        (&["suspend", "client=127.2.0.9"], "no budget, no grant and no suspension has client=127.2.0.9"),
        (&["grant", "ten", "127.2.0.9", "9 / 1d"], "no budget, no grant and no suspension has client=127.2.0.9"),
        (&["reset", "ten", "127.2.0.9"], "no budget, no grant and no suspension has client=127.2.0.9"),
        (&["grant", "both", "user=alice,client=127.9.0.1", "9 / 1d"], "no suspension has client=127.9.0.0/24"),
    ] {
        let term: &[&str] = if arguments[0] == "reset" { &[] } else { &term };
        let Outcome { code, out, err } = order_without_force(&site, &[arguments, term].concat());
        assert_eq!((code, out.as_str()), (Some(67), ""), "{arguments:?}: {err}");
        assert!(err.contains(words) && err.ends_with("; nothing was changed; --force does it all the same\n"), "{err}");
    }
    assert_eq!(done(&site, &["exceptions"]), "no grants, no suspensions\n");
    for arguments in [
        &["suspend", "Alice"][..],
        &["suspend", "client=127.2.0.0/24"],
        &["grant", "ten", "127.2.0.1", "9 / 1d"],
        &["grant", "both", "user=alice,client=127.2.0.9", "9 / 1d"],
        &["grant", "all", "all", "1K / 1d"],
    ] {
        let Outcome { code, out, err } = order_without_force(&site, &[arguments, &term[..]].concat());
        assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}: {out}");
        assert!(!out.contains("warning") && !out.contains("cannot tell"), "{out}");
    }
    // No limit here keeps a budget per sender longer than one message, so Weir has no list of known senders.
    let out = done(&site, &[&["suspend", "sender=bob@example.org"], &term[..]].concat());
    assert!(out.contains("cannot tell whether sender=bob@example.org is right"), "{out}");
    let out = done(&site, &[&["suspend", "alcie"], &term[..]].concat());
    assert!(out.contains("warning: no account, no budget, no grant and no suspension has user=alcie"), "{out}");
}

#[test]
fn a_name_is_known_from_the_state_file_alone() {
    let (_upstream, site, weir) = running(TEN);
    assert_eq!(accepted(&weir, ALICE, 1), 1);
    assert_eq!(weir.terminate(), Some(0));
    let _weir = site.start();
    let arguments = ["suspend", "client=127.2.0.1", "--for", "1d", "--reason", "x"];
    let Outcome { code, out, err } = order_without_force(&site, &arguments);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
}

#[test]
fn an_audit_record_alone_makes_no_name_known() {
    let (_upstream, site, weir) = running(TEN);
    done(&site, &["reset", "ten", "127.2.0.9"]);
    done(&site, &["suspend", "carol", "--for", "1d", "--reason", "x"]);
    let suspend = |name: &str| order_without_force(&site, &["suspend", name, "--for", "1d", "--reason", "x"]).code;
    assert_eq!(suspend("carol"), Some(0), "a suspension in force is confirmed already");
    done(&site, &["release", "carol"]);
    assert_eq!((suspend("carol"), suspend("client=127.2.0.9")), (Some(67), Some(67)));
    assert_eq!(weir.terminate(), Some(0));
    let _weir = site.start();
    assert_eq!((suspend("carol"), suspend("client=127.2.0.9")), (Some(67), Some(67)));
}

#[test]
fn a_grant_for_a_limit_that_does_not_apply_needs_force() {
    let (_upstream, site, _weir) = running(
        "{ name = \"web\", count = \"recipients\", per = [\"client\"], rate = \"50 / 1d\", match = { client = \"127.2.0.1\" } }, \
         { name = \"staff\", count = \"recipients\", per = [\"user\"], rate = \"50 / 1d\", \
           match = { group = \"staff\", listener = \"s\" } }, \
         { name = \"rest\", count = \"recipients\", per = [\"user\"], rate = \"50 / 1d\", except = { user = \"al*\" } }",
    );
    let term = ["--for", "8h", "--reason", "x"];
    let grant = |arguments: &[&str]| order_without_force(&site, &[&["grant"], arguments, &term[..]].concat());
    for (arguments, words) in [
        (
            ["staff", "alice", "99 / 1d"],
            "limit \"staff\" does not apply to user=alice: its \"match\" does not hold (group)",
        ),
        (["rest", "alice", "99 / 1d"], "limit \"rest\" does not apply to user=alice: its \"except\" holds (user)"),
        (["web", "127.2.0.2", "99 / 1d"], "does not apply to client=127.2.0.2: its \"match\" does not hold (client)"),
    ] {
        let Outcome { code, out, err } = grant(&arguments);
        assert_eq!((code, out.as_str()), (Some(67), ""), "{arguments:?}: {err}");
        assert!(err.contains(words) && err.ends_with("; nothing was changed; --force does it all the same\n"), "{err}");
    }
    assert_eq!(done(&site, &["exceptions"]), "no grants, no suspensions\n");
    let out = done(&site, &[&["grant", "rest", "alice", "99 / 1d"], &term[..]].concat());
    assert!(out.contains("warning: limit \"rest\" does not apply to user=alice"), "{out}");
    let groups = site.run(&["user", "groups", "alice", "staff"], "");
    assert_eq!(groups.code, Some(0), "{}", groups.err);
    done(&site, &["reload"]);
    let Outcome { code, out, err } = grant(&["staff", "alice", "99 / 1d"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("applies only under its conditions (listener), and so does the grant\n"), "{out}");
}

#[test]
fn a_granted_rate_that_refuses_everything_is_treated_as_in_a_limit() {
    let (_upstream, site, _weir) = running(
        "{ name = \"average\", count = \"recipients\", per = [\"user\"], rate = \"50 / 1d\" }, \
         { name = \"shadow\", count = \"recipients\", per = [\"user\"], rate = \"50 / 1d\", mode = \"shadow\" }, \
         { name = \"bytes\", count = \"bytes\", per = [\"user\"], rate = \"50M / 1d\" }",
    );
    let grant = |limit, rate| order(&site, &["grant", limit, "alice", rate, "--for", "8h", "--reason", "x"]);
    let words = "\"1 / 1h\": this rate refuses everything, as it does in Exim; the average of a single event is 1 already: \
                 2 / 2h lets one pass at a time";
    let Outcome { code, out, err } = grant("average", "1 / 1h");
    assert_eq!((code, out.as_str()), (Some(65), ""), "{err}");
    assert!(err.contains(words), "{err}");
    let Outcome { code, out, .. } = grant("shadow", "1 / 1h");
    assert!(code == Some(0) && out.contains(&format!("warning: {words}")), "{out}");
    let Outcome { code, out, .. } = grant("bytes", "500 / 1d");
    assert!(code == Some(0) && out.contains("this rate has no unit: it counts single bytes"), "{out}");
    assert_eq!(grant("average", "0").code, Some(0));
}

#[test]
fn a_release_keeps_what_a_limit_has_seen_and_suspends_no_second_time() {
    let (_upstream, site, weir) = running(
        "{ name = \"new\", count = \"recipients\", per = [\"client\"], rate = \"5.5 / 1d\", distinct = \"recipient\", \
         remember = \"30d\", action = [{ suspend = \"1d\" }] }",
    );
    assert_eq!(accepted(&weir, ALICE, 9), 5);
    let out = done(&site, &["release", "client=127.2.0.1"]);
    assert!(out.contains("reset: new for client=127.2.0.1 is empty; it was 5 of 5.5 recipients per 1d"), "{out}");
    assert_eq!(accepted(&weir, ALICE, 10), 10, "five are known, five are new");
    // `weir release` does not reset a budget whose level would not suspend its owner again.
    assert_eq!(accepted(&weir, BOB, 2), 2);
    done(&site, &["suspend", "client=127.2.0.2", "--for", "1d", "--reason", "x"]);
    let out = done(&site, &["release", "client=127.2.0.2"]);
    assert!(!out.contains("reset"), "{out}");
}

#[test]
fn a_release_resets_each_limit_that_would_suspend_again() {
    let bucket = "count = \"recipients\", per = [\"client\"], algorithm = \"token-bucket\", charge = \"accepted\"";
    let (_upstream, site, weir) = running(&format!(
        "{{ name = \"hour\", {bucket}, rate = \"5 / 1h\", action = [{{ suspend = \"1h\" }}] }}, \
         {{ name = \"day\", {bucket}, rate = \"5 / 1d\" }}, \
         {{ name = \"watcher\", watch = \"day\", stage = \"mail\", action = [{{ at = 0.8, suspend = \"1d\" }}] }}, \
         {{ name = \"week\", {bucket}, rate = \"50 / 7d\", action = [{{ suspend = \"1d\" }}] }}"
    ));
    assert_eq!(accepted(&weir, ALICE, 6), 5);
    let out = done(&site, &["release", "client=127.2.0.1"]);
    for limit in ["hour", "day"] {
        assert!(out.contains(&format!("reset: {limit} for client=127.2.0.1 is empty; it was 5 of 5")), "{out}");
    }
    assert!(!out.contains("week"), "{out}");
    assert_eq!(accepted(&weir, ALICE, 5), 5);
}

/// Returns the reply to MAIL in a new session of this client.
fn mail(weir: &Process, client: Ipv4Addr) -> String {
    let mut session = Client::connect_from(client, weir.address("s"));
    session.say("EHLO client.example", "250");
    session.send(b"MAIL FROM:<a@example.org>\r\n");
    session.reply()
}

#[test]
fn a_suspended_client_sends_nothing_and_is_charged_nothing() {
    let (_upstream, site, weir) = running(KINDS);
    // A suspension also applies to a session that is already open, from its next command on.
    let mut session = Client::connect_from(ALICE, weir.address("s"));
    session.say("EHLO client.example", "250");
    session.say("MAIL FROM:<a@example.org>", "250");
    session.say("RCPT TO:<1@example.net>", "250");
    done(&site, &["suspend", "client=127.2.0.1", "--for", "1d", "--reason", "stolen"]);
    session.say("RCPT TO:<2@example.net>", "550 5.7.1 ");
    assert_eq!(accepted(&weir, ALICE, 9), 0);
    assert_eq!(accepted(&weir, BOB, 9), 9);
    assert_eq!(weir.metric("weir_suspensions_in_force"), 1.0);
    weir.kill();
    let weir = site.start();
    assert_eq!(weir.metric("weir_suspensions_in_force"), 1.0);
    assert!(mail(&weir, ALICE).starts_with("550 5.7.1 "));
    done(&site, &["release", "client=127.2.0.1", "--reason", "another password"]);
    weir.logged("released");
    assert_eq!(accepted(&weir, ALICE, 12), 9, "of ten one was used");
    weir.kill();
    let weir = site.start();
    assert_eq!(exceptions(&site).len(), 0, "it stays released");
    assert!(!mail(&weir, BOB).starts_with("550"));
}

#[test]
fn a_suspension_ends_by_itself_also_while_weir_is_not_running() {
    let (_upstream, site, weir) = running(TEN);
    done(&site, &["suspend", "client=127.2.0.1", "--for", "2s", "--reason", "short"]);
    assert!(mail(&weir, ALICE).starts_with("550 "));
    weir.logged("suspension ended");
    assert_eq!(accepted(&weir, ALICE, 3), 3);
    assert_eq!(weir.metric("weir_suspensions_in_force"), 0.0);
    done(&site, &["suspend", "client=127.2.0.2", "--for", "1s", "--reason", "gone"]);
    weir.kill();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(1);
    std::thread::sleep(until.saturating_duration_since(std::time::Instant::now()));
    let weir = site.start();
    assert_eq!(accepted(&weir, BOB, 3), 3);
    wait_for("suspensions", || (weir.metric("weir_suspensions_in_force") == 0.0).then_some(()));
    assert_eq!(done(&site, &["exceptions"]), "no grants, no suspensions\n");
    // The clock may be wrong in the first minutes after Weir's start. In these minutes, Weir does not remove ended
    // suspensions that began before its start. So the audit does not have the end of the second suspension.
    let trail = done(&site, &["exceptions", "--audit"]);
    let acts: Vec<&str> = trail.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!(acts, ["suspended", "ended", "suspended"]);
    assert_eq!(weir.metric("weir_clock_jumps_total"), 0.0);
    done(&site, &["suspend", "client=127.2.0.3", "--for", "1s", "--reason", "new"]);
    weir.logged("suspension ended");
    let trail = done(&site, &["exceptions", "--audit"]);
    assert!(trail.lines().last().unwrap().ends_with("client=127.2.0.3  by night-shift: new"), "{trail}");
}

#[test]
fn a_suspension_by_a_limit_holds_before_its_reply() {
    let limit = TEN.replace(" }", ", action = [{ suspend = \"1d\" }] }").replace("\"client\"", "\"client/24/56\"");
    let (_upstream, site, weir) = running(&limit);
    assert_eq!(accepted(&weir, ALICE, 11), 10);
    weir.kill();
    let weir = site.start();
    assert!(mail(&weir, ALICE).starts_with("550 5.7.1 "));
    let list = done(&site, &["exceptions"]);
    assert!(list.contains("  client=127.2.0.0/24  ") && list.contains(" by limit ten: "), "{list}");
    // `weir release` accepts the suspended network as `weir exceptions` shows it, although the limit has prefix widths
    // of its own ("client/24/56").
    let out = done(&site, &["release", "client=127.2.0.0/24"]);
    assert!(out.contains("released: client=127.2.0.0/24 may send again; it was by limit ten, "), "{out}");
    // The release also resets the budget: otherwise the next recipient would suspend the network again.
    let reset = "reset: ten for client=127.2.0.0/24 is empty; it was 10 of 10 recipients per 1d\n";
    assert!(out.contains(reset), "{out}");
    assert_eq!(accepted(&weir, ALICE, 5), 5);
    let trail = done(&site, &["exceptions", "--audit"]);
    assert_eq!(trail.lines().count(), 3, "{trail}");
    assert!(trail.lines().next().unwrap().contains("suspended  client=127.2.0.0/24  until 20"), "{trail}");
}

#[test]
fn a_suspension_by_a_limit_of_one_message_holds_before_its_reply() {
    let of_message = TEN.replace("algorithm = \"token-bucket\", rate = \"10 / 1d\"", "rate = \"10 / message\"");
    let limit = of_message.replace(" }", ", action = [{ suspend = \"1d\" }] }");
    let (_upstream, site, weir) = running(&limit);
    assert_eq!(accepted(&weir, ALICE, 11), 10);
    weir.kill();
    assert!(mail(&site.start(), ALICE).starts_with("550 5.7.1 "));
}

#[test]
fn a_reset_budget_is_empty() {
    let (_upstream, site, weir) = running(KINDS);
    assert_eq!(accepted(&weir, ALICE, 12), 10);
    done(&site, &["grant", "ten", "127.2.0.1", "20 / 1d", "--for", "1d", "--reason", "x"]);
    assert_eq!(accepted(&weir, ALICE, 7), 7);
    let out = done(&site, &["reset", "ten", "127.2.0.1", "--reason", "all is well"]);
    assert_eq!(
        out,
        "reset: ten for client=127.2.0.1 is empty; it was 10 of 10 recipients per 1d, 7 of 20 recipients per 1d \
         (granted)\n"
    );
    weir.kill();
    let weir = site.start();
    assert_eq!(accepted(&weir, ALICE, 25), 20);
    done(&site, &["revoke", "ten", "127.2.0.1"]);
    assert_eq!(accepted(&weir, ALICE, 12), 10);
    // `weir reset` also deletes the budget's filter of distinct recipients, so the same recipients count as new again.
    let level = |limit: &str| {
        let levels = site.levels();
        levels[&(limit.to_owned(), ALICE)].round()
    };
    assert_eq!(level("new"), 20.0);
    let out = done(&site, &["reset", "new", "127.2.0.1"]);
    assert!(out.contains("it was 20 of 100 recipients per 1d"), "{out}");
    assert_eq!(level("new"), 0.0);
    done(&site, &["reset", "ten", "127.2.0.1"]);
    assert_eq!(accepted(&weir, ALICE, 4), 4);
    assert_eq!(level("new"), 4.0, "they are new again");
    let trail = done(&site, &["exceptions", "--audit"]);
    assert!(trail.contains("was 10 of 10 recipients per 1d, 7 of 20") && trail.contains(": all is well\n"), "{trail}");
}

/// Runs `weir state COMMAND`.
fn state(site: &Site, command: &str, input: &str) -> Outcome {
    site.run(&["state", command], input)
}

#[test]
fn exceptions_outlive_a_reload_and_one_without_effect_is_named() {
    let (_upstream, site, weir) = running(TEN);
    done(&site, &["grant", "ten", "127.2.0.1", "20 / 1d", "--for", "1d", "--reason", "x"]);
    let reload = || done(&site, &["reload"]);
    site.edit("rate = \"10 / 1d\"", "rate = \"5 / 1d\"");
    assert!(!reload().contains("grant"));
    assert_eq!(accepted(&weir, ALICE, 30), 20);
    for (from, to, why) in [
        ("\"ten\"", "\"other\"", "there is no such limit any more"),
        ("\"other\"", "\"ten\"", ""),
        (
            "per = [\"client\"], algorithm",
            "per = [\"sender\"], algorithm",
            "the limit counts per something else by now",
        ),
        ("per = [\"sender\"], algorithm", "per = [\"client\"], algorithm", ""),
        (
            "algorithm = \"token-bucket\", rate = \"5 / 1d\"",
            "rate = \"5 / message\"",
            "the limit has another kind of rate by now",
        ),
    ] {
        site.edit(from, to);
        let (words, list) = (reload(), done(&site, &["exceptions"]));
        let expected = format!("the grant of ten for client=127.2.0.1 has no effect: {why}\n");
        assert_eq!(words.contains(&expected), !why.is_empty(), "{words}");
        assert_eq!(list.contains(&format!("without effect: {why}\n")), !why.is_empty(), "{list}");
    }
    // A grant for a limit that no longer exists can be revoked with the limit's name as `weir exceptions` shows it.
    site.edit("\"ten\"", "\"other\"");
    reload();
    assert!(done(&site, &["revoke", "ten", "client=127.2.0.1"]).starts_with("revoked"));
}

#[test]
fn a_dump_can_be_loaded_with_exceptions_and_audit() {
    let (_upstream, site, weir) = running(KINDS);
    done(&site, &["grant", "ten", "127.2.0.1", "20 / 1d", "--for", "1d", "--reason", "a \"mailing\""]);
    done(&site, &["suspend", "client=127.2.0.2", "--for", "1d", "--reason", "y"]);
    done(&site, &["suspend", "c", "--for", "1d", "--reason", "y"]);
    done(&site, &["release", "c"]);
    assert_eq!(accepted(&weir, ALICE, 15), 15);
    let info = state(&site, "info", "").out;
    assert!(info.contains("exceptions: 1 grant, 1 suspension; audit: 4 records\n"), "{info}");
    assert_eq!(weir.terminate(), Some(0));
    let dump = state(&site, "dump", "").out;
    assert_eq!(dump.matches("\"granted\":\"20").count(), 1, "{dump}");
    for name in ["state.db", "state.db-wal", "state.db-shm"] {
        let _ = std::fs::remove_file(site.path(name));
    }
    let load = |text: &str| state(&site, "load", text);
    let Outcome { code, out, err } = load(&dump);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.ends_with(" budgets, 2 exceptions, 4 records loaded\n"), "{out}");
    // Loading the same dump a second time changes nothing.
    assert_eq!(load(&dump).code, Some(0));
    let again = state(&site, "dump", "").out;
    let sorted = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(sorted(&again), sorted(&dump));
    assert_eq!(again.lines().count(), dump.lines().count());
    for (line, words) in [
        (
            "{\"exception\":\"nothing\",\"owner\":{},\"since\":\"1\",\"until\":\"2\",\"by\":\"a\",\"reason\":\"\"}",
            "is not an exception: \"exception\" must be",
        ),
        ("{\"exception\":\"grant\"}", "is not an exception: \"since\" is missing"),
        ("{\"audit\":\"granted\"}", "is not a record: \"at\" is missing"),
        ("{\"audit\":\"eaten\",\"at\":\"1\"}", "is not a record: \"eaten\" is not an action"),
    ] {
        let Outcome { code, err, .. } = load(line);
        assert_eq!(code, Some(65), "{line}: {err}");
        assert!(err.contains(words), "{line}: {err}");
    }
    let weir = site.start();
    assert_eq!(accepted(&weir, ALICE, 15), 5, "what was charged to the grant came along");
    assert!(mail(&weir, BOB).starts_with("550 "));
}

#[test]
fn exceptions_hold_without_a_state_file_and_are_written_once_it_exists() {
    let upstream = Upstream::start();
    let site = site_with_limits(&upstream, TEN).build();
    // A folder has the name of the state file, so Weir cannot open its state file.
    std::fs::create_dir(site.path("state.db")).unwrap();
    let weir = site.start();
    let Outcome { code, out, .. } =
        order(&site, &["grant", "ten", "127.2.0.1", "20 / 1d", "--for", "1d", "--reason", "x"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("it holds, but is not in the state file yet") && out.contains("state.db"), "{out}");
    done(&site, &["suspend", "client=127.2.0.2", "--for", "1d", "--reason", "y"]);
    assert_eq!(accepted(&weir, ALICE, 30), 20);
    assert!(mail(&weir, BOB).starts_with("550 "));
    let trail = done(&site, &["exceptions", "--audit"]);
    assert_eq!(trail.lines().count(), 2, "{trail}");
    std::fs::remove_dir(site.path("state.db")).unwrap();
    wait_for("good state", || (weir.metric("weir_state_degraded") == 0.0).then_some(()));
    weir.kill();
    let weir = site.start();
    assert_eq!(exceptions(&site).len(), 2);
    assert_eq!(done(&site, &["exceptions", "--audit"]), trail);
    assert_eq!(accepted(&weir, ALICE, 5), 0, "so is what was charged");
    assert!(mail(&weir, BOB).starts_with("550 "));
}
