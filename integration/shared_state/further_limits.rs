//! Limits on distinct recipients, on delivered mail and on wrong passwords: four nodes count like one. Reloads reach
//! all nodes.

use super::sessions::{Session, at_once};
use crate::harness::nodes::{Nodes, Servers, USERS, level, user};
use crate::harness::{Client, Fault, PASSWORD, Redis, Stage, wait_for};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// Amount of each limit, for each user.
const AMOUNT: usize = 30;

fn limit(name: &str, count: &str, more: &str) -> String {
    format!(
        "{{ name = \"{name}\", count = \"{count}\", per = [\"user\"], algorithm = \"token-bucket\", \
         rate = \"{AMOUNT} / 1000d\"{more} }}"
    )
}

/// Each user has 20 sessions through four nodes, which all ask for the same 33 recipients, in different orders. Each node
/// must know which recipients the others have admitted.
#[test]
fn a_recipient_is_counted_once_by_all_nodes() {
    let policy = format!(
        "limit = [{},\n{}]\n",
        limit("new", "recipients", ", distinct = \"recipient\""),
        limit("contact", "recipients", ", distinct = \"recipient\", remember = \"2000d\""),
    );
    let redis = Redis::start();
    let nodes = Nodes::start(&vec![redis.state(); 4], &policy);
    let mut sessions = Session::of_all(&nodes.addresses(), 33);
    for (n, session) in sessions.iter_mut().enumerate() {
        session.recipients = (0..33).map(|recipient| format!("r{}@example.net", (recipient + n) % 33)).collect();
    }
    let seen = at_once(&sessions);
    let levels = redis.levels();
    for n in 0..USERS {
        let of_user = seen.iter().filter(|seen| seen.user == n);
        let admitted: BTreeSet<&String> = of_user.flat_map(|seen| &seen.admitted).collect();
        // A Bloom filter that is full mistakes 6 of 10,000 new recipients for known ones, on one node, too.
        assert!((AMOUNT..=AMOUNT + 1).contains(&admitted.len()), "{}: {} recipients", user(n), admitted.len());
        for limit in ["new", "contact"] {
            let level = level(&levels, limit, &format!("user={}", user(n)));
            assert!((level - AMOUNT as f64).abs() < 0.01, "{limit} of {}: {level}", user(n));
        }
        let known = (*admitted.first().unwrap()).clone();
        for node in nodes.addresses() {
            let session = Session { node, user: n, client: 0, recipients: vec![known.clone()], at_once: 1 };
            assert_eq!(session.run().refusals, [""; 0], "{known}");
        }
    }
    assert!(nodes.metric("weir_state_conflicts_total") > 0.0, "the nodes did not compete");
}

/// Sends messages until a recipient of each is refused by the limit; returns the recipients of accepted messages.
fn send_messages(client: &mut Client, count: usize) -> usize {
    let mut delivered = 0;
    for n in 0..count {
        if !client.ask("MAIL FROM:<a@example.org>").starts_with("250") {
            continue;
        }
        client.send(b"RCPT TO:<x@example.net>\r\nRCPT TO:<y@example.net>\r\nRCPT TO:<z@example.net>\r\n");
        let accepted = (0..3).filter(|_| client.reply().starts_with("250")).count();
        if accepted == 0 || n % 3 == 2 {
            client.say("RSET", "250");
            continue;
        }
        client.say("DATA", "354");
        if client.ask("Subject: x\r\n\r\nx\r\n.").starts_with("250") {
            delivered += accepted;
        }
    }
    delivered
}

/// The upstream refuses some recipients, and clients reset some transactions: these charges are refunded, at whatever
/// node they were made.
#[test]
fn what_is_not_sent_is_refunded() {
    let policy = format!("limit = [{}]\n", limit("sent", "recipients", ", charge = \"sent\""));
    let redis = Redis::start();
    let nodes = Nodes::start(&vec![redis.state(); 4], &policy);
    nodes.upstream.fail_once_in(3, Stage::Rcpt, Fault::Say("550 5.1.1 No such user"));
    let delivered = Mutex::new([0; USERS]);
    std::thread::scope(|scope| {
        for session in Session::of_all(&nodes.addresses(), 0) {
            let delivered = &delivered;
            scope.spawn(move || {
                let count = send_messages(&mut session.log_in(), 4);
                delivered.lock().unwrap()[session.user] += count;
            });
        }
    });
    let delivered = delivered.into_inner().unwrap();
    nodes.wait_until_no_session();
    let levels = redis.levels();
    for (n, delivered) in delivered.into_iter().enumerate() {
        let level = level(&levels, "sent", &format!("user={}", user(n)));
        assert!(delivered <= AMOUNT && delivered > 0, "{}: {delivered} sent", user(n));
        assert!((level - delivered as f64).abs() < 0.01, "{}: {delivered} sent, {level} counted", user(n));
    }
}

/// Guesses through four nodes at the same time get no further than guesses at one node.
#[test]
fn parallel_guesses_through_all_nodes_are_counted_together() {
    let policy = format!("limit = [{}]\n", limit("guesses", "login-failures", ""));
    let redis = Redis::start();
    let nodes = Nodes::start(&vec![redis.state(); 4], &policy);
    let addresses = nodes.addresses();
    let replies: Vec<String> = std::thread::scope(|scope| {
        let guess = |n: usize| {
            let node = addresses[n % addresses.len()];
            scope.spawn(move || Client::greeted(node).try_log_in("user0", &format!("guess{n}")))
        };
        let guesses: Vec<_> = (0..100).map(guess).collect();
        guesses.into_iter().map(|guess| guess.join().unwrap()).collect()
    });
    let wrong = replies.iter().filter(|reply| reply.starts_with("535")).count();
    assert_eq!(wrong, AMOUNT, "{:?}", replies.iter().collect::<BTreeSet<_>>());
    for node in addresses {
        let right = Client::greeted(node).try_log_in("user0", PASSWORD);
        assert!(!right.starts_with("235"), "{right}");
        assert!(Client::greeted(node).try_log_in("user1", PASSWORD).starts_with("235"));
    }
    let levels = redis.levels();
    assert!((level(&levels, "guesses", "user=user0") - AMOUNT as f64).abs() < 0.01, "{levels:?}");
    assert!(level(&levels, "guesses", "user=user1") < 0.01, "{levels:?}");
}

/// A reload on command reaches all nodes, and each of them once. A node that cannot use its own file says so.
#[test]
fn a_reload_on_command_reaches_all_nodes() {
    let redis = Redis::start();
    let nodes = Nodes::start(&vec![redis.state(); 3], "");
    let reloads = |node: usize| nodes.weirs[node].times_logged("limits read again");
    for (round, asked) in [1, 0, 2].into_iter().enumerate() {
        let reloaded = nodes.sites[asked].run(&["reload"], "");
        assert_eq!(reloaded.code, Some(0), "{}", reloaded.said());
        wait_for("the reloads", || (0..3).all(|node| reloads(node) > round).then_some(()));
    }
    // A reload of a node that was told by another one is not counted again.
    assert_eq!([reloads(0), reloads(1), reloads(2)], [3; 3]);
    std::fs::write(nodes.sites[1].path("weir.toml"), "nonsense").unwrap();
    assert_eq!(nodes.sites[0].run(&["reload"], "").code, Some(0));
    nodes.weirs[1].logged("configuration refused");
    wait_for("the reload", || (reloads(2) == 4).then_some(()));
}
