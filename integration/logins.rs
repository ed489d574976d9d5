//! Tests of logins while attackers guess passwords, while the users file is rewritten, and with passwords that contain
//! letters beyond ASCII.

use crate::harness::{Client, Outcome, PASSWORD, PATIENCE, Process, Site, Upstream, wait_for};
use argon2::PasswordHasher as _;
use base64::Engine as _;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use weir::session::FAILED_LOGIN_PAUSE;

const GUESSER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const WRONG: &str = "weir_logins_total{result=\"wrong\"}";
const BUSY: &str = "weir_logins_total{result=\"unavailable\"}";

/// Returns a site with these users: name, password and groups.
fn site_with_users(users: &[(&str, &str, &str)], limits: &str) -> (Upstream, Site) {
    let upstream = Upstream::start();
    let site =
        Site::builder().listener("s", "tls = \"none\"").upstream(upstream.address(), "").more(limits).users(users);
    (upstream, site.build())
}

/// Returns a site whose only user, alice, has a password hash that takes some tenths of a second to check.
fn slow_site() -> (Upstream, Site) {
    let (upstream, site) = site_with_users(&[], "");
    let params = argon2::Params::new(8, 40_000, 1, None).unwrap();
    let hasher = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
    let hash = hasher.hash_password(PASSWORD.as_bytes()).unwrap();
    std::fs::write(site.path("users"), format!("alice:{hash}\n")).unwrap();
    (upstream, site)
}

/// Returns the number of passwords that Weir checks at the same time: one per processor.
fn at_once() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

fn auth(user: &str, password: &str) -> String {
    format!("AUTH PLAIN {}", base64::engine::general_purpose::STANDARD.encode(format!("\0{user}\0{password}")))
}

fn greeted(weir: &Process, source: Ipv4Addr) -> Client {
    let mut client = Client::connect_from(source, weir.address("s"));
    client.say("EHLO client.example", "250");
    client
}

/// Returns the reply to a login from 127.0.0.1.
fn log_in(weir: &Process, user: &str, password: &str) -> String {
    greeted(weir, Ipv4Addr::LOCALHOST).try_log_in(user, password)
}

#[test]
fn a_correct_login_waits_for_few_checks_of_another_network() {
    let (_upstream, site) = slow_site();
    let weir = site.start();
    let guessers = 10 * at_once() + 20;
    let began = Instant::now();
    let (ends, guess) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..guessers {
            scope.spawn(|| {
                let mut client = greeted(&weir, GUESSER);
                while !ends.load(Ordering::Relaxed) && began.elapsed() < 3 * PATIENCE {
                    let password = format!("guess {}", guess.fetch_add(1, Ordering::Relaxed));
                    let reply = client.try_log_in("alice", &password);
                    match &reply[..3] {
                        // Weir refuses this login because too many others wait: try again.
                        "454" => std::thread::sleep(Duration::from_millis(20)),
                        _ => client = greeted(&weir, GUESSER),
                    }
                }
            });
        }
        wait_for("guesses", || {
            let is_busy = guess.load(Ordering::Relaxed) >= guessers && weir.metric(WRONG) > 0.0;
            is_busy.then_some(())
        });
        let mut honest = greeted(&weir, Ipv4Addr::LOCALHOST);
        let before = weir.metric(WRONG);
        let reply = honest.try_log_in("alice", PASSWORD);
        let (checks, busy) = (weir.metric(WRONG) - before, weir.metric(BUSY));
        ends.store(true, Ordering::Relaxed);
        assert!(reply.starts_with("235"), "{reply}");
        // Before Weir replies to this login, it checks only these wrong passwords: those whose check is in progress
        // when the login arrives, one password from the queue of the other network, and those that are checked at the
        // same time as this login.
        assert!(checks <= (3 * at_once() + 2) as f64, "{checks} checks came first");
        assert!(busy > 0.0);
    });
}

#[test]
fn a_client_that_leaves_the_queue_costs_no_check() {
    let (_upstream, site) = slow_site();
    let weir = site.start();
    let mut guesses: Vec<Client> = (0..at_once() + 17).map(|_| greeted(&weir, GUESSER)).collect();
    for (n, client) in guesses.iter_mut().enumerate() {
        client.send(format!("{}\r\n", auth("alice", &format!("guess {n}"))).as_bytes());
    }
    // Weir checks `at_once()` guesses, 16 more guesses wait in the queue, and Weir replies to the last guess that the
    // client must retry (454).
    wait_for("full queue", || (weir.metric(BUSY) >= 1.0).then_some(()));
    drop(guesses);
    let mut last = greeted(&weir, GUESSER);
    wait_for("place in the queue", || last.try_log_in("alice", "last").starts_with("535").then_some(()));
    let checks = weir.metric(WRONG);
    assert!(checks <= (at_once() + 2) as f64, "{checks} checks");
}

#[test]
fn the_minimal_configuration_limits_guesses_per_address() {
    let minimal = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/minimal.toml");
    let minimal = std::fs::read_to_string(minimal).unwrap();
    let limits = &minimal[minimal.find("[[limit]]").unwrap()..];
    let (_upstream, site) = site_with_users(&[("alice", PASSWORD, "")], limits);
    let weir = site.start();
    // No more than ten guesses are at the same user, because another limit counts these. The guesses run concurrently, because Weir delays each reply by a second. If Weir replies 454 because too many
    // guesses wait, the client sends its guess again.
    std::thread::scope(|scope| {
        for n in 0..20 {
            let guess = auth(&format!("user{}", n % 4), &format!("guess {n}"));
            let mut client = greeted(&weir, GUESSER);
            scope.spawn(move || while !client.ask(&guess).starts_with("535") {});
        }
    });
    let reply = greeted(&weir, GUESSER).try_log_in("alice", PASSWORD);
    assert!(reply.starts_with("454 4.7.0 20 of 20 failed logins used, 20 more per hour; try again in "), "{reply}");
    // The limit does not charge right passwords, and clients of another address have another budget.
    for _ in 0..25 {
        assert!(log_in(&weir, "alice", PASSWORD).starts_with("235"));
    }
}

#[test]
fn a_failed_login_is_delayed_and_counted_even_if_the_client_leaves() {
    let failures = "[[limit]]\nname = \"guesses\"\ncount = \"login-failures\"\nper = [\"client\"]\nrate = \"3 / 1h\"\n\
                    algorithm = \"token-bucket\"\n";
    let (_upstream, site) = site_with_users(&[("alice", PASSWORD, "")], failures);
    let weir = site.start();
    for n in 1..=3 {
        let mut client = greeted(&weir, GUESSER);
        client.send(format!("{}\r\n", auth("alice", &format!("guess {n}"))).as_bytes());
        wait_for("check", || (weir.metric(WRONG) == f64::from(n)).then_some(()));
    }
    let began = Instant::now();
    // After three failures Weir refuses even the right password.
    assert!(greeted(&weir, GUESSER).try_log_in("alice", PASSWORD).starts_with("454 4.7.0 3 of 3 failed logins"));
    assert!(began.elapsed() >= FAILED_LOGIN_PAUSE);
    let began = Instant::now();
    assert!(log_in(&weir, "alice", "wrong").starts_with("535"));
    assert!(began.elapsed() >= FAILED_LOGIN_PAUSE);
}

#[test]
fn no_user_is_refused_while_the_users_file_is_rewritten_in_place() {
    let (_upstream, site) = site_with_users(&[("alice", PASSWORD, ""), ("bob", PASSWORD, "")], "");
    let weir = site.start();
    let whole = std::fs::read_to_string(site.path("users")).unwrap();
    let (first, second) = whole.split_at(whole.find('\n').unwrap() + 1);
    for text in ["", first] {
        std::fs::write(site.path("users"), text).unwrap();
        assert!(log_in(&weir, "bob", PASSWORD).starts_with("235"));
    }
    // Just after a change, Weir cannot know whether the file is complete. Until Weir knows it, the new user carol can
    // get a temporary refusal, but not "wrong password" (535).
    std::fs::write(site.path("users"), format!("{whole}{}", second.replace("bob", "carol"))).unwrap();
    let reply = wait_for("settled file", || {
        let reply = log_in(&weir, "carol", PASSWORD);
        assert!(!reply.starts_with("535"), "{reply}");
        reply.starts_with("235").then_some(reply)
    });
    assert!(reply.starts_with("235") && log_in(&weir, "dave", PASSWORD).starts_with("535"));
}

#[test]
fn a_password_has_one_unicode_normal_form() {
    let (_upstream, site) = site_with_users(&[("old", "a\u{308}", "")], "");
    let add = |name: &str, password: &str| site.run(&["user", "add", name], format!("{password}\n"));
    assert_eq!(add("alice", "p\u{e4}ss\u{a0}wort").code, Some(0));
    let Outcome { code, err, .. } = add("bob", "\u{1f40e}");
    assert!(code == Some(65) && err.contains("SASLprep (RFC 4013) prohibits"), "{err}");
    let weir = site.start();
    for (user, password, reply) in [
        ("alice", "p\u{e4}ss\u{a0}wort", "235"),
        ("alice", "pa\u{308}ss wort", "235"),
        ("alice", "pass wort", "535"),
        ("old", "a\u{308}", "235"),
        ("old", "a", "535"),
    ] {
        let got = log_in(&weir, user, password);
        assert!(got.starts_with(reply), "{user} {password}: {got}");
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let mut client = greeted(&weir, Ipv4Addr::LOCALHOST);
        client.say(&format!("AUTH LOGIN {}", encode(user)), "334");
        assert!(client.ask(&encode(password)).starts_with(reply), "{user} {password}");
    }
}
