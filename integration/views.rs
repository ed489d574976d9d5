//! Tests of the views of a running Weir: `weir top`, `weir show`, `weir status`.

use crate::harness::{Client, Outcome, PASSWORD, Process, Site, Upstream, wait_for};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 1);

/// One limit of each kind that `weir show` describes.
const LIMITS: &str = "
[[limit]]
name = \"user-recipients\"
count = \"recipients\"
per = [\"user\"]
rate = \"10 / 1d\"
algorithm = \"token-bucket\"
charge = \"accepted\"
overrides = \"bulk.csv\"

[[limit]]
name = \"both\"
count = \"messages\"
per = [\"user\", \"client/24/56\"]
rate = \"50 / 1h\"
match = { listener = [\"s\"] }

[[limit]]
name = \"of-message\"
count = \"recipients\"
per = [\"user\"]
rate = \"5 / message\"

[[limit]]
name = \"client-recipients\"
count = \"recipients\"
per = [\"client\"]
rate = \"4 / 1d\"
algorithm = \"token-bucket\"
charge = \"accepted\"
except = { authenticated = true }
";

fn site() -> (Upstream, Site, Process) {
    let upstream = Upstream::start();
    let site = Site::builder()
        .listener("s", "tls = \"none\", auth = \"optional\", trusted = [\"127.2.0.0/16\"]")
        .upstream(upstream.address(), "")
        .users(&[("alice", PASSWORD, "staff"), ("bob", PASSWORD, "")])
        .more(LIMITS)
        .build();
    site.put("bulk.csv", "user,rate\nbob,100 / 1d\n");
    let weir = site.start();
    (upstream, site, weir)
}

fn printed(site: &Site, arguments: &[&str]) -> String {
    let Outcome { code, out, err } = site.run(arguments, "");
    assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}: {out}");
    out
}

fn json(site: &Site, arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(site, &[arguments, &["--json"]].concat())).unwrap()
}

/// Sends a message from a user to this many recipients; returns the replies to the RCPT commands, or
/// the reply that refuses MAIL.
fn send(weir: &Process, user: Option<&str>, recipients: usize) -> Vec<String> {
    let mut client = Client::connect_from(STRANGER, weir.address("s"));
    client.say("EHLO client.example", "250");
    if let Some(user) = user {
        client.log_in(user, PASSWORD);
    }
    let reply = client.ask("MAIL FROM:<a@example.org>");
    if !reply.starts_with("250") {
        return vec![reply];
    }
    let replies: Vec<String> = (0..recipients).map(|n| client.ask(&format!("RCPT TO:<r{n}@example.net>"))).collect();
    if replies.iter().any(|reply| reply.starts_with("250")) {
        client.say("DATA", "354");
        client.send(b"Subject: x\r\n\r\nx\r\n.\r\n");
        client.expect("250");
    }
    client.say("QUIT", "221");
    replies
}

/// Returns the sender of this name in `weir top`, when it has this many refusals.
fn sender(site: &Site, name: &str, refusals: u64) -> Value {
    wait_for(name, || {
        let top = json(site, &["top"]);
        let mut senders = top["senders"].as_array().unwrap().iter();
        senders.find(|one| one["name"] == name && one["refusals"] == refusals).cloned()
    })
}

#[test]
fn the_busiest_senders_are_users_and_clients_without_a_login() {
    let (_upstream, site, weir) = site();
    assert!(printed(&site, &["top"]).contains("none has sent or was refused in the last hour"));
    send(&weir, Some("alice"), 3);
    let refused = send(&weir, None, 6);
    let client = sender(&site, "127.2.0.1", 2);
    let last = refused.last().unwrap();
    assert_eq!(client["last-refusal"]["by"], "client-recipients");
    let reference = client["last-refusal"]["reference"].as_str().unwrap();
    assert!(last.starts_with('4') && last.contains(reference), "{last} {reference}");
    let alice = sender(&site, "alice", 0);
    assert_eq!((&alice["kind"], &alice["messages"], &alice["recipients"]), (&"user".into(), &1.into(), &3.into()));
    assert!(alice.get("last-refusal").is_none());
    let text = printed(&site, &["top", "--sort", "refusals"]);
    let names: Vec<_> = text.lines().skip(3).map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(names, ["client=127.2.0.1", "alice"], "{text}");
    assert!(text.contains("last hour: 2 messages, 7 recipients, 2 refusals"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn the_fullest_budgets_of_a_limit_come_first() {
    let (_upstream, site, weir) = site();
    send(&weir, Some("alice"), 5);
    send(&weir, Some("bob"), 5);
    let top = wait_for("budgets", || {
        let top = json(&site, &["top", "--limit", "user-recipients"]);
        (top["budgets"].as_array().unwrap().len() == 2).then_some(top)
    });
    let of = |n: usize, key: &str| top["budgets"][n][key].clone();
    let expected = ["alice", "bob"];
    for (n, user) in expected.into_iter().enumerate() {
        assert_eq!(of(n, "owner")["user"], user, "{top}");
        assert!((of(n, "level").as_f64().unwrap() - 5.0).abs() < 0.1, "{top}");
    }
    assert_eq!((of(0, "allowed"), of(1, "allowed")), (10.0.into(), 100.0.into()));
    assert_eq!((&of(1, "override")["line"], &top["budgets-in-memory"]), (&2.into(), &2.into()));
    for (limit, words) in [
        ("nine", "there is no limit \"nine\"; known: user-recipients, both, of-message, client-recipients"),
        ("of-message", "counts within a message: nothing is kept beyond that"),
    ] {
        let Outcome { code, err, .. } = site.run(&["top", "--limit", limit], "");
        assert!(code == Some(65) && err.contains(words), "{code:?} {err}");
    }
}

#[test]
fn show_states_budgets_overrides_grants_suspensions_and_logins() {
    let (_upstream, site, weir) = site();
    for _ in 0..2 {
        send(&weir, Some("alice"), 5);
    }
    let refused = send(&weir, Some("alice"), 1);
    sender(&site, "alice", 1);
    let text = wait_for("the refusal", || {
        let text = printed(&site, &["show", "alice"]);
        text.contains("last refusals").then_some(text)
    });
    for words in [
        "user=alice: account enabled, groups staff\n",
        "  user-recipients           [####################]  10 of 10 recipients per 1d,\n",
        "free again in 2h24m\n",
        "  both                      [#-------------------]  ",
        "      for client=127.2.0.0/24,user=alice; last change ",
        "applies depending\n      on listener; line ",
        "  of-message                [                    ]  5 recipients per message,\n",
        "last refusal ",
        "by user-recipients at mail, reference ",
        "127.2.0.0/24",
    ] {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let answer = json(&site, &["show", "alice"]);
    let reference = answer["refusals"][0]["decision"]["reference"].as_str().unwrap();
    assert!(refused[0].contains(reference), "{refused:?} {reference}");
    let line = std::fs::read_to_string(site.path("weir.toml"))
        .unwrap()
        .lines()
        .position(|line| line.contains("\"user-recipients\""))
        .unwrap();
    assert_eq!(answer["budgets"][0]["line"], line, "the section begins a line before the name");

    let order = |arguments: &[&str]| printed(&site, &[arguments, &["--for", "8h", "--reason", "a mailing"]].concat());
    order(&["grant", "user-recipients", "alice", "500 / 1d"]);
    order(&["suspend", "alice"]);
    let text = printed(&site, &["show", "ALICE"]);
    for words in ["suspended: user=alice sends nothing, 8h left, ", "0 of 500 recipients per 1d,\n", "granted 500 / 1d"]
    {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
    let bob = json(&site, &["show", "bob"]);
    assert_eq!((&bob["budgets"][1]["allowed"], &bob["budgets"][1]["changed"]), (&100.0.into(), &Value::Null), "{bob}");
    let client = json(&site, &["show", "client=127.2.0.1"]);
    let limits: Vec<_> =
        client["budgets"].as_array().unwrap().iter().map(|row| row["limit"].as_str().unwrap()).collect();
    assert_eq!(limits, ["both", "client-recipients"], "{client}");
    let unknown = printed(&site, &["show", "ca\u{202e}rol"]);
    assert!(unknown.starts_with("user=ca\\u{202e}rol: there is no account of this name\n"), "{unknown}");
    for (owner, words) in [("", "nobody is named"), ("usr=alice", "did you mean user=alice?"), ("all", "is nobody")] {
        let Outcome { code, err, .. } = site.run(&["show", owner], "");
        assert!(code == Some(65) && err.contains(words), "{owner}: {code:?} {err}");
    }
}

#[test]
fn each_spelling_of_a_user_or_client_finds_the_account_and_the_refusals() {
    let upstream = Upstream::start();
    let limit =
        "name = \"two\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"2 / 1d\"\noverrides = \"groups.csv\"";
    let site = Site::builder()
        .listener("s", "tls = \"none\", auth = \"optional\", trusted = [\"127.2.0.0/16\"]")
        .upstream(upstream.address(), "")
        .users(&[("alice", PASSWORD, "staff")])
        .more(&format!("addresses = {{ default-domain = \"example.org\" }}\n[[limit]]\n{limit}\n"))
        .build();
    site.put("groups.csv", "group,rate\nstaff,3 / 1d\n");
    let weir = site.start();
    let refused = send(&weir, Some("ALICE"), 4).pop().unwrap();
    for user in ["alice", "Alice@example.org", "user=ALICE@EXAMPLE.ORG"] {
        let answer = json(&site, &["show", user]);
        assert_eq!(answer["account"]["is-known"], true, "{user}: {answer}");
        assert_eq!(answer["budgets"][0]["allowed"], 3.0, "{user}: {answer}");
        let reference = answer["refusals"][0]["decision"]["reference"].as_str().unwrap();
        assert!(refused.contains(reference), "{user}: {refused} {reference}");
    }
    let top = json(&site, &["top", "--limit", "two"]);
    assert_eq!(top["budgets"][0]["allowed"], 3.0, "{top}");
    let count = |query: &str| {
        let mut stream = UnixStream::connect(site.path("state.sock")).unwrap();
        write!(stream, "GET /v1/refusals{query} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        body["refusals"].as_array().map_or(body["error"]["message"].to_string(), |refusals| refusals.len().to_string())
    };
    for (query, expected) in [
        ("?user=alice", "1"),
        ("?user=Alice@example.org", "1"),
        ("?user=alice@example.net", "0"),
        ("?client=127.2.0.1", "1"),
        ("?client=127.2.0.0/16", "1"),
        ("?client=::ffff:127.2.0.1", "1"),
        ("?client=0:0:0:0:0:ffff:7f02:1", "1"),
        ("?client=127.3.0.0/16", "0"),
        ("?client=there", "\"client is \\\"there\\\": write an address or a network\""),
    ] {
        assert_eq!(count(query), expected, "{query}");
    }
    // The second answer is from the state file.
    assert_eq!(weir.terminate(), Some(0));
    let _weir = site.start();
    assert_eq!((count("?user=alice"), count("?client=127.2.0.0/16&user=ALICE")), ("1".to_owned(), "1".to_owned()));
}

#[test]
fn show_has_the_budgets_of_the_domain_and_of_all_and_the_overrides_of_each_message() {
    let upstream = Upstream::start();
    let limit = |name: &str, more: &str| format!("[[limit]]\nname = \"{name}\"\ncount = \"recipients\"\n{more}\n");
    let limits = limit("domain", "per = [\"user-domain\"]\nrate = \"50 / 1d\"")
        + &limit("domain-and-sender", "per = [\"user-domain\", \"sender\"]\nrate = \"40 / 1d\"")
        + &limit("all", "per = []\nrate = \"1000 / 1d\"")
        + &limit("bobs", "per = []\nrate = \"900 / 1d\"\nmatch = { user = [\"bob@example.org\"] }")
        + &limit("message", "per = [\"user\"]\nrate = \"5 / message\"\noverrides = \"bulk.csv\"")
        + &limit("message-and-client", "per = [\"user\", \"client\"]\nrate = \"6 / message\"");
    let site = Site::builder()
        .listener("s", "tls = \"none\", auth = \"optional\", trusted = [\"127.2.0.0/16\"]")
        .upstream(upstream.address(), "")
        .users(&[("alice@example.org", PASSWORD, ""), ("bob@example.org", PASSWORD, "")])
        .more(&limits)
        .build();
    site.put("bulk.csv", "user,rate\nalice@example.org,7 / message\n");
    let weir = site.start();
    send(&weir, Some("bob@example.org"), 2);
    let answer = json(&site, &["show", "alice@example.org"]);
    let mut rows: Vec<_> = answer["budgets"].as_array().unwrap().iter().collect();
    rows.sort_by_key(|row| row["limit"].as_str().unwrap().to_owned());
    let of = |row: &Value| {
        let text = |value: &Value| value.as_f64().map_or("-".to_owned(), |number| number.round().to_string());
        format!("{} {}/{}", row["limit"].as_str().unwrap(), text(&row["level"]), text(&row["allowed"]))
    };
    let shown: Vec<String> = rows.iter().map(|row| of(row)).collect();
    let expected = ["all 2/1000", "domain 2/50", "domain-and-sender 2/40", "message -/7", "message-and-client -/6"];
    assert_eq!(shown, expected, "{answer}");
    assert_eq!(rows[3]["override"]["line"], 2, "{answer}");
    let text = printed(&site, &["show", "alice@example.org"]);
    assert!(text.contains("for user-domain=example.org; ") && text.contains("for all; "), "{text}");
    // A limit that alice's mail does not charge is not alice's.
    assert!(printed(&site, &["show", "bob@example.org"]).contains("bobs") && !text.contains("bobs"), "{text}");
}

#[test]
fn status_tells_of_the_decision_log_and_of_a_bad_tokens_file() {
    let upstream = Upstream::start();
    let site = Site::builder().open_listener().upstream(upstream.address(), "");
    let site = site.more("decision-log = { file = \"missing/decisions\" }\n").build();
    site.edit("admin = { ", "admin = { tokens = \"tokens\", ");
    let _weir = site.start();
    site.put("tokens", "nonsense\n");
    let out = wait_for("the problems", || {
        let Outcome { code, out, .. } = site.run(&["status"], "");
        (code == Some(1) && out.contains("decision log")).then_some(out)
    });
    let unwrapped = out.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "the decision log cannot be written, and its lines are lost: No such file or directory",
        "the tokens file is refused, and no token is accepted: ",
    ] {
        assert!(unwrapped.contains(words), "{words}: {out}");
    }
    std::fs::create_dir(site.path("missing")).unwrap();
    std::fs::remove_file(site.path("tokens")).unwrap();
    assert_eq!(site.run(&["reload"], "").code, Some(0));
    wait_for("no problems", || (site.run(&["status"], "").code == Some(0)).then_some(()));
}

#[test]
fn show_finds_budgets_that_only_the_state_file_has() {
    let (_upstream, site, weir) = site();
    send(&weir, Some("alice"), 5);
    assert_eq!(weir.terminate(), Some(0));
    let _weir = site.start();
    let answer = json(&site, &["show", "alice"]);
    let level = |limit: &str| {
        let mut rows = answer["budgets"].as_array().unwrap().iter();
        rows.find(|row| row["limit"] == limit).unwrap_or_else(|| panic!("{limit}: {answer}"))["level"].as_f64().unwrap()
    };
    assert!((level("user-recipients") - 5.0).abs() < 0.1 && level("both") > 0.5, "{answer}");
    assert_eq!(answer["incomplete"], Value::Null);
}

#[test]
fn status_has_exit_code_1_while_something_is_degraded() {
    let (upstream, site, _weir) = site();
    let text = wait_for("status", || {
        let Outcome { code, out, .. } = site.run(&["status"], "");
        (code == Some(0)).then_some(out)
    });
    for words in
        ["no problems, up for ", "\nlistener     s ", " up\n", "certificate  ", "4 limits, 0 suspensions, 0 grants"]
    {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    drop(upstream);
    site.edit("name = \"user-recipients\"", "name = \"user recipients\"");
    assert_eq!(site.run(&["reload"], "").code, Some(78));
    let Outcome { code, out, .. } = site.run(&["status"], "");
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("degraded") && out.contains("the configuration file is invalid"), "{out}");
    let Outcome { code, out, .. } = site.run(&["status", "--json"], "");
    let status: Value = serde_json::from_str(&out).unwrap();
    let problem = &status["problems"][0];
    assert_eq!((code, &problem["code"]), (Some(1), &"configuration-invalid".into()), "{out}");
    assert_eq!(problem["remedy"], "Run weir check, mend the file, then run weir reload.", "{out}");
}

/// Pseudo terminal of 24 lines and 80 columns.
struct Terminal {
    controller: File,
    user: File,
    before: Termios,
}

impl Terminal {
    fn open() -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let path = ptsname(&controller, Vec::new()).unwrap().into_string().unwrap();
        let user = File::options().read(true).write(true).open(path).unwrap();
        tcsetwinsize(&user, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let before = tcgetattr(&user).unwrap();
        Self { controller: controller.into(), user, before }
    }

    fn start(&self, site: &Site, arguments: &[&str]) -> Child {
        let stream = || Stdio::from(self.user.try_clone().unwrap());
        let mut command = site.command(arguments);
        command.env_remove("NO_COLOR").stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap()
    }

    /// Reads until the output contains a text; returns the output.
    fn read_until(&mut self, text: &str) -> String {
        let (mut output, mut octets) = (String::new(), [0; 4096]);
        while !output.contains(text) {
            let read = self.controller.read(&mut octets).unwrap();
            output += &String::from_utf8_lossy(&octets[..read]);
        }
        output
    }

    fn is_as_before(&self) -> bool {
        let now = tcgetattr(&self.user).unwrap();
        format!("{:?}", now.local_modes) == format!("{:?}", self.before.local_modes)
    }
}

#[test]
fn the_live_view_leaves_the_terminal_as_it_was() {
    let (_upstream, site, weir) = site();
    send(&weir, Some("alice"), 3);
    sender(&site, "alice", 0);
    for (arguments, leave) in [(&["top"][..], "q"), (&["top"], "\x03"), (&["top", "--limit", "user-recipients"], "q")] {
        let mut terminal = Terminal::open();
        let mut child = terminal.start(&site, arguments);
        let shown = terminal.read_until("alice");
        assert!(shown.starts_with("\x1b[?1049h\x1b[?25l"), "{shown:?}");
        assert!(!terminal.is_as_before(), "keys are read singly");
        terminal.controller.write_all(b"m").unwrap();
        if arguments.len() == 1 {
            terminal.read_until("by messages per minute");
        }
        tcsetwinsize(&terminal.user, Winsize { ws_row: 9, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        terminal.controller.write_all(leave.as_bytes()).unwrap();
        terminal.read_until("\x1b[?25h\x1b[?1049l");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{arguments:?}");
        assert!(terminal.is_as_before(), "{arguments:?} {leave:?}");
    }
    let mut terminal = Terminal::open();
    let mut child = terminal.start(&site, &["top", "--once", "--no-color"]);
    let shown = terminal.read_until("alice");
    assert!(!shown.contains('\x1b'), "{shown:?}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
