//! Tests with two real Postfixes as upstreams, which are restarted one after the other while clients send.

use crate::harness::{Client, Postfix, Process, SetOnDrop, Site, wait_for};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const SESSIONS: usize = 50;

/// Number of messages that the clients send between two steps of a test.
const PASS: usize = 200;

/// Last command that a client sent for its message ("end" is the final dot), and the code of the reply.
type Told = (&'static str, u16);

/// Stops each Postfix at once by `postfix stop`. A client in mid-message gets 451, because Weir cannot know whether the
/// stopped Postfix has accepted the message.
#[test]
fn a_rolling_restart_delays_at_most_one_message_per_client() {
    let (_weir, told) = send_meanwhile("", |postfix, _, weir, name, pass| {
        postfix.stop();
        pass();
        postfix.start_again();
        wait_for("Weir to see that it is back", || (weir.upstream_metric("up", name) == 1.0).then_some(()));
        pass();
    });
    let refused: usize = told.iter().filter(|((_, code), _)| *code != 250).map(|(_, count)| count).sum();
    for (command, code) in told.keys() {
        assert!(*code == 250 || (*code == 451 && ["RCPT", "end"].contains(command)), "{told:?}");
    }
    assert!(refused < SESSIONS, "{told:?}");
}

/// Reloads each Postfix: a process of Postfix ends after its client's session, and new processes serve new clients.
#[test]
fn a_rolling_reload_fails_no_message() {
    // A Postfix that reloads while connections wait to be accepted can leave some of them without a greeting. Weir then
    // tries the other Postfix, and after both attempts the clients must still be waiting.
    let keys = "session = { upstream-timeout = \"10s\" }\n";
    let (_weir, told) = send_meanwhile(keys, |postfix, _, _, _, pass| {
        postfix.reload();
        pass();
    });
    assert_eq!(told.keys().collect::<Vec<_>>(), [&("end", 250)], "{told:?}");
}

/// Disables each upstream in Weir before its Postfix stops, and enables it after Postfix has started again.
#[test]
fn a_rolling_restart_of_disabled_upstreams_fails_no_message() {
    let (_weir, told) = send_meanwhile("", |postfix, site, weir, name, pass| {
        let (enabled, disabled) = (format!("name = \"{name}\""), format!("name = \"{name}\", enabled = false"));
        site.reload(weir, &enabled, &disabled, "upstream disabled");
        wait_for("end of its connections", || (weir.upstream_metric("connections", name) == 0.0).then_some(()));
        postfix.stop();
        pass();
        assert_eq!((weir.upstream_metric("connections", name), weir.upstream_metric("up", name)), (0.0, 0.0));
        postfix.start_again();
        site.reload(weir, &disabled, &enabled, "upstream enabled");
        wait_for("Weir to see that it is back", || (weir.upstream_metric("up", name) == 1.0).then_some(()));
        pass();
    });
    assert_eq!(told.keys().collect::<Vec<_>>(), [&("end", 250)], "{told:?}");
}

/// Sends messages through Weir to two Postfixes with many clients, while `happen` runs for one Postfix after the other.
/// `keys` are added to Weir's configuration. Checks that each accepted message has arrived exactly once. Returns how
/// often clients got each reply, and Weir, which prints its log when a test fails.
///
/// Postfix starts a process for each connection. So after its start, or after a reload, on a busy machine, a client can
/// wait several seconds for the greeting.
fn send_meanwhile(
    keys: &str,
    happen: impl Fn(&Postfix, &Site, &Process, &str, &dyn Fn()),
) -> (Process, HashMap<Told, usize>) {
    let postfixes = [Postfix::start_without_log(), Postfix::start_without_log()];
    let site = Site::builder()
        .open_listener()
        .numbered_upstreams(postfixes.each_ref().map(|postfix| (postfix.address(), "")))
        .more(keys)
        .build();
    let weir = site.start();
    let (done, next) = (AtomicBool::new(false), AtomicUsize::new(0));
    let told: HashMap<usize, Told> = std::thread::scope(|scope| {
        let one_after_the_other = || {
            let mut told = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let id = next.fetch_add(1, Ordering::Relaxed);
                told.push((id, send(&weir, id)));
            }
            told
        };
        let clients: Vec<_> = (0..SESSIONS).map(|_| scope.spawn(one_after_the_other)).collect();
        // Sets `done` also after a panic, so that the clients' threads end.
        let _end = SetOnDrop(&done);
        let pass = || {
            let so_far = next.load(Ordering::Relaxed);
            wait_for("messages", || (next.load(Ordering::Relaxed) > so_far + PASS).then_some(()));
        };
        pass();
        for _ in 0..2 {
            for (n, postfix) in postfixes.iter().enumerate() {
                happen(postfix, &site, &weir, &format!("u{n}"), &pass);
            }
        }
        done.store(true, Ordering::Relaxed);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let accepted = || told.iter().filter(|(_, (_, code))| *code == 250).map(|(id, _)| id);
    let mut arrived = HashMap::<usize, usize>::new();
    wait_for("all messages", || {
        arrived.clear();
        for (id, _) in postfixes.iter().flat_map(Postfix::message_ids) {
            *arrived.entry(id).or_default() += 1;
        }
        accepted().all(|id| arrived.contains_key(id)).then_some(())
    });
    assert!(arrived.values().all(|times| *times == 1), "{arrived:?}");
    let mut counts = HashMap::new();
    told.values().for_each(|told| *counts.entry(*told).or_default() += 1);
    let in_doubt = arrived.len() - accepted().count();
    eprintln!("{counts:?}; {in_doubt} arrived of which the client does not know");
    (weir, counts)
}

/// Sends a message in a session of its own.
fn send(weir: &Process, id: usize) -> Told {
    let mut client = Client::greeted_by(weir);
    let message = format!("Message-ID: <{id}@example.org>\r\nSubject: x\r\n\r\nhello\r\n.");
    let mut told = ("", 0);
    for (name, line) in [
        ("MAIL", "MAIL FROM:<a@example.org>"),
        ("RCPT", "RCPT TO:<b@example.net>"),
        ("DATA", "DATA"),
        ("end", &message),
    ] {
        let reply = client.ask(line);
        told = (name, reply[..3].parse().unwrap());
        if told.1 >= 400 {
            // If the test fails, this shows why.
            eprintln!("message {id}, {name}: {reply}");
            break;
        }
    }
    told
}
