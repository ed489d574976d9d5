//! The register: its commands, its durability, and the forms in which it is printed.

use crate::harness::{Outcome, Process, Site, run, succeed};
use std::fmt::Write as _;
use std::process::Command;

const EGRESS: &str = "egress = { customers = [\"10.0.0.0/8\", \"2001:db8::/32\"], relays = [\"192.0.2.25\"] }\n";

pub fn site() -> Site {
    Site::builder().open_listener().upstream("127.0.0.1:1", "").more(EGRESS).build()
}

/// Runs `weir egress ARGUMENTS`; returns its standard output.
fn egress(site: &Site, arguments: &[&str]) -> String {
    succeed(&mut site.command(&[&["egress"], arguments].concat()), "").out
}

/// Runs `weir egress ARGUMENTS`, which must fail with this exit code; returns its output.
fn fails(site: &Site, code: i32, arguments: &[&str]) -> String {
    let outcome = site.run(&[&["egress"], arguments].concat(), "");
    assert_eq!(outcome.code, Some(code), "{arguments:?}: {}", outcome.said());
    outcome.said()
}

/// Returns whether an address may connect to mail servers outside, and the answer of `weir egress check`.
fn may_send(site: &Site, address: &str) -> (bool, String) {
    let Outcome { code, out, err } = site.run(&["egress", "check", address], "");
    assert!(matches!(code, Some(0 | 1)) && err.is_empty(), "{code:?} {out}{err}");
    (code == Some(0), out)
}

#[test]
fn registered_networks_are_open_and_quarantined_ones_closed() {
    let site = site();
    let weir = site.start();
    let term = ["--until-removed", "--reason", "ticket 4711"];
    let out = egress(&site, &[&["allow", "10.1.0.0/24", "--owner", "physics"], &term[..]].concat());
    assert!(out.starts_with("registered: 10.1.0.0/24  out for physics, until removed, by "), "{out}");
    egress(
        &site,
        &["allow", "2001:db8:1::/56", "--owner", "chemistry", "--out", "--in", "--for", "30d", "--reason", "x"],
    );
    let out = egress(&site, &["deny", "10.1.0.7", "--for", "8h", "--reason", "infected"]);
    assert!(out.starts_with("quarantined: 10.1.0.7  quarantine, 8h left, until "), "{out}");
    for (address, may, words) in [
        ("10.1.0.8", true, "out  open, registered: 10.1.0.0/24  out for physics, until removed, by "),
        ("::ffff:10.1.0.8", true, "10.1.0.8\n"),
        ("10.1.0.7", false, "out  closed: 10.1.0.7  quarantine, "),
        ("10.2.0.7", false, "out  closed, not registered\n  in   open, not registered\n"),
        ("198.51.100.7", false, "  it is not behind the edge: no network of customers contains it\n"),
        ("2001:db8:1:7::1", true, "in   open, registered: 2001:db8:1::/56  out-and-in for chemistry, "),
    ] {
        let (is_open, out) = may_send(&site, address);
        assert!(is_open == may && out.contains(words), "{address}: {out}");
    }
    let list = egress(&site, &["list"]);
    assert!(list.starts_with("register: 3\n  10.1.0.0/24  out for physics, "), "{list}");
    // A suspended client has no direct way, until it is released.
    succeed(&mut site.command(&["suspend", "client=10.1.0.9", "--for", "1h", "--reason", "spam", "--force"]), "");
    assert!(!may_send(&site, "10.1.0.9").0);
    let list = egress(&site, &["list"]);
    assert!(list.contains("suspended clients: 1\n  10.1.0.9  quarantine, "), "{list}");
    succeed(&mut site.command(&["release", "client=10.1.0.9"]), "");
    assert!(may_send(&site, "10.1.0.9").0);
    egress(&site, &["remove", "10.1.0.7", "--quarantine", "--reason", "clean again"]);
    assert!(may_send(&site, "10.1.0.7").0);
    egress(&site, &["remove", "10.1.0.0/24"]);
    assert!(!may_send(&site, "10.1.0.7").0);
    let audit = site.run(&["exceptions", "--audit"], "").out;
    for words in [
        "registered  client=10.1.0.0/24  out for physics  until removed  by ",
        "quarantined  client=10.1.0.7  quarantine  until 2",
        "unquarantined  client=10.1.0.7  quarantine  until 2",
        "unregistered  client=10.1.0.0/24  out for physics",
    ] {
        assert!(audit.contains(words), "{words}\n{audit}");
    }
    weir.logged("direct way registered");
}

#[test]
fn wrong_commands_change_nothing() {
    let site = site();
    let _weir = site.start();
    let term = ["--for", "1d", "--reason", "x"];
    for (code, arguments, words) in [
        (65, &["allow", "10.1.0.1/24", "--owner", "o"][..], "has host bits: the network is 10.1.0.0/24"),
        (65, &["allow", "mail.example.org", "--owner", "o"], "is no address and no network"),
        (65, &["allow", "10.1.0.1", "--owner", " "], "the owner is empty"),
        (65, &["allow", "10.1.0.1", "--owner", "a\u{1b}[2J"], "owner has a control character in it: \"a\\u{1b}[2J\""),
        (67, &["allow", "0.0.0.0/0", "--owner", "o"], "0.0.0.0/0 is a very large network; nothing was changed"),
        (64, &["allow", "10.1.0.1"], "--owner"),
    ] {
        let said = fails(&site, code, &[arguments, &term[..]].concat());
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    for (code, arguments, words) in [
        (65, &["allow", "10.1.0.1", "--owner", "o", "--for", "1d", "--reason", "a\nb"][..], "control character"),
        (64, &["allow", "10.1.0.1", "--owner", "o", "--reason", "x"], "--for"),
        (65, &["remove", "10.1.0.1"], "10.1.0.1 is not registered"),
        (65, &["remove", "10.1.0.1", "--quarantine"], "10.1.0.1 is not quarantined"),
        (65, &["check", "10.1.0.0/24"], "\"10.1.0.0/24\" is not an address"),
        (64, &["render", "dns"], "--origin"),
        (64, &["render", "dns", "--origin", "a b"], "it is not a domain name"),
        (66, &["render", "--template", "/nowhere"], "/nowhere: No such file"),
    ] {
        let said = fails(&site, code, arguments);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    assert_eq!(egress(&site, &["list"]), "the register is empty, and no client is suspended\n");
    let site = Site::builder().open_listener().upstream("127.0.0.1:1", "").build();
    let said = fails(&site, 78, &["render", "nftables"]);
    assert!(said.contains("there is no section [egress]: write [egress] with customers"), "{said}");
}

/// A register survives `kill -9`, and gives the same rules afterwards: of the state file without a running Weir, and of
/// a new Weir. A dump that is loaded into another site has the register.
#[test]
fn the_rules_are_the_same_from_the_state_file() {
    let site = site();
    let weir = site.start();
    let term = ["--until-removed", "--reason", "x"];
    for n in 0..20 {
        egress(&site, &[&["allow", &format!("10.1.{n}.0/24"), "--owner", "o"], &term[..]].concat());
    }
    egress(&site, &[&["deny", "2001:db8::/56"], &term[..]].concat());
    succeed(&mut site.command(&["suspend", "client=10.1.0.9", "--for", "1h", "--reason", "spam", "--force"]), "");
    let forms = ["nftables", "ipset", "cisco", "juniper", "json"];
    let rendered = |site: &Site| forms.map(|form| egress(site, &["render", form]));
    let before = rendered(&site);
    weir.kill();
    assert_eq!(rendered(&site), before);
    let other = self::site();
    let dump = succeed(&mut site.command(&["state", "dump"]), "").out;
    succeed(&mut other.command(&["state", "load"]), dump);
    assert_eq!(rendered(&other), before);
    let _weir: Process = site.start();
    assert_eq!(rendered(&site), before);
    assert!(before[0].contains("\t\t\t10.1.0.0/20,\n\t\t\t10.1.16.0/22,\n"), "{}", before[0]);
    assert!(before[2].contains("ip prefix-list weir-egress-out seq 5 deny 10.1.0.9/32\n"), "{}", before[2]);
}

#[test]
fn an_expired_entry_ends_and_is_removed() {
    let site = site();
    let weir = site.start();
    egress(&site, &["allow", "10.1.0.1", "--owner", "o", "--for", "1s", "--reason", "x"]);
    assert!(may_send(&site, "10.1.0.1").0);
    weir.logged("direct way ended");
    assert!(!may_send(&site, "10.1.0.1").0);
    assert!(site.run(&["exceptions", "--audit"], "").out.contains("ended      client=10.1.0.1  out for o"));
}

/// Returns a site whose state file has 100,000 registered networks, most of them single addresses.
fn large_site() -> Site {
    let site = site();
    let mut lines = String::new();
    for n in 0u32..100_000 {
        // Every second address, so that no two can be merged.
        let network = match n % 10 {
            0 => format!("2001:db8:{:x}:{:x}::/64", n >> 16, n & 0xffff),
            _ => format!("10.{}.{}.{}", n >> 15, (n >> 7) & 255, (n * 2) & 255),
        };
        let _ = writeln!(
            lines,
            "{{\"exception\":\"egress\",\"owner\":{{\"client\":\"{network}\"}},\"rule\":\"out\",\"responsible\":\"o\",\
             \"since\":\"2026-01-01T00:00:00Z\",\"until\":\"9999-12-31T23:59:59Z\",\"by\":\"root\",\"reason\":\"x\"}}"
        );
    }
    succeed(&mut site.command(&["state", "load"]), lines);
    site
}

#[test]
fn nft_and_named_accept_one_hundred_thousand_entries() {
    let site = large_site();
    let _weir = site.start();
    let script = egress(&site, &["render", "nftables"]);
    assert!(script.lines().count() > 90_000);
    succeed(Command::new("nft").args(["-c", "-f", "-"]), script);
    let zone = egress(&site, &["render", "dns", "--origin", "egress.example.org"]);
    std::fs::write(site.path("zone"), &zone).unwrap();
    let checked = run(Command::new("named-checkzone").arg("egress.example.org").arg(site.path("zone")), "");
    assert!(checked.code == Some(0) && checked.out.ends_with("OK\n"), "{}", checked.said());
}
