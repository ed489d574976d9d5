//! Tests that Weir writes no password to the log, the metrics, a file, or the process list.

use crate::harness::{Client, PASSWORD, Site, Upstream, files_under, run, traces, weir};
use base64::Engine as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

/// Wrong password of the tests. Weir must keep it secret too, because it can be the user's password at another service.
const WRONG: &str = "the-password-of-another-place";

fn encoded(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// Sends right, wrong and malformed passwords by every mechanism, and also where a client should send no password.
fn use_passwords(weir: &crate::harness::Process, site: &Site) {
    let certificate = site.path("certificate.pem");
    for password in [PASSWORD, WRONG] {
        let plain = encoded(&format!("\0alice\0{password}"));
        let mut early = Client::greeted(weir.address("starttls"));
        early.say(&format!("AUTH PLAIN {plain}"), "538");
        early.say("AUTH LOGIN", "538");
        // This client does not wait for the reply to AUTH LOGIN before it sends the password.
        early.say(&encoded(password), "500");
        early.say(password, "500");
        early.say(&format!("MAIL FROM:<{password}>"), "");

        let open = |listener: &str| {
            let mut client = Client::connect_silently(weir.address(listener));
            client.secure(&certificate);
            client.expect("220");
            client.say("EHLO client.example", "250");
            client
        };
        let reply = if password == PASSWORD { "235" } else { "535" };
        open("implicit").say(&format!("AUTH PLAIN {plain}"), reply);
        let mut login = open("implicit");
        login.say("AUTH LOGIN", "334");
        login.say(&encoded("alice"), "334");
        login.say(&encoded(password), reply);
        let mut malformed = open("implicit");
        malformed.say(&format!("AUTH PLAIN {}", encoded(password)), "501");
        malformed.say(&format!("AUTH PLAIN {plain} {plain}"), "5");
        malformed.say(&format!("AUTH CRAM-MD5 {plain}"), "504");
        malformed.say(&format!("AUTH PLAIN !{plain}"), "501");
        let mut cut = open("implicit");
        cut.send(format!("AUTH PLAIN {}", &plain[..plain.len() - 4]).as_bytes());
    }
    // Send a message, so that the log also contains the lines of a message.
    let mut client = Client::connect_silently(weir.address("implicit"));
    client.secure(&certificate);
    client.expect("220");
    client.say("EHLO client.example", "250");
    client.log_in("alice", PASSWORD);
    client.say("MAIL FROM:<alice@example.org>", "250");
    client.say("RCPT TO:<bob@example.net>", "250");
    client.say("RCPT TO:<carol@example.net>", "450 4.7.1");
    client.say("DATA", "354");
    client.send(b"hello\r\n.\r\n");
    client.expect("250");
}

#[test]
fn passwords_and_keys_are_in_no_output_log_or_file() {
    for format in ["logfmt", "json"] {
        let upstream = Upstream::start();
        let site = Site::builder()
            .listener("starttls", "tls = \"starttls\"")
            .listener("implicit", "tls = \"implicit\"")
            .upstream(upstream.address(), "")
            .more(&format!("log = {{ format = \"{format}\" }}\ndecision-log = {{ file = \"decisions\" }}\n"))
            .more("[[limit]]\nname = \"l\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"1.5 / 1d\"\n")
            .build();
        let told = |command: &[&str], input: &str| site.run(command, input).said().into_bytes();
        let mut seen = vec![
            ("user add".to_owned(), told(&["user", "add", "bob"], &format!("{WRONG}\n"))),
            ("user passwd".to_owned(), told(&["user", "passwd", "bob"], &format!("{PASSWORD}\n"))),
            ("user list".to_owned(), told(&["user", "list"], "")),
            ("check --print".to_owned(), told(&["check", "--print"], "")),
        ];
        let weir = site.start();
        use_passwords(&weir, &site);
        for path in ["/metrics", "/healthz", "/readyz", "/"] {
            seen.push((path.to_owned(), weir.get(path).1.into_bytes()));
        }
        for what in ["cmdline", "environ", "comm"] {
            seen.push((what.to_owned(), std::fs::read(format!("/proc/{}/{what}", weir.id())).unwrap()));
        }
        seen.push(("reload".to_owned(), told(&["reload"], "")));
        weir.signal(rustix::process::Signal::TERM);
        let log = weir.log_to_the_end();
        assert!(log.contains("wrong") || log.contains("535"), "the log speaks of failed logins:\n{log}");
        seen.push(("the log".to_owned(), log.into_bytes()));
        for file in files_under(&site.path("")) {
            if file.file_name().unwrap() != "key.pem" {
                seen.push((file.display().to_string(), std::fs::read(&file).unwrap()));
            }
        }
        let decisions = std::fs::read_to_string(site.path("decisions")).unwrap();
        assert!(decisions.contains("\"stage\":\"auth\""), "the decision log speaks of logins:\n{decisions}");
        let key = std::fs::read_to_string(site.path("key.pem")).unwrap();
        let key_line = key.lines().nth(1).unwrap().to_owned();
        for secret in [traces(PASSWORD), traces(WRONG), vec![key_line]].concat() {
            for (place, content) in &seen {
                let found = memchr::memmem::find(content, secret.as_bytes()).is_some();
                assert!(!found, "{place} has {secret:?}: {}", String::from_utf8_lossy(content));
            }
        }
    }
}

#[test]
fn a_crash_dumps_no_memory() {
    // The shell raises the limit, so that a program which does not switch core dumps off would leave one.
    let with_dumps = |program: &Command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -c unlimited && exec \"$@\"", "sh"]).arg(program.get_program());
        shell.args(program.get_args());
        for (name, value) in program.get_envs() {
            if let Some(value) = value {
                shell.env(name, value);
            }
        }
        shell
    };
    let folder = tempfile::tempdir().unwrap();
    let mut crash = Command::new("sh");
    let dumped = with_dumps(crash.args(["-c", "kill -ABRT $$"])).current_dir(folder.path()).status().unwrap();
    assert!(dumped.core_dumped(), "the shell leaves a core dump: otherwise this test could not fail");

    let upstream = Upstream::start();
    let site = Site::builder().listener("implicit", "tls = \"implicit\"").upstream(upstream.address(), "").build();
    let weir = crate::harness::Process::start(with_dumps(&site.serve()).current_dir(folder.path()));
    let mut client = Client::connect_silently(weir.address("implicit"));
    client.secure(&site.path("certificate.pem"));
    client.expect("220");
    client.say("EHLO client.example", "250");
    client.log_in("alice", PASSWORD);
    assert!(!weir.crash(rustix::process::Signal::ABORT));
}

#[test]
fn traces_are_found_at_every_offset_of_base64() {
    for before in ["", "x", "xy", "\0alice\0"] {
        let text = encoded(&format!("{before}{PASSWORD}"));
        assert!(traces(PASSWORD).iter().any(|trace| text.contains(trace)), "{text}");
    }
}

#[test]
fn a_password_in_the_configuration_by_mistake_is_not_shown() {
    let keys = ["address = \"127.0.0.1:25\"", "auth = \"fixed\"", "user = \"weir\""];
    for wrong in [
        "password-env = \"hunter2-secret!\"",
        "password = \"hunter2-secret!\"",
        "pasword = 'hunter2-secret!'",
        "token = hunter2-secret!",
        "password = \"hunter2-secret!",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("weir.toml");
        let table = format!("[[upstream]]\n{}\n{wrong}\n", keys.join("\n"));
        let inline = format!("upstream = [{{ {}, {wrong} }}]\n", keys.join(", "));
        for upstream in [table, inline] {
            std::fs::write(&config, upstream).unwrap();
            for command in ["check", "serve"] {
                let outcome = run(weir().args([command, "-c"]).arg(&config), "");
                let said = outcome.said();
                assert_eq!(outcome.code, Some(78), "{said}");
                assert!(!said.contains("hunter2") && said.contains("weir.toml:"), "{wrong}: {said}");
            }
        }
    }
}
