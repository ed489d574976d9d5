//! Runs the fault test and the kill test of `faults/` for some seconds. No message or charge may be lost, no message
//! doubled, and nothing may leak.

use crate::faults::client::Sent;
use crate::faults::judge::Judge;
use crate::faults::message::Message;
use crate::faults::upstream::Accepted;
use crate::faults::{Kills, Plan, SharedPlan, faults, kill, shared};
use std::net::Ipv4Addr;
use std::time::Duration;

#[test]
fn faults_lose_no_message_double_none_and_leak_nothing() {
    assert!(faults(Plan { seed: 22, time: Duration::from_secs(4), faults: None }));
}

#[test]
fn kills_under_load_lose_no_acknowledged_charge() {
    assert!(kill(Kills { seed: 22, count: 10 }));
}

#[test]
fn faults_of_shared_budgets_lose_no_acknowledged_charge_and_exceed_no_limit() {
    assert!(shared(SharedPlan { seed: 30, time: Duration::from_secs(12) }));
}

/// Returns the record of a client that sent its whole message; `told` is the reply that the client read after the
/// message.
fn sent(message: &Message, told: Option<&str>) -> Sent {
    Sent {
        token: message.token,
        client: Ipv4Addr::LOCALHOST,
        told: told.map(str::to_owned),
        accepted: message.recipients.clone(),
        asked: message.recipients.len(),
        is_whole: true,
    }
}

/// Returns the record of an upstream that accepted this message, unchanged, below Weir's `Received:` line.
fn accepted(message: &Message) -> Accepted {
    Accepted {
        token: Some(message.token),
        recipients: message.recipients.clone(),
        octets: [b"Received: from x\r\n\tby y; z\r\n", &message.octets[..]].concat(),
        is_unsure: false,
    }
}

/// Returns the judge's numbers of lost and of doubled messages, for one sent message and the messages that upstreams
/// accepted.
fn judged(sent: &Sent, accepted: &[Accepted]) -> [u64; 2] {
    let mut judge = Judge::new(1);
    let findings = judge.round(std::slice::from_ref(sent), accepted);
    assert_eq!(findings.len() as u64, judge.counts.lost + judge.counts.doubled);
    [judge.counts.lost, judge.counts.doubled]
}

#[test]
fn the_judge_finds_lost_and_doubled_messages() {
    let message = Message::new(1, 4711);
    let (good, bad) = (Some("250 2.0.0 Queued"), Some("451 4.3.0 No"));
    let changed = |change: &dyn Fn(&mut Accepted)| {
        let mut accepted = accepted(&message);
        change(&mut accepted);
        accepted
    };
    let shorter = changed(&|accepted| accepted.octets.truncate(accepted.octets.len() - 1));
    let untraced = changed(&|accepted| drop(accepted.octets.drain(..accepted.octets.len() - message.octets.len())));
    let misdirected = changed(&|accepted| accepted.recipients.push("x@example.net".to_owned()));
    let unsure = changed(&|accepted| accepted.is_unsure = true);
    for (told, arrived, expected) in [
        (good, vec![accepted(&message)], [0, 0]),
        (good, vec![], [1, 0]),
        (good, vec![shorter], [1, 0]),
        (good, vec![untraced], [1, 0]),
        (good, vec![misdirected], [1, 0]),
        (good, vec![accepted(&message), accepted(&message)], [0, 1]),
        (bad, vec![], [0, 0]),
        (bad, vec![accepted(&message)], [0, 1]),
        (bad, vec![unsure], [0, 0]),
        (None, vec![], [0, 0]),
        (None, vec![accepted(&message)], [0, 0]),
        (None, vec![accepted(&message), accepted(&message)], [0, 1]),
    ] {
        assert_eq!(judged(&sent(&message, told), &arrived), expected, "{told:?}, {} arrived", arrived.len());
    }
    let half = Sent { is_whole: false, ..sent(&message, None) };
    assert_eq!(judged(&half, &[accepted(&message)]), [1, 0]);
}
