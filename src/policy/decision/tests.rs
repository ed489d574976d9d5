use super::*;
use crate::engine::Wait;
use crate::policy::address::AddressNormalizer;
use crate::policy::budgets::RefundWhen;
use crate::policy::exception::Length;
use crate::policy::explain;
use crate::policy::limit::{
    Action, Algorithm, Count, Delay, Distinct, Ladder, OverrideRow, OverrideRows, Overrides, Rung, Scope, Share, Verb,
};
use crate::policy::matching::{AllOf, Comparison, Condition, Field, Matcher, PatternTable, Shape, Zone};
use crate::policy::request::{Facts, Stage};
use crate::policy::verdict::Meaning;
use crate::time::{Units, parse_rate};
use std::sync::Arc;
use std::time::Duration;

fn limit(name: &str, count: Count, per: &[Field], rate: &str) -> Limit {
    Limit::new(name, count, per.to_vec(), quota(rate))
}

fn quota(rate: &str) -> Quota {
    Quota::rate(Algorithm::Ewma, parse_rate(rate, Units::Things).unwrap(), None)
}

fn policy(limits: Vec<Limit>) -> Policy {
    Policy::new(limits, AddressNormalizer::new(Some('+'), None), Zone::default())
}

fn decide(policy: &Policy, now: Timestamp, request: &PolicyRequest, loaded: &mut Loaded) -> Vec<Verdict> {
    decide_in(policy, now, request, loaded, &mut SessionCounters::default())
}

fn decide_in(
    policy: &Policy,
    now: Timestamp,
    request: &PolicyRequest,
    loaded: &mut Loaded,
    counters: &mut SessionCounters,
) -> Vec<Verdict> {
    let plan = Plan::new(policy, request, now);
    if loaded.0.is_empty() {
        *loaded = plan.keys().map(|_| None).collect();
    }
    super::decide(policy, now, request, &plan, loaded, counters)
}

pub(super) const CLIENT: Field = Field::ALL[2];

fn refusal(verdict: &Verdict) -> &Refusal {
    let Ruling::Refuse(refusal) = &verdict.ruling else { panic!("{verdict:?}") };
    refusal
}

fn rcpt() -> Event {
    Event::Recipient("bob@example.net".into())
}

fn request(user: Option<&str>, events: &[Event]) -> PolicyRequest {
    let (client, user) = ("192.0.2.7".parse().ok(), user.map(Into::into));
    let facts = Facts { client, user, ..Facts::default() };
    PolicyRequest { facts, events: events.to_vec(), ..PolicyRequest::default() }
}

fn now() -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000)
}

fn words(verdicts: &[Verdict]) -> Vec<&'static str> {
    let word = |verdict: &Verdict| match verdict.ruling {
        Ruling::Pass => "pass",
        Ruling::Refuse(_) => "refuse",
        Ruling::Suspended(_) => "suspended",
        Ruling::Skipped => "void",
    };
    verdicts.iter().map(word).collect()
}

#[test]
fn recipients_are_charged_one_by_one_until_the_budget_is_full() {
    let policy = policy(vec![limit("l", Count::Recipients, &[Field::User], "4 / 1d")]);
    let mut loaded = Loaded::default();
    let run = request(Some("alice"), &[Event::Mail, rcpt(), rcpt(), rcpt(), rcpt()]);
    let verdicts = decide(&policy, now(), &run, &mut loaded);
    // All four recipients arrive at the same time. The fourth recipient raises the rate to 4, and a rate of 4 already
    // exceeds the limit of 4.
    assert_eq!(words(&verdicts), ["pass", "pass", "pass", "pass", "refuse"]);
    let refusal = refusal(&verdicts[4]);
    let text = refusal.text("r-1");
    assert!(
        text.starts_with("3 of 3 recipients used, 4 more per day; try again in ") && text.ends_with(" (r-1)"),
        "{text}"
    );
    let changed: Vec<_> = loaded.into_changed().collect();
    assert_eq!(changed.len(), 1);
    assert_eq!(changed[0].1.state.level, 3.0);
}

#[test]
fn after_a_refused_mail_its_recipients_are_skipped_and_uncharged() {
    let policy = policy(vec![
        limit("l", Count::Messages, &[Field::User], "2 / 1d"),
        limit("r", Count::Recipients, &[Field::User], "9 / 1d"),
    ]);
    let run = request(Some("alice"), &[Event::Mail, rcpt(), Event::Message, Event::Mail, rcpt()]);
    let mut loaded = Loaded::default();
    let verdicts = decide(&policy, now(), &run, &mut loaded);
    assert_eq!(words(&verdicts), ["pass", "pass", "pass", "refuse", "void"]);
    assert!(loaded.into_changed().all(|(_, budget)| budget.state.level == 1.0));
}

#[test]
fn an_event_is_charged_by_all_limits_or_by_none() {
    let policy = policy(vec![
        limit("wide", Count::Recipients, &[CLIENT], "100 / 1d"),
        limit("narrow", Count::Recipients, &[Field::User], "2 / 1d"),
    ]);
    let mut loaded = Loaded::default();
    let verdicts = decide(&policy, now(), &request(Some("alice"), &vec![rcpt(); 3]), &mut loaded);
    assert_eq!(words(&verdicts), ["pass", "refuse", "refuse"]);
    for (index, budget) in loaded.into_changed() {
        assert_eq!(budget.state.level, 1.0, "{index}");
    }
}

#[test]
fn a_limit_per_user_does_not_apply_without_login() {
    let policy = policy(vec![limit("l", Count::Recipients, &[Field::User], "2 / 1d")]);
    let run = request(None, &vec![rcpt(); 5]);
    assert!(Plan::new(&policy, &run, now()).keys().len() == 0);
    let verdicts = decide(&policy, now(), &run, &mut Loaded::default());
    assert_eq!(words(&verdicts), ["pass"; 5]);
}

#[test]
fn the_refusal_states_the_longest_wait() {
    let policy = policy(vec![
        limit("short", Count::Recipients, &[Field::User], "2.5 / 1m"),
        limit("long", Count::Recipients, &[Field::User], "2.5 / 1d"),
        limit("middle", Count::Recipients, &[Field::User], "2.5 / 1h"),
    ]);
    let verdicts = decide(&policy, now(), &request(Some("a"), &vec![rcpt(); 3]), &mut Loaded::default());
    let refusal = refusal(&verdicts[2]);
    assert_eq!(&*refusal.limit, "long");
    assert!(matches!(refusal.wait, Wait::For(wait) if wait > Duration::from_secs(3600)));
}

#[test]
fn the_order_of_per_does_not_change_the_key_and_the_user_is_compared_in_lower_case() {
    let one = limit("l", Count::Recipients, &[CLIENT, Field::User], "2 / 1d");
    let keys = |user| {
        let policy = policy(vec![limit("l", Count::Recipients, &one.per, "2 / 1d")]);
        Plan::new(&policy, &request(Some(user), &[rcpt()]), now()).keys().map(|key| key.owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys("Alice"), keys("aLICE"));
    assert_eq!(keys("alice")[0].to_string(), "l/recipients/ewma/client=192.0.2.7/user=alice");
}

#[test]
fn attempts_are_charged_even_if_refused_and_not_peeked_at_before() {
    let mut strict = limit("l", Count::Recipients, &[Field::User], "2.5 / 1d");
    strict.charge = Charge::Attempts;
    let other = limit("other", Count::Recipients, &[Field::User], "9 / 1d");
    let policy = policy(vec![strict, other]);
    let mut loaded = Loaded::default();
    let run = request(Some("alice"), &[vec![Event::Mail], vec![rcpt(); 4], vec![Event::Mail]].concat());
    let verdicts = decide(&policy, now(), &run, &mut loaded);
    assert_eq!(words(&verdicts), ["pass", "pass", "pass", "refuse", "refuse", "pass"]);
    let levels: Vec<f64> = loaded.into_changed().map(|(_, budget)| budget.state.level).collect();
    assert_eq!(levels, [4.0, 2.0]);
}

#[test]
fn known_recipients_are_free_even_at_the_limit() {
    let mut strangers = limit("l", Count::Recipients, &[Field::User], "2.5 / 1d");
    let remember = Some(Duration::from_secs(30 * 86_400));
    strangers.distinct = Some(Distinct { remember, ..Distinct::new(Field::Recipient) });
    let policy = policy(vec![strangers]);
    let to = |name: &str| Event::Recipient(format!("{name}@example.net").into());
    let mut loaded = Loaded::default();
    let run = [Event::Mail, to("a"), to("a"), to("b"), to("c"), Event::Mail, to("b"), to("a"), to("d")];
    let verdicts = decide(&policy, now(), &request(Some("alice"), &run), &mut loaded);
    assert_eq!(words(&verdicts), ["pass", "pass", "pass", "pass", "refuse", "pass", "pass", "pass", "refuse"]);
    // Ten days later the rate has decayed. The accepted values are still known, but the refused values are not.
    let later = now().after(Duration::from_secs(10 * 86_400));
    let run = [to("a"), to("b"), to("a"), to("c"), to("d"), to("e")];
    let verdicts = decide(&policy, later, &request(Some("alice"), &run), &mut loaded);
    assert_eq!(words(&verdicts), ["pass", "pass", "pass", "pass", "pass", "refuse"]);
}

#[test]
fn all_limits_that_refuse_are_named() {
    let limits = ["1h", "1d", "1m"].map(|period| limit(period, Count::Recipients, &[], &format!("1.5 / {period}")));
    let policy = policy(limits.into());
    let verdicts = decide(&policy, now(), &request(None, &[rcpt(), rcpt()]), &mut Loaded::default());
    let refusal = refusal(&verdicts[1]);
    assert_eq!((&*refusal.limit, refusal.also.iter().map(|name| &**name).collect()), ("1d", vec!["1h", "1m"]));
}

#[test]
fn a_client_that_obeys_the_wait_is_accepted_even_if_attempts_are_charged() {
    for charge in Charge::ALL {
        let mut strict = limit("l", Count::Recipients, &[Field::User], "5 / 1h");
        strict.charge = charge;
        let policy = policy(vec![strict]);
        let (mut loaded, mut now) = (Loaded::default(), now());
        decide(&policy, now, &request(Some("alice"), &vec![rcpt(); 8]), &mut loaded);
        for _ in 0..20 {
            let mut once = |now| decide(&policy, now, &request(Some("alice"), &[rcpt()]), &mut loaded);
            let refused = once(now);
            let Wait::For(wait) = refusal(&refused[0]).wait else { panic!() };
            now = now.after(wait);
            assert_eq!(words(&once(now)), ["pass"], "{charge:?}");
        }
    }
}

#[test]
fn a_clock_that_was_wrong_for_a_while_causes_no_refusals_for_years() {
    let policy = policy(vec![limit("l", Count::Recipients, &[Field::User], "5 / 1h")]);
    let mut loaded = Loaded::default();
    let wrong = now().after(Duration::from_secs(10 * 365 * 86_400));
    let run = |n| request(Some("alice"), &vec![rcpt(); n]);
    assert_eq!(words(&decide(&policy, wrong, &run(5), &mut loaded)).last(), Some(&"refuse"));
    let verdicts = decide(&policy, now(), &run(1), &mut loaded);
    let Wait::For(wait) = refusal(&verdicts[0]).wait else { panic!() };
    assert!(wait < Duration::from_secs(3600), "{wait:?}");
    assert_eq!(words(&decide(&policy, now().after(wait), &run(1), &mut loaded)), ["pass"]);
}

#[test]
fn known_recipients_are_free_after_the_limit_is_lowered() {
    let with = |rate| {
        let mut limit = limit("l", Count::Recipients, &[Field::User], rate);
        limit.distinct = Some(Distinct::new(Field::Recipient));
        policy(vec![limit])
    };
    let all: Vec<Event> = (0..50).map(|n| Event::Recipient(format!("{n}@example.net").into())).collect();
    let mut loaded = Loaded::default();
    decide(&with("60 / 1d"), now(), &request(Some("alice"), &all), &mut loaded);
    let verdicts = decide(&with("30 / 1d"), now(), &request(Some("alice"), &all), &mut loaded);
    assert!(verdicts.iter().all(|verdict| matches!(verdict.ruling, Ruling::Pass)));
}

#[test]
fn recipients_with_overrides_are_checked_against_these_in_any_order() {
    let mut table = PatternTable::new(Shape::Domain);
    for (index, domain) in ["one.example", "two.example"].into_iter().enumerate() {
        table.insert(domain, OverrideRow { index, line: index + 2 }).unwrap();
    }
    let mut of_user = limit("l", Count::Recipients, &[Field::User], "100 / 1d");
    let rows = Arc::new(OverrideRows::Field(Field::RecipientDomain, table));
    let quotas = vec![quota("3 / 1d"), quota("9 / 1d")];
    of_user.overrides = Some(Arc::new(Overrides::new("some.csv", rows, quotas, 1)));
    let policy = policy(vec![of_user]);
    let to = |domain: &str| Event::Recipient(format!("bob@{domain}").into());
    let run = ["one.example", "two.example", "one.example", "two.example", "one.example"].map(to);
    let verdicts = decide(&policy, now(), &request(Some("alice"), &run), &mut Loaded::default());
    assert_eq!(words(&verdicts), ["pass", "pass", "refuse", "pass", "refuse"]);
}

#[test]
fn an_explanation_agrees_with_the_decision_and_says_why_a_limit_does_not_apply() {
    let mut of_staff = limit("staff", Count::Recipients, &[], "2 / 1d");
    let mut staff = PatternTable::new(Shape::Name);
    staff.insert("staff", ()).unwrap();
    of_staff.matcher.matches = vec![AllOf(vec![Condition::Group(vec![Arc::new(staff)])])];
    let mut not_encrypted = limit("plain", Count::Recipients, &[], "2 / 1d");
    not_encrypted.matcher.except = vec![AllOf(vec![Condition::Tls(true)])];
    let of_user = limit("user", Count::Recipients, &[Field::User], "2 / 1d");
    let octets = limit("octets", Count::Bytes, &[], "2 / 1d");
    let policy = policy(vec![of_staff, not_encrypted, of_user, octets, limit("all", Count::Recipients, &[], "2 / 1d")]);
    let explained = |request: &PolicyRequest, loaded: &mut Loaded| {
        let plan = Plan::new(&policy, request, now());
        if loaded.0.is_empty() {
            *loaded = plan.keys().map(|_| None).collect();
        }
        explain(&policy, now(), request, &plan, loaded, &mut SessionCounters::default())
    };
    let mut once = request(None, &[rcpt()]);
    once.facts.tls = Some(true);
    let mut loaded = Loaded::default();
    let all = explained(&once, &mut loaded);
    let reasons: Vec<String> = all.iter().filter_map(|one| Some(one.said.as_ref().err()?.to_string())).collect();
    let expected = ["no match: group is not known", "excepted: tls is true", "user is not known", "not at this stage"];
    assert_eq!(reasons, expected);
    let weighed = all[4].said.as_ref().unwrap();
    assert_eq!((weighed.level, weighed.amount, weighed.after), (0.0, 1.0, 1.0));
    assert!(weighed.refusal.is_none() && loaded.states().all(|state| state.is_none()), "nothing is charged");
    decide(&policy, now(), &once, &mut loaded);
    let all = explained(&once, &mut loaded);
    let weighed = all[4].said.as_ref().unwrap();
    assert_eq!((weighed.level, weighed.after), (1.0, 2.0));
    let verdicts = decide(&policy, now(), &once, &mut loaded);
    assert_eq!(weighed.refusal.as_ref().unwrap().text("r"), refusal(&verdicts[0]).text("r"));
}

#[test]
fn an_explanation_of_a_quota_without_rule_adds_nothing() {
    let day = Duration::from_secs(86_400);
    let share = Quota::Share(Share { most: 0.5, period: day, of: Count::Recipients, at_least: 10.0 });
    let rejected = Limit::new("rejected", Count::Rejections, vec![Field::User], share);
    let nothing = Limit::new("nothing", Count::Recipients, vec![Field::User], Quota::Never);
    let policy = policy(vec![rejected, nothing, limit("some", Count::Recipients, &[Field::User], "2 / 1d")]);
    let once = request(Some("alice"), &[rcpt()]);
    let plan = Plan::new(&policy, &once, now());
    let mut loaded = plan.keys().map(|_| None).collect();
    let all = explain(&policy, now(), &once, &plan, &mut loaded, &mut SessionCounters::default());
    assert_eq!(all.iter().map(|one| one.said.as_ref().unwrap().amount).collect::<Vec<_>>(), [0.0, 0.0, 1.0]);
}

fn except(limit: &mut Limit, condition: Condition) {
    limit.matcher = Matcher { matches: Vec::new(), except: vec![AllOf(vec![condition])] };
}

#[test]
fn a_peek_at_mail_does_not_refuse_if_later_recipients_may_be_excepted() {
    let mut postmaster = PatternTable::new(Shape::Address);
    postmaster.insert("postmaster", ()).unwrap();
    let mut by_name = limit("by-name", Count::Recipients, &[Field::User], "2.5 / 1d");
    except(&mut by_name, Condition::Field(Field::Recipient, vec![postmaster.into()]));
    let mut by_number = limit("by-number", Count::Messages, &[Field::User], "1.5 / 1d");
    except(&mut by_number, Condition::MessageRecipients(vec![Comparison::parse("0").unwrap()]));
    for (limit, passing) in [(by_name, 2), (by_number, 1)] {
        let full = if limit.count == Count::Messages { Event::Message } else { rcpt() };
        let policy = policy(vec![limit]);
        let mut loaded = Loaded::default();
        let mut run = request(Some("alice"), &vec![full; 3]);
        run.facts.recipients = vec!["bob@example.net".into()];
        let verdicts = decide(&policy, now(), &run, &mut loaded);
        assert_eq!(words(&verdicts).iter().filter(|word| **word == "pass").count(), passing);
        let run = request(Some("alice"), &[Event::Mail, Event::Recipient("postmaster@example.net".into())]);
        assert_eq!(words(&decide(&policy, now(), &run, &mut loaded)), ["pass", "pass"]);
    }
}

#[test]
fn messages_per_recipient_are_checked_at_rcpt_once_for_each_distinct_value() {
    let policy = policy(vec![limit("l", Count::Messages, &[Field::RecipientDomain], "1.5 / 1d")]);
    let to = |name: &str| Event::Recipient(name.into());
    let (mut loaded, mut counters) = (Loaded::default(), SessionCounters::default());
    let run = request(None, &[to("a@d"), to("b@d"), to("a@e"), Event::Message]);
    assert_eq!(words(&decide_in(&policy, now(), &run, &mut loaded, &mut counters)), ["pass"; 4]);
    counters.end_message();
    assert_eq!(
        words(&decide_in(&policy, now(), &run, &mut loaded, &mut counters)),
        ["refuse", "refuse", "refuse", "pass"]
    );
}

#[test]
fn a_permanent_refusal_does_not_say_try_again() {
    let mut limit = limit("l", Count::Recipients, &[Field::User], "1.5 / 1d");
    limit.ladder = Ladder::new(vec![Rung { at: 1.0, action: Action::Refuse(Verb::Deny, None) }]);
    let policy = policy(vec![limit]);
    let verdicts = decide(&policy, now(), &request(Some("alice"), &[rcpt(), rcpt()]), &mut Loaded::default());
    assert_eq!(refusal(&verdicts[1]).text("r-1"), "1 of 1 recipient used, 1.5 more per day (r-1)");
}

#[test]
fn a_suspension_states_its_own_length_beside_a_longer_wait() {
    let suspending = |name, hours: u64| {
        let mut limit = limit(name, Count::Recipients, &[Field::User], "1.5 / 1h");
        limit.ladder = Ladder::new(vec![Rung {
            at: 1.0,
            action: Action::Suspend { time: Length::For(Duration::from_secs(hours * 3_600)), is_strict: false },
        }]);
        limit
    };
    let slow = limit("slow", Count::Recipients, &[Field::User], "1.5 / 100d");
    // The limit `slow` would let the recipient pass after some weeks. The reply states the length of the longest
    // suspension, not this wait.
    for (limits, suspended) in [
        (vec![suspending("short", 1), slow.clone()], "1h"),
        (vec![suspending("short", 1), slow, suspending("long", 2)], "2h"),
    ] {
        let verdicts =
            decide(&policy(limits), now(), &request(Some("alice"), &[rcpt(), rcpt()]), &mut Loaded::default());
        let text = refusal(&verdicts[1]).text("r");
        let begin = format!("1 of 1 recipient used, 1.5 more per hour; suspended for {suspended}, until 2023-11-1");
        assert!(text.starts_with(&begin) && text.ends_with(" UTC (r)"), "{text}");
    }
}

#[test]
fn a_reply_states_the_number_that_passes_before_its_rung() {
    let mut half = limit("half", Count::Recipients, &[Field::User], "8 / 1d");
    half.ladder = Ladder::new(vec![Rung { at: 0.5, action: Action::Refuse(Verb::Deny, None) }]);
    let bucket = Quota::rate(Algorithm::TokenBucket, parse_rate("2M / 1h", Units::Octets).unwrap(), None);
    let mut bytes = Limit::new("bytes", Count::Bytes, vec![Field::User], bucket);
    bytes.ladder = Ladder::new(vec![Rung { at: 1.0, action: Action::Refuse(Verb::Deny, None) }]);
    let end = |size| Event::End { size: Some(size) };
    for (limit, events, text) in [
        (half, vec![rcpt(); 4], "3 of 3 recipients used, 4 more per day (r)"),
        (bytes, vec![end(2_000_000), end(200_000)], "1.9 MB of 2 MB used, 2 MB more per hour (r)"),
    ] {
        let verdicts = decide(&policy(vec![limit]), now(), &request(Some("alice"), &events), &mut Loaded::default());
        let (last, others) = verdicts.split_last().unwrap();
        assert!(words(others).iter().all(|word| *word == "pass"));
        assert_eq!(refusal(last).text("r"), text);
    }
}

#[test]
fn the_share_of_rejections_is_100_percent_at_most() {
    let period = Duration::from_secs(2);
    let share = Quota::Share(Share { most: 0.5, period, of: Count::Recipients, at_least: 0.5 });
    let policy = policy(vec![Limit::new("l", Count::Rejections, vec![Field::User], share)]);
    let mut loaded = Loaded::default();
    decide(&policy, now(), &request(Some("alice"), &[rcpt()]), &mut loaded);
    // The upstream rejects the recipient half a second later.
    let rejected = now().after(Duration::from_millis(500));
    decide(&policy, rejected, &request(Some("alice"), &[Event::Rejected(None)]), &mut loaded);
    let verdicts = decide(&policy, rejected, &request(Some("alice"), &[Event::Mail]), &mut loaded);
    assert!(refusal(&verdicts[0]).text("r").starts_with("100% of recipients"), "{:?}", refusal(&verdicts[0]));
}

#[test]
fn a_message_counts_once_for_each_recipient_that_has_a_budget() {
    let policy = policy(vec![limit("l", Count::Messages, &[Field::Recipient], "1.5 / 1d")]);
    let (mut loaded, mut counters) = (Loaded::default(), SessionCounters::default());
    let to = |name: &str| Event::Recipient(format!("{name}@example.net").into());
    let first = request(None, &[Event::Mail, to("bob"), to("carol"), to("BOB"), Event::Message]);
    let verdicts = decide_in(&policy, now(), &first, &mut loaded, &mut counters);
    assert_eq!(words(&verdicts), ["pass"; 5]);
    counters.end_message();
    let verdicts = decide_in(&policy, now(), &first, &mut loaded, &mut counters);
    assert_eq!(words(&verdicts), ["pass", "refuse", "refuse", "refuse", "pass"]);
}

#[test]
fn a_listener_is_compared_without_case() {
    let mut of_listener = limit("l", Count::Messages, &[], "0.5 / 1d");
    let mut table = PatternTable::new(Shape::Name);
    table.insert("Submission", ()).unwrap();
    let condition = Condition::Field(Field::Listener, vec![Arc::new(table)]);
    of_listener.matcher = Matcher { matches: vec![AllOf(vec![condition])], except: Vec::new() };
    let policy = policy(vec![of_listener]);
    for (listener, word) in [("SUBMISSION", "refuse"), ("submission", "refuse"), ("relay", "pass")] {
        let mut request = request(None, &[Event::Message]);
        request.facts.listener = Some(listener.into());
        assert_eq!(words(&decide(&policy, now(), &request, &mut Loaded::default())), [word], "{listener}");
    }
}

#[test]
fn a_counter_of_octets_counts_a_message_once_whether_it_declares_its_size_or_not() {
    let most = Quota::Counter { scope: Scope::Message, most: 10_240.0 };
    let policy = policy(vec![Limit::new("l", Count::Bytes, Vec::new(), most)]);
    let mut counters = SessionCounters::default();
    for declared in [Some(6_000), None] {
        let mut said = Vec::new();
        for event in [Event::Mail, Event::Message, Event::End { size: Some(6_000) }] {
            let mut request = request(None, &[event]);
            request.facts.size = declared;
            said.extend(decide_in(&policy, now(), &request, &mut Loaded::default(), &mut counters));
        }
        assert_eq!(words(&said), ["pass"; 3], "{declared:?}");
        counters.end_message();
    }
    let mut large = request(None, &[Event::Mail]);
    large.facts.size = Some(10_241);
    assert_eq!(words(&decide_in(&policy, now(), &large, &mut Loaded::default(), &mut counters)), ["refuse"]);
}

#[test]
fn a_message_that_is_counted_at_rcpt_is_refunded_only_with_the_message() {
    let mut of_domain = limit("l", Count::Messages, &[Field::RecipientDomain], "3 / 1d");
    of_domain.charge = Charge::Sent;
    let policy = policy(vec![of_domain]);
    let verdicts = decide(&policy, now(), &request(None, &[rcpt(), rcpt()]), &mut Loaded::default());
    assert_eq!(verdicts[0].charges.iter().map(|charged| charged.until).collect::<Vec<_>>(), [RefundWhen::MessageSent]);
    assert!(verdicts[1].charges.is_empty(), "it is one message");
}

#[test]
fn an_attempt_at_a_message_counts_once_for_any_number_of_refused_recipients() {
    let mut strict = limit("l", Count::Messages, &[Field::RecipientDomain], "3 / 1d");
    strict.charge = Charge::Attempts;
    let policy = policy(vec![strict]);
    let (mut loaded, mut counters) = (Loaded::default(), SessionCounters::default());
    for n in 0..5 {
        let verdicts = decide_in(&policy, now(), &request(None, &vec![rcpt(); 20]), &mut loaded, &mut counters);
        assert_eq!(words(&verdicts), [if n < 2 { "pass" } else { "refuse" }; 20], "message {n}");
        counters.end_message();
    }
    let level = loaded.states().next().flatten().unwrap().level;
    assert_eq!(level, 5.0);
}

#[test]
fn the_charge_of_a_shadow_limit_for_a_refused_event_can_be_refunded() {
    let mut shadow = limit("shadow", Count::LoginFailures, &[Field::User], "5 / 1d");
    shadow.mode = Mode::Shadow;
    let policy = policy(vec![shadow, limit("logins", Count::Logins, &[Field::User], "1 / 1d")]);
    let verdicts = decide(&policy, now(), &request(Some("alice"), &[Event::Auth]), &mut Loaded::default());
    assert_eq!(words(&verdicts), ["refuse"]);
    assert_eq!(verdicts[0].charges.len(), 1);
}

#[test]
fn nothing_is_decided_after_a_drop() {
    let mut last = limit("last", Count::Recipients, &[Field::Recipient], "1.5 / 1d");
    last.ladder = Ladder::new(vec![Rung { at: 1.0, action: Action::Refuse(Verb::Drop, None) }]);
    let policy = policy(vec![last, limit("all", Count::Recipients, &[], "90 / 1d")]);
    let other = Event::Recipient("carol@example.net".into());
    let mut loaded = Loaded::default();
    let verdicts = decide(&policy, now(), &request(None, &[Event::Mail, rcpt(), rcpt(), other]), &mut loaded);
    assert_eq!(words(&verdicts), ["pass", "pass", "refuse", "void"]);
    assert!(loaded.states().flatten().all(|state| state.level == 1.0), "{loaded:?}");
}

#[test]
fn a_limit_per_message_does_not_make_the_wait_of_a_daily_limit_endless() {
    let mut day = limit("day", Count::Recipients, &[], "2.5 / 1d");
    day.ladder = Ladder::new(vec![Rung { at: 1.0, action: Action::Refuse(Verb::Deny, None) }]);
    let message = Quota::Counter { scope: Scope::Message, most: 2.0 };
    let policy = policy(vec![day, Limit::new("message", Count::Recipients, Vec::new(), message)]);
    let verdicts = decide(&policy, now(), &request(None, &vec![rcpt(); 3]), &mut Loaded::default());
    let refusal = refusal(&verdicts[2]);
    assert_eq!(refusal.text("r"), "2 of 2 recipients used, 2.5 more per day (r)");
    assert_eq!(&*refusal.also[0], "message");
}

fn late(name: &str, count: Count, rate: &str, delay: Delay) -> Limit {
    let mut limit = limit(name, count, &[Field::User], rate);
    limit.algorithm = Algorithm::TokenBucket;
    limit.quota = Quota::rate(Algorithm::TokenBucket, parse_rate(rate, Units::Things).unwrap(), None);
    limit.ladder = Ladder::new(vec![Rung { at: 1.0, action: Action::Delay(delay) }]);
    limit
}

fn seconds(verdicts: &[Verdict]) -> Vec<f64> {
    verdicts.iter().map(|verdict| verdict.delay.as_secs_f64().round()).collect()
}

#[test]
fn delays_until_free_are_not_added_up_in_a_run() {
    let policy = policy(vec![late("l", Count::Recipients, "1 / 1s", Delay::UntilFree)]);
    let mut loaded = Loaded::default();
    let run = request(Some("alice"), &[Event::Mail, rcpt(), rcpt(), rcpt(), rcpt()]);
    let verdicts = decide(&policy, now(), &run, &mut loaded);
    assert_eq!(seconds(&verdicts), [0.0, 0.0, 1.0, 1.0, 1.0]);
}

#[test]
fn a_run_is_delayed_no_longer_than_a_transaction_may_be() {
    let delay = Delay::For(Duration::from_secs(2));
    let policy = policy(vec![late("l", Count::Commands, "1 / 1d", delay)]);
    let run = request(Some("alice"), &vec![Event::Command; 60]);
    let verdicts = decide(&policy, now(), &run, &mut Loaded::default());
    assert_eq!(seconds(&verdicts).iter().sum::<f64>(), 44.0);
    assert!(matches!(&verdicts[23].ruling, Ruling::Refuse(refusal) if refusal.meaning() == Meaning::TooLate));
}

#[test]
fn a_refused_mail_does_not_use_up_the_delay_of_a_transaction() {
    let mut refused = limit("l", Count::Messages, &[Field::User], "1 / 1d");
    refused.ladder = Ladder::new(vec![
        Rung { at: 0.5, action: Action::Delay(Delay::For(Duration::from_secs(15))) },
        Rung { at: 1.0, action: Action::Refuse(Verb::Defer, None) },
    ]);
    (refused.stage, refused.charge) = (Stage::Mail, Charge::Attempts);
    let policy = policy(vec![refused]);
    let mut counters = SessionCounters::default();
    for _ in 0..4 {
        let run = request(Some("alice"), &[Event::Mail]);
        let plan = Plan::new(&policy, &run, now());
        let mut loaded: Loaded = plan.keys().map(|_| None).collect();
        let verdicts = super::decide(&policy, now(), &run, &plan, &mut loaded, &mut counters);
        assert_eq!((words(&verdicts), seconds(&verdicts)), (vec!["refuse"], vec![15.0]));
    }
}

#[test]
fn a_refusal_for_a_long_delay_states_when_the_delay_is_short_enough() {
    let delay = Delay::Per { time: Duration::from_secs(1), units: 1.0 };
    let policy = policy(vec![late("l", Count::Recipients, "2 / 1h", delay)]);
    let mut loaded = Loaded::default();
    // The delays of these recipients are 0, 0, 1, 2, … 9 s. Their sum is 45 s, the maximum in one transaction.
    let run = request(Some("alice"), &[&[Event::Mail][..], &vec![rcpt(); 11]].concat());
    let verdicts = decide(&policy, now(), &run, &mut loaded);
    assert_eq!(seconds(&verdicts)[9..], [7.0, 8.0, 9.0]);
    let again = request(Some("alice"), &[&[Event::Mail][..], &vec![rcpt(); 3]].concat());
    let verdicts = decide(&policy, now(), &again, &mut loaded);
    assert_eq!(seconds(&verdicts)[1..], [10.0, 11.0, 12.0]);
    for _ in 0..9 {
        let one = request(Some("alice"), &[Event::Mail, rcpt()]);
        let verdicts = decide(&policy, now(), &one, &mut loaded);
        let Ruling::Refuse(refusal) = &verdicts[1].ruling else { continue };
        // Level 23 with limit 2 would mean a delay of 21 s. After half an hour the level has decayed to 22, and the
        // delay would be 20 s.
        assert_eq!((refusal.wait, refusal.meaning()), (Wait::For(Duration::from_secs(1_800)), Meaning::Later));
        return;
    }
    panic!("nothing was too late");
}
