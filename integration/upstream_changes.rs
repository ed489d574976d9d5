//! Tests of reloads that add, remove and change upstreams while clients send: no message may fail.

use crate::harness::{
    Client, Fault, NameServer, Outcome, PASSWORD, Process, SetOnDrop, Site, Stage, Upstream, wait_for,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Returns a site whose only upstream is `u`, with this address and these keys.
fn site_with_upstream(address: impl Display, keys: &str) -> Site {
    Site::builder().open_listener().upstream(address, &format!("name = \"u\"{keys}")).build()
}

/// Returns the table of an upstream as [`Site`] writes it.
fn table(name: &str, upstream: &Upstream, keys: &str) -> String {
    format!("{{ address = \"{}\", tls = \"none\", name = \"{name}\", {keys} }}", upstream.address())
}

fn pair() -> ([Upstream; 2], Site) {
    let upstreams = [Upstream::start(), Upstream::start()];
    let [first, second] = upstreams.each_ref().map(Upstream::address);
    let keys = ["priority = 1", "priority = 2"];
    let site = Site::builder().open_listener().numbered_upstreams([(first, keys[0]), (second, keys[1])]).build();
    (upstreams, site)
}

/// Returns a client that has sent DATA and a part of its message.
fn in_message(weir: &Process) -> Client {
    let mut client = Client::in_transaction(weir);
    client.say("DATA", "354");
    client.send(b"hello\r\n");
    client
}

/// Sends the message of the first client and the rest of the second client's message; both must be accepted.
fn end(mut begun: Client, mut in_message: Client) {
    begun.say("RCPT TO:<c@example.net>", "250");
    begun.say("DATA", "354");
    begun.say("hello\r\n.", "250 2.0.0 Queued");
    in_message.say(".", "250 2.0.0 Queued");
}

fn wait_for_connections(weir: &Process, name: &str, count: f64) {
    wait_for(&format!("{count} connections to {name}"), || {
        (weir.upstream_metric("connections", name) == count).then_some(())
    });
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
    let (begun, sending) = (Client::in_transaction(&weir), in_message(&weir));
    Client::greeted_by(&weir).send_message();
    wait_for("a connection that waits", || (weir.upstream_metric("connections_idle", "u0") == 1.0).then_some(()));
    site.reload(&weir, "priority = 1", "priority = 1, enabled = false", "upstream disabled: it gets no more mail");
    assert_eq!((weir.upstream_metric("up", "u0"), weir.upstream_metric("connections_idle", "u0")), (0.0, 0.0));
    wait_for_connections(&weir, "u0", 2.0);
    assert_eq!(upstreams[0].commands().last().unwrap(), "QUIT");
    for _ in 0..5 {
        Client::greeted_by(&weir).send_message();
    }
    assert_eq!(messages(&upstreams), [1, 5]);
    end(begun, sending);
    wait_for_connections(&weir, "u0", 0.0);
    let connections = upstreams[0].connections();
    Client::greeted_by(&weir).send_message();
    assert_eq!((messages(&upstreams), upstreams[0].connections()), (vec![3, 6], connections));
    assert_eq!(weir.upstream_metric("up", "u0"), 0.0);
    site.reload(&weir, ", enabled = false", "", "upstream enabled: it gets mail when it has answered");
    weir.logged("upstream answers: it gets mail");
    wait_for("mail for the first", || (weir.upstream_metric("up", "u0") == 1.0).then_some(()));
    Client::greeted_by(&weir).send_message();
    assert_eq!(messages(&upstreams), [4, 6]);
    wait_for("a connection that waits", || (weir.upstream_metric("connections_idle", "u0") == 1.0).then_some(()));
}

#[test]
fn a_session_sends_its_next_message_to_another_upstream() {
    let (upstreams, site) = pair();
    let weir = site.start();
    let mut client = Client::in_transaction(&weir);
    site.reload(&weir, "priority = 1", "priority = 1, enabled = false", "upstream disabled");
    // Send all commands in one write, so that the next transaction begins right after RSET, when the former connection
    // has just become idle in the pool.
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
    let refuse = Fault::SayAndClose("421 4.3.2 Not yet");
    upstreams[0].fail(Some((Stage::Greeting, refuse)));
    site.reload(&weir, ", enabled = false", "", "upstream enabled");
    assert!(weir.logged("upstream down").contains("421 4.3.2 Not yet"));
    Client::greeted_by(&weir).send_message();
    assert_eq!(messages(&upstreams), [0, 1]);
    upstreams[0].fail(None);
    weir.logged("upstream back");
    Client::greeted_by(&weir).send_message();
    assert_eq!(messages(&upstreams), [1, 1]);
}

#[test]
fn a_removed_upstream_finishes_its_transactions() {
    let (upstreams, site) = pair();
    let weir = site.start();
    let (begun, sending) = (Client::in_transaction(&weir), in_message(&weir));
    Client::greeted_by(&weir).send_message();
    let first = table("u0", &upstreams[0], "priority = 1");
    site.reload(&weir, &format!("{first}, "), "", "upstream removed: it gets no more mail");
    wait_for_connections(&weir, "u0", 2.0);
    assert!(has_metrics(&weir, "u0"));
    Client::greeted_by(&weir).send_message();
    end(begun, sending);
    assert_eq!(messages(&upstreams), [3, 1]);
    wait_for("end of its metrics", || (!has_metrics(&weir, "u0")).then_some(()));
    assert!(has_metrics(&weir, "u1"));
    site.reload(&weir, "upstream = [", &format!("upstream = [{first}, "), "upstream added");
    wait_for("the first to be known", || (weir.upstream_metric("up", "u0") == 1.0).then_some(()));
    Client::greeted_by(&weir).send_message();
    assert_eq!(messages(&upstreams), [4, 1]);
    // The metrics of the added upstream begin at zero: they do not count connections of the removed upstream.
    assert!(weir.upstream_metric("connections_opened_total", "u0") <= 2.0);
}

#[test]
fn a_changed_upstream_finishes_its_transactions_under_the_former_options() {
    let upstreams = [Upstream::start(), Upstream::start()];
    let [before, after] = upstreams.each_ref().map(|upstream| upstream.address().to_string());
    let site = site_with_upstream(upstreams[0].address(), "");
    let weir = site.start();
    let (begun, sending) = (Client::in_transaction(&weir), in_message(&weir));
    Client::greeted_by(&weir).send_message();
    site.reload(&weir, &before, &after, "upstream changed");
    Client::greeted_by(&weir).send_message();
    end(begun, sending);
    wait_for_connections(&weir, "u", 1.0);
    assert_eq!((messages(&upstreams), weir.upstream_metric("up", "u")), (vec![3, 1], 1.0));
    assert_eq!(weir.upstream_metric("connections_idle", "u"), 1.0);
}

#[test]
fn a_changed_login_is_used_from_the_next_message_on() {
    let upstream = Upstream::start();
    upstream.offer(&["AUTH PLAIN"]);
    upstream.answer_login(&["235 2.7.0 Welcome"]);
    let login = ", auth = \"fixed\", user = \"before\", password-file = \"password\"";
    let site = site_with_upstream(upstream.address(), login);
    site.put("password", PASSWORD);
    let weir = site.start();
    let logins = |user: &str| {
        let line = format!("AUTH PLAIN {}", STANDARD.encode(format!("\0{user}\0{PASSWORD}")));
        upstream.commands().into_iter().filter(|command| *command == line).count()
    };
    let (begun, sending) = (Client::in_transaction(&weir), in_message(&weir));
    site.reload(&weir, "\"before\"", "\"after\"", "upstream changed");
    let before = logins("before");
    Client::greeted_by(&weir).send_message();
    end(begun, sending);
    Client::greeted_by(&weir).send_message();
    assert_eq!((upstream.acknowledged().len(), logins("before")), (4, before));
    assert!(logins("after") > 0);
}

#[test]
fn a_session_without_login_must_log_in_once_the_upstream_needs_it() {
    let upstream = Upstream::start();
    upstream.offer(&["AUTH PLAIN"]);
    upstream.answer_login(&["235 2.7.0 Welcome"]);
    let site = site_with_upstream(upstream.address(), "");
    site.edit("auth = \"none\"", "auth = \"required\"");
    let weir = site.start();
    let mut client = Client::logged_in(weir.address("s"), "alice");
    client.begin_transaction();
    site.reload(&weir, "name = \"u\"", "name = \"u\", auth = \"client\"", "upstream changed");
    client.say("DATA", "354");
    client.say("hello\r\n.", "250");
    // Weir does not have this client's password for the new login, and replies 451 itself. Without a login, the
    // upstream could refuse the mail permanently.
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<b@example.net>", "451 4.4.1");
    assert!(weir.logged("upstream away").contains("it has to come again"));
    assert_eq!(upstream.acknowledged().len(), 1);
    Client::logged_in(weir.address("s"), "alice").send_message();
    assert!(upstream.commands().iter().any(|line| line.starts_with("AUTH PLAIN")));
    assert_eq!((upstream.acknowledged().len(), weir.upstream_metric("up", "u")), (2, 1.0));
}

#[test]
fn an_invalid_change_keeps_the_former_upstreams() {
    let upstreams = [Upstream::start(), Upstream::start()];
    let [before, after] = upstreams.each_ref().map(|upstream| upstream.address().to_string());
    let site = site_with_upstream(upstreams[0].address(), "");
    let weir = site.start();
    Client::greeted_by(&weir).send_message();
    let wrong = format!("{after}\", enabled = 7, x = \"");
    site.reload(&weir, &before, &wrong, "configuration refused: the former limits and upstreams stay in force");
    assert!(weir.logged("configuration refused").contains("true or false is expected"));
    Client::greeted_by(&weir).send_message();
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
        site.reload(&weir, "other.example", "another.example", "upstreams refused: the former ones stay in force");
        let told = weir.log_lines().into_iter().rfind(|line| line.contains("upstreams refused")).unwrap();
        assert!(told.contains("upstream u: ") && told.contains(why) && told.contains("there-is-none"), "{told}");
        Client::greeted_by(&weir).send_message();
    }
    assert_eq!(
        (messages(&upstreams), upstreams[1].connections(), weir.upstream_metric("up", "u")),
        (vec![5, 0], 0, 1.0)
    );
    // All messages went over one upstream connection, which the invalid changes of the configuration did not close.
    assert!(weir.upstream_metric("connections_reused_total", "u") >= 4.0);
}

#[test]
fn with_no_upstream_enabled_clients_get_451_and_the_log_has_the_reason() {
    let (upstreams, site) = pair();
    site.edit(", priority", ", enabled = false, priority");
    let Outcome { code, err, .. } = site.run(&["check"], "");
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("warning: no upstream is enabled: clients get 451"), "{err}");
    assert_eq!(site.run(&["check", "--online"], "").code, Some(0));
    let connections = upstreams[0].connections();
    let weir = site.start();
    assert!(weir.logged("upstream not enabled: it gets no mail").contains("upstream=u0"));
    weir.logged("no upstream is enabled: clients get 451");
    let mut client = Client::greeted_by(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<b@example.net>", "451 4.4.1");
    assert!(weir.logged("upstream away").contains("no upstream is enabled"));
    assert_eq!((weir.upstream_metric("up", "u0"), upstreams[0].connections()), (0.0, connections));
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
    let site = Site::builder()
        .open_listener()
        .upstream(format!("smart.example:{port}"), "name = \"u\"")
        .more(&format!("dns = {{ servers = [\"{before}\"] }}"))
        .build();
    let weir = site.start();
    Client::greeted_by(&weir).send_message();
    site.reload(&weir, &before, &after, "name servers changed");
    Client::greeted_by(&weir).send_message();
    assert_eq!(messages(&upstreams), [2, 0]);
    upstreams[0].cut_all();
    Client::greeted_by(&weir).send_message();
    assert_eq!(messages(&upstreams), [2, 1]);
}

/// Weir must not use a connection that it began to open under the former configuration of the upstream.
#[test]
fn a_connection_begun_under_former_options_is_not_used_after_a_change() {
    let upstreams = [Upstream::start_on("127.0.0.2:0"), Upstream::start()];
    let [port, after] = [upstreams[0].address().port().to_string(), upstreams[1].address().to_string()];
    let names = NameServer::start("127.0.0.2 smart.example\n", &[]);
    let site = Site::builder()
        .open_listener()
        .upstream(format!("smart.example:{port}"), "name = \"u\"")
        .more(&format!("dns = {{ servers = [\"{}\"] }}", names.address()))
        .build();
    names.pause();
    let weir = site.start();
    let mut client = Client::greeted_by(&weir);
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
    let [first, second] = upstreams.each_ref().map(Upstream::address);
    let keys = |enabled, max: u32| format!("enabled = {enabled}, max-messages = {max}");
    let both = [(first, keys(true, 1000)), (second, keys(false, 1000))];
    let site = Site::builder().open_listener().numbered_upstreams(both).build();
    let weir = site.start();
    let done = AtomicBool::new(false);
    let sent: usize = std::thread::scope(|scope| {
        let sending = || {
            let mut sent = 0;
            while !done.load(Ordering::Relaxed) {
                let mut client = Client::greeted_by(&weir);
                client.send_message();
                client.send_message();
                sent += 2;
            }
            sent
        };
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(sending)).collect();
        // Sets `done` also after a panic, so that the clients' threads end.
        let _end = SetOnDrop(&done);
        // Only one upstream is enabled at any time. In turn, a reload changes options, and the next reload disables the
        // enabled upstream and enables the other.
        let list = |first: bool, max: u32| {
            [table("u0", &upstreams[0], &keys(first, max)), table("u1", &upstreams[1], &keys(!first, max))].join(", ")
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
        let waiting =
            |name| weir.upstream_metric("connections", name) == weir.upstream_metric("connections_idle", name);
        (waiting("u0") && waiting("u1")).then_some(())
    });
}
