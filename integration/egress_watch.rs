//! Tests of `weir egress watch`, which gives Weir the connections that the edge has blocked.

use crate::harness::{Client, Process, Site, Upstream, succeed, wait_for};
use std::fs::{File, rename};
use std::io::Write as _;
use std::process::{Child, Stdio};
use weir::clock;

const LIMITS: &str = r#"
[[limit]]
name = "all"
count = "blocked-connections"
per = ["client"]
rate = "100000 / 3000d"
algorithm = "leaky-bucket"
[[limit]]
name = "scan"
count = "blocked-connections"
per = ["client"]
rate = "30 / 1h"
distinct = "destination"
  [[limit.action]]
  suspend = "1d"
"#;

/// Addresses of clients: one that scans, one that tries one destination again and again, and one that scans before and
/// after Weir is killed.
const SCANNER: &str = "127.0.0.1";
const CALM: &str = "127.0.0.2";
const PATIENT: &str = "127.0.0.3";

/// Command that is killed at the end of a test.
struct Watcher(Child);

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn site() -> (Site, Upstream) {
    let upstream = Upstream::start();
    let site = Site::builder().open_listener().upstream(upstream.address(), "").more(LIMITS).build();
    (site, upstream)
}

/// Returns lines of the kernel about blocked connections to these addresses, and lines about other things.
fn lines(client: &str, destinations: impl IntoIterator<Item = u8>) -> String {
    let now = clock::now().rfc3339();
    let line = |last: u8| {
        format!(
            "{now} edge kernel: [  123.4] weir-egress-out IN=eth0 OUT=eth1 MAC=02:00 SRC={client} DST=203.0.113.{last} \
             LEN=60 TOS=0x00 PREC=0x00 TTL=63 ID=1 DF PROTO=TCP SPT=43210 DPT=25 WINDOW=64240 RES=0x00 SYN URGP=0\n\
             {now} edge sshd[7]: Invalid user weir-egress-out SRC={CALM} DST=203.0.113.{last} PROTO=TCP DPT=25\n"
        )
    };
    destinations.into_iter().map(line).collect()
}

fn append(file: &mut File, text: &str) {
    file.write_all(text.as_bytes()).unwrap();
}

fn wait_for_blocked(weir: &Process, count: f64) {
    wait_for("blocked connections", || (weir.metric("weir_blocked_connections_total") >= count).then_some(()));
    assert_eq!(weir.metric("weir_blocked_connections_total"), count);
}

/// Returns the owners that are suspended.
fn suspended(site: &Site) -> Vec<String> {
    let rows = site.dump();
    let owners = rows.iter().filter(|row| row["exception"] == "suspension");
    owners.map(|row| row["owner"]["client"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_followed_log_suspends_a_client_that_scans_also_after_rotation_and_a_crash() {
    let (site, _upstream) = site();
    let (path, weir) = (site.path("edge.log"), site.start());
    let open = || File::options().create(true).append(true).open(&path).unwrap();
    let mut log = open();
    append(&mut log, &lines(SCANNER, 1..=25));
    append(&mut log, &lines(CALM, [1; 100]));
    let mut watch = site.command(&["egress", "watch", "nftables", "--follow"]);
    let _watcher = Watcher(watch.arg(&path).stderr(Stdio::null()).spawn().unwrap());
    wait_for_blocked(&weir, 125.0);
    assert_eq!(suspended(&site), [""; 0]);
    // The edge still writes to the old file for a while.
    rename(&path, site.path("edge.log.1")).unwrap();
    append(&mut log, &lines(SCANNER, 26..=28));
    wait_for_blocked(&weir, 128.0);
    append(&mut log, &lines(SCANNER, [28]));
    log = open();
    append(&mut log, &lines(SCANNER, 29..=50));
    append(&mut log, &lines(CALM, [1; 100]));
    append(&mut log, &lines(PATIENT, 1..=20));
    wait_for_blocked(&weir, 271.0);
    wait_for("a suspension", || (suspended(&site) == [SCANNER]).then_some(()));
    Client::greeted(weir.address("s")).say("MAIL FROM:<a@example.org>", "550 5.7.1");
    weir.kill();
    let levels = site.levels();
    assert_eq!(levels[&("all".to_owned(), CALM.parse().unwrap())].round(), 200.0);
    // The command waits for Weir.
    append(&mut log, &lines(PATIENT, 21..=40));
    let weir = site.start();
    wait_for_blocked(&weir, 20.0);
    wait_for("two suspensions", || {
        let mut suspended = suspended(&site);
        suspended.sort();
        (suspended == [SCANNER, PATIENT]).then_some(())
    });
    Client::greeted(weir.address("s")).say("MAIL FROM:<a@example.org>", "550 5.7.1");
}

#[test]
fn a_line_that_is_read_again_or_is_old_does_not_count() {
    let (site, _upstream) = site();
    let weir = site.start();
    let mut log = File::create(site.path("edge.log")).unwrap();
    let old = lines(CALM, 1..=3).replace(&clock::now().rfc3339()[..4], "2001");
    append(&mut log, &(old + &lines(CALM, 1..=2) + "weir-egress-out SRC=10.0.0.5\n"));
    let read = || {
        let mut command = site.command(&["egress", "watch", "nftables"]);
        succeed(command.arg(site.path("edge.log")), "").out
    };
    assert_eq!(read(), "2 blocked connections counted, 3 too old, 1 incomplete or damaged line\n");
    assert_eq!(read(), "0 blocked connections counted, 0 too old, 0 incomplete or damaged lines\n");
    append(&mut log, &lines(CALM, [3]));
    assert_eq!(read(), "1 blocked connection counted, 0 too old, 0 incomplete or damaged lines\n");
    assert_eq!(weir.metric("weir_blocked_connections_total"), 3.0);
    drop(weir);
    let said = site.run(&["egress", "watch", "nftables", "-"], lines(CALM, [1]));
    assert_eq!(said.code, Some(69), "{}", said.said());
}

#[test]
fn netflow_continues_with_the_columns_that_its_first_line_names() {
    let (site, _upstream) = site();
    let weir = site.start();
    let flow = |last: u8, flags: &str| {
        let now = clock::now().rfc3339();
        format!("{now},{now},0.000,{SCANNER},203.0.113.{last},43210,25,TCP,{flags},0,0,1,60\n")
    };
    let flows = |destinations: std::ops::RangeInclusive<u8>| -> String {
        destinations.map(|last| flow(last, "......S.") + &flow(last, "...AP.SF")).collect()
    };
    let mut file = File::create(site.path("flows.csv")).unwrap();
    append(&mut file, "ts,te,td,sa,da,sp,dp,pr,flg,fwd,stos,ipkt,ibyt\n");
    append(&mut file, &flows(1..=25));
    let read = || {
        let mut command = site.command(&["egress", "watch", "netflow"]);
        succeed(command.arg(site.path("flows.csv")), "").out
    };
    assert!(read().starts_with("25 blocked connections counted"));
    assert_eq!(suspended(&site), [""; 0]);
    append(&mut file, &flows(26..=50));
    assert!(read().starts_with("25 blocked connections counted"));
    assert_eq!(suspended(&site), [SCANNER]);
    let said = site.run(&["egress", "watch", "netflow", "-"], flows(1..=2));
    assert_eq!(said.code, Some(65), "{}", said.said());
    assert!(said.err.contains("no line names the columns"), "{}", said.said());
    assert_eq!(weir.metric("weir_blocked_connections_total"), 50.0);
}
