//! Tests of `weir why`: each refusal is explained from its reference alone, with the numbers of the reply, also after a
//! restart. Each talk of `policy/` and `examples/` checks the references of all its replies with [`check_replies`].

use crate::harness::{Client, Outcome, PASSWORD, Site, Upstream, run};
use crate::talk::{files, name_of};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use weir::reference::Reference;
use weir::time::parse_duration;

/// Number of refusals of a group in a minute that have a record of their own.
const SINGLES: usize = 10;

/// Asks `weir why` about the reference of each of these replies, and compares the answers with the replies. Of a flood,
/// whose records are coalesced, asks only about some references. Returns the number of references.
pub fn check_replies(site: &Site, replies: &[String]) -> usize {
    let replies: Vec<_> = replies.iter().filter_map(|reply| Some((reference_in(reply)?, reply))).collect();
    let mut of_group: HashMap<_, usize> = HashMap::new();
    for (reference, reply) in &replies {
        let times = of_group.entry(reference.parse::<Reference>().unwrap().tag).or_default();
        *times += 1;
        if *times <= SINGLES + 2 || *times % 50 == 0 {
            check(site, reference, reply);
        }
    }
    replies.len()
}

fn reference_in(reply: &str) -> Option<String> {
    let is_refusal = reply.starts_with(['4', '5']);
    let mut words = reply.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').filter(|_| is_refusal);
    // An own text of a limit can have words such as "one-two-3".
    words.find(|word| word.len() > 15 && word.parse::<Reference>().is_ok()).map(str::to_owned)
}

fn check(site: &Site, reference: &str, reply: &str) {
    let Outcome { code, out, err } = site.run(&["why", reference, "--json"], "");
    assert_eq!((code, err.as_str()), (Some(0), ""), "{reply}");
    let answer: Value = serde_json::from_str(&out).unwrap();
    let (decision, message) = (&answer["decision"], answer["message"].as_str().unwrap());
    assert_eq!(decision["reply"]["code"], reply[..3].parse::<u16>().unwrap(), "{reply}\n{message}");
    if answer["coalesced"].is_null() {
        assert_eq!(decision["reply"]["text"], reply[4..], "{message}");
        assert_eq!(decision["reference"], reference, "{reply}");
        check_numbers(decision, reply);
        // The message has the reply word for word.
        assert!(unwrapped(message).contains(&unwrapped(reply)), "{reply}\n{message}");
    } else {
        assert!(answer["coalesced"]["times"].as_u64().unwrap() >= 1, "{reply}");
    }
    assert!(message.contains(reference), "{message}");
    let is_command = |line: &str| line.trim_start().starts_with("weir ");
    let too_long = message.lines().find(|line| line.chars().count() > 80 && !is_command(line));
    assert_eq!(too_long, None, "{message}");
    check_now(&answer, reply);
}

fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<String>()
}

/// Compares the numbers of the limits with those in the standard text of a reply: `99 of 99 recipients used, 100 more
/// per day; try again in 14m24s`.
fn check_numbers(decision: &Value, reply: &str) {
    let all = decision["limits"].as_array().map_or(&[][..], Vec::as_slice);
    let refusing: Vec<&Value> = all.iter().filter(|limit| limit["refused"] == true).collect();
    if decision["outcome"] == "refused" && decision["delay-seconds"].is_null() {
        assert!(refusing.iter().any(|limit| limit["limit"] == decision["limit"]), "{reply}: {decision}");
    }
    if let Some(words) = reply.split_once("try again in ").map(|(_, rest)| rest) {
        let said = parse_duration(words.split([' ', ';', ',', ':']).next().unwrap()).unwrap();
        let waits = refusing.iter().filter_map(|limit| limit["wait-seconds"].as_f64());
        let wait = waits.fold(0.0, f64::max).ceil().max(1.0);
        assert_eq!(said.as_secs_f64(), wait, "{reply}: {decision}");
    }
    let mut words = reply[4..].split(' ').skip(1);
    let (used, of, most, noun) = (words.next(), words.next(), words.next(), words.next());
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<f64>().ok());
    if let (Some(used), Some("of"), Some(most), true) = (
        number(used),
        of,
        number(most),
        noun.is_some_and(|noun| noun.starts_with("recipient") || noun.starts_with("message")),
    ) {
        let limit = refusing.iter().find(|limit| limit["limit"] == decision["limit"]).unwrap();
        let level = limit["used"].as_f64().unwrap();
        assert!((used - level).abs() < 1.0, "{reply}: {limit}");
        // A rung of the ladder can refuse from a multiple of the limit on.
        let known = ["at-once", "allowed"].map(|key| limit[key].as_f64().unwrap_or(f64::NAN));
        let at = limit["refuses-at"].as_f64().unwrap();
        let is_known = known.iter().any(|known| known.floor() == most || (known * at).floor() == most);
        assert!(is_known || most == level.ceil(), "{reply}: {limit}");
    }
}

/// Checks that the answer says what would let the event pass.
fn check_now(answer: &Value, reply: &str) {
    let remedies = answer["remedies"].as_array().map_or(&[][..], Vec::as_slice);
    assert!(!remedies.is_empty(), "{reply}: {answer}");
    let passes = answer["now"]["passes"].as_bool().unwrap();
    assert_eq!(passes, answer["now"]["reply"].is_null());
    let is_none = |remedy: &Value| remedy["kind"] == "none";
    assert!(passes == remedies.iter().any(is_none) || answer["decision"]["outcome"] == "sender-mismatch", "{answer}");
}

#[test]
fn refusals_of_the_dialogues_are_explained_also_after_a_restart() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/dialogues");
    let mut dialogues = 0;
    for path in files(&folder, "smtp") {
        let script = std::fs::read_to_string(&path).unwrap();
        let expected =
            script.lines().filter(|line| line.starts_with("c <") && reference_in(&line[5..]).is_some()).count();
        if expected > 0 {
            assert_eq!(play(&script), expected, "{}", name_of(&path));
            dialogues += 1;
        }
    }
    assert!(dialogues >= 4, "only {dialogues}");
}

/// Plays the lines of the client against a running Weir. Returns the number of references in the replies.
fn play(script: &str) -> usize {
    let upstream = Upstream::start();
    upstream.offer(&["SMTPUTF8", "8BITMIME"]);
    let (mut listener, mut limits, mut users) =
        ("tls = \"none\", auth = \"none\"".to_owned(), String::new(), Vec::new());
    for line in script.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["listener", ..] => {
                let key = |word: &&str| word.replace('=', " = \"") + "\"";
                listener = words[1..].iter().map(key).collect::<Vec<_>>().join(", ");
            }
            ["user", name, password] => users.push((name, password, "")),
            ["limit", count, per, ..] => {
                // In a dialogue no time passes, so a moving average refuses one event earlier than in a running Weir.
                let amount = words[3].parse::<u32>().unwrap() - 1;
                let rate = if amount > 0 { format!("{amount} {}", words[4..].join(" ")) } else { "0".to_owned() };
                limits += &format!(
                    "[[limit]]\nname = \"limit{}\"\ncount = \"{count}\"\nper = [\"{per}\"]\nrate = \"{rate}\"\n\
                     charge = \"accepted\"\n",
                    limits.matches("[[limit]]").count()
                );
                if amount > 0 {
                    limits += "algorithm = \"token-bucket\"\n";
                }
            }
            _ => {}
        }
    }
    let site = Site::builder().listener("s", &listener).upstream(upstream.address(), "").more(&limits).users(&users);
    let site = site.build();
    let weir = site.start();
    let mut client = Client::connect(weir.address("s"));
    let mut replies = Vec::new();
    for line in script.lines() {
        if let Some(said) = line.strip_prefix("c -> ") {
            client.send(format!("{said}\r\n").as_bytes());
        } else if line.starts_with("c <") && !line[5..].starts_with("220") && line.as_bytes().get(8) != Some(&b'-') {
            replies.push(client.reply());
        }
    }
    // Weir waits for its clients when it stops.
    drop(client);
    let references = check_replies(&site, &replies);
    assert_eq!(weir.terminate(), Some(0));
    let _weir = site.start();
    assert_eq!(check_replies(&site, &replies), references);
    references
}

#[test]
fn a_flood_is_explained_from_each_reference_also_after_a_restart() {
    let upstream = Upstream::start();
    let site = limited(&upstream, "");
    let weir = site.start();
    let mut client = Client::logged_in(weir.address("s"), "alice");
    client.say("MAIL FROM:<alice@example.org>", "250");
    let mut replies: Vec<String> = (0..20).map(|n| client.ask(&format!("RCPT TO:<r{n}@example.net>"))).collect();
    drop(client);
    replies.retain(|reply| reply.starts_with("450"));
    assert_eq!(replies.len(), 18);
    assert_eq!(check_replies(&site, &replies), 18);
    let last = reference_in(&replies[17]).unwrap();
    let Outcome { out, .. } = site.run(&["why", &last, "--json"], "");
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["coalesced"]["times"], 18 - SINGLES);
    assert_eq!(weir.terminate(), Some(0));
    let _weir = site.start();
    assert_eq!(check_replies(&site, &replies), 18);
}

#[test]
fn no_command_is_proposed_for_an_owner_that_a_coalesced_record_does_not_know() {
    let upstream = Upstream::start();
    let limit = "limit = [{ name = \"senders\", count = \"recipients\", per = [\"sender\"], rate = \"2 / 1d\", \
                 algorithm = \"token-bucket\", charge = \"accepted\" }]\n";
    let site = Site::builder().listener("s", "tls = \"none\", auth = \"none\"").upstream(upstream.address(), "");
    let site = site.more(limit).build();
    let weir = site.start();
    let mut references = Vec::new();
    for sender in ["first", "second"] {
        let mut client = Client::greeted(weir.address("s"));
        client.say(&format!("MAIL FROM:<{sender}@example.org>"), "250");
        let replies: Vec<String> = (0..20).map(|n| client.ask(&format!("RCPT TO:<r{n}@example.net>"))).collect();
        references.extend(replies.iter().filter_map(|reply| reference_in(reply)));
    }
    assert_eq!(references.len(), 36);
    let why = |reference: &str| site.run(&["why", reference], "").out;
    assert!(why(&references[0]).contains("weir reset senders sender=first@example.org"), "{}", why(&references[0]));
    // The record is coalesced, and that of the first sender. The refusal is of the second one.
    let said = why(&references[35]);
    assert!(said.contains("One of 26 refusals stored together"), "{said}");
    assert!(!said.contains("weir reset senders") && !said.contains("weir grant senders"), "{said}");
    assert!(unwrapped(&said).contains(&unwrapped("so no command is proposed")), "{said}");
}

fn limited(upstream: &Upstream, state: &str) -> Site {
    let limit = "limit = [{ name = \"tokens\", count = \"recipients\", per = [\"user\"], rate = \"2 / 1d\", \
                 algorithm = \"token-bucket\", charge = \"accepted\" }]\n";
    let site = Site::builder().listener("s", "tls = \"none\"").upstream(upstream.address(), "");
    site.state(&format!("path = \"state.db\"{state}")).more(limit).build()
}

/// Makes alice's third recipient be refused. Returns the reply.
fn refused(weir: &crate::harness::Process) -> String {
    let mut client = Client::logged_in(weir.address("s"), "alice");
    client.say("MAIL FROM:<alice@example.org>", "250");
    client.say("RCPT TO:<1@example.net>", "250");
    client.say("RCPT TO:<2@example.net>", "250");
    client.ask("RCPT TO:<3@example.net>")
}

#[test]
fn the_commands_that_it_names_let_the_mail_pass() {
    let upstream = Upstream::start();
    let site = limited(&upstream, "");
    let weir = site.start();
    let reply = refused(&weir);
    let reference = reference_in(&reply).unwrap();
    let why = || site.run(&["why", &reference], "").out;
    let said = why();
    for part in [
        "refused by a limit at ",
        "tokens: refused (defer); user=alice",
        "2 of 2 recipients per 1d, +1",
        "Now it would be refused: 450 4.7.1 2 of 2 recipients used",
        "* wait until ",
        "limit at ",
        "/weir.toml:",
        "weir reset tokens user=alice --reason \"…\"",
        "weir grant tokens user=alice \"4 / 1d\" --for 8h --reason \"…\"",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    for (command, undo) in [
        (
            &["grant", "tokens", "user=alice", "4 / 1d", "--for", "8h", "--reason", "test"][..],
            &["revoke", "tokens", "user=alice"][..],
        ),
        (&["reset", "tokens", "user=alice", "--reason", "test"], &[]),
    ] {
        assert!(why().contains("Now it would be refused"));
        assert_eq!(site.run(command, "").code, Some(0));
        assert!(why().contains("Now: no limit and no suspension would refuse it."), "{}", why());
        if !undo.is_empty() {
            assert_eq!(site.run(undo, "").code, Some(0));
        }
    }
    // The limit changes.
    site.reload(&weir, "2 / 1d", "5 / 1d", "limits read again");
    assert!(why().contains("Changed since: tokens: 2 recipients per 1d"), "{}", why());
}

#[test]
fn the_commands_that_it_prints_work_in_a_shell_for_each_name() {
    let names = ["j\u{fc}rgen", "it's$HOME`x`", "\u{682a}\u{5f0f}", "\u{5e9}%s\\n", "\"a,b\"@example.org"];
    let upstream = Upstream::start();
    let users: Vec<_> = names.iter().map(|name| (*name, PASSWORD, "")).collect();
    let limit = "limit = [{ name = \"one\", count = \"recipients\", per = [\"user\"], rate = \"1 / 1d\", \
                 algorithm = \"token-bucket\", charge = \"accepted\" }]\n";
    let site = Site::builder().listener("s", "tls = \"none\"").upstream(upstream.address(), "");
    let site = site.users(&users).more(limit).build();
    let weir = site.start();
    for name in names {
        let mut client = Client::logged_in(weir.address("s"), name);
        client.say("MAIL FROM:<a@example.org>", "250");
        client.say("RCPT TO:<1@example.net>", "250");
        let reply = client.ask("RCPT TO:<2@example.net>");
        assert_eq!(site.run(&["suspend", &format!("user={name}"), "--for", "1h", "--reason", "x"], "").code, Some(0));
        let said = site.run(&["why", &reference_in(&reply).unwrap()], "").out;
        assert!(said.contains("end the suspension and grant more for some hours, with all of these"), "{said}");
        let commands: Vec<&str> = said.lines().filter_map(|line| line.trim_start().strip_prefix("weir ")).collect();
        assert_eq!(commands.len(), 2, "{said}");
        for command in commands {
            assert!(!command.contains(char::is_control) && !command.contains('\u{5e9}'), "{command}");
            let mut shell = std::process::Command::new("sh");
            let line = format!("\"$WEIR\" {command} -c \"$CONFIG\"");
            shell.args(["-c", &line]).env("WEIR", env!("CARGO_BIN_EXE_weir")).env("CONFIG", site.path("weir.toml"));
            let outcome = run(&mut shell, "");
            assert_eq!(outcome.code, Some(0), "{command}: {}", outcome.err);
        }
        let now = site.run(&["why", &reference_in(&reply).unwrap()], "").out;
        assert!(now.contains("Now: no limit and no suspension would refuse it."), "{now}");
    }
}

#[test]
fn an_unknown_reference_gets_a_clear_answer_and_exit_code_1() {
    let upstream = Upstream::start();
    let site = limited(&upstream, ", keep-refusals = \"1d\"");
    let weir = site.start();
    let ask = |reference: &str| {
        let Outcome { code, err, .. } = site.run(&["why", reference], "");
        assert_eq!(code, Some(1), "{reference}: {err}");
        err
    };
    let now = weir::clock::now();
    let reference = |ago: u64| Reference {
        millis: u64::try_from(now.micros() / 1_000).unwrap() - ago * 1_000,
        ..refused_reference()
    };
    assert!(ask(&reference(60).to_string()).contains("no refusal is stored yet"));
    let known = reference_in(&refused(&weir)).unwrap();
    assert!(ask("nonsense").contains("is no reference of a refusal"));
    assert!(ask("\u{1b}[2J").contains("\\u{1b}[2J"));
    assert!(ask("../audit").contains("is no reference of a refusal"));
    assert!(ask(&reference(2 * 86_400).to_string()).contains("refusals are kept for 1d"));
    assert!(ask(&Reference { millis: 2_500_000_000_000, ..reference(0) }.to_string()).contains("in the future"));
    // The record must be in the file before the oldest record is known.
    assert_eq!(weir.terminate(), Some(0));
    let weir = site.start();
    assert!(ask(&reference(600).to_string()).contains("the oldest refusal that is kept is of"));
    let wrong = Reference { number: 77_777, ..known.parse().unwrap() };
    assert!(ask(&wrong.to_string()).contains("is it copied right"));
    drop(weir);
    let site = limited(&upstream, ", keep-refusals = \"0s\"");
    let weir = site.start();
    let reference = reference_in(&refused(&weir)).unwrap();
    let Outcome { code, err, .. } = site.run(&["why", &reference], "");
    assert_eq!(code, Some(1));
    assert!(err.contains("keep-refusals is \"0s\""), "{err}");
}

fn refused_reference() -> Reference {
    "mp3x9abc-k3f7q2-1x7k".parse().unwrap()
}

/// Returns the time of this moment, in milliseconds since 1970.
fn millis() -> u64 {
    u64::try_from(weir::clock::now().micros() / 1_000).unwrap()
}

#[test]
fn the_reference_of_a_refused_message_has_the_time_of_its_end() {
    let upstream = Upstream::start();
    let limit = "[[limit]]\nname = \"octets\"\ncount = \"bytes\"\nper = [\"client\"]\nrate = \"10 / 1h\"\n";
    let site = Site::builder().open_listener().upstream(upstream.address(), "").more(limit).build();
    let weir = site.start();
    let mut client = Client::greeted(weir.address("s"));
    client.begin_transaction();
    client.say("DATA", "354");
    let data = millis();
    // The message ends later than its DATA, by the clock that Weir reads.
    while millis() < data + 20 {
        std::thread::yield_now();
    }
    client.send(b"a long body, of more than ten octets\r\n.\r\n");
    let reply = client.reply();
    let reference = reference_in(&reply).unwrap_or_else(|| panic!("{reply}"));
    let at = reference.parse::<Reference>().unwrap().millis;
    assert!((data + 20..=millis()).contains(&at), "{at}, DATA at {data}");
    check(&site, &reference, reply.trim_end());
}
