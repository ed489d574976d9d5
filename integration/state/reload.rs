//! Limits that are read again keep what they have counted.

use super::{TEN, accepted, site};
use crate::harness::{Process, Site, Upstream, wait_for};
use rustix::process::Signal;
use std::net::Ipv4Addr;

const ALICE: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 1);

/// Changes the configuration and has it read again; returns when it was, by the log.
fn reload(site: &Site, weir: &Process, from: &str, to: &str, logged: &str) {
    let config = std::fs::read_to_string(site.path("weir.toml")).unwrap();
    assert!(config.contains(from));
    std::fs::write(site.path("weir.toml"), config.replace(from, to)).unwrap();
    let count = || weir.log_lines().iter().filter(|line| line.contains(logged)).count();
    let before = count();
    weir.signal(Signal::HUP);
    wait_for(logged, || (count() > before).then_some(()));
}

#[test]
fn limits_that_are_read_again_keep_their_history() {
    let upstream = Upstream::start();
    let site = site(&upstream, "path = \"state.db\"", TEN);
    let weir = site.start();
    assert_eq!(accepted(&weir, ALICE, 4), 4);
    reload(&site, &weir, "10 / 1d", "20 / 1d", "limits read again");
    assert_eq!(accepted(&weir, ALICE, 20), 16, "other numbers, the same history");
    reload(&site, &weir, "20 / 1d", "20 / 1x", "limits not taken: the former ones stay");
    assert!(weir.logged("limits not taken").contains("units are"), "{}", weir.logged("limits not taken"));
    assert_eq!(accepted(&weir, ALICE, 20), 0);
    reload(&site, &weir, "20 / 1x", "20 / 1d", "limits read again");
    reload(&site, &weir, "\"ten\"", "\"twenty\"", "limits read again");
    let told = weir.logged("no such limit any more");
    assert!(told.contains("limit=ten/recipients/token-bucket/client") && told.contains("kept for 30d"), "{told}");
    assert_eq!(accepted(&weir, ALICE, 30), 20, "another limit begins anew");
    reload(&site, &weir, "\"twenty\"", "\"ten\"", "limits read again");
    assert_eq!(accepted(&weir, ALICE, 20), 0, "and this one is remembered");
}
