//! Tests of `weir simulate`. They compare its decisions on a history with the decisions of the documented formulas,
//! which the tests compute with their own code.

use crate::harness::{Outcome, Site, run};
use serde_json::Value;
use std::collections::HashMap;
use std::io::Write as _;

/// Returns a site with these limits.
fn site_with_limits(limits: &str) -> Site {
    Site::builder().open_listener().upstream("127.0.0.1:2525", "").more(limits).users(&[]).build()
}

/// Runs `weir simulate` with these arguments in the folder of the site.
fn simulate(site: &Site, arguments: &[&str], input: impl AsRef<[u8]> + Send) -> Outcome {
    run(site.command(&["simulate"]).args(arguments).current_dir(site.path("")), input)
}

const EWMA: &str = "[[limit]]\nname = \"average\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"10 / 1h\"\n";
const BUCKET: &str = "[[limit]]\nname = \"bucket\"\ncount = \"messages\"\nper = [\"user\"]\nrate = \"3 / 1h\"\nburst = 4\nalgorithm = \"token-bucket\"\n";

/// Returns a history with rows of time, user and recipient: 4000 messages of five users, some of them in bursts.
/// The history is the same in each run.
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
    let rows = rows.iter().map(|(t, user, recipient)| format!("{t},{user},{user},{recipient}\n"));
    std::iter::once("t,user,sender,recipient\n".to_owned()).chain(rows).collect()
}

fn lines_of_json(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns for each row whether Exim's `ratelimit` refuses it, by the formula of Exim's documentation. The limit is `m`
/// per `p` seconds, with the option `leaky`.
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
    let site = site_with_limits(EWMA);
    let Outcome { code, out, err } = simulate(&site, &["--json", "-"], csv(&rows).as_bytes());
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let (decisions, summaries): (Vec<Value>, Vec<Value>) =
        lines_of_json(&out).into_iter().partition(|line| line.get("decision").is_some());
    let summary = &summaries[0];
    // Weir decides the rows of one message together, so find the decision on a row by its recipient, which is unique.
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
fn limits_on_messages_and_on_recipients_combine() {
    let rows = history();
    let site = site_with_limits(&format!("{EWMA}{BUCKET}"));
    let Outcome { out, .. } = simulate(&site, &["--json", "-"], csv(&rows).as_bytes());
    let lines = lines_of_json(&out);
    let (decisions, summaries) = lines.split_at(lines.len() - 3);
    for (summary, name) in summaries.iter().zip(["average", "bucket"]) {
        assert_eq!(summary["limit"], name);
        let named = |decision: &&Value| {
            decision["limit"] == name || decision["also"].as_array().is_some_and(|also| also.contains(&name.into()))
        };
        let refused = decisions.iter().filter(named);
        let refused = match name {
            // A limit on messages counts a refused message once, whatever its number of recipients.
            "bucket" => refused
                .map(|d| (d["t"].to_string(), d["user"].to_string()))
                .collect::<std::collections::HashSet<_>>()
                .len(),
            _ => refused.count(),
        };
        assert!(refused > 0);
        assert_eq!(summary["refused"], refused, "{name}");
    }
    let Outcome { code, out: text, .. } = simulate(&site, &["-"], csv(&rows).as_bytes());
    assert_eq!(code, Some(0));
    for words in [
        "\naverage: 10 recipients per 1h, at most 9 at the same instant\n",
        "\nbucket: 4 messages at once, then 3 per 1h\n",
        "  worst        user",
        " of 5 users\n",
    ] {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
}

#[test]
fn history_may_be_json_and_gzipped() {
    let rows = history();
    let site = site_with_limits(EWMA);
    let json: String = rows
        .iter()
        .map(|(t, user, recipient)| {
            format!("{{\"t\":{t},\"user\":\"{user}\",\"sender\":\"{user}\",\"recipient\":\"{recipient}\"}}\n")
        })
        .collect();
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zipped.write_all(csv(&rows).as_bytes()).unwrap();
    std::fs::write(site.path("history.csv.gz"), zipped.finish().unwrap()).unwrap();
    std::fs::write(site.path("history.jsonl"), json).unwrap();
    let Outcome { out: expected, .. } = simulate(&site, &["--json", "-"], csv(&rows).as_bytes());
    for name in ["history.csv.gz", "history.jsonl"] {
        let Outcome { code, out, err } = simulate(&site, &["--json", name], b"");
        assert_eq!((code, err.as_str()), (Some(0), ""), "{name}");
        assert!(out == expected, "{name} is decided otherwise");
    }
}

#[test]
fn errors_in_a_history_are_reported() {
    let site = site_with_limits(EWMA);
    let Outcome { code, out, err } = simulate(&site, &["-"], b"t,sender,recipient\n1,a,b\nx,a,b\n3,a,b\n2,a,b\n");
    assert_eq!(code, Some(65), "half of the rows are bad");
    assert!(out.starts_with("2 messages to 2 recipients by 1 sender without login in 2s"), "{out}");
    assert!(
        err.contains("standard input:3: \"x\" is not a time") && err.contains("standard input:5: it is earlier"),
        "{err}"
    );
    assert!(err.contains("2 bad rows of 4 were left out\n"), "{err}");
    let rows = csv(&history()) + "x,a,b\n";
    let Outcome { code, err, .. } = simulate(&site, &["-"], rows.as_bytes());
    assert!(code == Some(0) && err.contains("1 bad rows of "), "{err}");
    // If the compressed input ends too early, Weir reports an error, and the results for the rows before that place.
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zipped.write_all(rows.as_bytes()).unwrap();
    let zipped = zipped.finish().unwrap();
    let Outcome { code, out, err } = simulate(&site, &["-"], &zipped[..zipped.len() / 2]);
    assert!(code == Some(74) && err.contains("rows before") && out.contains("average: 10 recipients"), "{err}\n{out}");
    // A limit that applied to no message of the history has no figures and no panel in the plot.
    let clients = site_with_limits(&EWMA.replace("[\"user\"]", "[\"client\"]"));
    let Outcome { out, .. } = simulate(&clients, &["-"], rows.as_bytes());
    assert!(out.contains("average: held for no message"), "{out}");
    let Outcome { out, .. } = simulate(&clients, &["--flood", "user1 1/s 10rcpt from 0", "-"], rows.as_bytes());
    assert!(out.contains("9 got mail before the first refusal, after 0s"), "{out}");
    let Outcome { code, err, .. } = simulate(&clients, &["--plot", "x.svg", "-"], rows.as_bytes());
    assert!(code == Some(73) && err.contains("no limit can be drawn"), "{err}");
    let zipped = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 75, 76];
    for (input, exit, words) in [
        (&b"a,b\n1,2\n"[..], 65, "no column \"t\""),
        (b"", 65, "no column \"t\""),
        (b"t,sender,recipient\nx,a,b\n", 65, "there is no message in it"),
        (&zipped, 66, "standard input: "),
    ] {
        let Outcome { code, err, .. } = simulate(&site, &["-"], input);
        assert_eq!(code, Some(exit), "{err}");
        assert!(err.contains(words), "{err}");
    }
    assert_eq!(simulate(&site, &["nowhere.csv"], b"").code, Some(66));
    let Outcome { code, err, .. } = simulate(&site, &["--flood", "alice", "-"], b"");
    assert!(code == Some(64) && err.contains("alice 1/s 100rcpt from"), "{err}");
    let Outcome { code, err, .. } =
        simulate(&site, &["--plot", "no/such/folder.svg", "-"], b"t,sender,recipient\n1,a,b\n");
    assert!(code == Some(73) && err.contains("no/such/folder.svg"), "{err}");
}

#[test]
fn a_flood_is_bounded_and_the_history_of_others_is_not() {
    let site = site_with_limits(EWMA);
    // Alice sent to 5 recipients an hour before the flood, and Bob sends to one recipient an hour.
    let mut rows: Vec<(u64, String, String)> = (0..5).map(|n| (0, "alice".into(), format!("friend{n}"))).collect();
    rows.extend((1..24).map(|hour| (hour * 3600, "bob".into(), "friend".into())));
    let flood = ["--flood", "alice 1/s 3rcpt from 3600", "-"];
    let Outcome { code, out, err } = simulate(&site, &flood, csv(&rows).as_bytes());
    assert_eq!((code, err.as_str()), (Some(0), ""));
    // An hour after 5 recipients, alice's level is 5/e. Weir refuses the recipient that would raise it to 10.
    assert!(out.contains("8 got mail before the first refusal, after 2s;"), "{out}");
    let Outcome { out, .. } = simulate(&site, &[&["--json"][..], &flood].concat(), csv(&rows).as_bytes());
    let lines = lines_of_json(&out);
    let flood = lines.last().unwrap();
    let strangers = lines
        .iter()
        .filter(|line| line["user"] == "alice" && line["decision"] == "pass" && line["t"].as_f64() >= Some(3600.0));
    assert_eq!(flood["delivered"], strangers.count());
    assert_eq!(flood["tried"], 3 * 86_400);
    // E(24 h), the maximum that the limit 10 / 1h lets through in 24 hours.
    assert!((240..=250).contains(&flood["delivered"].as_u64().unwrap()), "{flood}");
    assert!(lines.iter().all(|line| line["user"] != "bob" || line["decision"] == "pass"));
}

#[test]
fn a_plot_has_a_panel_for_each_limit() {
    let site = site_with_limits(&format!("{EWMA}{BUCKET}"));
    let Outcome { code, err, .. } = simulate(&site, &["--plot", "out.svg", "-"], csv(&history()).as_bytes());
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let svg = std::fs::read_to_string(site.path("out.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for words in ["average: the most recipients in any window", "bucket: the most messages in any window", "user3"] {
        assert!(svg.contains(words), "{words}");
    }
    assert_eq!(svg.matches("E(T), the limit").count(), 2);
    // The history is of five days.
    let labels = labels(&svg);
    let count = |label: &str| labels.iter().filter(|other| **other == label).count();
    assert_eq!(["1 min", "1 h", "1 d", "1 week"].map(count), [2, 2, 2, 0], "{labels:?}");
    assert!(labels.contains(&"2023-11-15"), "{labels:?}");
}

/// Returns the texts of an SVG.
fn labels(svg: &str) -> Vec<&str> {
    let texts = svg.split("<text").skip(1);
    texts.filter_map(|text| Some(text.split_once('>')?.1.split_once("</text>")?.0.trim())).collect()
}

#[test]
fn a_plot_names_the_refused_users_and_marks_their_refusals() {
    let limits = format!("{EWMA}{}", BUCKET.replace("name", "mode = \"shadow\"\nname"));
    let site = site_with_limits(&limits);
    // On the fifth of ten days, users send more than the limit to different recipients. User "quiet" sends most, but
    // slowly.
    let (day, middle) = (86_400, 5 * 86_400);
    let mut rows: Vec<(u64, String, String)> =
        (0..120).map(|n| (n * day / 12, "quiet".to_owned(), format!("r{n}"))).collect();
    rows.extend((0..20).map(|n| (middle + n, "<hasty>".to_owned(), format!("r{n}"))));
    rows.extend((0..12).map(|n| (middle + n, "keen".to_owned(), format!("r{n}"))));
    rows.sort();
    let Outcome { code, out, err } = simulate(&site, &["--json", "--plot", "out.svg", "-"], csv(&rows).as_bytes());
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let refused = |user: &str| {
        let of = |line: &&Value| line["decision"] == "refuse" && line["user"] == user;
        lines_of_json(&out).iter().filter(of).count()
    };
    let (hasty, keen) = (refused("<hasty>"), refused("keen"));
    assert!(hasty > keen && keen > 0, "{hasty}, {keen}");
    let svg = std::fs::read_to_string(site.path("out.svg")).unwrap();
    let labels = labels(&svg);
    for label in [
        format!("&lt;hasty&gt;: {hasty} refused"),
        format!("keen: {keen} refused"),
        "quiet".to_owned(),
        "above the limit, refused".to_owned(),
        "above the limit, would be refused".to_owned(),
        format!("average: {} of 152 recipients refused, users: 2", hasty + keen),
        "1 week".to_owned(),
        "1970-01-05".to_owned(),
    ] {
        assert!(labels.contains(&label.as_str()), "{label:?} is not in {labels:?}");
    }
    // The marks of refusals are vertical lines, as wide as the lines of the users. All marks are in the middle of the
    // time axis.
    let marks: Vec<f64> = svg.lines().filter_map(vertical_line).collect();
    assert!(marks.len() >= 4, "two users of two limits: {marks:?}");
    assert!(marks.iter().all(|x| (500.0..550.0).contains(x)), "{marks:?}");
}

/// Returns the position of a vertical line of two pixels' width.
fn vertical_line(line: &str) -> Option<f64> {
    let points = line.strip_prefix("<polyline")?.split_once("stroke-width=\"2\" points=\"")?.1.split_once('"')?.0;
    let points: Vec<&str> = points.split_whitespace().filter_map(|point| Some(point.split_once(',')?.0)).collect();
    (points.len() == 2 && points[0] == points[1]).then(|| points[0].parse().unwrap())
}

/// Returns a `[[limit]]` table with this name and the keys `rest`.
fn limit(name: &str, rest: &str) -> String {
    format!("[[limit]]\nname = \"{name}\"\n{rest}\n")
}

#[test]
fn facts_missing_in_the_history_are_named_for_each_limit() {
    let recipients = "count = \"recipients\"\nrate = \"2 / 1d\"\nper = [\"user\"]\n";
    let cases = [
        ("tls", format!("{recipients}match = {{ tls = true }}"), "the tls"),
        ("listener", format!("{recipients}match = [{{ listener = \"s\" }}]"), "the listener"),
        (
            "both",
            format!("{recipients}match = [{{ helo = \"a\" }}, {{ client = \"192.0.2.0/24\" }}]"),
            "the client, the helo",
        ),
        ("helo", recipients.replace("user", "helo"), "the helo"),
        ("net", recipients.replace("user", "client/24/56"), "the client"),
        ("octets", "count = \"bytes\"\nrate = \"2 / 1d\"\nper = [\"user\"]".into(), "the size"),
        ("logins", "count = \"logins\"\nrate = \"2 / 1d\"\nper = [\"user\"]".into(), "the logins"),
        ("wrong", "count = \"login-failures\"\nrate = \"2 / 1d\"\nper = [\"user\"]".into(), "the login-failures"),
        ("guests", "count = \"connections\"\nrate = \"2 / 1d\"\nper = []".into(), "the connections"),
        ("now", "count = \"sessions\"\nrate = \"2 at once\"\nper = []".into(), "the sessions"),
        ("lines", "count = \"commands\"\nrate = \"2 / 1d\"\nper = [\"user\"]".into(), "the commands"),
        ("each", "count = \"messages\"\nrate = \"2 / connection\"".into(), "the connections"),
        ("bounces", "count = \"rejections\"\nrate = \"2 / 1d\"\nper = [\"user\"]".into(), "the rejections"),
        ("eye", "watch = \"lines\"\nstage = \"mail\"".into(), "the commands"),
    ];
    let site = site_with_limits(&cases.iter().map(|(name, rest, _)| limit(name, rest)).collect::<String>());
    let Outcome { code, out, err } = simulate(&site, &["-"], csv(&history()).as_bytes());
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for (name, _, unsaid) in cases {
        let words = format!("\n{name}: held for no message: the history does not say {unsaid}\n");
        assert!(out.contains(&words), "{words:?} is not in\n{out}");
    }
    let Outcome { out, .. } = simulate(&site, &["--json", "-"], csv(&history()).as_bytes());
    let lines = lines_of_json(&out);
    assert!(lines.iter().filter(|line| line["recipient"].is_string()).all(|line| line["decision"] == "pass"));
    let both = lines.iter().find(|line| line["limit"] == "both").unwrap();
    assert_eq!(both["unknown"], serde_json::json!(["client", "helo"]));
    // If a limit's conditions match no message, Weir does not report that the history lacks a fact for this limit.
    let site = site_with_limits(&limit(
        "others",
        &format!("{recipients}match = [{{ user = \"nobody\" }}, {{ user = \"else\" }}]"),
    ));
    let Outcome { out, .. } = simulate(&site, &["-"], csv(&history()).as_bytes());
    assert!(out.contains("\nothers: held for no message: its conditions match none\n"), "{out}");
}

#[test]
fn the_users_file_gives_the_groups_of_users_and_mail_without_a_user_has_no_login() {
    let bucket = "count = \"recipients\"\nrate = \"2 / 1000d\"\nalgorithm = \"token-bucket\"\n";
    let limits = [
        limit("students", &format!("{bucket}per = [\"user\"]\nmatch = {{ group = \"Students\" }}")),
        limit(
            "others",
            &format!("{bucket}per = [\"user\"]\nexcept = {{ group = \"students\" }}\noverrides = \"others.csv\""),
        ),
        limit("guests", &format!("{bucket}per = [\"sender\"]\nmatch = {{ authenticated = false }}")),
    ];
    let users = [("alice", "", "students"), ("bob", "", "staff")];
    let site =
        Site::builder().open_listener().upstream("127.0.0.1:2525", "").more(&limits.concat()).users(&users).build();
    std::fs::write(site.path("others.csv"), "group,rate\nstaff,3 / 1000d\n").unwrap();
    // Alice, Bob and a user without groups, then a web form that does not log in, each with four recipients.
    let senders = ["ALICE,a@example.org", "bob,b@example.org", "carol,c@example.org", ",form@example.org"];
    let rows =
        senders.iter().enumerate().flat_map(|(t, from)| ["w", "x", "y", "z"].map(|to| format!("{t},{from},{to}\n")));
    let rows = format!("t,user,sender,recipient\n{}", rows.collect::<String>());
    let Outcome { code, out, err } = simulate(&site, &["-"], &rows);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.starts_with("4 messages to 16 recipients by 3 users and 1 sender without login in 3s,"), "{out}");
    for (name, summary) in [
        (
            "students",
            "refused      2 of 4 recipients (50.000 %)\n  affected     1 of 3 users and 1 sender without login\n  worst        alice, 2 refused\n",
        ),
        (
            "others",
            "refused      3 of 8 recipients (37.500 %)\n  affected     2 of 3 users and 1 sender without login\n  worst        carol, 2 refused\n",
        ),
        (
            "guests",
            "refused      2 of 4 recipients (50.000 %)\n  affected     1 of 3 users and 1 sender without login\n  worst        sender form@example.org, without login, 2 refused\n",
        ),
    ] {
        assert!(summary_of(&out, name).contains(summary), "{summary:?} is not in\n{out}");
    }
    assert!(out.contains("others: 2 recipients at once, then 2 per 1000d; other numbers in others.csv\n"), "{out}");
    let Outcome { out, err, .. } = simulate(&site, &["--sender-as-user", "-"], &rows);
    assert!(err.is_empty() && out.contains("by 4 users in 3s,"), "{err}{out}");
    assert!(out.contains("\nguests: held for no message: its conditions match none\n"), "{out}");
    assert!(summary_of(&out, "others").contains("refused      5 of 12 recipients"), "{out}");
    let Outcome { out, .. } = simulate(&site, &["--json", "-"], &rows);
    let lines = lines_of_json(&out);
    assert_eq!((&lines[12]["user"], &lines[12]["sender"]), (&Value::Null, &"form@example.org".into()));
    let guests = lines.iter().find(|line| line["limit"] == "guests" && line["worst"].is_object()).unwrap();
    assert_eq!(guests["worst"], serde_json::json!({ "sender": "form@example.org", "refused": 2 }));
    std::fs::remove_file(site.path("users")).unwrap();
    let Outcome { code, err, .. } = simulate(&site, &["-"], &rows);
    assert!(code == Some(0) && err.starts_with("the groups of users are not known: users file "), "{err}");
}

#[test]
fn mail_that_a_suspension_refuses_is_counted_for_the_limit_that_suspended() {
    let suspends = "count = \"recipients\"\nper = [\"user\"]\nrate = \"2 / 1000d\"\nalgorithm = \"token-bucket\"\n\
                    [[limit.action]]\nsuspend = \"1d\"";
    let site = site_with_limits(&limit("spree", suspends));
    // The second message suspends alice. Because of the suspension, Weir refuses the two recipients of the third
    // message at MAIL.
    let rows = "t,user,sender,recipient\n1,alice,a,x\n1,alice,a,y\n2,alice,a,x\n3,alice,a,x\n3,alice,a,y\n";
    let Outcome { code, out, err } = simulate(&site, &["-"], rows);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let summary = "refused      1 of 5 recipients (20.000 %)\n  suspended    or locked senders: 2 more recipients refused\n  affected     1 of 1 user\n";
    assert!(summary_of(&out, "spree").contains(summary), "{out}");
    let Outcome { out, .. } = simulate(&site, &["--json", "-"], rows);
    let lines = lines_of_json(&out);
    let [limit, total] = &lines[lines.len() - 2..] else { panic!("{out}") };
    assert_eq!((&limit["refused-while-suspended"], &total["total"]["refused-while-suspended"]), (&2.into(), &2.into()));
}

#[test]
fn several_threads_report_the_same_as_one() {
    // Nine users who send at the same times, one of them without a login.
    let users = ["", "u", "v", "w", "x", "y", "z", "a", "b"];
    let row = |n: usize| format!("{},{},s{},r{}@example.net\n", n / 50 * 900, users[n % 9], n % 7, n % 83);
    let history = "t,user,sender,recipient\n".to_owned() + &(0..9_000).map(row).collect::<String>();
    let average = "count = \"recipients\"\nper = [\"user\"]\nrate = \"60 / 1d\"";
    let spree = "count = \"messages\"\nper = [\"user\"]\nrate = \"40 / 1d\"\n[[limit.action]]\nsuspend = \"1h\"";
    let for_nobody = "count = \"recipients\"\nper = [\"helo\"]\nrate = \"2 / 1d\"";
    let limits = [limit("average", average), limit("spree", spree), limit("for-nobody", for_nobody)].concat();
    // A budget that all users share keeps the replay in one thread. It refuses nothing.
    let shared = limit("shared", "count = \"recipients\"\nper = []\nrate = \"1G / 1d\"");
    let report = |limits: &str| {
        let Outcome { code, out, err } = simulate(&site_with_limits(limits), &["-"], &history);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        let begin = out.find("refused in all: ").unwrap();
        let total = out[begin..].split("\n\n").next().unwrap().to_owned();
        ["average", "spree", "for-nobody"].map(|name| summary_of(&out, name).to_owned()).join("\n") + &total
    };
    let (several, one) = (report(&limits), report(&(limits.clone() + &shared)));
    assert_eq!(several, one);
    assert!(one.contains("suspended    or locked senders: ") && one.contains("first "), "{one}");
}

#[test]
fn mail_that_a_suspension_allows_is_counted_apart() {
    let suspends = "count = \"recipients\"\nper = [\"user\"]\nrate = \"2 / 1000d\"\nalgorithm = \"token-bucket\"\n\
                    [[limit.action]]\nsuspend = \"1d\"";
    let rules = "[suspensions]\nallow-recipients = [\"*@example.org\"]\n";
    let site = site_with_limits(&(rules.to_owned() + &limit("spree", suspends)));
    // The third recipient suspends alice, and the suspension refuses the fourth one. Two allowed recipients pass, and
    // fill the budget of the mail that the suspension allows: the limit refuses the next MAIL.
    let rows = "t,user,sender,recipient\n1,alice,a,x@d\n1,alice,a,y@d\n2,alice,a,z@d\n3,alice,a,x@d\n\
                3,alice,a,h@example.org\n3,alice,a,H+1@EXAMPLE.org\n4,alice,a,y@d\n";
    let Outcome { code, out, err } = simulate(&site, &["-"], rows);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let summary =
        "refused      2 of 7 recipients (28.571 %)\n  suspended    or locked senders: 1 more recipients refused\n";
    assert!(summary_of(&out, "spree").contains(summary), "{out}");
}

#[test]
fn a_history_without_users_is_said_to_have_none() {
    let site = site_with_limits(EWMA);
    let rows = "t,sender,recipient\n1,a@example.org,x\n";
    let sentence = "the history names no user: all mail is replayed without a login, and limits per user do not apply; \
                    with --sender-as-user each sender is taken as the user\n";
    let Outcome { code, out, err } = simulate(&site, &["-"], rows);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(out.matches(sentence).count(), 1, "{out}");
    assert!(out.contains("\naverage: held for no message: the history does not say the user\n"), "{out}");
    assert_eq!(simulate(&site, &["--json", "-"], rows).err, sentence);
    let Outcome { out, .. } = simulate(&site, &["--sender-as-user", "-"], rows);
    assert!(!out.contains(sentence) && summary_of(&out, "average").contains("0 of 1 recipients"), "{out}");
}

/// Returns the lines about this limit in the output of `weir simulate`.
fn summary_of<'a>(out: &'a str, name: &str) -> &'a str {
    let begin = out.find(&format!("\n{name}: ")).unwrap_or_else(|| panic!("no {name} in\n{out}")) + 1;
    let end = out[begin..].find("\n\n").map_or(out.len(), |end| begin + end);
    out[begin..end].trim_end()
}

#[test]
fn every_kind_of_limit_with_facts_in_the_history_is_replayed() {
    let bucket = "algorithm = \"token-bucket\"\n";
    let site = site_with_limits(
        &[
            limit("octets", &format!("count = \"bytes\"\nper = [\"user\"]\nrate = \"100 / 1000d\"\n{bucket}")),
            limit("wide", "count = \"recipients\"\nrate = \"2 / message\""),
            limit(
                "late",
                &format!("count = \"messages\"\nper = [\"user\"]\nstage = \"end\"\nrate = \"4 / 1000d\"\n{bucket}"),
            ),
            limit(
                "hidden",
                &format!("count = \"recipients\"\nper = [\"user\"]\nmode = \"shadow\"\nrate = \"3 / 1000d\"\n{bucket}"),
            ),
            limit(
                "mild",
                &format!(
                    "count = \"messages\"\nper = [\"user\"]\nmode = \"soft\"\nrate = \"2 / 1000d\"\n{bucket}\
                [[limit.action]]\nat = 0.5\nwarn = true\n[[limit.action]]\ndefer = true"
                ),
            ),
            limit("eye", "watch = \"late\"\nstage = \"data\""),
            limit("pair", "count = \"recipients\"\nper = [\"user\"]\nmatch = { user = \"b\" }\nrate = [\"500 / 1h\", \"4.5 / 1000d\"]"),
        ]
        .concat(),
    );
    // User a sends 60 octets to three recipients, and "wide" refuses the third recipient. Then user a sends messages to
    // one recipient each. "octets" refuses the message of 50 octets, because only 40 of 100 octets are left. "late"
    // refuses the last message, the fifth message that was sent completely. The sizes of user b's messages are unknown.
    let rows = "t,user,recipient,size,sender\n1,a,x,60,\n1,a,y,60,\n1,a,z,60,\n2,a,x,50,\n3,a,x,20,\n4,a,x,10,\n5,a,y,10,\n6,a,z,0,\n\
        7,b,x,,\n7,b,y,,\n8,b,x,,\n8,b,y,,\n9,b,x,,\n9,b,y,,\n";
    let Outcome { code, out, err } = simulate(&site, &["-"], rows.as_bytes());
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for (name, summary) in [
        ("octets", "octets: 100 bytes at once, then 100 per 1000d\n  refused      1 of 6 messages (16.667 %)"),
        ("wide", "wide: 2 recipients per message\n  refused      1 of 14 recipients (7.143 %)"),
        ("late", "late: 4 messages at once, then 4 per 1000d\n  refused      1 of 9 messages (11.111 %)"),
        (
            "hidden",
            "hidden: 3 recipients at once, then 3 per 1000d, in shadow\n  would refuse 8 of 14 recipients (57.143 %)",
        ),
        ("mild", "mild: 2 messages at once, then 2 per 1000d, in soft\n  would refuse 4 of 9 messages (44.444 %)"),
    ] {
        assert!(summary_of(&out, name).starts_with(summary), "{summary:?} is not in\n{out}");
    }
    assert!(summary_of(&out, "mild").contains("\n  warned of    "), "{out}");
    assert!(summary_of(&out, "eye").starts_with("eye: looks at the budgets of late\n"), "{out}");
    let pair: Vec<&str> = out.lines().filter(|line| line.starts_with("pair ")).collect();
    let expected = [
        "pair (500 / 1h): 500 recipients per 1h, at most 499 at the same instant",
        "pair (4.5 / 1000d): 4.5 recipients per 1000d, at most 4 at the same instant",
    ];
    assert_eq!(pair, expected);
    let Outcome { out, .. } = simulate(&site, &["--json", "-"], rows.as_bytes());
    let lines = lines_of_json(&out);
    let refusals = |of: &str| -> Vec<(f64, Value)> {
        let by = |line: &&Value| line["decision"] == "refuse" && line["limit"] == of;
        lines.iter().filter(by).map(|line| (line["t"].as_f64().unwrap(), line["rate"].clone())).collect()
    };
    assert_eq!(refusals("octets"), [(2.0, Value::Null)]);
    assert_eq!(refusals("late"), [(6.0, Value::Null)]);
    assert!(refusals("hidden").is_empty() && refusals("mild").is_empty());
    let summary = |name: &str, rate: Option<&str>| {
        lines
            .iter()
            .find(|line| line["users-hit"].is_u64() && line["limit"] == name && line["rate"].as_str() == rate)
            .unwrap()
    };
    assert_eq!((&summary("hidden", None)["mode"], &summary("octets", None)["mode"]), (&"shadow".into(), &Value::Null));
    assert_eq!(summary("pair", Some("500 / 1h"))["refused"], 0);
    assert_eq!(summary("pair", Some("4.5 / 1000d"))["refused"], 2);
    assert_eq!(refusals("pair"), [(9.0, "4.5 / 1000d".into()), (9.0, "4.5 / 1000d".into())]);
}

#[test]
fn a_limit_counts_only_while_the_other_limit_is_exceeded() {
    let keys = "count = \"recipients\"\nper = [\"user\"]\nalgorithm = \"token-bucket\"\ncharge = \"accepted\"\n";
    let limits = limit("tight", &format!("{keys}rate = \"1 / 1d\"\nmatch = {{ exceeded = \"many\" }}"))
        + &limit("never", &format!("{keys}rate = \"1 / 1d\"\nmatch = {{ exceeded = \"more\" }}"))
        + &limit("many", &format!("{keys}rate = \"2 / 1d\"\nmode = \"shadow\""))
        + &limit("more", &format!("{keys}rate = \"9 / 1d\"\nmode = \"shadow\""));
    let site = site_with_limits(&limits);
    let rows: String = (0..5).map(|t| format!("{t},alice,a@example.org,r{t}@example.net\n")).collect();
    let history = format!("t,user,sender,recipient\n{rows}");
    let Outcome { out, err, .. } = simulate(&site, &["--json", "-"], history.as_bytes());
    let lines = lines_of_json(&out);
    let decisions: Vec<_> = lines.iter().filter_map(|line| line["decision"].as_str()).collect();
    // Two recipients fill the bucket of "many", then one more passes "tight".
    assert_eq!(decisions, ["pass", "pass", "pass", "refuse", "refuse"], "{err}");
    let of =
        |name: &str| lines.iter().find(|line| line["limit"] == name && line["events"].is_number()).unwrap().clone();
    assert_eq!((of("tight")["events"].as_u64(), of("tight")["refused"].as_u64()), (Some(3), Some(2)));
    assert_eq!(
        (of("never")["events"].as_u64(), of("never")["unknown"] == serde_json::json!([])),
        (Some(0), true),
        "{out}"
    );
}

#[test]
fn totals_cover_all_limits_and_leave_the_attack_out() {
    let rows = history();
    // This limit is checked at DATA, when the recipients have been accepted.
    let large = limit(
        "large",
        "count = \"messages\"\nper = [\"user\"]\nrate = \"2 / 1h\"\nalgorithm = \"token-bucket\"\nmatch = { message-recipients = \"> 2\" }",
    );
    let site = site_with_limits(&format!("{EWMA}{large}"));
    let total = |lines: &[Value]| lines.iter().find_map(|line| line.get("total").cloned()).unwrap();
    let Outcome { out, .. } = simulate(&site, &["--json", "-"], csv(&rows).as_bytes());
    let lines = lines_of_json(&out);
    let decided: Vec<&Value> = lines.iter().filter(|line| line.get("decision").is_some()).collect();
    // Each recipient has one line, which says what happened to the mail for this recipient.
    assert_eq!(decided.len(), rows.len());
    let refused = decided.iter().filter(|line| line["decision"] == "refuse").count();
    let with_message = decided.iter().filter(|line| line["whole-message"] == true).count();
    let without_attack = total(&lines);
    assert!(with_message > 0 && refused > with_message, "{with_message} of {refused}");
    assert_eq!(without_attack["refused"], refused);
    assert_eq!(without_attack["refused-with-message"], with_message);
    assert_eq!(without_attack["recipients"], rows.len());
    // The attack is in no total of the history; the attacked account's own mail is named apart.
    let flood = ["--json", "--flood", "user1 1/s 3rcpt from 1700010000", "-"];
    let Outcome { out, err, .. } = simulate(&site, &flood, csv(&rows).as_bytes());
    let attacked = total(&lines_of_json(&out));
    assert_eq!((attacked["recipients"].clone(), err.as_str()), (rows.len().into(), ""));
    let more = attacked["refused"].as_u64().unwrap() - refused as u64;
    assert!(more > 0 && attacked["refused-of-attacked-account"].as_u64().unwrap() >= more, "{attacked}");
    for (flood, words) in [
        ("ghost 1/h 1rcpt from 1700010000", "no mail of the history is of the user ghost"),
        ("user1 1/h 1rcpt from 0", "the flood begins at 1970-01-01T00:00:00Z, where the history has no mail"),
    ] {
        let Outcome { err, .. } = simulate(&site, &["--flood", flood, "-"], csv(&rows).as_bytes());
        assert!(err.contains(words), "{err}");
    }
}

#[test]
fn attacks_are_stopped_by_locks_and_are_the_same_in_each_run() {
    let lock = "count = \"messages\"\nper = [\"user\"]\nrate = \"74% regular over 15 gaps\"\ndistinct = \"recipient\"\nknown-to = \"user\"\n[[limit.action]]\nlock = \"until-released\"";
    let site = site_with_limits(&format!(
        "{}{}",
        limit("regular", lock),
        limit("number", "count = \"recipients\"\nper = [\"user\"]\nrate = \"50 / 1d\"")
    ));
    // Three users write to some of their friends at odd times in 60 days.
    let rows: Vec<_> = (0..900u64)
        .map(|n| (1_700_000_000 + n * 5_760 + n * n % 1_000, format!("user{}", n % 3), format!("friend{}", n * n % 7)))
        .collect();
    let attack = |arguments: &[&str]| simulate(&site, &[arguments, &["-"]].concat(), csv(&rows).as_bytes());
    let arguments = ["--attack", "all", "--victims", "3", "--days", "1,7", "--json"];
    let Outcome { code, out, err } = attack(&arguments);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let results = lines_of_json(&out);
    assert_eq!(results.len(), 12);
    let of = |name: &str| results.iter().find(|line| line["attack"] == name).unwrap();
    // The flood is regular: 15 messages make 14 gaps, and the sixteenth message locks the account.
    for (name, seconds) in [("flood", 15.0), ("trickle", 9_000.0), ("rotating-senders", 15.0)] {
        let result = of(name);
        assert_eq!(result["before-first-refusal"], 15, "{result}");
        assert_eq!((&result["delivered-after-days"]["7"], &result["locked"]), (&15.into(), &3.into()), "{result}");
        assert_eq!(result["seconds-to-first-refusal"], seconds, "{result}");
    }
    // At most 49 of 50 recipients pass at once, as the users' own mail counts, too.
    let hundreds = of("flood-of-hundreds")["before-first-refusal"].as_u64().unwrap();
    assert!((40..=49).contains(&hundreds), "{hundreds}");
    assert_eq!(attack(&arguments).out, out);
    let Outcome { out, .. } = attack(&["--attack", "flood,trickle", "--days", "1"]);
    assert!(out.contains("flood                     15s        15 (15)        15 (15)  3 of 3, 15s"), "{out}");
    let Outcome { code, err, .. } = attack(&["--attack", "nonsense"]);
    assert!(code == Some(64) && err.contains("known: all, flood, flood-of-hundreds"), "{err}");
    let Outcome { code, err, .. } = simulate(&site, &["--attack", "all", "-"], b"t,sender,recipient\n1,a,b\n");
    assert!(code == Some(65) && err.contains("no user has sent mail in it lately"), "{err}");
}
