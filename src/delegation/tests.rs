//! Tests of the order of questions, with a policy that says what each test wants.

use super::*;
use crate::policy::request::{Event, EventKinds, Location, Novelty};
use crate::policy::verdict::Verdict;
use crate::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

const NOW: Timestamp = Timestamp::from_micros(0);

fn session(last_stage: LastStage) -> Box<SmtpSession> {
    let options = Options {
        name: "postfix".into(),
        hostname: "weir.example".into(),
        last_stage,
        refunds: Refunds::default(),
        max_recipients: 3,
    };
    let stranger = Stranger { id: "id".into(), client: [192, 0, 2, 7].into(), location: Location::default() };
    Box::new(SmtpSession::new(Arc::new(options), stranger, NOW))
}

/// Returns the attributes of a request: `RCPT 1.2.3.0 b`.
fn attributes(text: &str) -> Arc<Attributes> {
    let mut words = text.split(' ');
    Arc::new(Attributes {
        state: words.next().map(ProtocolState::of),
        instance: words.next().filter(|instance| *instance != "-").map(Into::into),
        recipient: words.next().map(Into::into),
        user: Some("alice".into()),
        sender: Some("alice@example.org".into()),
        ..Attributes::default()
    })
}

/// Asks about a request. `verdict` decides on each event. Returns the events, the delays and the action.
fn ask(
    session: Box<SmtpSession>,
    request: &str,
    verdict: impl Fn(&Event) -> Verdict,
) -> (Box<SmtpSession>, String, Duration, Action) {
    ask_policy_of(EventKinds::ALL, session, request, verdict)
}

/// Does the same as [`ask`] with a policy that decides only on events of these kinds.
fn ask_policy_of(
    decided: EventKinds,
    session: Box<SmtpSession>,
    request: &str,
    verdict: impl Fn(&Event) -> Verdict,
) -> (Box<SmtpSession>, String, Duration, Action) {
    let (mut events, mut delay) = (Vec::new(), Duration::ZERO);
    let mut step = session.request(attributes(request), decided, NOW);
    loop {
        step = match step {
            Step::LookUp(lookup) => {
                let facts = lookup.facts();
                lookup.answer(facts, Novelty::default(), NOW)
            }
            Step::Ask(mut question) => {
                let asked = question.asked().0.events.clone();
                events.extend(asked.iter().map(|event| match event {
                    Event::Recipient(recipient) => recipient.to_string(),
                    Event::End { .. } => "End".to_owned(),
                    event => format!("{event:?}"),
                }));
                question.answer(asked.iter().map(&verdict).collect(), NOW)
            }
            Step::Delay(delayed) => {
                delay += delayed.time();
                delayed.elapsed(decided)
            }
            Step::Answer(session, action) => return (session, events.join(" "), delay, action),
        };
    }
}

#[test]
fn each_event_is_asked_once_at_the_first_stage_from_its_own_on() {
    use LastStage::{Data, EndOfMessage, Rcpt};
    for (last_stage, requests) in [
        (
            EndOfMessage,
            &[
                ("CONNECT -", "Connect Login"),
                ("EHLO -", "Command"),
                ("MAIL -", "Mail"),
                ("MAIL -", ""),
                ("RCPT 1.2.3.0 b", "b"),
                ("RCPT 1.2.3.0 b", ""),
                ("RCPT 1.2.3.0 c", "c"),
                ("DATA 1.2.3.0", "Message"),
                ("DATA 1.2.3.0", ""),
                ("END-OF-MESSAGE 1.2.3.0", "End"),
                ("END-OF-MESSAGE 1.2.3.0", ""),
                // The name at MAIL is that of the former message.
                ("MAIL 1.2.3.0", "Mail"),
                ("RCPT 1.2.4.1 b", "b"),
            ][..],
        ),
        (
            EndOfMessage,
            &[
                ("RCPT 1.2.3.0 b", "Connect Login Mail b"),
                ("END-OF-MESSAGE 1.2.3.0", "Message End"),
                ("RCPT 1.2.4.1 b", "Mail b"),
                ("RCPT 1.2.5.2 b", "Mail b"),
                ("END-OF-MESSAGE 1.2.5.2", "Message End"),
                ("QUIT 1.2.5.2", ""),
            ],
        ),
        (Data, &[("RCPT 1.2.3.0 b", "Connect Login Mail b"), ("DATA 1.2.3.0", "Message"), ("DATA 1.2.3.0", "")]),
        (
            Rcpt,
            &[
                ("RCPT 1.2.3.0 b", "Connect Login Mail b Message"),
                ("RCPT 1.2.3.0 c", "c"),
                ("DATA 1.2.3.0", ""),
                ("END-OF-MESSAGE 1.2.3.0", "End"),
            ],
        ),
        (EndOfMessage, &[("END-OF-MESSAGE 1.2.3.0 b", "Connect Login Mail Message End")]),
        (Rcpt, &[("VRFY - b", "Connect Login Command"), ("ETRN -", "Command")]),
    ] {
        let mut session = session(last_stage);
        for (request, expected) in requests {
            let (later, events, _, action) = ask(session, request, |_| Verdict::default());
            assert_eq!((events.as_str(), action), (*expected, Action::Dunno), "{last_stage:?} {request}");
            session = later;
        }
    }
}

#[test]
fn only_events_that_policy_decides_are_asked_and_the_session_goes_on_the_same() {
    let b: Arc<str> = "b".into();
    let kinds = [
        (Event::Connect, "Connect"),
        (Event::Login, "Login"),
        (Event::Command, "Command"),
        (Event::Mail, "Mail"),
        (Event::Recipient(b.clone()), "b"),
        (Event::Message, "Message"),
        (Event::End { size: None }, "End"),
        (Event::Delivered(b.clone()), ""),
    ];
    let requests = ["CONNECT -", "EHLO -", "MAIL -", "RCPT 1.2.3.0 b", "DATA 1.2.3.0", "END-OF-MESSAGE 1.2.3.0"];
    let requests = requests.into_iter().chain(["RCPT 1.2.4.1 b", "RCPT 1.2.5.2 b", "END-OF-MESSAGE 1.2.5.2"]);
    for last_stage in [LastStage::Rcpt, LastStage::Data, LastStage::EndOfMessage] {
        let play = |decided| {
            let (mut session, mut asked) = (session(last_stage), Vec::new());
            for request in requests.clone() {
                let (later, events, _, action) = ask_policy_of(decided, session, request, |_| Verdict::default());
                assert_eq!(action, Action::Dunno, "{last_stage:?} {request}");
                asked.push(events);
                session = later;
            }
            session.end(NOW);
            let deferred = session.take_deferred_charges();
            let delivered: Vec<_> = deferred.events.iter().filter(|asked| !asked.events.is_empty()).collect();
            assert!(delivered.iter().all(|asked| asked.events == [Event::Delivered(b.clone())]), "{delivered:?}");
            let (number, delivered) = (delivered.len(), format!("{delivered:?}"));
            (asked, format!("{:?} {:?}", session.take_records(), deferred.refunds), (number, delivered))
        };
        let (all, records, all_delivered) = play(EventKinds::ALL);
        // With RCPT as last stage, the message in between counts as delivered, too.
        assert_eq!(all_delivered.0, if last_stage == LastStage::Rcpt { 3 } else { 2 }, "{last_stage:?}");
        for (event, name) in &kinds {
            let of_kind =
                |events: &String| events.split(' ').filter(|asked| asked == name).collect::<Vec<_>>().join(" ");
            // Events of a request that are decided together are also asked together.
            let is_asked = |(events, expected): (&String, String)| match events.as_str() {
                "Mail b" => expected == *name,
                events => events == expected,
            };
            let (asked, same_records, delivered) = play(EventKinds::of([event]));
            assert!(
                asked.iter().zip(all.iter().map(of_kind)).all(is_asked),
                "{last_stage:?} {name}: {asked:?} {all:?}"
            );
            assert_eq!(same_records, records, "{last_stage:?} {name}");
            // Memories learn from a delivery only if policy has any.
            match event {
                Event::Delivered(_) => assert_eq!(delivered, all_delivered),
                _ => assert_eq!(delivered.0, 0, "{last_stage:?} {name}: {}", delivered.1),
            }
        }
    }
}

#[test]
fn a_message_has_a_bounded_number_of_recipients() {
    let mut session = session(LastStage::EndOfMessage);
    for recipient in ["a", "b", "c"] {
        session = ask(session, &format!("RCPT 1.2.3.0 {recipient}"), |_| Verdict::default()).0;
    }
    let (_, events, _, action) = ask(session, "RCPT 1.2.3.0 d", |_| Verdict::default());
    assert_eq!(events, "");
    assert!(action.line().starts_with("action=452 4.5.3 A message has at most 3 recipients here"), "{action:?}");
}

#[test]
fn delays_are_bounded_and_the_end_of_a_message_has_none() {
    let slow = |_: &Event| Verdict { delay: Duration::from_secs(40), ..Verdict::default() };
    let session = session(LastStage::EndOfMessage);
    let (session, _, delay, _) = ask(session, "RCPT 1.2.3.0 b", slow);
    assert_eq!(delay, Duration::from_secs(90));
    assert_eq!(ask(session, "END-OF-MESSAGE 1.2.3.0", slow).2, Duration::ZERO);
}

#[test]
fn a_route_puts_the_message_on_hold() {
    let routed = |event: &Event| {
        let route = matches!(event, Event::Recipient(to) if &**to == "c").then(|| "slow".into());
        Verdict { route, ..Verdict::default() }
    };
    let mut session = session(LastStage::EndOfMessage);
    let hold = Action::Hold("slow".into());
    for (request, expected) in [
        ("RCPT 1.2.3.0 b", Action::Dunno),
        ("RCPT 1.2.3.0 c", hold.clone()),
        ("END-OF-MESSAGE 1.2.3.0", hold),
        ("RCPT 1.2.4.1 b", Action::Dunno),
    ] {
        let (later, _, _, action) = ask(session, request, routed);
        assert_eq!(action, expected, "{request}");
        session = later;
    }
}

#[test]
fn an_undecided_request_is_asked_again() {
    let step = session(LastStage::Rcpt).request(attributes("RCPT 1.2.3.0 b"), EventKinds::ALL, NOW);
    let Step::Ask(question) = step else { panic!() };
    let Step::Answer(session, action) = question.answer(Vec::new(), NOW) else { panic!() };
    assert_eq!(action, Action::Undecided);
    assert_eq!(ask(session, "RCPT 1.2.3.0 b", |_| Verdict::default()).1, "Connect Login Mail b Message");
}

#[test]
fn refunds_end_if_the_last_stage_is_never_asked() {
    let refunds = Refunds::default();
    assert!((0..20).all(|_| refunds.permit()) && !refunds.is_newly_exhausted());
    assert!(!refunds.permit() && refunds.is_newly_exhausted());
    assert!(!refunds.permit() && !refunds.is_newly_exhausted());
    refunds.prove();
    assert!(refunds.permit());
}
