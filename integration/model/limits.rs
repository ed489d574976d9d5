//! Random limits for the model, and their translation for Weir.

use super::policy::{self as plain, Key, Per, Quota};
use crate::faults::random::Random;
use std::time::Duration;
use weir::policy::address::AddressNormalizer;
use weir::policy::budgets::Owner;
use weir::policy::limit::{Action, Algorithm, Charge, Count, Delay, Ladder, Limit, Mode, Rung, Scope, Verb};
use weir::policy::matching::{Field, Zone};
use weir::policy::{Policy, budgets};
use weir::time::{Rate, Timestamp};

pub fn any_limit(random: &mut Random) -> plain::Limit {
    let count = random.one_of(&[
        Count::Connections,
        Count::Sessions,
        Count::Sessions,
        Count::Logins,
        Count::LoginFailures,
        Count::Messages,
        Count::Messages,
        Count::Recipients,
        Count::Recipients,
        Count::Recipients,
    ]);
    let per = match count {
        Count::Messages | Count::Recipients => random.one_of(&[Per::All, Per::User, Per::Client, Per::Sender]),
        Count::Connections => random.one_of(&[Per::All, Per::Client]),
        _ => random.one_of(&[Per::User, Per::Client]),
    };
    let form = match (count, random.below(2)) {
        (Count::Sessions, _) => Quota::AtOnce { most: 0.0 },
        (_, 0) => Quota::Ewma { most: 0.0, period: 0.0 },
        _ => Quota::Bucket { burst: 0.0, per_second: 0.0 },
    };
    let quota = any_quota(random, form);
    let charge = match (count, quota) {
        (Count::Messages | Count::Recipients, Quota::Ewma { .. }) => {
            random.one_of(&[Charge::Accepted, Charge::Sent, Charge::Sent, Charge::Attempts])
        }
        (Count::Messages | Count::Recipients, _) => random.one_of(&[Charge::Accepted, Charge::Sent]),
        (Count::Connections, Quota::Ewma { .. }) => random.one_of(&[Charge::Accepted, Charge::Attempts]),
        _ => Charge::Accepted,
    };
    let verbs = match per {
        Per::All => &[Some(Verb::Defer), Some(Verb::Deny)][..],
        _ => &[Some(Verb::Defer), Some(Verb::Defer), Some(Verb::Deny), Some(Verb::Suspend)],
    };
    let refuses = random.one_of(verbs).filter(|verb| *verb != Verb::Suspend || count != Count::Sessions);
    let refuses = refuses.or(Some(Verb::Defer)).filter(|_| random.per_mille(900));
    let delay = random.per_mille(400).then(|| 1.0 + random.below(2) as f64);
    let delay = if refuses.is_none() { Some(1.0) } else { delay };
    let suspends = 1.0 + random.below(300) as f64;
    plain::Limit { count, per, quota, charge, shadow: random.per_mille(200), delay, refuses, suspends }
}

/// Draws the numbers of a limit with the algorithm of `form`.
pub fn any_quota(random: &mut Random, form: Quota) -> Quota {
    let most = random.one_of(&[9, 60]);
    let amount = 2.0 + random.below(most) as f64;
    let period = random.one_of(&[10.0, 100.0, 3600.0]);
    match form {
        Quota::Ewma { .. } => Quota::Ewma { most: amount, period },
        Quota::Bucket { .. } => Quota::Bucket { burst: amount, per_second: amount / period },
        Quota::AtOnce { .. } => Quota::AtOnce { most: 1.0 + random.below(4) as f64 },
    }
}

/// Translates the model's limits for Weir.
pub fn real(limits: &[plain::Limit]) -> Policy {
    let limits = limits.iter().enumerate().map(|(place, limit)| {
        let quota = match limit.quota {
            Quota::AtOnce { most } => weir::policy::limit::Quota::Counter { scope: Scope::AtOnce, most },
            Quota::Ewma { most, period } => rate(Algorithm::Ewma, most, period),
            Quota::Bucket { burst, per_second } => rate(Algorithm::TokenBucket, burst, burst / per_second),
        };
        let mut one = Limit::new(&name(place), limit.count, field(limit.per).into_iter().collect(), quota);
        if let Quota::Bucket { .. } = limit.quota {
            one.algorithm = Algorithm::TokenBucket;
        }
        one.charge = limit.charge;
        one.mode = if limit.shadow { Mode::Shadow } else { Mode::Enforce };
        let delay = limit.delay.map(|time| Action::Delay(Delay::For(Duration::from_secs_f64(time))));
        let refusal = limit.refuses.map(|verb| match verb {
            Verb::Suspend => Action::Suspend {
                time: weir::policy::exception::Length::For(Duration::from_secs_f64(limit.suspends)),
                is_strict: false,
            },
            verb => Action::Refuse(verb, None),
        });
        let rungs = delay.map(|action| Rung { at: 0.5, action }).into_iter();
        one.ladder = Ladder::new(rungs.chain(refusal.map(|action| Rung { at: 1.0, action })).collect());
        one
    });
    Policy::new(limits.collect(), AddressNormalizer::default(), Zone::default())
}

fn rate(algorithm: Algorithm, amount: f64, period: f64) -> weir::policy::limit::Quota {
    let period = Duration::from_secs(period.round() as u64);
    weir::policy::limit::Quota::rate(algorithm, Rate { amount, period }, None)
}

fn field(per: Per) -> Option<Field> {
    match per {
        Per::All => None,
        Per::User => Field::parse("user"),
        Per::Client => Field::parse("client"),
        Per::Sender => Field::parse("sender"),
    }
}

pub fn owner(per: Per, value: &str) -> Owner {
    Owner::from_parts(field(per).map(|field| (field.name(), value)).into_iter())
}

pub fn real_key(policy: &Policy, key: &Key) -> budgets::Key {
    let limit = &policy.limits[key.limit];
    let per = match limit.per.first() {
        None => Per::All,
        Some(field) if field.is_of_user() => Per::User,
        Some(field) if field.name() == "sender" => Per::Sender,
        Some(_) => Per::Client,
    };
    let own = budgets::Key::of_owner(limit.prefix(), &owner(per, &key.owner));
    key.granted.map_or(own.clone(), |since| own.granted(Timestamp::from_micros(since)))
}

pub fn name(place: usize) -> String {
    format!("limit{place}")
}
