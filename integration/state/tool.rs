//! Tests of `weir state`: info, dump, load, backup.

use super::{TEN, accepted, running, site_with_limits};
use crate::harness::{Outcome, Site, Upstream, succeed};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;

const ALICE: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 1);
const BOB: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 2);

const LIMITS: &str = "{ name = \"ten\", count = \"recipients\", per = [\"client\"], algorithm = \"token-bucket\", rate = \"10 / 1d\", charge = \"accepted\" }, \
    { name = \"new\", count = \"recipients\", per = [\"client\"], rate = \"100 / 1d\", distinct = \"recipient\", remember = \"30d\" }";

/// Runs a command of `weir state` that must succeed; returns its standard output.
fn state(site: &Site, arguments: &[&str], input: &str) -> String {
    succeed(&mut site.command(&[&["state"], arguments].concat()), input).out
}

/// Runs a command of `weir state` that must fail with this exit code; returns its standard error.
fn refused(site: &Site, arguments: &[&str], input: impl AsRef<[u8]> + Send, exit: i32) -> String {
    let Outcome { code, err, .. } = site.run(&[&["state"], arguments].concat(), input);
    assert_eq!(code, Some(exit), "{arguments:?}: {err}");
    err
}

#[test]
fn the_state_of_a_running_weir_can_be_inspected_dumped_and_copied() {
    let (_upstream, site, weir) = running(LIMITS);
    assert_eq!(accepted(&weir, ALICE, 4), 4);
    assert_eq!(accepted(&weir, BOB, 7), 7);
    let text = state(&site, &["info"], "");
    assert!(text.contains("budgets: 4\n"), "{text}");
    assert!(text.contains("  ten/recipients/token-bucket/client: 2, last charged from 20"), "{text}");

    let copy = site.path("copy.db");
    state(&site, &["backup", copy.to_str().unwrap()], "");
    assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    let err = refused(&site, &["backup", copy.to_str().unwrap()], "", 73);
    assert!(err.contains("there is a file of this name already"), "{err}");

    let dump = state(&site, &["dump"], "");
    // The levels are read right after the charges, so that their decay is negligible.
    let held = site.levels();
    assert_eq!(held.len(), 4);
    assert!((held[&("ten".to_owned(), BOB)] - 7.0).abs() < 0.01);

    // `weir state load` refuses to write while Weir runs.
    let err = refused(&site, &["load"], "", 74);
    assert!(err.contains("another Weir is using it"), "{err}");
    assert_eq!(weir.terminate(), Some(0));

    // Weir can start with the backup as its state file. Then the dump is loaded into an empty state file.
    for name in ["state.db", "state.db-wal", "state.db-shm"] {
        let _ = std::fs::remove_file(site.path(name));
    }
    std::fs::rename(&copy, site.path("state.db")).unwrap();
    let weir = site.start();
    assert_eq!(accepted(&weir, BOB, 7), 3);
    assert_eq!(weir.terminate(), Some(0));
    std::fs::remove_file(site.path("state.db")).unwrap();
    let loaded = state(&site, &["load"], &dump);
    assert!(loaded.contains("4 budgets loaded"), "{loaded}");
    let again = state(&site, &["dump"], "");
    let sorted = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(sorted(&again), sorted(&dump));
    let weir = site.start();
    assert_eq!(accepted(&weir, ALICE, 7), 6);
    // The dump contains the budget's filter of distinct recipients. So the first four recipients count as known, not as
    // new.
    let new = site.levels()[&("new".to_owned(), ALICE)];
    assert!((new - 6.0).abs() < 0.01, "{new}");
}

#[test]
fn invalid_lines_are_refused_and_nothing_is_loaded() {
    let upstream = Upstream::start();
    let site = site_with_limits(&upstream, TEN).build();
    let good = "{\"limit\":\"ten\",\"count\":\"recipients\",\"algorithm\":\"token-bucket\",\
        \"owner\":{\"client\":\"127.2.0.1\"},\"at\":\"2026-11-21T10:00:00.25Z\",\"level\":3.5}";
    for (bad, why) in [
        ("nonsense", "expected"),
        ("[]", "it is not a JSON object"),
        (&good.replace("\"limit\"", "\"limits\""), "\"limits\" is not known"),
        (&good.replace("3.5", "-1"), "\"level\""),
        (&good.replace("3.5", "\"much\""), "\"level\""),
        (&good.replace("2026-11-21T", "yesterday"), "is not a time"),
        (&good.replace(",\"count\":\"recipients\"", ""), "\"count\" is missing"),
        (&good.replace("recipients", "bananas"), "\"bananas\" is not a count"),
        (&good.replace("\"token", "\"broken"), "\"broken-bucket\" is not an algorithm"),
        (&good.replace("\"client", "\"foo"), "\"owner\" has the unknown field \"foo\""),
        (&good.replace("127.2.0.1", "127.2.0.1\\u001fuser=alice"), "make no key"),
        (&good.replace("3.5", "3.5,\"seen\":\"AAAA\""), "\"seen\" is damaged"),
    ] {
        let err = refused(&site, &["load"], format!("{good}\n{bad}\n"), 65);
        assert!(err.contains("line 2 is not a budget") && err.contains(why), "{bad}: {err}");
    }
    let mut garbage = format!("{good}\n").into_bytes();
    garbage.extend(b"\xff\xfe\n");
    let err = refused(&site, &["load"], garbage, 65);
    assert!(err.contains("line 2 is not a budget: invalid utf-8"), "{err}");
    assert!(site.levels().is_empty());
    state(&site, &["load"], &format!("\r\n{good}\r\n\n"));
    assert_eq!(state(&site, &["dump"], "").matches(good).count(), 0, "keys are sorted");
    assert_eq!(site.levels()[&("ten".to_owned(), ALICE)], 3.5);
}

#[test]
fn a_missing_state_file_is_reported() {
    let upstream = Upstream::start();
    let site = site_with_limits(&upstream, TEN).build();
    for arguments in [&["info"][..], &["dump"], &["backup", "copy.db"]] {
        let err = refused(&site, arguments, "", 66);
        assert!(err.contains("state.db: No such file"), "{err}");
    }
    std::fs::write(site.path("state.db"), "x".repeat(5000)).unwrap();
    let err = refused(&site, &["info"], "", 74);
    assert!(err.contains("not a database"), "{err}");
}
