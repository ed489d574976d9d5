//! Tests of `weir history`: it makes the expected histories of mail from logs in the formats of real mail servers.

mod learn;
mod real_exim;

use crate::harness::{Client, Outcome, Site, Upstream, run, weir};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Returns the path of a file in the folder of this source file.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/history").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap()
}

/// Returns the data in the form of gzip.
fn zipped(data: &[u8]) -> Vec<u8> {
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zipped.write_all(data).unwrap();
    zipped.finish().unwrap()
}

/// Runs `weir history` in the folder of the logs, with the time zone Europe/Vienna.
fn history(arguments: &[&str], input: &str) -> Outcome {
    let mut command = weir();
    command.arg("history").args(arguments).args(["--timezone", "Europe/Vienna"]).current_dir(file(""));
    run(&mut command, input)
}

#[test]
fn every_log_gives_its_history() {
    for (expected, arguments) in [
        ("postfix", &["postfix", "--year", "2025", "postfix-relay.log", "postfix-submission.log"][..]),
        ("exim", &["exim", "--year", "2026", "exim.log"]),
        ("refused", &["exim", "--year", "2026", "--refused", "--authenticated", "exim.log"]),
        ("weir", &["weir", "--year", "2026", "weir.log"]),
        ("postfix-formats", &["postfix", "--year", "2026", "postfix-formats.log"]),
        ("postfix-refusals", &["postfix", "--year", "2026", "--refused", "postfix-refusals.log"]),
        ("exim-refusals", &["exim", "--year", "2026", "--refused", "exim-refusals.log", "exim-syslog.log"]),
    ] {
        let found = history(arguments, "");
        let (rows, summary) = (format!("{expected}.csv"), format!("{expected}.summary"));
        if std::env::var_os("GOLDEN").is_some_and(|value| value == "write") {
            std::fs::write(file(&rows), &found.out).unwrap();
            std::fs::write(file(&summary), &found.err).unwrap();
        }
        assert_eq!((found.code, found.err), (Some(0), text(&summary)), "{expected}");
        assert_eq!(found.out, text(&rows), "{expected}");
    }
}

#[test]
fn rotated_and_gzipped_logs_of_any_order_give_the_history_of_the_whole_log() {
    let folder = tempfile::tempdir().unwrap();
    let whole = text("postfix-submission.log");
    let lines: Vec<&str> = whole.lines().collect();
    // Divide the log so that the lines of some messages are in two files.
    let parts = [&lines[..9], &lines[9..30], &lines[30..]];
    let name = |n: usize| folder.path().join(["mail.log.2.gz", "mail.log.1", "mail.log"][n]);
    for (n, part) in parts.into_iter().enumerate() {
        let mut text = (part.join("\n") + "\n").into_bytes();
        if n == 0 {
            text = zipped(&text);
        }
        std::fs::write(name(n), text).unwrap();
        let modified: std::time::SystemTime = ["2026-01-01T00:00:05Z", "2026-01-01T01:00:00Z", "2026-03-01T00:00:00Z"]
            [n]
            .parse::<jiff::Timestamp>()
            .unwrap()
            .into();
        std::fs::File::options().append(true).open(name(n)).unwrap().set_modified(modified).unwrap();
    }
    let paths: Vec<PathBuf> = [2, 1, 0].map(name).into();
    let mut arguments = vec!["postfix"];
    arguments.extend(paths.iter().map(|path| path.to_str().unwrap()));
    let found = history(&arguments, "");
    let expected = history(&["postfix", "--year", "2025", "postfix-submission.log"], "");
    assert_eq!((found.code, &found.out), (Some(0), &expected.out), "{}", found.err);
    assert!(found.out.contains("2025-12-31T22:59:41Z,192.0.2.7,alice"), "{}", found.out);
    let order: Vec<usize> = ["mail.log.2.gz: 9 lines, 2025", "mail.log.1: 21 lines, 2025", "mail.log: 22 lines, 2025"]
        .map(|part| found.err.find(part).unwrap_or_else(|| panic!("{part}: {}", found.err)))
        .into();
    assert!(order.is_sorted(), "{}", found.err);
}

#[test]
fn a_log_that_is_given_twice_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    for (program, name) in
        [("postfix", "postfix-refusals"), ("postfix", "postfix-submission"), ("exim", "exim-refusals")]
    {
        let log = format!("{name}.log");
        let (copy, iso) = (folder.path().join("copy.gz"), folder.path().join("iso.log"));
        std::fs::write(&copy, zipped(text(&log).as_bytes())).unwrap();
        // A second rule of rsyslog writes the same lines with times in another form.
        std::fs::write(&iso, text(&log).replace("Mar  1 10:00:", "2026-03-01T10:00:")).unwrap();
        let arguments = [program, "--year", "2026", "--refused", &log];
        let expected = history(&arguments, "");
        let lines = text(&log).lines().count();
        for other in [&copy, &iso] {
            let found = history(&[&arguments[..], &[other.to_str().unwrap()]].concat(), "");
            assert_eq!((found.code, &found.out), (Some(0), &expected.out), "{}", found.err);
            for words in
                [format!(", {lines} repeated"), format!("; {lines} of them left out: another log has them, too")]
            {
                assert!(found.err.contains(&words), "{words}: {}", found.err);
            }
        }
    }
}

#[test]
fn a_history_can_be_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let config = "listener.s = { address = \"127.0.0.1:0\", tls = \"none\", auth = \"none\" }\n\
        upstream = [{ address = \"127.0.0.1:2525\", tls = \"none\" }]\nstate = { path = \"state.db\" }\n\
        [[limit]]\nname = \"one\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"1 / 1d\"\nalgorithm = \"token-bucket\"\n";
    std::fs::write(folder.path().join("weir.toml"), config).unwrap();
    for name in ["postfix.csv", "exim.csv", "weir.csv", "exim-refusals.csv"] {
        let mut command = weir();
        command.args(["simulate", "--json", "-c"]).arg(folder.path().join("weir.toml")).arg(file(name));
        let found = run(&mut command, "");
        assert_eq!((found.code, found.err.as_str()), (Some(0), ""), "{name}");
        let decisions = found.out.lines().filter(|line| line.contains("\"decision\"")).count();
        assert_eq!(decisions, text(name).lines().count() - 1, "{name}");
        assert!(found.out.contains("\"refuse\""), "{name}: {}", found.out);
    }
}

#[test]
fn wrong_logs_are_named_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("mail.log.gz");
    let zipped = zipped(text("postfix-submission.log").as_bytes());
    std::fs::write(&broken, &zipped[..zipped.len() / 2]).unwrap();
    let other = folder.path().join("mail.log.xz");
    std::fs::write(&other, b"\xfd7zXZ\0\0").unwrap();
    for (arguments, code, words) in [
        (&["exim", "postfix-relay.log"][..], 65, "they look like those of Postfix: weir history postfix"),
        (&["postfix", "exim.log"], 65, "they look like those of Exim: weir history exim"),
        (&["weir", "--year", "2026", "exim.log"], 65, "no message of Weir"),
        (&["postfix", "none.log"], 66, "none.log: No such file"),
        (&["postfix", broken.to_str().unwrap()], 74, "mail.log.gz: not read to its end; the rest is written"),
        (&["postfix", other.to_str().unwrap()], 66, "xz -dc FILE | weir history"),
        (&["postfix", "--timezone", "Wien", "exim.log"], 64, "Europe/Vienna"),
        (&["sendmail", "exim.log"], 64, "possible values: postfix, exim, weir"),
        (&["postfix"], 64, "<LOG>..."),
    ] {
        let found = history_of(arguments);
        assert!(found.code == Some(code) && found.err.contains(words), "{arguments:?}: {found:?}");
    }
}

/// Runs `weir history` in the folder of the logs, without a time zone.
fn history_of(arguments: &[&str]) -> Outcome {
    run(weir().arg("history").args(arguments).current_dir(file("")), "")
}

#[test]
fn the_log_of_weir_itself_gives_its_history() {
    for (format, last) in [("logfmt", "accepted=2"), ("json", "\"accepted\":2")] {
        let upstream = Upstream::start();
        let site = Site::builder()
            .listener("s", "tls = \"none\", auth = \"optional\"")
            .upstream(upstream.address(), "")
            .more(&format!(
                "[log]\nformat = \"{format}\"\n[[limit]]\nname = \"three\"\ncount = \"recipients\"\nrate = \"2 / message\"\n"
            ))
            .build();
        let weir = site.start();
        let mut client = Client::logged_in(weir.address("s"), "alice");
        for recipients in [1, 3] {
            client.say("MAIL FROM:<\"a b\"@example.org>", "250");
            for n in 1..=recipients {
                client.say(&format!("RCPT TO:<r{n}@example.net>"), if n > 2 { "4" } else { "250" });
            }
            client.say("DATA", "354");
            client.say("hello\r\n.", "250");
        }
        client.say("QUIT", "221");
        weir.logged(last);
        let log = weir.log_lines().join("\n");
        for journal in [false, true] {
            let input: String = match journal {
                false => log.clone(),
                true => log.lines().map(|line| format!("Jan  1 00:00:00 host weir[99]: {line}\n")).collect(),
            };
            let found = history(&["weir", "--refused", "-"], &input);
            assert_eq!(found.code, Some(0), "{found:?}");
            let outcomes: Vec<&str> = found.out.lines().skip(1).map(|row| row.rsplit(',').next().unwrap()).collect();
            assert_eq!(outcomes, ["sent", "sent", "sent", "refused"], "{found:?}");
            assert_eq!(found.out.matches(",127.0.0.1,alice,\"\"\"a b\"\"@example.org\",").count(), 4, "{found:?}");
            assert!(found.out.contains(",r3@example.net,"), "{found:?}");
            assert!(found.err.contains("0 not understood"), "{found:?}");
        }
    }
}
