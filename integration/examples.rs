//! Tests of the example limits in `conf/examples`. Weir runs with each example, and a talk tests the example. A talk is
//! a script of SMTP clients, `examples/NAME.policy`, in the grammar of `talk/mod.rs`. The talk's transcript must equal
//! `examples/NAME.golden`.
//!
//!     TALK=NAME cargo nextest run -E 'test(examples::)'       plays one talk
//!     GOLDEN=write cargo nextest run -E 'test(examples::)'    writes new golden files; read their diff before a commit

use crate::harness::{Outcome, Site, Upstream, mmdb_of_lines};
use crate::talk::{Talk, USERS, files, head, name_of, play, play_all};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Number of talks that run at the same time. A talk needs little processor time, because it mostly waits.
const CONCURRENT_TALKS: usize = 8;

/// File of `conf/examples`. Administrators who try an example put this file before the example's limits.
const HEAD: &str = "before-limits.toml";

/// Folder of the databases of locations in the examples, as on Debian.
const DATABASES: &str = "/var/lib/GeoIP/";

/// Folder of the sockets in the examples, as on Debian.
const SOCKETS: &str = "/run/weir/";

#[test]
fn every_example_goes_as_written() {
    play_all(files(&talks(), "policy"), CONCURRENT_TALKS, compare);
}

#[test]
fn every_example_has_a_talk_and_a_line_in_the_list() {
    let names = |files: Vec<PathBuf>| files.iter().map(|path| name_of(path)).collect::<BTreeSet<_>>();
    let examples = names(examples());
    assert!(examples.len() > 20, "only {} examples", examples.len());
    assert_eq!(names(files(&talks(), "policy")), examples);
    assert_eq!(names(files(&talks(), "golden")), examples);
    let list = std::fs::read_to_string(folder().join("README.md")).unwrap();
    let listed = list.lines().filter_map(|line| line.strip_prefix("| [")?.split(']').next());
    assert_eq!(listed.map(|name| name.trim_end_matches(".toml").to_owned()).collect::<BTreeSet<_>>(), examples);
    for entry in std::fs::read_dir(folder()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let is_beside = examples.iter().any(|name| file.starts_with(&format!("{name}-")));
        let is_known = is_beside || file.ends_with(".toml") || file == "README.md";
        assert!(is_known, "{file} belongs to no example");
    }
}

#[test]
fn every_example_is_valid_with_users_and_when_only_tried() {
    let before = std::fs::read_to_string(folder().join(HEAD)).unwrap();
    for path in examples() {
        let limits = limits_of(&name_of(&path));
        let (site, ..) = site_for_example(&name_of(&path), &limits);
        let check = || {
            let Outcome { code, err, .. } = site.run(&["check"], "");
            (code, err)
        };
        assert_eq!(check(), (Some(0), String::new()), "{}", name_of(&path));
        std::fs::write(site.path("weir.toml"), format!("{before}{limits}")).unwrap();
        let (code, said) = check();
        assert_eq!(code, Some(0), "{}: {said}", name_of(&path));
        // This configuration has no users and no certificates, so warnings about missing logins and empty groups are
        // permitted.
        let is_of_users =
            |line: &str| line.ends_with("no listener has logins") || line.contains("no user is in the group");
        let mut warnings = said.lines().filter(|line| line.starts_with("warning: "));
        assert!(warnings.all(is_of_users), "{}: {said}", name_of(&path));
    }
}

#[test]
fn recommended_policies_stop_regular_strangers_after_fifteen() {
    std::thread::scope(|scope| {
        for name in ["university", "isp", "company"] {
            scope.spawn(move || {
                for (speed, hours) in [("1/s", 1.0), ("6/h", 3.0), ("2/h", 24.0)] {
                    let flood = simulate_flood(name, speed);
                    assert!(flood["delivered"].as_u64().unwrap() <= 15, "{name}: {flood}");
                    assert!(flood["seconds-to-first-refusal"].as_f64().unwrap() <= hours * 3_600.0, "{name}: {flood}");
                }
            });
        }
    });
}

#[test]
fn recommended_policies_refuse_random_times_within_six_hours_in_nine_of_ten_runs() {
    // Each of ten users has written to friends in sixty days.
    let row = |n: u64| format!("{},user{},friend{}\n", 1_700_000_000 + n * 5_760, n % 10, n * n % 7);
    let history = "t,sender,recipient\n".to_owned() + &(0..900).map(row).collect::<String>();
    let attack =
        ["simulate", "--json", "--sender-as-user", "--attack", "random-trickle", "--victims", "10", "--days", "1"];
    for name in ["university", "isp", "company"] {
        let site = site_with(name);
        let refused = (0..10).map(|seed| {
            let seed = seed.to_string();
            let Outcome { out, err, .. } = site.run(&[&attack[..], &["--seed", &seed, "-"]].concat(), &history);
            let result: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{name}: {err}"));
            assert_eq!(result["accounts"], 10, "{name}: {result}");
            let refused = result["seconds-to-first-refusal"].as_f64();
            refused.unwrap_or_else(|| panic!("{name}, seed {seed}: {result}")) as u64
        });
        // Each seed gives other random times to its ten accounts. By chance, one account in a thousand sends so slowly or
        // irregularly that it is refused later.
        let refused: BTreeSet<u64> = refused.collect();
        assert_eq!(refused.len(), 10, "{name}: {refused:?}");
        assert!(refused.iter().filter(|seconds| **seconds > 6 * 3_600).count() <= 1, "{name}: {refused:?}");
    }
}

/// Returns a site with the limits of an example.
fn site_with(example: &str) -> Site {
    let read = |file: &str| std::fs::read_to_string(folder().join(file)).unwrap();
    let site = Site::builder().users(&[]).build();
    std::fs::write(site.path("weir.toml"), read(HEAD) + &limits_of(example)).unwrap();
    copy_beside(example, &site);
    site
}

/// Simulates a day in which a stolen account sends each message to a new recipient, at the rate `speed`. Returns the
/// last line of `weir simulate --json`, which is the summary of the flood.
fn simulate_flood(example: &str, speed: &str) -> serde_json::Value {
    let site = site_with(example);
    let flood = format!("alice {speed} 1rcpt from 1700000000");
    let history = "t,sender,recipient\n1700000000,alice,bob\n";
    let Outcome { out, err, .. } = site.run(&["simulate", "--json", "--flood", &flood, "-"], history);
    let last = out.lines().last().unwrap_or_else(|| panic!("{example}: {err}"));
    serde_json::from_str(last).unwrap()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/examples")
}

fn talks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/examples")
}

fn examples() -> Vec<PathBuf> {
    let mut examples = files(&folder(), "toml");
    examples.retain(|path| !path.ends_with(HEAD));
    examples
}

/// Returns the text of an example. Databases of locations and sockets are then in the site's folder. [`copy_beside`] puts
/// the databases there.
fn limits_of(example: &str) -> String {
    let text = std::fs::read_to_string(folder().join(format!("{example}.toml"))).unwrap();
    text.replace(DATABASES, "").replace(SOCKETS, "")
}

/// Returns a site with the limits of an example, and its upstreams `upstream` and `slow`. Every client is permitted to
/// send, [`USERS`] can log in, and limits can route mail to `slow`.
fn site_for_example(example: &str, limits: &str) -> (Site, Upstream, Upstream) {
    let (upstream, slow) = (Upstream::start(), Upstream::start());
    let head = head(&upstream, Some(&slow));
    let text = format!("help-url = \"https://example.org/mail\"\n{head}{limits}");
    let site = Site::builder().more(&text).users(&USERS).build();
    copy_beside(example, &site);
    (site, upstream, slow)
}

/// Copies to the site those files that the example `NAME` uses. In the folder of examples, these files are named
/// `NAME-FILE`. Makes a database of locations, `FILE.mmdb`, of each file `examples/NAME-FILE.mmdb.csv`.
fn copy_beside(example: &str, site: &Site) {
    for entry in std::fs::read_dir(folder()).unwrap() {
        let (path, file) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        let file = file.to_string_lossy();
        if file.starts_with(&format!("{example}-")) && !file.ends_with(".toml") {
            std::fs::copy(path, site.path(&file)).unwrap();
        }
    }
    for path in files(&talks(), "csv") {
        let file = path.file_name().unwrap().to_string_lossy();
        if let Some(database) = file.strip_prefix(&format!("{example}-")).and_then(|file| file.strip_suffix(".csv")) {
            std::fs::write(site.path(database), mmdb_of_lines(&std::fs::read_to_string(&path).unwrap())).unwrap();
        }
    }
}

/// Plays the talk of an example, and compares its transcript with the golden file.
fn compare(talk: &Path) -> Result<(), String> {
    let (name, script) = (name_of(talk), std::fs::read_to_string(talk).unwrap());
    let start = || {
        let limits = limits_of(&name);
        let (site, upstream, slow) = site_for_example(&name, &limits);
        Talk::at(site, upstream, Some(slow))
    };
    let got = play(start, &name, &script)?;
    let golden = talk.with_extension("golden");
    if std::env::var("GOLDEN").is_ok_and(|how| how == "write") {
        std::fs::write(golden, got).unwrap();
        return Ok(());
    }
    let expected = std::fs::read_to_string(&golden).unwrap_or_default();
    let first = (0..).zip(got.lines().map(Some).chain([None]).zip(expected.lines().map(Some).chain([None])));
    match first.into_iter().find(|(_, (got, expected))| got != expected) {
        None => Ok(()),
        Some((n, (got, expected))) => Err(format!(
            "{name}.golden:{}: expected {}\ngot {}",
            n + 1,
            expected.unwrap_or("no more"),
            got.unwrap_or("no more")
        )),
    }
}
