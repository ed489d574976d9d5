//! Tests of the login history: `weir logins`, restarts, dumps.

use crate::harness::{Client, Outcome, PASSWORD, Process, Site, Upstream, wait_for};
use std::net::Ipv4Addr;

fn site() -> (Upstream, Site) {
    let upstream = Upstream::start();
    let site = Site::builder().listener("s", "tls = \"none\"").upstream(upstream.address(), "");
    let users = [("alice", PASSWORD, ""), ("bob", PASSWORD, "")];
    (upstream, site.users(&users).build())
}

fn log_in(weir: &Process, source: [u8; 4], helo: &str, password: &str) {
    let mut client = Client::connect_from(Ipv4Addr::from(source), weir.address("s"));
    client.say(&format!("EHLO {helo}"), "250");
    let reply = client.try_log_in("alice", password);
    assert!(reply.starts_with(if password == PASSWORD { "235" } else { "535" }), "{reply}");
}

fn logins(site: &Site, arguments: &[&str]) -> String {
    let Outcome { code, out, err } = site.run(&[&["logins"], arguments].concat(), "");
    assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}: {out}");
    out
}

#[test]
fn the_login_history_is_printed_and_outlives_a_restart() {
    let (_upstream, site) = site();
    let weir = site.start();
    assert_eq!(logins(&site, &["alice"]), "alice: no login in the last 30d\n");
    assert_eq!(
        logins(&site, &["car\u{1b}ol"]),
        "car\\u{1b}ol: no login in the last 30d; there is no account of this name\n"
    );
    log_in(&weir, [127, 2, 0, 7], "Laptop.Example", PASSWORD);
    // Weir records a login just after it has sent the reply, so two logins can be recorded in either order.
    wait_for("the first login", || logins(&site, &["alice"]).contains("laptop.example").then_some(()));
    log_in(&weir, [127, 2, 0, 8], "phone.example", PASSWORD);
    wait_for("the second login", || logins(&site, &["alice"]).contains("phone.example").then_some(()));
    log_in(&weir, [127, 3, 0, 7], "laptop.example", PASSWORD);
    log_in(&weir, [127, 4, 0, 7], "guesser.example", "a guess");
    let expected = |out: &str| {
        let lines: Vec<Vec<&str>> =
            out.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect();
        let cells = lines.iter().map(|line| line.get(2..).unwrap_or_default().join("|")).collect::<Vec<_>>();
        cells
            == [
                "logins|network|country|TLS|mechanism|EHLO",
                "1|127.3.0.0/24|-|-|PLAIN|laptop.example",
                "2|127.2.0.0/24|-|-|PLAIN|phone.example, laptop.example",
            ]
    };
    wait_for("history", || expected(&logins(&site, &["alice"])).then_some(()));
    weir.terminate();
    let weir = site.start();
    let out = logins(&site, &["ALICE"]);
    assert!(expected(&out), "{out}");
    let json = logins(&site, &["alice", "--json"]);
    weir.terminate();
    let Outcome { out: dump, .. } = site.run(&["state", "dump"], "");
    let in_dump: Vec<&str> = dump.lines().filter(|line| line.contains("\"login\":")).collect();
    let mut sorted: Vec<&str> = json.lines().collect();
    sorted.reverse();
    assert_eq!(in_dump, sorted);
    assert!(!dump.contains(PASSWORD) && !dump.contains("guess"), "{dump}");
    let Outcome { out: info, .. } = site.run(&["state", "info"], "");
    assert!(info.contains("\nlogin history: 2 networks\n"), "{info}");
}

#[test]
fn a_login_that_is_written_survives_a_crash() {
    let (_upstream, site) = site();
    let weir = site.start();
    log_in(&weir, [127, 2, 0, 7], "laptop.example", PASSWORD);
    wait_for("written login", || {
        let Outcome { out, .. } = site.run(&["state", "info"], "");
        out.contains("login history: 1 network\n").then_some(())
    });
    weir.kill();
    let _weir = site.start();
    assert!(logins(&site, &["alice"]).contains("127.2.0.0/24"));
}
