//! From headers: golden cases, which the parser, a real Weir and Python's email package read, and generated headers,
//! which the parser and Python read.

use crate::harness::{Client, Process, Site, Upstream, succeed};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use weir::config;
use weir::policy::matching::Senders;
use weir::smtp::from_header::{FromHeader, FromReader};

const CASES: &str = include_str!("from-header/cases.txt");

/// Addresses as which the user `me` may send. All users may send as their own address.
const SENDERS: &str = "[[senders.permit]]\nuser = \"me\"\nsender = [\"*@own.example\", \"*@öwn.example\"]\n";

/// A golden case: see `from-header/cases.txt`.
#[derive(Debug, Default)]
struct Case {
    title: String,
    message: Vec<u8>,
    finds: String,
    answer: String,
    python: Option<String>,
    because: Option<String>,
}

fn cases() -> Vec<Case> {
    let (mut cases, mut ends): (Vec<Case>, bool) = (Vec::new(), true);
    let close = |case: Option<&mut Case>, ends: bool| {
        if let Some(case) = case.filter(|_| ends) {
            case.message.extend(b"\r\nbody\r\n");
        }
    };
    for line in CASES.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some(title) = line.strip_prefix("= ") {
            close(cases.last_mut(), std::mem::replace(&mut ends, true));
            cases.push(Case { title: title.to_owned(), ..Case::default() });
            continue;
        }
        let case = cases.last_mut().unwrap();
        match line.split_once(' ').unwrap_or((line, "")) {
            (">", text) => case.message.extend([unescape(text), b"\r\n".to_vec()].concat()),
            ("repeat", rest) => {
                let (times, rest) = rest.split_once(' ').unwrap();
                let (kind, text) = rest.split_once(' ').unwrap();
                if kind == "+" {
                    case.message.truncate(case.message.len() - 2);
                }
                let end: &[u8] = if kind == ">" { b"\r\n" } else { b"" };
                let unit = [&unescape(text), end].concat();
                case.message.extend(unit.repeat(times.parse().unwrap()));
                if kind == "+" {
                    case.message.extend(b"\r\n");
                }
            }
            ("no", "end") => ends = false,
            ("finds", words) => case.finds = words.to_owned(),
            ("answer", word) => case.answer = word.to_owned(),
            ("python", words) => case.python = Some(words.to_owned()),
            ("because", text) => case.because = Some(text.to_owned()),
            _ => panic!("no line of a case: {line}"),
        }
    }
    close(cases.last_mut(), ends);
    assert!(cases.len() >= 40);
    cases
}

fn unescape(text: &str) -> Vec<u8> {
    let mut parts = text.split('\\');
    let mut octets = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        match part.split_at_checked(1) {
            Some(("t", rest)) => octets.extend([b"\t", rest.as_bytes()].concat()),
            Some(("x", rest)) => {
                octets.push(u8::from_str_radix(&rest[..2], 16).unwrap());
                octets.extend(&rest.as_bytes()[2..]);
            }
            _ => octets.extend([b"\\", part.as_bytes()].concat()),
        }
    }
    octets
}

/// Returns a message in DATA format: with dots stuffed.
fn in_data_format(message: &[u8]) -> Vec<u8> {
    let mut stuffed = Vec::with_capacity(message.len());
    for line in message.split_inclusive(|octet| *octet == b'\n') {
        stuffed.extend(line.starts_with(b".").then_some(b'.'));
        stuffed.extend(line);
    }
    stuffed
}

/// Reads a message in pieces of this length.
fn read(message: &[u8], piece: usize) -> FromHeader {
    let mut reader = FromReader::default();
    in_data_format(message).chunks(piece).for_each(|octets| reader.read(octets));
    reader.header()
}

/// Returns the words for a header, as in `finds`.
fn words(header: &FromHeader) -> String {
    match header {
        FromHeader::Absent => "absent".to_owned(),
        FromHeader::NoAddress => "no address".to_owned(),
        FromHeader::Malformed => "malformed".to_owned(),
        FromHeader::TooLong => "too long".to_owned(),
        FromHeader::Addresses(addresses) => addresses.join(", "),
    }
}

fn senders() -> Arc<Senders> {
    let text = format!(
        "listener.s = {{ address = \"127.0.0.1:0\", tls = \"none\", auth = \"none\" }}\n\
         upstream = [{{ address = \"127.0.0.1:25\" }}]\naddresses = {{ default-domain = \"example.org\" }}\n{SENDERS}"
    );
    match config::parse(Path::new("weir.toml"), text) {
        Ok(config) => config.policy.senders,
        Err(error) => panic!("{error:?}"),
    }
}

/// Returns whether the user `me` may send a message with this header.
fn passes(senders: &Senders, header: &FromHeader) -> bool {
    match header {
        FromHeader::Absent => true,
        FromHeader::Addresses(addresses) => addresses.iter().all(|address| senders.permit("me", &[], address)),
        FromHeader::NoAddress | FromHeader::Malformed | FromHeader::TooLong => false,
    }
}

#[test]
fn each_case_has_its_answer_wherever_the_header_is_cut() {
    let senders = senders();
    for case in cases() {
        let pieces = if case.message.len() < 10_000 { vec![1, 2, 3, 7, usize::MAX] } else { vec![1, 4096] };
        for piece in pieces {
            let header = read(&case.message, piece);
            assert_eq!(words(&header), case.finds, "{}, in pieces of {piece}", case.title);
            let answer = if passes(&senders, &header) { "pass" } else { "refuse" };
            assert_eq!(answer, case.answer, "{}", case.title);
        }
    }
}

fn site(upstream: &Upstream) -> (Site, Process) {
    let site = Site::builder()
        .listener("s", "tls = \"none\", auth = \"required\", sender-mismatch = \"refuse\"")
        .upstream(upstream.address(), "")
        .more(&format!("addresses = {{ default-domain = \"example.org\" }}\n{SENDERS}"))
        .build();
    site.add_user("me");
    let weir = site.start();
    (site, weir)
}

#[test]
fn weir_passes_and_refuses_the_cases_by_data_and_by_bdat() {
    let upstream = Upstream::start();
    let (_site, weir) = site(&upstream);
    for case in cases() {
        for in_pieces in [false, true] {
            let mut client = Client::logged_in(weir.address("s"), "me");
            client.say("MAIL FROM:<me@example.org>", "250");
            client.say("RCPT TO:<b@example.net>", "250");
            send(&mut client, &case.message, in_pieces);
            let reply = client.reply();
            let is_passed = reply.starts_with("250");
            assert!(is_passed || reply.starts_with("550 5.7.1 "), "{}: {reply}", case.title);
            assert_eq!(is_passed, case.answer == "pass", "{}: {reply}", case.title);
            let acknowledged = upstream.acknowledged();
            upstream.forget();
            assert_eq!(acknowledged.len(), usize::from(is_passed), "{}", case.title);
            assert!(acknowledged.iter().all(|message| message.ends_with(&in_data_format(&case.message))));
        }
    }
    let refused = 2.0 * cases().iter().filter(|case| case.answer == "refuse").count() as f64;
    let metric = "weir_sender_mismatches_total{action=\"refuse\",listener=\"s\",part=\"header\"}";
    weir.wait_for_metric(metric, refused);
    weir.wait_for_metric("weir_messages_total{result=\"sender-mismatch\"}", refused);
}

/// Sends a message by DATA, or in pieces by BDAT.
fn send(client: &mut Client, message: &[u8], in_pieces: bool) {
    if !in_pieces {
        client.say("DATA", "354");
        client.send(&[&in_data_format(message), &b".\r\n"[..]].concat());
        return;
    }
    let size = (message.len() / 5).max(3);
    for piece in message.chunks(size) {
        client.send(format!("BDAT {}\r\n", piece.len()).as_bytes());
        client.send(piece);
        client.expect("250");
    }
    client.send(b"BDAT 0 LAST\r\n");
}

/// A receiver removes a dot at the beginning of a line, also if the client has not stuffed it.
#[test]
fn a_dot_does_not_hide_a_from_field() {
    let upstream = Upstream::start();
    let (_site, weir) = site(&upstream);
    for (header, reply) in [
        (".From: boss@example.org", "550 5.7.1 me may not send as boss@example.org"),
        ("From: me@example.org,\r\n. boss@example.org", "550 5.7.1 me may not send as boss@example.org"),
        ("..From: boss@example.org", "250"),
    ] {
        let mut client = Client::logged_in(weir.address("s"), "me");
        client.say("MAIL FROM:<me@example.org>", "250");
        client.say("RCPT TO:<b@example.net>", "250");
        client.say("DATA", "354");
        client.say(&format!("Subject: x\r\n{header}\r\n\r\nbody\r\n."), reply);
    }
}

/// Returns the addresses that Python's email package finds in each message; `None` if it raises an exception.
fn python<'a>(messages: impl Iterator<Item = &'a [u8]>) -> Vec<Option<Vec<String>>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/from-header/addresses.py");
    let hexadecimal = |message: &[u8]| message.iter().map(|octet| format!("{octet:02x}")).collect::<String>() + "\n";
    let input: String = messages.map(hexadecimal).collect();
    let mut command = Command::new("python3");
    let outcome = succeed(command.arg(script), input);
    outcome.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn python_reads_the_cases_alike_or_the_difference_is_explained() {
    let cases: Vec<_> = cases().into_iter().filter(|case| case.python.as_deref() != Some("skip")).collect();
    let found = python(cases.iter().map(|case| &*case.message));
    assert_eq!(found.len(), cases.len());
    for (case, found) in cases.iter().zip(found) {
        let found = match found {
            None => "error".to_owned(),
            Some(addresses) if addresses.is_empty() => "nothing".to_owned(),
            Some(mut addresses) => {
                addresses.dedup();
                addresses.join(", ")
            }
        };
        let finds = if ["absent", "no address"].contains(&&*case.finds) { "nothing" } else { &*case.finds };
        assert_eq!(found, case.python.as_deref().unwrap_or(finds), "{}", case.title);
        assert_eq!(found == finds, case.python.is_none(), "{}: this is no difference", case.title);
        assert_eq!(case.python.is_some(), case.because.is_some(), "{}", case.title);
    }
}

/// Parts of the generated fields.
const PARTS: [&str; 38] = [
    "me@example.org",
    "a@own.example",
    "boss@example.org",
    "Me",
    "Doe",
    "\"",
    "\"x y\"",
    "\"boss@example.org\"",
    "<",
    "<me@example.org>",
    "<a@own.example>",
    "<boss@example.org>",
    ">",
    ",",
    " ",
    " ",
    " ",
    "(",
    ")",
    "(boss@example.org)",
    ":",
    ";",
    "Team: ",
    "\\",
    "=?utf-8?q?boss=40example.org?=",
    "=?utf-8?b?Ym9zc0BleGFtcGxlLm9yZw==?=",
    "@",
    "a",
    "[192.0.2.1]",
    ".",
    "é",
    "\r\n ",
    "\r\n\t",
    "'",
    "<>",
    "@own.example",
    "\"me myself\"@own.example",
    "=",
];

/// Returns pseudo-random fields, which are the same in each run.
fn generated(count: usize) -> Vec<Vec<u8>> {
    let mut state = 1_u64;
    let mut next = |below: usize| {
        // Knuth's MMIX generator; its high bits are the better ones.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut field = || {
        let parts: String = (0..1 + next(7)).map(|_| PARTS[next(PARTS.len())]).collect();
        format!("From: {parts}x\r\n\r\nbody\r\n").replace("x\r\n\r\n", "\r\n\r\n").into_bytes()
    };
    (0..count).map(|_| field()).collect()
}

/// Weir's answers err on the safe side: no difference lets an address pass that Python shows and the user may not use.
/// Python returns a name as an address without a domain. Such a name is not compared, because no reader completes it.
#[test]
fn no_generated_header_passes_in_which_python_finds_the_address_of_another_user() {
    let senders = senders();
    let messages = generated(10_000);
    let found = python(messages.iter().map(|message| &**message));
    let (mut passed, mut alike) = (0, 0);
    for (message, found) in messages.iter().zip(found) {
        let header = read(message, usize::MAX);
        let found = found.unwrap_or_default();
        alike += usize::from(matches!(&header, FromHeader::Addresses(addresses) if *addresses == found));
        if !passes(&senders, &header) || header == FromHeader::Absent {
            continue;
        }
        passed += 1;
        let has_domain = |address: &&String| address.contains('@') && !address.ends_with('"');
        let foreign = found.iter().filter(has_domain).find(|address| !senders.permit("me", &[], address));
        assert_eq!(foreign, None, "{}: {header:?}", message.escape_ascii());
    }
    assert!(passed > 450 && alike > 500, "the generator makes too few good headers: {passed}, {alike}");
}

#[test]
fn hostile_fields_cost_little_time() {
    for unit in ["=?a?q? ", "(", "\"", "<", "\\(", "[", "a@b,", ":", ";", "\"\\", "a@b <", "=?utf-8?b?YQ "] {
        let field = format!("From: {}\r\n\r\n", unit.repeat(60_000 / unit.len()));
        let began = std::time::Instant::now();
        read(field.as_bytes(), 4096);
        assert!(began.elapsed() < std::time::Duration::from_secs(2), "{unit}: {:?}", began.elapsed());
    }
}
