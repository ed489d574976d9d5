//! Tests of `weir state`: info, dump, load, backup.

use super::{TEN, accepted, levels, site};
use crate::harness::{Site, Upstream, run, weir};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

const ALICE: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 1);
const BOB: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 2);

const LIMITS: &str = "{ name = \"ten\", count = \"recipients\", per = [\"client\"], algorithm = \"token-bucket\", rate = \"10 / 1d\" }, \
    { name = \"new\", count = \"recipients\", per = [\"client\"], rate = \"100 / 1d\", distinct = \"recipient\", remember = \"30d\" }";

fn state(site: &Site, arguments: &[&str], input: &str) -> Output {
    run(weir().arg("state").args(arguments).arg("-c").arg(site.path("weir.toml")), input)
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_state_of_a_running_weir_can_be_inspected_dumped_and_copied() {
    let upstream = Upstream::start();
    let site = site(&upstream, "path = \"state.db\"", LIMITS);
    let weir = site.start();
    assert_eq!(accepted(&weir, ALICE, 4), 4);
    assert_eq!(accepted(&weir, BOB, 7), 7);
    let info = state(&site, &["info"], "");
    let text = String::from_utf8(info.stdout.clone()).unwrap();
    assert!(info.status.success(), "{}", words(&info));
    assert!(text.contains("budgets: 4\n"), "{text}");
    assert!(text.contains("  ten/recipients/token-bucket/client: 2, last charged from 20"), "{text}");

    let copy = site.path("copy.db");
    let output = state(&site, &["backup", copy.to_str().unwrap()], "");
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    let again = state(&site, &["backup", copy.to_str().unwrap()], "");
    assert_eq!(again.status.code(), Some(73), "{}", words(&again));
    assert!(words(&again).contains("there is a file of this name already"), "{}", words(&again));

    let dump = state(&site, &["dump"], "");
    assert!(dump.status.success(), "{}", words(&dump));
    // All at the same time: the decay since then is negligible.
    let held = levels(&site.path("weir.toml"));
    assert_eq!(held.len(), 4);
    assert!((held[&("ten".to_owned(), BOB)] - 7.0).abs() < 0.01);

    // Nothing can be loaded while Weir runs.
    let refused = state(&site, &["load"], "");
    assert_eq!(refused.status.code(), Some(74), "{}", words(&refused));
    assert!(words(&refused).contains("another Weir is using it"), "{}", words(&refused));
    assert_eq!(weir.terminate(), Some(0));

    // The copy is a state file of its own, and its dump makes another.
    for name in ["state.db", "state.db-wal", "state.db-shm"] {
        let _ = std::fs::remove_file(site.path(name));
    }
    std::fs::rename(&copy, site.path("state.db")).unwrap();
    let weir = site.start();
    assert_eq!(accepted(&weir, BOB, 7), 3);
    assert_eq!(weir.terminate(), Some(0));
    std::fs::remove_file(site.path("state.db")).unwrap();
    let dump = String::from_utf8(dump.stdout).unwrap();
    let loaded = state(&site, &["load"], &dump);
    assert!(String::from_utf8_lossy(&loaded.stdout).contains("4 budgets loaded"), "{}", words(&loaded));
    let again = String::from_utf8(state(&site, &["dump"], "").stdout).unwrap();
    let sorted = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(sorted(&again), sorted(&dump));
    let weir = site.start();
    assert_eq!(accepted(&weir, ALICE, 7), 6);
    // The filter was copied too: the first four recipients are known.
    let new = levels(&site.path("weir.toml"))[&("new".to_owned(), ALICE)];
    assert!((new - 6.0).abs() < 0.01, "{new}");
}

#[test]
fn invalid_lines_are_refused_and_nothing_is_loaded() {
    let upstream = Upstream::start();
    let site = site(&upstream, "path = \"state.db\"", TEN);
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
        let output = state(&site, &["load"], &format!("{good}\n{bad}\n"));
        assert_eq!(output.status.code(), Some(65), "{bad}: {}", words(&output));
        let words = words(&output);
        assert!(words.contains("line 2 is not a budget") && words.contains(why), "{bad}: {words}");
    }
    let mut garbage = format!("{good}\n").into_bytes();
    garbage.extend(b"\xff\xfe\n");
    let output = run(weir().args(["state", "load", "-c"]).arg(site.path("weir.toml")), garbage);
    assert_eq!(output.status.code(), Some(65), "{}", words(&output));
    assert!(words(&output).contains("line 2 is not a budget: invalid utf-8"), "{}", words(&output));
    assert!(levels(&site.path("weir.toml")).is_empty());
    assert!(state(&site, &["load"], &format!("\r\n{good}\r\n\n")).status.success());
    assert_eq!(
        String::from_utf8(state(&site, &["dump"], "").stdout).unwrap().matches(good).count(),
        0,
        "keys are sorted"
    );
    assert_eq!(levels(&site.path("weir.toml"))[&("ten".to_owned(), ALICE)], 3.5);
}

#[test]
fn a_missing_state_file_is_reported() {
    let upstream = Upstream::start();
    let site = site(&upstream, "path = \"state.db\"", TEN);
    for arguments in [&["info"][..], &["dump"], &["backup", "copy.db"]] {
        let output = state(&site, arguments, "");
        assert_eq!(output.status.code(), Some(74), "{}", words(&output));
        assert!(words(&output).contains("state.db: No such file"), "{}", words(&output));
    }
    std::fs::write(site.path("state.db"), "x".repeat(5000)).unwrap();
    let output = state(&site, &["info"], "");
    assert_eq!(output.status.code(), Some(74), "{}", words(&output));
    assert!(words(&output).contains("not a database"), "{}", words(&output));
}
