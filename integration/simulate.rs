//! `weir simulate`: history in, decisions out, compared with an independent copy of the formulas.

use crate::harness::{run, weir};
use serde_json::Value;
use std::collections::HashMap;
use std::io::Write as _;
use std::path::PathBuf;

/// A folder with a configuration of these limits.
struct Site(tempfile::TempDir);

impl Site {
    fn new(limits: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "listener.s = {{ address = \"127.0.0.1:0\", tls = \"none\", auth = \"none\" }}\n\
             upstream = [{{ address = \"127.0.0.1:2525\", tls = \"none\" }}]\nstate = {{ path = \"state.db\" }}\n{limits}"
        );
        std::fs::write(folder.path().join("weir.toml"), text).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Exit code, standard output and standard error.
    fn simulate(&self, arguments: &[&str], input: &[u8]) -> (Option<i32>, String, String) {
        let mut command = weir();
        command.arg("simulate").arg("-c").arg(self.path("weir.toml")).args(arguments).current_dir(self.0.path());
        let output = run(&mut command, input);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }
}

const EWMA: &str = "[[limit]]\nname = \"average\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"10 / 1h\"\n";
const BUCKET: &str = "[[limit]]\nname = \"bucket\"\ncount = \"messages\"\nper = [\"user\"]\nrate = \"3 / 1h\"\nburst = 4\nalgorithm = \"token-bucket\"\n";

/// Rows of a history: time, sender, recipient. Some thousands of messages of a few people, some in bursts; the same every time.
fn history() -> Vec<(u64, String, String)> {
    let mut seed = 12345u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let (mut t, mut rows) = (1_700_000_000, Vec::new());
    for message in 0..4000 {
        t += if random(4) == 0 { random(900) } else { random(20) };
        let sender = format!("user{}", random(5));
        for recipient in 0..1 + random(4) {
            rows.push((t, sender.clone(), format!("r{message}-{recipient}@example.net")));
        }
    }
    rows
}

fn csv(rows: &[(u64, String, String)]) -> String {
    let rows = rows.iter().map(|(t, sender, recipient)| format!("{t},{sender},{recipient}\n"));
    std::iter::once("t,sender,recipient\n".to_owned()).chain(rows).collect()
}

fn lines_of_json(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Exim's leaky ratelimit, as its documentation has the formula.
fn refused_by_average(rows: &[(u64, String, String)], m: f64, p: f64) -> Vec<bool> {
    let mut states: HashMap<&str, (f64, f64)> = HashMap::new();
    rows.iter()
        .map(|(t, sender, _)| {
            let now = *t as f64;
            let rate = match states.get(sender.as_str()) {
                None => 1.0,
                Some((then, rate)) if now == *then => rate + 1.0,
                Some((then, rate)) => {
                    let i = now - then;
                    let a = (-i / p).exp();
                    f64::max(1.0, (1.0 - a) * p / i + a * rate)
                }
            };
            let over = rate >= m;
            if !over {
                states.insert(sender, (now, rate));
            }
            over
        })
        .collect()
}

#[test]
fn decisions_are_those_of_an_independent_formula() {
    let rows = history();
    let expected = refused_by_average(&rows, 10.0, 3600.0);
    let count = expected.iter().filter(|refused| **refused).count();
    assert!(count > 100 && count < rows.len() - 100, "{count} of {}", rows.len());
    let site = Site::new(EWMA);
    let (code, out, err) = site.simulate(&["--json", "-"], csv(&rows).as_bytes());
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let mut decisions = lines_of_json(&out);
    let summary = decisions.pop().unwrap();
    // Rows of one message are decided together: by its recipient each is found again.
    let decided: HashMap<&str, &Value> =
        decisions.iter().map(|decision| (decision["recipient"].as_str().unwrap(), decision)).collect();
    for (row, expected) in rows.iter().zip(&expected) {
        assert_eq!(decided[row.2.as_str()]["decision"] == "refuse", *expected, "{row:?}");
    }
    assert_eq!(summary["refused"], count);
    assert_eq!(summary["events"], rows.len());
    let first = expected.iter().position(|refused| *refused).unwrap();
    assert_eq!(summary["first-refusal"]["t"], rows[first].0 as f64);
    assert_eq!(decided[rows[first].2.as_str()]["limit"], "average");
}

#[test]
fn limits_on_messages_and_recipients_stand_side_by_side() {
    let rows = history();
    let site = Site::new(&format!("{EWMA}{BUCKET}"));
    let (_, out, _) = site.simulate(&["--json", "-"], csv(&rows).as_bytes());
    let lines = lines_of_json(&out);
    let (decisions, summaries) = lines.split_at(lines.len() - 2);
    for (summary, name) in summaries.iter().zip(["average", "bucket"]) {
        assert_eq!(summary["limit"], name);
        let named = |decision: &&Value| {
            decision["limit"] == name || decision["also"].as_array().is_some_and(|also| also.contains(&name.into()))
        };
        let refused = decisions.iter().filter(named);
        let refused = match name {
            // A refused message is counted once, however many its recipients.
            "bucket" => refused
                .map(|d| (d["t"].to_string(), d["user"].to_string()))
                .collect::<std::collections::HashSet<_>>()
                .len(),
            _ => refused.count(),
        };
        assert!(refused > 0);
        assert_eq!(summary["refused"], refused, "{name}");
    }
    let (code, text, _) = site.simulate(&["-"], csv(&rows).as_bytes());
    assert_eq!(code, Some(0));
    for words in [
        "average: 10 recipients per 1h, ewma",
        "bucket: 3 messages per 1h, token-bucket",
        "  worst        user",
        " of 5\n",
    ] {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
}

#[test]
fn history_comes_as_json_and_gzipped_as_well() {
    let rows = history();
    let site = Site::new(EWMA);
    let json: String = rows
        .iter()
        .map(|(t, sender, recipient)| format!("{{\"t\":{t},\"sender\":\"{sender}\",\"recipient\":\"{recipient}\"}}\n"))
        .collect();
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zipped.write_all(csv(&rows).as_bytes()).unwrap();
    std::fs::write(site.path("history.csv.gz"), zipped.finish().unwrap()).unwrap();
    std::fs::write(site.path("history.jsonl"), json).unwrap();
    let (_, expected, _) = site.simulate(&["--json", "-"], csv(&rows).as_bytes());
    for name in ["history.csv.gz", "history.jsonl"] {
        let (code, out, err) = site.simulate(&["--json", name], b"");
        assert_eq!((code, err.as_str()), (Some(0), ""), "{name}");
        assert!(out == expected, "{name} is decided otherwise");
    }
}

#[test]
fn what_is_wrong_with_a_history_is_said() {
    let site = Site::new(EWMA);
    let (code, out, err) = site.simulate(&["-"], b"t,sender,recipient\n1,a,b\nx,a,b\n3,a,b\n2,a,b\n");
    assert_eq!(code, Some(65), "half of the rows are bad");
    assert!(out.starts_with("2 messages to 2 recipients by 1 users"), "{out}");
    assert!(
        err.contains("standard input:3: \"x\" is not a time") && err.contains("standard input:5: it is earlier"),
        "{err}"
    );
    assert!(err.contains("2 bad rows of 4 were left out\n"), "{err}");
    let rows = csv(&history()) + "x,a,b\n";
    let (code, _, err) = site.simulate(&["-"], rows.as_bytes());
    assert!(code == Some(0) && err.contains("1 bad rows of "), "{err}");
    // What was read before an input breaks off is reported.
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zipped.write_all(rows.as_bytes()).unwrap();
    let zipped = zipped.finish().unwrap();
    let (code, out, err) = site.simulate(&["-"], &zipped[..zipped.len() / 2]);
    assert!(code == Some(74) && err.contains("rows before") && out.contains("average: 10 recipients"), "{err}\n{out}");
    // A limit that never held has nothing to say.
    let clients = Site::new(&EWMA.replace("[\"user\"]", "[\"client\"]"));
    let (_, out, _) = clients.simulate(&["-"], rows.as_bytes());
    assert!(out.contains("average: held for no message"), "{out}");
    let (_, out, _) = clients.simulate(&["--flood", "user1 1/s 10rcpt from 0", "-"], rows.as_bytes());
    assert!(out.contains("9 got mail before the first refusal, after 0s"), "{out}");
    let (code, _, err) = clients.simulate(&["--plot", "x.svg", "-"], rows.as_bytes());
    assert!(code == Some(73) && err.contains("no limit can be drawn"), "{err}");
    let zipped = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 75, 76];
    for (input, exit, words) in [
        (&b"a,b\n1,2\n"[..], 65, "no column \"t\""),
        (b"", 65, "no column \"t\""),
        (b"t,sender,recipient\nx,a,b\n", 65, "there is no message in it"),
        (&zipped, 66, "standard input: "),
    ] {
        let (code, _, err) = site.simulate(&["-"], input);
        assert_eq!(code, Some(exit), "{err}");
        assert!(err.contains(words), "{err}");
    }
    assert_eq!(site.simulate(&["nowhere.csv"], b"").0, Some(66));
    let (code, _, err) = site.simulate(&["--flood", "alice", "-"], b"");
    assert!(code == Some(64) && err.contains("alice 1/s 100rcpt from"), "{err}");
    let (code, _, err) = site.simulate(&["--plot", "no/such/folder.svg", "-"], b"t,sender,recipient\n1,a,b\n");
    assert!(code == Some(73) && err.contains("no/such/folder.svg"), "{err}");
}

#[test]
fn a_flood_is_bounded_and_the_history_of_others_is_not() {
    let site = Site::new(EWMA);
    // Alice has sent to 5 an hour ago, and Bob sends now and then.
    let mut rows: Vec<(u64, String, String)> = (0..5).map(|n| (0, "alice".into(), format!("friend{n}"))).collect();
    rows.extend((1..24).map(|hour| (hour * 3600, "bob".into(), "friend".into())));
    let flood = ["--flood", "alice 1/s 3rcpt from 3600", "-"];
    let (code, out, err) = site.simulate(&flood, csv(&rows).as_bytes());
    assert_eq!((code, err.as_str()), (Some(0), ""));
    // What is left of 5 after an hour is 5/e; the first that makes 10 is refused.
    assert!(out.contains("8 got mail before the first refusal, after 2s;"), "{out}");
    let (_, out, _) = site.simulate(&[&["--json"][..], &flood].concat(), csv(&rows).as_bytes());
    let lines = lines_of_json(&out);
    let flood = lines.last().unwrap();
    let strangers = lines
        .iter()
        .filter(|line| line["user"] == "alice" && line["decision"] == "pass" && line["t"].as_f64() >= Some(3600.0));
    assert_eq!(flood["delivered"], strangers.count());
    assert_eq!(flood["tried"], 3 * 86_400);
    // E(24 h) of 10 / 1h.
    assert!((240..=250).contains(&flood["delivered"].as_u64().unwrap()), "{flood}");
    assert!(lines.iter().all(|line| line["user"] != "bob" || line["decision"] == "pass"));
}

#[test]
fn a_plot_has_a_panel_for_each_limit() {
    let site = Site::new(&format!("{EWMA}{BUCKET}"));
    let (code, _, err) = site.simulate(&["--plot", "out.svg", "-"], csv(&history()).as_bytes());
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let svg = std::fs::read_to_string(site.path("out.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for words in ["average: the most recipients in any window", "bucket: the most messages in any window", "user3"] {
        assert!(svg.contains(words), "{words}");
    }
    assert_eq!(svg.matches("E(T), the limit").count(), 2);
}

#[test]
fn check_explains_what_a_limit_lets_through() {
    let site = Site::new(&format!("{EWMA}{BUCKET}"));
    let output = run(weir().args(["check", "--explain", "-c"]).arg(site.path("weir.toml")), "");
    let text = String::from_utf8(output.stdout).unwrap();
    for words in [
        "average: 10 recipients per 1h, ewma\n  after silence    9 at once, 10 at one every 1s",
        "  once it is full  one every 6m\n",
        "  at the very most 20 in 1h, 250 in 1d, 1690 in 7d\n",
        "bucket: 3 messages per 1h, token-bucket\n  after silence    4 at once, 4 at one every 1s, 4 at one every 10s",
        "  at the very most 7 in 1h, 76 in 1d, 508 in 7d",
    ] {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
}
