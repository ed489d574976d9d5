//! Tests of the routes of the API that the dashboard needs: limits, activity and levels of the past.

use crate::harness::http::{ask, time};
use crate::harness::{Client, Process, Site, Upstream, wait_for};
use serde_json::{Value, json};

const LIMITS: &str = r#"
[[limit]]
name = "ten"
count = "recipients"
per = ["sender"]
rate = "10 / 1d"
algorithm = "token-bucket"
charge = "accepted"

[[limit]]
name = "by-client"
count = "recipients"
per = ["client"]
rate = ["100 / 1h", "500 / 1d"]
[[limit.action]]
at = 0.8
warn = true
[[limit.action]]
defer = true

[[limit]]
name = "in-message"
count = "recipients"
per = ["client"]
rate = "50 / message"
mode = "shadow"

[[limit]]
name = "slow"
count = "messages"
per = ["client"]
rate = "2 / 1d"
algorithm = "token-bucket"
[[limit.action]]
delay = "1s"
"#;

/// Starts a Weir. Returns it with its site and a function that reads a route of the API.
fn start() -> (Upstream, Site, Process, impl Fn(&Process, &str) -> Value) {
    let upstream = Upstream::start();
    let site = Site::builder().open_listener().upstream(upstream.address(), "").more(LIMITS).build();
    site.edit("\"127.0.0.1:0\" }", "\"127.0.0.1:0\", tokens = \"tokens\" }");
    let token = site.run(&["token", "add", "wall"], "").out;
    let weir = site.start();
    let get = move |weir: &Process, path: &str| {
        let headers = format!("Host: localhost\r\nAuthorization: Bearer {}\r\n", token.trim());
        let answer = ask(weir, &format!("GET {path}"), &headers, "");
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    };
    (upstream, site, weir, get)
}

/// Sends a message to this number of recipients. Returns the replies to RCPT.
fn send(client: &mut Client, sender: &str, recipients: usize) -> Vec<String> {
    client.say(&format!("MAIL FROM:<{sender}>"), "250");
    let replies = (0..recipients).map(|n| client.ask(&format!("RCPT TO:<r{n}@example.net>"))).collect();
    client.say("DATA", "354");
    client.send(b"Subject: x\r\n\r\nx\r\n.\r\n");
    client.expect("250");
    replies
}

#[test]
fn each_limit_is_explained_with_its_actions_and_the_senders_near_it() {
    let (_upstream, site, weir, get) = start();
    let mut client = Client::greeted(weir.address("s"));
    send(&mut client, "near@example.org", 9);
    send(&mut client, "full@example.org", 11);
    drop(client);
    let answer = get(&weir, "/v1/limits");
    assert!(answer["file"].as_str().unwrap().ends_with("weir.toml"), "{answer}");
    let limits = answer["limits"].as_array().unwrap();
    let names: Vec<_> = limits.iter().map(|limit| limit["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ten", "by-client", "in-message", "slow"]);
    let [ten, by_client, in_message, slow] = &limits[..] else { unreachable!() };
    assert!(ten["sentence"].as_str().unwrap().starts_with("each sender: at most 10 recipients"), "{ten}");
    assert!(!ten["details"].as_array().unwrap().is_empty(), "{ten}");
    assert_eq!((&ten["mode"], &ten["per"]), (&"enforce".into(), &json!(["sender"])));
    assert_eq!(ten["actions"], json!([{ "at": 1.0, "action": "defer", "value": null }]));
    assert_eq!(ten["budgets"], json!({ "in-memory": 2, "near": 2, "full": 1 }));
    let text = std::fs::read_to_string(site.path("weir.toml")).unwrap();
    let line = usize::try_from(ten["line"].as_u64().unwrap()).unwrap();
    assert_eq!(text.lines().nth(line - 1), Some("[[limit]]"));
    assert_eq!(text.lines().nth(line), Some("name = \"ten\""));
    let rates: Vec<_> = by_client["rates"].as_array().unwrap().iter().map(|rate| &rate["rate"]).collect();
    assert_eq!(rates, ["100 / 1h", "500 / 1d"]);
    let rate = json!({ "rate": "100 / 1h", "unit": "recipients", "allowed": 100.0, "period-seconds": 3600.0 });
    assert_eq!(by_client["rates"][0], rate);
    assert_eq!(by_client["actions"][0], json!({ "at": 0.8, "action": "warn", "value": null }));
    assert_eq!(by_client["budgets"], json!({ "in-memory": 2, "near": 0, "full": 0 }));
    assert_eq!((&in_message["mode"], &in_message["budgets"]), (&"shadow".into(), &Value::Null));
    assert_eq!(slow["actions"], json!([{ "at": 1.0, "action": "delay", "value": "1s" }]));
    // A reload replaces the explanations together with the limits.
    site.reload(&weir, "rate = \"10 / 1d\"", "rate = \"20 / 1d\"", "limits read again");
    let limits = get(&weir, "/v1/limits");
    let sentence = limits["limits"][0]["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("each sender: at most 20 recipients"), "{sentence}");
}

#[test]
fn activity_is_counted_by_minute() {
    let (_upstream, _site, weir, get) = start();
    let mut client = Client::greeted(weir.address("s"));
    send(&mut client, "a@example.org", 3);
    let replies = send(&mut client, "b@example.org", 12);
    assert_eq!(replies.iter().filter(|reply| reply.starts_with('4')).count(), 2, "{replies:?}");
    // The third message is delayed.
    send(&mut client, "c@example.org", 1);
    let sum = |minutes: &Value, of: &str| -> u64 {
        minutes["minutes"].as_array().unwrap().iter().map(|minute| minute[of].as_u64().unwrap()).sum()
    };
    let activity = wait_for("three messages", || {
        let activity = get(&weir, "/v1/activity");
        (sum(&activity, "messages") == 3).then_some(activity)
    });
    assert_eq!((sum(&activity, "recipients"), sum(&activity, "refusals")), (14, 2), "{activity}");
    assert_eq!(sum(&activity, "delays"), 1, "{activity}");
    let minutes = activity["minutes"].as_array().unwrap();
    assert_eq!(minutes.len(), 60);
    assert!(minutes.windows(2).all(|pair| time(&pair[0]["time"]) < time(&pair[1]["time"])));
    assert!(time(&minutes[59]["time"]) <= time(&activity["time"]), "{activity}");
    assert_eq!(get(&weir, "/v1/activity?minutes=3")["minutes"].as_array().unwrap().len(), 3);
}

#[test]
fn the_levels_of_a_sender_are_noted_every_ten_seconds() {
    let (_upstream, _site, weir, get) = start();
    let mut client = Client::greeted(weir.address("s"));
    send(&mut client, "a@example.org", 7);
    drop(client);
    let history = wait_for("a level", || {
        let history = get(&weir, "/v1/history?owner=client%3D127.0.0.1");
        (history["limits"].as_array().unwrap().len() == 3).then_some(history)
    });
    assert_eq!((&history["owner"], &history["interval-seconds"]), (&json!({ "client": "127.0.0.1" }), &10.into()));
    let limits = history["limits"].as_array().unwrap();
    let names: Vec<_> = limits.iter().map(|limit| limit["limit"].as_str().unwrap()).collect();
    assert_eq!(names, ["by-client", "by-client", "slow"], "{history}");
    for row in limits {
        let times: Vec<i64> = row["times"].as_array().unwrap().iter().map(|time| time.as_i64().unwrap()).collect();
        let length = |column: &str| row[column].as_array().unwrap().len();
        assert_eq!((length("levels"), length("allowed")), (times.len(), times.len()));
        assert!(times[0] % 10 == 0 && times.is_sorted(), "{row}");
    }
    let level = limits[0]["levels"][0].as_f64().unwrap();
    assert!((6.5..=7.0).contains(&level), "{history}");
    assert_eq!((&limits[0]["allowed"][0], &limits[0]["unit"]), (&100.0.into(), &"recipients".into()));
    let day = get(&weir, "/v1/history?owner=client%3D127.0.0.1&span=day");
    assert_eq!((&day["interval-seconds"], day["limits"].as_array().unwrap().len()), (&300.into(), 3));
    assert_eq!(get(&weir, "/v1/history?owner=nobody")["limits"], json!([]));
}
