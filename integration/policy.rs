//! Tests of the policy language: each sentence of its description has a test. Each test is a talk: a script of SMTP
//! clients of a running Weir, `policy/NAME.policy`, in the grammar of `talk/mod.rs`. Weir has the limits of
//! `policy/NAME.toml` and the files `policy/NAME-FILE`. A file `policy/NAME-FILE.mmdb.csv` becomes a database of
//! locations, `FILE.mmdb`. With a file `policy/NAME-login-networks.csv`, users have these login networks.
//!
//!     TALK=NAME cargo nextest run -E 'test(policy::)'     plays one talk

use crate::harness::{Site, Upstream, mmdb_of_lines};
use crate::talk::{Talk, USERS, files, head, name_of, play, play_all, today};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Number of talks that run at the same time. A talk needs little processor time, because it mostly waits.
const CONCURRENT_TALKS: usize = 12;

#[test]
fn every_talk_goes_as_written() {
    play_all(talks(), CONCURRENT_TALKS, |path| {
        let script = std::fs::read_to_string(path).unwrap();
        play_under(&name_of(path), &script)
    });
}

#[test]
fn a_talk_with_a_wrong_line_fails() {
    let begin = "a 192.0.2.7 connects\na mails x@example.org: 1..2@example.net\n";
    for wrong in [
        "a -> RCPT TO:<3@example.net>\na <~ 250",
        "a -> RCPT TO:<3@example.net>\na <- 450",
        "a -> NOOP\na <- 250 2.0.0",
        "a -> NOOP",
        "a sends x@example.org: 3@example.net",
        "a -> QUIT\na -- closed",
        "metric weir_connections_total{listener=\"relay\"} 0",
        "log lacks listening & relay",
        "upstream has 1",
        "change weir.toml: nowhere => anywhere",
        "wait until it fits",
        "weir revoke tokens alice",
        "weir exceptions\nweir says granted",
        "b -> NOOP",
        "nonsense",
    ] {
        assert!(play_under("token-bucket", &format!("{begin}{wrong}\n")).is_err(), "{wrong}");
    }
    assert_eq!(play_under("token-bucket", begin), Ok(()));
}

#[test]
fn every_sentence_has_a_talk_and_every_talk_a_sentence() {
    let text = std::fs::read_to_string(folder().join("sentences.txt")).unwrap();
    let (now, _later) = text.split_once("\n# later").unwrap();
    let (_, now) = now.split_once("\n\n").unwrap();
    let sentences: Vec<&str> = now.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(sentences.len() > 80, "only {} sentences", sentences.len());
    let mut shown = BTreeSet::new();
    let mut problems = Vec::new();
    for path in talks() {
        let (name, script) = (name_of(&path), std::fs::read_to_string(&path).unwrap());
        let claims: Vec<&str> = script.lines().map_while(|line| line.strip_prefix("#! ")).collect();
        if claims.is_empty() {
            problems.push(format!("{name} shows no sentence"));
        }
        for claim in claims {
            match sentences.iter().filter(|sentence| sentence.contains(claim)).collect::<Vec<_>>()[..] {
                [sentence] => drop(shown.insert(*sentence)),
                [] => problems.push(format!("{name} shows an unknown sentence: {claim}")),
                _ => problems.push(format!("{name}: several sentences contain: {claim}")),
            }
        }
    }
    let unshown = sentences.iter().filter(|sentence| !shown.contains(*sentence));
    problems.extend(unshown.map(|sentence| format!("no talk shows: {sentence}")));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/policy")
}

fn talks() -> Vec<PathBuf> {
    files(&folder(), "policy")
}

/// Plays a script with a Weir that has the limits of `policy/NAME.toml`. The error names the failed line and the
/// reason.
fn play_under(name: &str, script: &str) -> Result<(), String> {
    play(|| start(name), name, script).map(drop)
}

/// Starts a Weir that has the limits of `policy/NAME.toml`.
fn start(name: &str) -> Talk {
    let limits = std::fs::read_to_string(folder().join(format!("{name}.toml"))).unwrap();
    let upstream = Upstream::start();
    let slow = limits.contains("route = \"slow\"").then(Upstream::start);
    let head = head(&upstream, slow.as_ref());
    let site = Site::builder().more(&head).more(&limits.replace("{today}", &today())).users(&USERS).build();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let entry = entry.unwrap();
        if let Some(file) = entry.file_name().to_string_lossy().strip_prefix(&format!("{name}-"))
            && !file.ends_with(".toml")
            && !file.ends_with(".policy")
        {
            match file.strip_suffix(".csv").filter(|file| file.ends_with(".mmdb")) {
                Some(database) => {
                    let lines = std::fs::read_to_string(entry.path()).unwrap();
                    std::fs::write(site.path(database), mmdb_of_lines(&lines)).unwrap();
                }
                None => drop(std::fs::copy(entry.path(), site.path(file)).unwrap()),
            }
        }
    }
    if site.path("login-networks.csv").exists() {
        let keys = "login-networks = \"login-networks.csv\", other-networks = \"allow\"";
        site.edit("{ file = \"users\" }", &format!("{{ file = \"users\", {keys} }}"));
    }
    Talk::at(site, upstream, slow)
}
