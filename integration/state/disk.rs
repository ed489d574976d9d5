//! Tests of disks that fill up, freeze, fail or lose data: Weir still accepts mail, reports the fault to the
//! administrator, and keeps the budgets' levels.

use super::{TEN, accepted, replies, running, site_with_limits};
use crate::harness::{Disk, Outcome, Process, Site, Upstream, succeed, wait_for};
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

const ALICE: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 1);
const BOB: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 2);

/// Asserts that the metrics, `/readyz` and the log all report a degraded state.
fn assert_degraded(weir: &Process, why: &str) {
    wait_for("degraded state", || (weir.metric("weir_state_degraded") == 1.0).then_some(()));
    let (status, body) = weir.get("/readyz");
    assert_eq!(status, 503);
    assert!(body.contains(why), "{body}");
    let line = weir.logged("state degraded");
    assert!(line.contains(why), "{line}");
}

fn wait_until_good(weir: &Process) {
    wait_for("good state", || (weir.metric("weir_state_degraded") == 0.0).then_some(()));
    assert_eq!(weir.get("/readyz").0, 200);
    weir.logged("state recovered");
}

fn on(disk: &Disk, more: &str) -> String {
    format!("path = \"{}\"{more}", disk.path("state.db").display())
}

/// Tests whose state file is on its own file system, which the test can fill, freeze or make read-only.
mod on_a_disk {
    use super::*;

    #[test]
    fn a_full_disk_stops_no_mail_and_loses_no_count_once_freed() {
        let (upstream, disk) = (Upstream::start(), Disk::new(16));
        let site = site_with_limits(&upstream, TEN).state(&on(&disk, "")).build();
        let weir = site.start();
        assert_eq!(accepted(&weir, ALICE, 4), 4);
        let filler = disk.fill();
        // Weir's commits succeed until they have used up the space that the state file had already reserved.
        wait_for("full disk", || {
            assert_eq!(accepted(&weir, BOB, 0), 0);
            accepted(&weir, Ipv4Addr::new(127, 3, rand(), rand()), 5);
            (weir.metric("weir_state_degraded") == 1.0).then_some(())
        });
        assert_degraded(&weir, "full");
        assert_eq!(accepted(&weir, ALICE, 4), 4, "mail flows");
        assert_eq!(accepted(&weir, BOB, 7), 7);
        assert_eq!(accepted(&weir, BOB, 7), 3, "and limits hold");
        std::fs::remove_file(filler).unwrap();
        wait_until_good(&weir);
        weir.kill();
        let weir = site.start();
        assert_eq!(accepted(&weir, ALICE, 4), 2, "what was counted meanwhile is in the file");
        assert_eq!(accepted(&weir, BOB, 4), 0);
        assert_eq!(weir.terminate(), Some(0));
    }

    #[test]
    fn exceptions_hold_on_a_full_disk_and_are_written_once_it_is_freed() {
        let (upstream, disk) = (Upstream::start(), Disk::new(16));
        let site = site_with_limits(&upstream, TEN).state(&on(&disk, "")).build();
        let weir = site.start();
        let filler = disk.fill();
        // Suspensions are written until they have used up the space that the state file had already reserved.
        let mut known = 0;
        let words = wait_for("an exception that is not written", || {
            known += 1;
            let user = format!("user{known}");
            let reason = "x".repeat(500);
            let words = suspend(&site, &[&user, "--for", "1d", "--reason", &reason]);
            words.contains("not in the state file yet").then_some(words)
        });
        assert!(words.contains("full"), "{words}");
        assert_degraded(&weir, "full");
        let grant = ["grant", "ten", "127.2.0.1", "20 / 1d", "--for", "1d", "--reason", "x", "--force"];
        succeed(&mut site.command(&grant), "");
        assert_eq!(accepted(&weir, ALICE, 30), 20);
        std::fs::remove_file(filler).unwrap();
        wait_until_good(&weir);
        weir.kill();
        let weir = site.start();
        assert_eq!(weir.metric("weir_suspensions_in_force"), f64::from(known));
        assert_eq!(weir.metric("weir_grants_in_force"), 1.0);
    }

    /// Runs `weir suspend`; returns its standard output.
    fn suspend(site: &Site, arguments: &[&str]) -> String {
        succeed(site.command(&["suspend", "--force"]).args(arguments), "").out
    }

    /// Returns a random octet for an address.
    fn rand() -> u8 {
        let mut octet = [0];
        getrandom::fill(&mut octet).unwrap();
        octet[0]
    }

    #[test]
    fn a_backup_names_the_copy_for_which_the_disk_has_no_room() {
        let (upstream, disk) = (Upstream::start(), Disk::new(16));
        let site = site_with_limits(&upstream, TEN).build();
        let weir = site.start();
        assert_eq!(accepted(&weir, ALICE, 4), 4);
        disk.fill();
        let copy = disk.path("copy.db");
        let Outcome { code, err, .. } = site.run(&["state", "backup", copy.to_str().unwrap()], "");
        assert_eq!((code, err), (Some(73), format!("weir: {}: no storage space\n", copy.display())));
        assert!(!copy.exists());
    }

    #[test]
    fn a_full_disk_makes_mail_wait_where_the_configuration_says_so() {
        let (upstream, disk) = (Upstream::start(), Disk::new(16));
        let site = site_with_limits(&upstream, TEN).state(&on(&disk, ", on-failure = \"defer\"")).build();
        let weir = site.start();
        let filler = disk.fill();
        let refusal = wait_for("refusal", || {
            let client = Ipv4Addr::new(127, 3, rand(), rand());
            replies(&weir, client, 5).into_iter().find(|reply| reply.starts_with('4'))
        });
        assert!(refusal.starts_with("451 4.3.0 "), "{refusal}");
        assert_degraded(&weir, "full");
        std::fs::remove_file(filler).unwrap();
        wait_until_good(&weir);
        assert_eq!(accepted(&weir, ALICE, 4), 4);
    }

    #[test]
    fn a_read_only_file_system_stops_no_mail() {
        let (upstream, disk) = (Upstream::start(), Disk::new(16));
        // Flush each commit (`durability = "power"`): a failing disk can lose writes that were not flushed to it.
        let site = site_with_limits(&upstream, TEN).state(&on(&disk, ", durability = \"power\"")).build();
        let weir = site.start();
        assert_eq!(accepted(&weir, ALICE, 4), 4);
        disk.make_read_only();
        assert_eq!(accepted(&weir, ALICE, 4), 4, "mail flows");
        assert_degraded(&weir, "");
        assert_eq!(accepted(&weir, ALICE, 4), 2, "and limits hold");
        assert_eq!(weir.terminate(), Some(0));
        // A Weir that starts while the file system is read-only also accepts mail.
        let weir = site.start();
        assert_degraded(&weir, "state.db");
        assert_eq!(accepted(&weir, BOB, 12), 10);
        assert_eq!(weir.terminate(), Some(0));
        disk.repair();
        let weir = site.start();
        assert_eq!(weir.get("/readyz").0, 200);
        assert_eq!(accepted(&weir, ALICE, 10), 6, "what was in the file before counts");
    }

    #[test]
    fn a_hanging_disk_delays_replies_by_a_few_seconds_at_most() {
        let (upstream, disk) = (Upstream::start(), Disk::new(16));
        let site = site_with_limits(&upstream, TEN).state(&on(&disk, ", durability = \"power\"")).build();
        let weir = site.start();
        assert_eq!(accepted(&weir, ALICE, 4), 4);
        disk.freeze();
        let began = Instant::now();
        assert_eq!(accepted(&weir, ALICE, 4), 4, "mail flows");
        // Only the first reply waits for its commit, up to the maximum time of a commit; the later replies do not wait.
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert_degraded(&weir, "slow");
        assert_eq!(accepted(&weir, BOB, 12), 10, "and limits hold, also for a client whose budgets are not in memory");
        let (began, carol) = (Instant::now(), ["client=127.2.0.3", "--for", "1d", "--reason", "x"]);
        let words = suspend(&site, &carol);
        assert!(words.contains("not in the state file yet") && began.elapsed() < Duration::from_secs(5), "{words}");
        disk.thaw();
        wait_until_good(&weir);
        weir.kill();
        let weir = site.start();
        assert_eq!(weir.metric("weir_suspensions_in_force"), 1.0);
        assert_eq!(accepted(&weir, ALICE, 4), 2, "what was counted meanwhile is in the file");
        assert_eq!(accepted(&weir, BOB, 4), 0);
    }

    #[test]
    fn a_disk_that_hangs_in_a_commit_stops_only_the_session_that_writes() {
        let (upstream, disk) = (Upstream::start(), Disk::new(16));
        let site = site_with_limits(&upstream, TEN).state(&on(&disk, ", durability = \"process\"")).build();
        let weir = site.start();
        assert_eq!(accepted(&weir, ALICE, 4), 4);
        disk.freeze();
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| accepted(&weir, ALICE, 4));
            assert_degraded(&weir, "slow");
            assert_eq!(accepted(&weir, BOB, 12), 10, "mail flows, and limits hold");
            disk.thaw();
            assert_eq!(writing.join().unwrap(), 4, "no session is lost");
        });
        wait_until_good(&weir);
        weir.kill();
        let weir = site.start();
        assert_eq!(accepted(&weir, ALICE, 4), 2, "what was counted meanwhile is in the file");
        assert_eq!(accepted(&weir, BOB, 4), 0);
    }
}

#[test]
fn a_damaged_page_is_reported_and_the_rest_is_saved() {
    let upstream = Upstream::start();
    let site = site_with_limits(&upstream, TEN).build();
    // 20,000 budgets, which take some hundred pages of the database, so that one bad page damages only a part.
    let line = |n: u32| {
        let client = Ipv4Addr::from(0x0a00_0000 + n);
        format!(
            "{{\"limit\":\"ten\",\"count\":\"recipients\",\"algorithm\":\"token-bucket\",\
             \"owner\":{{\"client\":\"{client}\"}},\"at\":\"2099-01-01T00:00:00Z\",\"level\":7}}\n"
        )
    };
    let lines: String = (0..20_000).map(line).collect();
    succeed(&mut site.command(&["state", "load"]), &lines);
    let file = std::fs::OpenOptions::new().write(true).open(site.path("state.db")).unwrap();
    let middle = file.metadata().unwrap().len() / 2 / 4096 * 4096;
    file.write_all_at(&[0xa5; 4096], middle).unwrap();

    let weir = site.start();
    assert_degraded(&weir, "damaged");
    assert_eq!(accepted(&weir, ALICE, 12), 10, "mail flows, and limits hold");
    let Outcome { code, out: saved, err } = site.run(&["state", "dump"], "");
    assert_eq!(code, Some(65), "{err}");
    assert!(err.contains("damaged"), "{err}");
    assert!((19_000..20_001).contains(&saved.lines().count()), "{}", saved.lines().count());
    assert_eq!(weir.terminate(), Some(0));

    // Do what the error message advises: move the damaged file away, and load the dump into a new state file.
    std::fs::rename(site.path("state.db"), site.path("damaged.db")).unwrap();
    succeed(&mut site.command(&["state", "load"]), &saved);
    let weir = site.start();
    assert_eq!(weir.get("/readyz").0, 200);
}

#[test]
fn a_state_file_that_is_moved_away_is_reported() {
    let (_upstream, site, weir) = running(TEN);
    assert_eq!(accepted(&weir, ALICE, 4), 4);
    std::fs::rename(site.path("state.db"), site.path("away.db")).unwrap();
    assert_degraded(&weir, "removed");
    assert_eq!(accepted(&weir, ALICE, 8), 6, "mail flows, and limits hold");
    std::fs::rename(site.path("away.db"), site.path("state.db")).unwrap();
    wait_until_good(&weir);
}
