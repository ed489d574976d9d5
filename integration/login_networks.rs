//! Tests of login networks: users who may log in from certain networks only, and tighter limits for other networks.

use crate::harness::{Client, Outcome, PASSWORD, Process, Site, Upstream, wait_for};
use base64::Engine as _;
use std::net::Ipv4Addr;

const HOME: Ipv4Addr = Ipv4Addr::new(127, 1, 0, 7);
const ABROAD: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 7);

const TABLE: &str = "user,networks\nalice,127.1.0.0/16 2001:db8::/32\n\"alice\",127.1.0.0/24\n*,127.3.0.0/16\n";

/// Two wrong passwords an hour, which right ones do not use up.
const LIMITS: &str = "[[limit]]\nname = \"guesses\"\ncount = \"login-failures\"\nper = [\"client\"]\nrate = \"2 / 1h\"\n\
    algorithm = \"token-bucket\"\n";

/// Returns a site with this table and further keys of `[accounts]`.
fn site(upstream: &Upstream, table: &str, keys: &str, limits: &str) -> Site {
    let users = [("alice", PASSWORD, "staff"), ("bob", PASSWORD, "students"), ("carol", PASSWORD, "")];
    let site = Site::builder().listener("s", "tls = \"none\"").upstream(upstream.address(), "");
    let site = site.more(limits).users(&users).build();
    site.edit("{ file = \"users\" }", &format!("{{ file = \"users\", login-networks = \"networks.csv\"{keys} }}"));
    site.put("networks.csv", table);
    site
}

fn log_in(weir: &Process, from: Ipv4Addr, user: &str, password: &str) -> String {
    let mut client = Client::connect_from(from, weir.address("s"));
    client.say("EHLO client.example", "250");
    client.try_log_in(user, password)
}

fn metric(weir: &Process, result: &str) -> f64 {
    weir.metric(&format!("weir_logins_total{{result=\"{result}\"}}"))
}

#[test]
fn a_right_password_from_another_network_is_refused_and_costs_nothing() {
    let upstream = Upstream::start();
    let site = site(&upstream, TABLE, "", LIMITS);
    let weir = site.start();
    assert!(log_in(&weir, HOME, "alice", PASSWORD).starts_with("235"));
    for _ in 0..3 {
        // Without the refund of the login failure, the third attempt would be refused as a guess.
        let reply = log_in(&weir, ABROAD, "alice", PASSWORD);
        assert!(reply.starts_with("550 5.7.1 This account may not log in from 127.2.0.7 ("), "{reply}");
    }
    let line = weir.logged("login from another network");
    assert!(line.contains(" client=127.2.0.7 user=alice") && line.contains("level=warn"), "{line}");
    weir.wait_for_metric("weir_logins_from_other_networks_total", 3.0);
    assert_eq!((metric(&weir, "right"), metric(&weir, "wrong")), (4.0, 0.0));
    // A wrong password gets the same reply from every network: a guesser does not learn the networks.
    for from in [HOME, ABROAD] {
        let reply = log_in(&weir, from, "alice", "wrong");
        assert!(reply.starts_with("535 5.7.8 User name or password wrong ("), "{reply}");
    }
    // The row "*" is for all other users.
    assert!(log_in(&weir, ABROAD, "bob", PASSWORD).starts_with("550"));
    assert!(log_in(&weir, Ipv4Addr::new(127, 3, 0, 1), "bob", PASSWORD).starts_with("235"));
    assert!(!weir.log_lines().iter().any(|line| line.contains(PASSWORD)));
}

#[test]
fn a_refused_client_may_not_send_and_may_log_in_as_another_user() {
    let upstream = Upstream::start();
    let site = site(&upstream, "group,networks\nstaff,127.1.0.0/16\n", "", "");
    let weir = site.start();
    let mut client = Client::connect_from(ABROAD, weir.address("s"));
    client.say("EHLO client.example", "250");
    assert!(client.try_log_in("alice", PASSWORD).starts_with("550 5.7.1"));
    client.say("MAIL FROM:<alice@example.org>", "530");
    // No row is for bob, so bob may log in from anywhere.
    client.log_in("bob", PASSWORD);
    client.say("MAIL FROM:<bob@example.org>", "250");
}

#[test]
fn a_table_that_changes_is_read_again() {
    let upstream = Upstream::start();
    let site = site(&upstream, TABLE, "", "");
    let weir = site.start();
    assert!(log_in(&weir, ABROAD, "alice", PASSWORD).starts_with("550"));
    site.put("networks.csv", "user,networks\nalice,127.0.0.0/8\nalice,127.0.0.0/33\n");
    let refused = "configuration refused: the former limits and upstreams stay in force";
    let line = weir.logged(refused);
    assert!(line.contains("networks.csv, line 3: "), "{line}");
    assert!(log_in(&weir, ABROAD, "alice", PASSWORD).starts_with("550"));
    site.put("networks.csv", "user,networks\nalice,127.0.0.0/8\n");
    wait_for("the reload", || (weir.metric("weir_reloads_total{result=\"taken\"}") >= 1.0).then_some(()));
    assert!(log_in(&weir, ABROAD, "alice", PASSWORD).starts_with("235"));
    assert!(!weir.log_lines().iter().any(|line| line.contains("needs a restart")));
}

#[test]
fn the_networks_of_a_dovecot_passwd_file_are_honoured() {
    let upstream = Upstream::start();
    let site = site(&upstream, TABLE, "", "");
    let users = std::fs::read_to_string(site.path("users")).unwrap();
    let hash = users.lines().next().unwrap().split(':').nth(1).unwrap();
    let line = format!("alice:{{ARGON2ID}}{hash}::::::allow_nets=127.2.0.0/16,2001:db8::/32,local\n");
    site.put("users", &line);
    let weir = site.start();
    // They take the place of the row in the table.
    assert!(log_in(&weir, ABROAD, "alice", PASSWORD).starts_with("235"));
    assert!(
        log_in(&weir, HOME, "alice", PASSWORD).starts_with("550 5.7.1 This account may not log in from 127.1.0.7 (")
    );
}

/// Other networks are allowed, with a tighter class of limits.
const TIGHTER: &str = "[[limit]]\nname = \"elsewhere\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"1 / 1h\"\n\
    algorithm = \"token-bucket\"\nmatch = { registered-network = false }\n\
    [[limit]]\nname = \"guesses-elsewhere\"\ncount = \"login-failures\"\nper = [\"user\"]\nrate = \"1 / 1h\"\n\
    algorithm = \"token-bucket\"\nmatch = { registered-network = false }\n";

#[test]
fn another_network_can_have_tighter_limits() {
    let upstream = Upstream::start();
    let site = site(&upstream, "user,networks\nalice,127.1.0.0/16\n", ", other-networks = \"allow\"", TIGHTER);
    let weir = site.start();
    let recipients = |from, user| {
        let mut client = Client::connect_from(from, weir.address("s"));
        client.say("EHLO client.example", "250");
        client.log_in(user, PASSWORD);
        client.say("MAIL FROM:<a@example.org>", "250");
        (0..3).take_while(|n| client.ask(&format!("RCPT TO:<r{n}@example.net>")).starts_with("250")).count()
    };
    assert_eq!((recipients(HOME, "alice"), recipients(ABROAD, "alice")), (3, 1));
    assert_eq!(recipients(ABROAD, "bob"), 3, "bob has no login networks");
    assert_eq!(weir.metric("weir_logins_from_other_networks_total"), 0.0);
    // The limit on login failures knows the networks of the claimed user.
    assert!(log_in(&weir, ABROAD, "alice", "wrong").starts_with("535"));
    assert!(log_in(&weir, ABROAD, "alice", "wrong").starts_with("454 4.7.0"));
    assert!(log_in(&weir, HOME, "alice", "wrong").starts_with("535"));
    let plain = base64::engine::general_purpose::STANDARD.encode(format!("\0alice\0{PASSWORD}"));
    assert!(!weir.log_lines().iter().any(|line| line.contains(&plain)));
}

#[test]
fn a_user_that_a_proxy_names_has_login_networks_too() {
    let upstream = Upstream::start();
    let table = "user,networks\nalice,192.0.2.0/24\n";
    let site = site(&upstream, table, "", TIGHTER);
    let xclient = "tls = \"none\", auth = \"optional\", xclient = [\"127.0.0.0/8\"]";
    site.edit("127.0.0.1:0\", tls = \"none\"", &format!("127.0.0.1:0\", {xclient}"));
    let weir = site.start();
    let recipients = |address: &str| {
        let mut client = Client::connect_from(HOME, weir.address("s"));
        client.say("EHLO proxy.example", "250");
        // The proxy has decided on the login.
        client.say(&format!("XCLIENT ADDR={address} LOGIN=alice"), "220");
        client.say("EHLO client.example", "250");
        client.say("MAIL FROM:<a@example.org>", "250");
        (0..3).take_while(|n| client.ask(&format!("RCPT TO:<r{n}@example.net>")).starts_with("250")).count()
    };
    assert_eq!((recipients("192.0.2.7"), recipients("198.51.100.7")), (3, 1));
}

#[test]
fn the_commands_of_an_administrator_know_login_networks() {
    let upstream = Upstream::start();
    let site = site(&upstream, TABLE, "", TIGHTER);
    let test = |arguments: &str| site.run(&arguments.split(' ').collect::<Vec<_>>(), "");
    let refused = test("test --client 127.2.0.7 --user alice --mail-from a@example.org --rcpt-to b@example.net");
    assert!(refused.out.contains("AUTH: 550 5.7.1 This account may not log in from 127.2.0.7"), "{}", refused.out);
    assert_eq!(refused.code, Some(1), "{}", refused.out);
    site.edit("\"networks.csv\"", "\"networks.csv\", other-networks = \"allow\"");
    let allowed = test("test --client 127.1.0.7 --user alice --mail-from a@example.org --rcpt-to b@example.net");
    assert!(allowed.out.contains("no match: registered-network is true"), "{}", allowed.out);
    let rows: String = (0..4)
        .map(|t| format!("{t},{},alice,a@example.org,r{t}@example.net\n", if t < 2 { HOME } else { ABROAD }))
        .collect();
    let history = format!("t,client,user,sender,recipient\n{rows}");
    let Outcome { out, err, .. } = site.run(&["simulate", "--json", "-"], history);
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let decisions: Vec<&str> = lines.iter().filter_map(|line| line["decision"].as_str()).collect();
    assert_eq!(decisions, ["pass", "pass", "pass", "refuse"], "{err}");
    // A user who does not exist is warned of, and limits that need login networks also.
    site.put("networks.csv", "user,networks\nallice,127.1.0.0/16\n");
    let Outcome { code, err, .. } = site.run(&["check"], "");
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("networks.csv, line 2: no user of the users file is \"allice\""), "{err}");
    site.edit("login-networks = \"networks.csv\", ", "");
    let Outcome { err, .. } = site.run(&["check"], "");
    assert!(
        err.contains("registered-network: only users with allow_nets in the users file have login networks"),
        "{err}"
    );
}
