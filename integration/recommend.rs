//! Tests of `weir recommend`, with a history whose answer is known: people who write to few strangers, and a newsletter.

use crate::harness::{Outcome, Site, run, succeed, weir};
use serde_json::Value;
use std::process::Command;

const DAY: u64 = 86_400;
const DAYS: u64 = 90;
/// Strangers to whom the newsletter goes, each five days.
const READERS: u64 = 150;

/// Returns a history of ten people who each send three messages on each day, of which one is to a stranger, and of a
/// newsletter to new readers.
fn history(days: u64) -> String {
    let mut rows = String::from("t,user,sender,recipient\n");
    for day in 0..days {
        for person in 0..10 {
            for (hour, recipient) in
                [(8, "colleague".to_owned()), (11, "friend".to_owned()), (15, format!("new-{day}"))]
            {
                // Irregular times: no gap of a person is like the gap before.
                let t =
                    1_700_000_000 + day * DAY + hour * 3_600 + person * 60 + (day * 7_919 + person * 104_729) % 7_000;
                rows.push_str(&format!("{t},p{person},p{person},{recipient}-of-{person}@example.net\n"));
            }
        }
        if day % 5 == 0 {
            let t = 1_700_000_000 + day * DAY + 20 * 3_600;
            (0..READERS).for_each(|n| rows.push_str(&format!("{t},news,news,reader-{day}-{n}@example.net\n")));
        }
    }
    sorted(&rows)
}

fn sorted(rows: &str) -> String {
    let (header, rows) = rows.split_once('\n').unwrap();
    let mut rows: Vec<&str> = rows.lines().collect();
    rows.sort_by_key(|row| row.split_once(',').unwrap().0.parse::<u64>().unwrap());
    format!("{header}\n{}\n", rows.join("\n"))
}

fn recommend(folder: &Site, arguments: &[&str], input: &str) -> Outcome {
    run(command(folder).args(arguments), input)
}

fn command(folder: &Site) -> Command {
    let mut command = weir();
    command.current_dir(folder.path("")).arg("recommend").arg("-");
    command
}

fn site() -> Site {
    Site::builder().open_listener().upstream("127.0.0.1:2525", "").users(&[]).build()
}

#[test]
fn promise_is_kept_and_the_output_is_what_simulate_counts() {
    let (site, rows) = (site(), history(DAYS));
    let outcome = succeed(command(&site).args(["--json", "--out", "limits.toml", "--plot", "plot.svg"]), &rows);
    let report: Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!(report["evaluation"]["refused"], 0, "{}", outcome.out);
    // People write to one stranger a day: the strictest number, plus the margin.
    assert_eq!(chosen(&report, "messages-to-strangers"), 12);
    assert_eq!(chosen(&report, "strangers"), 40);
    let row = &report["overrides"].as_array().unwrap().iter().find(|row| row["limit"] == "strangers").unwrap();
    assert_eq!((row["user"].as_str(), row["rate"].as_str()), (Some("news"), Some("200 / 1d")));
    let plot = std::fs::read_to_string(site.path("plot.svg")).unwrap();
    assert!(plot.contains("messages-to-strangers") && plot.contains("refused honest recipients"));
    let limits = std::fs::read_to_string(site.path("limits.toml")).unwrap();
    let file = std::fs::read_to_string(site.path("weir.toml")).unwrap();
    site.put("weir.toml", &format!("{file}\n{limits}"));
    assert_eq!(site.run(&["check"], "").code, Some(0), "{}", site.run(&["check"], "").said());
    let simulated = succeed(&mut site.command(&["simulate", "--json", "-"]), &rows);
    let counts = simulated.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let counts: Vec<Value> = counts.filter(|line| line["events"].is_u64()).collect();
    let shadow = report["shadow"].as_array().unwrap();
    assert!(shadow.len() > 3);
    for count in shadow {
        let line = counts.iter().find(|line| line["limit"] == count["limit"]).unwrap();
        assert_eq!(line["refused"], count["whole"], "{count}");
    }
}

fn chosen(report: &Value, limit: &str) -> Value {
    let families = report["families"].as_array().unwrap();
    families.iter().find(|family| family["limit"] == limit).unwrap()["chosen"].clone()
}

#[test]
fn histories_that_say_too_little_are_refused_with_the_reason() {
    let site = site();
    let no_user = history(40).replacen("user,sender", "other,sender", 1);
    for (input, words) in [
        (history(20), "the history has mail of 19."),
        (no_user, "with --sender-as-user each sender is taken as the user"),
        ("t,sender,recipient\n".to_owned(), "there is no message in it"),
    ] {
        let outcome = recommend(&site, &[], &input);
        assert_eq!(outcome.code, Some(65), "{}", outcome.said());
        assert!(outcome.err.contains(words), "{words:?} is not in\n{}", outcome.err);
    }
}

#[test]
fn files_that_exist_are_not_replaced_without_force() {
    let site = site();
    site.put("limits.toml", "mine");
    for (out, words) in [("limits.toml", "it exists; --force replaces it"), ("nowhere/limits.toml", "No such file")] {
        let outcome = recommend(&site, &["--out", out], "");
        assert_eq!(outcome.code, Some(73), "{}", outcome.said());
        assert!(outcome.err.contains(words), "{}", outcome.err);
    }
    assert_eq!(std::fs::read_to_string(site.path("limits.toml")).unwrap(), "mine");
}

#[test]
fn bad_rows_are_named_and_left_out() {
    let outcome = recommend(&site(), &[], &format!("{}never,p1,p1,a@example.net\n", history(20)));
    assert!(outcome.err.contains("1 bad rows of"), "{}", outcome.err);
}
