//! Tests of upstreams that are added, removed and changed during deliveries: no client may notice.

use crate::harness::{Client, NameServer, PASSWORD, Process, Site, Upstream, run, wait_for};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Returns a site with these upstreams and this further configuration.
fn site(upstreams: &[String], more: &str) -> Site {
    Site::builder().open_listener().upstream_tables(upstreams.to_vec()).more(more).build()
}

/// Returns an upstream's table, with further keys.
fn listed(name: &str, upstream: &Upstream, keys: &str) -> String {
    format!("{{ name = \"{name}\", address = \"{}\", tls = \"none\"{keys} }}", upstream.address())
}

fn pair() -> ([Upstream; 2], Site) {
    let [first, second] = [Upstream::start(), Upstream::start()];
    let upstreams = [listed("u0", &first, ", priority = 1"), listed("u1", &second, ", priority = 2")];
    let site = site(&upstreams, "");
    ([first, second], site)
}

fn connect(weir: &Process) -> Client {
    let mut client = Client::connect(weir.address("s"));
    client.say("EHLO client.example", "250");
    client
}

/// Returns a client whose recipient is accepted.
fn with_recipient(weir: &Process) -> Client {
    let mut client = connect(weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<b@example.net>", "250");
    client
}

/// Returns a client that has sent a part of its message.
fn in_message(weir: &Process) -> Client {
    let mut client = with_recipient(weir);
    client.say("DATA", "354");
    client.send(b"hello\r\n");
    client
}

/// Ends both transactions successfully, of [`with_recipient`] and of [`in_message`].
fn end(mut with_recipient: Client, mut in_message: Client) {
    with_recipient.say("RCPT TO:<c@example.net>", "250");
    with_recipient.say("DATA", "354");
    with_recipient.say("hello\r\n.", "250 2.0.0 Queued");
    in_message.say(".", "250 2.0.0 Queued");
}

fn metric(weir: &Process, what: &str, name: &str) -> f64 {
    weir.metric(&format!("weir_upstream_{what}{{upstream=\"{name}\"}}"))
}

fn wait_for_connections(weir: &Process, name: &str, count: f64) {
    wait_for(&format!("{count} connections to {name}"), || (metric(weir, "connections", name) == count).then_some(()));
}

fn has_metrics(weir: &Process, name: &str) -> bool {
    weir.get("/metrics").1.contains(&format!("upstream=\"{name}\""))
}

fn messages(upstreams: &[Upstream]) -> Vec<usize> {
    upstreams.iter().map(|upstream| upstream.acknowledged().len()).collect()
}

#[test]
fn a_disabled_upstream_finishes_its_transactions_and_gets_no_more() {
    let (upstreams, site) = pair();
    let weir = site.start();
    let (begun, sending) = (with_recipient(&weir), in_message(&weir));
    connect(&weir).send_message();
    wait_for("a connection that waits", || (metric(&weir, "connections_waiting", "u0") == 1.0).then_some(()));
    site.reload(&weir, "priority = 1", "priority = 1, enabled = false", "upstream disabled: it gets no more mail");
    assert_eq!((metric(&weir, "up", "u0"), metric(&weir, "connections_waiting", "u0")), (0.0, 0.0));
    wait_for_connections(&weir, "u0", 2.0);
    assert_eq!(upstreams[0].commands().last().unwrap(), "QUIT");
    for _ in 0..5 {
        connect(&weir).send_message();
    }
    assert_eq!(messages(&upstreams), [1, 5]);
    end(begun, sending);
    wait_for_connections(&weir, "u0", 0.0);
    let connections = upstreams[0].connections();
    connect(&weir).send_message();
    assert_eq!((messages(&upstreams), upstreams[0].connections()), (vec![3, 6], connections));
    assert_eq!(metric(&weir, "up", "u0"), 0.0);
    site.reload(&weir, ", enabled = false", "", "upstream enabled: it gets mail when it has answered");
    weir.logged("upstream answers: it gets mail");
    wait_for("mail for the first", || (metric(&weir, "up", "u0") == 1.0).then_some(()));
    connect(&weir).send_message();
    assert_eq!(messages(&upstreams), [4, 6]);
    wait_for("a connection that waits", || (metric(&weir, "connections_waiting", "u0") == 1.0).then_some(()));
}

#[test]
fn a_session_sends_its_next_message_to_another_upstream() {
    let (upstreams, site) = pair();
    let weir = site.start();
    let mut client = with_recipient(&weir);
    site.reload(&weir, "priority = 1", "priority = 1, enabled = false", "upstream disabled");
    // In one write, so that the connection is idle in the pool when the next transaction begins.
    client.send(b"RSET\r\nMAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.net>\r\nDATA\r\n");
    for reply in ["250", "250", "250", "354"] {
        client.expect(reply);
    }
    client.say("hello\r\n.", "250");
    client.send_message();
    assert_eq!(messages(&upstreams), [0, 2]);
    wait_for_connections(&weir, "u0", 0.0);
}

#[test]
fn an_upstream_enabled_while_down_gets_mail_once_it_is_up() {
    let (upstreams, site) = pair();
    let weir = site.start();
    site.reload(&weir, "priority = 1", "priority = 1, enabled = false", "upstream disabled");
    let refuse = crate::harness::Fault::SayAndClose("421 4.3.2 Not yet");
    upstreams[0].fail(Some((crate::harness::Stage::Greeting, refuse)));
    site.reload(&weir, ", enabled = false", "", "upstream enabled");
    assert!(weir.logged("upstream down").contains("421 4.3.2 Not yet"));
    connect(&weir).send_message();
    assert_eq!(messages(&upstreams), [0, 1]);
    upstreams[0].fail(None);
    weir.logged("upstream back");
    connect(&weir).send_message();
    assert_eq!(messages(&upstreams), [1, 1]);
}

#[test]
fn a_removed_upstream_finishes_its_transactions() {
    let (upstreams, site) = pair();
    let weir = site.start();
    let (begun, sending) = (with_recipient(&weir), in_message(&weir));
    connect(&weir).send_message();
    let first = listed("u0", &upstreams[0], ", priority = 1");
    site.reload(&weir, &format!("{first}, "), "", "upstream removed: it gets no more mail");
    wait_for_connections(&weir, "u0", 2.0);
    assert!(has_metrics(&weir, "u0"));
    connect(&weir).send_message();
    end(begun, sending);
    assert_eq!(messages(&upstreams), [3, 1]);
    wait_for("end of its metrics", || (!has_metrics(&weir, "u0")).then_some(()));
    assert!(has_metrics(&weir, "u1"));
    site.reload(&weir, "upstream = [", &format!("upstream = [{first}, "), "upstream added");
    wait_for("the first to be known", || (metric(&weir, "up", "u0") == 1.0).then_some(()));
    connect(&weir).send_message();
    assert_eq!(messages(&upstreams), [4, 1]);
    // Connections of the former upstream are not counted.
    assert!(metric(&weir, "connections_opened_total", "u0") <= 2.0);
}

#[test]
fn a_changed_upstream_finishes_its_transactions_under_the_former_options() {
    let upstreams = [Upstream::start(), Upstream::start()];
    let [before, after] = upstreams.each_ref().map(|upstream| upstream.address().to_string());
    let site = site(&[listed("u", &upstreams[0], "")], "");
    let weir = site.start();
    let (begun, sending) = (with_recipient(&weir), in_message(&weir));
    connect(&weir).send_message();
    site.reload(&weir, &before, &after, "upstream changed");
    connect(&weir).send_message();
    end(begun, sending);
    wait_for_connections(&weir, "u", 1.0);
    assert_eq!((messages(&upstreams), metric(&weir, "up", "u")), (vec![3, 1], 1.0));
    assert_eq!(metric(&weir, "connections_waiting", "u"), 1.0);
}

#[test]
fn a_changed_login_is_used_from_the_next_message_on() {
    let upstream = Upstream::start();
    upstream.offer(&["AUTH PLAIN"]);
    upstream.answer_login(&["235 2.7.0 Welcome"]);
    let login = ", auth = \"fixed\", user = \"before\", password-file = \"password\"";
    let site = site(&[listed("u", &upstream, login)], "");
    std::fs::write(site.path("password"), PASSWORD).unwrap();
    std::fs::set_permissions(site.path("password"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let weir = site.start();
    let logins = |user: &str| {
        let line = format!("AUTH PLAIN {}", STANDARD.encode(format!("\0{user}\0{PASSWORD}")));
        upstream.commands().into_iter().filter(|command| *command == line).count()
    };
    let (begun, sending) = (with_recipient(&weir), in_message(&weir));
    site.reload(&weir, "\"before\"", "\"after\"", "upstream changed");
    let before = logins("before");
    connect(&weir).send_message();
    end(begun, sending);
    connect(&weir).send_message();
    assert_eq!((upstream.acknowledged().len(), logins("before")), (4, before));
    assert!(logins("after") > 0);
}

#[test]
fn a_session_without_login_must_log_in_once_the_upstream_needs_it() {
    let upstream = Upstream::start();
    upstream.offer(&["AUTH PLAIN"]);
    upstream.answer_login(&["235 2.7.0 Welcome"]);
    let site = site(&[listed("u", &upstream, "")], "");
    site.edit("auth = \"none\"", "auth = \"required\"");
    let weir = site.start();
    let mut client = Client::logged_in(weir.address("s"), "alice");
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<b@example.net>", "250");
    site.reload(&weir, "tls = \"none\" }]", "tls = \"none\", auth = \"client\" }]", "upstream changed");
    client.say("DATA", "354");
    client.say("hello\r\n.", "250");
    // Without a login the upstream might refuse for good.
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<b@example.net>", "451 4.4.1");
    assert!(weir.logged("upstream away").contains("it has to come again"));
    assert_eq!(upstream.acknowledged().len(), 1);
    Client::logged_in(weir.address("s"), "alice").send_message();
    assert!(upstream.commands().iter().any(|line| line.starts_with("AUTH PLAIN")));
    assert_eq!((upstream.acknowledged().len(), metric(&weir, "up", "u")), (2, 1.0));
}

#[test]
fn an_invalid_change_keeps_the_former_upstreams() {
    let upstreams = [Upstream::start(), Upstream::start()];
    let [before, after] = upstreams.each_ref().map(|upstream| upstream.address().to_string());
    let site = site(&[listed("u", &upstreams[0], "")], "");
    let weir = site.start();
    connect(&weir).send_message();
    let wrong = format!("{after}\", enabled = 7, x = \"");
    site.reload(&weir, &before, &wrong, "limits and upstreams not taken: the former ones stay");
    assert!(weir.logged("not taken").contains("true or false is expected"));
    connect(&weir).send_message();
    for (keys, why) in [
        ("auth = \"fixed\", user = \"weir\", password-file = \"there-is-none\"", "password file "),
        ("tls = \"required\", ca = \"there-is-none\"", "certificates in "),
        ("client-certificate = \"there-is-none\", client-key = \"nor-here\"", "client certificate or key "),
    ] {
        let keys = if keys.starts_with("tls") { keys.to_owned() } else { format!("tls = \"opportunistic\", {keys}") };
        let config = std::fs::read_to_string(site.path("weir.toml")).unwrap();
        let text =
            format!("hostname = \"other.example\"\nupstream = [{{ name = \"u\", address = \"{after}\", {keys} }}]\n");
        let kept = |line: &&str| !line.starts_with("hostname") && !line.starts_with("upstream");
        let others: Vec<&str> = config.lines().filter(kept).collect();
        std::fs::write(site.path("weir.toml"), text + &others.join("\n")).unwrap();
        site.reload(&weir, "other.example", "another.example", "upstreams not taken: the former ones stay");
        let told = weir.log_lines().into_iter().rfind(|line| line.contains("upstreams not taken")).unwrap();
        assert!(told.contains("upstream u: ") && told.contains(why) && told.contains("there-is-none"), "{told}");
        connect(&weir).send_message();
    }
    assert_eq!((messages(&upstreams), upstreams[1].connections(), metric(&weir, "up", "u")), (vec![5, 0], 0, 1.0));
    // All over one connection, which was kept.
    assert!(metric(&weir, "connections_reused_total", "u") >= 4.0);
}

#[test]
fn with_no_upstream_enabled_clients_get_451_and_the_log_has_the_reason() {
    let (upstreams, site) = pair();
    site.edit(", priority", ", enabled = false, priority");
    let checked = run(crate::harness::weir().args(["check", "-c"]).arg(site.path("weir.toml")), "");
    let said = String::from_utf8(checked.stderr).unwrap();
    assert_eq!(checked.status.code(), Some(0), "{said}");
    assert!(said.contains("warning: no upstream is enabled: clients hear 451"), "{said}");
    let online = run(crate::harness::weir().args(["check", "--online", "-c"]).arg(site.path("weir.toml")), "");
    assert_eq!(online.status.code(), Some(0));
    let connections = upstreams[0].connections();
    let weir = site.start();
    assert!(weir.logged("upstream not enabled: it gets no mail").contains("upstream=u0"));
    weir.logged("no upstream is enabled: clients hear 451");
    let mut client = connect(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<b@example.net>", "451 4.4.1");
    assert!(weir.logged("upstream away").contains("no upstream is enabled"));
    assert_eq!((metric(&weir, "up", "u0"), upstreams[0].connections()), (0.0, connections));
    site.reload(&weir, ", enabled = false", "", "upstream enabled");
    client.say("RSET", "250");
    client.send_message();
    assert_eq!(messages(&upstreams).iter().sum::<usize>(), 1);
}

#[test]
fn changed_name_servers_apply_at_once_and_connections_are_kept() {
    let first = Upstream::start_on("127.0.0.2:0");
    let port = first.address().port();
    let upstreams = [first, Upstream::start_on(&format!("127.0.0.3:{port}"))];
    let names = ["127.0.0.2 smart.example\n", "127.0.0.3 smart.example\n"].map(|hosts| NameServer::start(hosts, &[]));
    let [before, after] = names.each_ref().map(|names| names.address().to_string());
    let upstream = format!("{{ name = \"u\", address = \"smart.example:{port}\", tls = \"none\" }}");
    let site = site(&[upstream], &format!("dns = {{ servers = [\"{before}\"] }}"));
    let weir = site.start();
    connect(&weir).send_message();
    site.reload(&weir, &before, &after, "name servers changed");
    connect(&weir).send_message();
    assert_eq!(messages(&upstreams), [2, 0]);
    upstreams[0].cut_all();
    connect(&weir).send_message();
    assert_eq!(messages(&upstreams), [2, 1]);
}

/// Connections that were begun under the former configuration must not be used under the new one.
#[test]
fn a_connection_begun_under_former_options_is_not_used_after_a_change() {
    let upstreams = [Upstream::start_on("127.0.0.2:0"), Upstream::start()];
    let [port, after] = [upstreams[0].address().port().to_string(), upstreams[1].address().to_string()];
    let names = NameServer::start("127.0.0.2 smart.example\n", &[]);
    let upstream = format!("{{ name = \"u\", address = \"smart.example:{port}\", tls = \"none\" }}");
    let site = site(&[upstream], &format!("dns = {{ servers = [\"{}\"] }}", names.address()));
    names.pause();
    let weir = site.start();
    let mut client = connect(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    client.send(b"RCPT TO:<b@example.net>\r\n");
    assert!(client.is_silent(Duration::from_millis(200)));
    site.reload(&weir, &format!("smart.example:{port}"), &after, "upstream changed");
    names.go_on();
    client.expect("250");
    client.say("DATA", "354");
    client.say("hello\r\n.", "250");
    assert_eq!(messages(&upstreams), [0, 1]);
}

#[test]
fn frequent_changes_of_upstreams_fail_no_message() {
    let upstreams = [Upstream::start(), Upstream::start()];
    let keys = |enabled| format!(", enabled = {enabled}, max-messages = 1000");
    let site = site(&[listed("u0", &upstreams[0], &keys(true)), listed("u1", &upstreams[1], &keys(false))], "");
    let weir = site.start();
    let done = AtomicBool::new(false);
    let sent: usize = std::thread::scope(|scope| {
        let sending = || {
            let mut sent = 0;
            while !done.load(Ordering::Relaxed) {
                let mut client = connect(&weir);
                client.send_message();
                client.send_message();
                sent += 2;
            }
            sent
        };
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(sending)).collect();
        // Runs also after a failure, so that the clients end.
        let _end = Finally(&done);
        // Only one upstream gets mail at any time: it is replaced, and the other takes over in one step, and back.
        let list = |first: bool, max: u32| {
            let keys = |enabled| format!(", enabled = {enabled}, max-messages = {max}");
            [listed("u0", &upstreams[0], &keys(first)), listed("u1", &upstreams[1], &keys(!first))].join(", ")
        };
        let mut now = list(true, 1000);
        for max in 200..220 {
            for (first, max, logged) in [
                (true, max, "upstream changed"),
                (false, max, "upstream disabled"),
                (false, max + 100, "upstream changed"),
                (true, max + 100, "upstream disabled"),
            ] {
                let next = list(first, max);
                site.reload(&weir, &now, &next, logged);
                now = next;
            }
        }
        done.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    let arrived = messages(&upstreams);
    assert_eq!(arrived.iter().sum::<usize>(), sent);
    assert!(arrived.iter().all(|count| *count > 0), "{arrived:?}");
    wait_for("end of the connections", || {
        let waiting = |name| metric(&weir, "connections", name) == metric(&weir, "connections_waiting", name);
        (waiting("u0") && waiting("u1")).then_some(())
    });
}

struct Finally<'a>(&'a AtomicBool);

impl Drop for Finally<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
