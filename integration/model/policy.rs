//! Model of the policy: limits, budgets, suspensions and grants, in maps, without regard to speed.
//!
//! The model deliberately has its own formulas: with the engine's formulas, it would repeat the engine's faults.

use std::collections::HashMap;
use weir::policy::limit::{Charge, Count, Verb};

/// Seconds since 1970.
pub type Seconds = f64;

/// Owner of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Per {
    All,
    User,
    Client,
    Sender,
}

/// Algorithm of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quota {
    Ewma { most: f64, period: f64 },
    Bucket { burst: f64, per_second: f64 },
    AtOnce { most: f64 },
}

#[derive(Clone, Debug)]
pub struct Limit {
    pub count: Count,
    pub per: Per,
    pub quota: Quota,
    pub charge: Charge,
    pub shadow: bool,
    /// Delay of replies in seconds, for events that reach half the limit.
    pub delay: Option<f64>,
    /// How events that reach the limit are refused, if they are refused.
    pub refuses: Option<Verb>,
    /// Length of a suspension, in seconds.
    pub suspends: f64,
}

/// Key of a budget: the limit, the owner, and for a grant its start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub limit: usize,
    pub owner: String,
    pub granted: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    pub at: Seconds,
    pub level: f64,
}

/// A charge that may be refunded.
#[derive(Clone, Debug)]
pub struct Receipt {
    pub key: Key,
    pub quota: Quota,
    pub before: Option<State>,
    pub after: State,
    pub until: RefundWhen,
}

/// Event after which it is certain whether a charge is refunded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefundWhen {
    Sent,
    Password,
    Heard,
}

/// Facts about a session, as the session's request to the policy contains them.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub user: Option<String>,
    pub client: String,
    pub sender: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Connect,
    Auth,
    Login,
    Mail,
    Rcpt,
    Data,
    End,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Ruling {
    Pass,
    Refuse(Verb),
    Suspended,
    Skipped,
}

#[derive(Clone, Debug)]
pub struct Verdict {
    pub ruling: Ruling,
    pub receipts: Vec<Receipt>,
    pub slots: Vec<Key>,
    pub delay: f64,
}

/// Grant: a higher limit for one owner, for a time.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Time when the grant began, in microseconds since 1970, as in the key of its budget.
    pub since: i64,
    pub until: Seconds,
    pub amount: f64,
    pub period: f64,
}

#[derive(Default)]
pub struct Policy {
    pub limits: Vec<Limit>,
    pub budgets: HashMap<Key, State>,
    /// End of each owner's suspension.
    pub suspended: HashMap<(Per, String), Seconds>,
    pub grants: HashMap<(usize, String), Grant>,
    /// Budgets changed since the last comparison.
    pub touched: Vec<Key>,
}

/// Effect of an event on a limit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Charge,
    Look,
}

impl Quota {
    fn step(self, state: Option<State>, now: Seconds, amount: f64) -> f64 {
        let Some(State { at, level }) = state else { return amount };
        match self {
            Self::Bucket { per_second, .. } => (level - per_second * elapsed(at, now)).max(0.0) + amount,
            Self::AtOnce { .. } => level + amount,
            Self::Ewma { period, .. } => {
                let x = (now - at) / period;
                if x <= 0.0 {
                    return level + amount;
                }
                let a = (-x).exp();
                ((1.0 - a) * amount / x + a * level).max(amount)
            }
        }
    }

    fn is_over(self, times: f64, level: f64) -> bool {
        match self {
            Self::Ewma { most, .. } => level >= most * times,
            Self::Bucket { burst, .. } => level > burst * times,
            Self::AtOnce { most } => level > most * times,
        }
    }

    /// Returns the level after a refund, which removes the part of the charge that is still in the level.
    fn refund(self, state: State, receipt: &Receipt) -> f64 {
        let before = receipt.before;
        let (charged, gone) = (receipt.after.at, elapsed(receipt.after.at, state.at));
        let back = match self {
            Self::AtOnce { .. } => panic!("slots are never refunded"),
            Self::Bucket { per_second, .. } => {
                let leaked = |level: f64, time: f64| (level - per_second * time).max(0.0);
                let since = before.map_or(0.0, |before| leaked(before.level, elapsed(before.at, charged)));
                leaked(receipt.after.level - since, gone)
            }
            Self::Ewma { period, .. } => {
                let before = before.map_or(0.0, |before| before.level * (-elapsed(before.at, charged) / period).exp());
                let left = (receipt.after.level - before) * (-gone / period).exp();
                let x = gone / period;
                // Without the charge, a later event could have raised the level by this part. So this part is not
                // refunded.
                let stays = if x > 0.0 { 1.0 + (-x).exp_m1() / x } else { 0.0 };
                (left - state.level * stays).max(0.0)
            }
        };
        (state.level - back).max(0.0)
    }
}

/// Returns the time between two moments, in seconds: the difference of whole microseconds, or 0 if `to` is earlier.
fn elapsed(from: Seconds, to: Seconds) -> f64 {
    ((to * 1e6).round() - (from * 1e6).round()).max(0.0) / 1e6
}

impl Limit {
    fn effect(&self, event: Event) -> Option<Effect> {
        let look = (self.charge != Charge::Attempts).then_some(Effect::Look);
        match (self.count, event) {
            (Count::Connections, Event::Connect) => Some(Effect::Charge),
            (Count::Sessions, Event::Connect) if self.per != Per::User => Some(Effect::Charge),
            (Count::Sessions, Event::Login) if self.per == Per::User => Some(Effect::Charge),
            (Count::Logins, Event::Auth) => look,
            (Count::Logins, Event::Login) | (Count::LoginFailures, Event::Auth) => Some(Effect::Charge),
            (Count::Messages | Count::Recipients, Event::Mail) => look,
            (Count::Messages, Event::Data) | (Count::Recipients, Event::Rcpt) => Some(Effect::Charge),
            _ => None,
        }
    }

    /// Returns when a charge of this limit can be refunded; `None` if never. `late` is true if a limit can delay
    /// replies.
    fn until(&self, late: bool) -> Option<RefundWhen> {
        let comes_again = matches!(self.count, Count::Messages | Count::Recipients | Count::Logins);
        match (self.count, self.charge) {
            (Count::LoginFailures, _) => Some(RefundWhen::Password),
            (_, Charge::Sent) => Some(RefundWhen::Sent),
            (_, Charge::Accepted) if comes_again && late => Some(RefundWhen::Heard),
            _ => None,
        }
    }
}

impl Policy {
    /// Decides on a run of events, and charges them.
    pub fn decide(&mut self, now: Seconds, facts: &Facts, events: &[Event]) -> Vec<Verdict> {
        let mut suspended = self.is_suspended(now, facts);
        let (mut mail_refused, mut is_over) = (false, false);
        let mut verdicts = Vec::new();
        for event in events {
            let sends = matches!(event, Event::Mail | Event::Rcpt | Event::Data | Event::End);
            let ruled = |ruling| Verdict { ruling, receipts: Vec::new(), slots: Vec::new(), delay: 0.0 };
            let verdict = match event {
                _ if is_over => ruled(Ruling::Skipped),
                Event::Rcpt | Event::Data if mail_refused => ruled(Ruling::Skipped),
                _ if sends && suspended => ruled(Ruling::Suspended),
                _ => self.decide_one(now, facts, *event, &mut suspended),
            };
            if *event == Event::Mail {
                mail_refused = verdict.ruling != Ruling::Pass;
            }
            is_over |= matches!(verdict.ruling, Ruling::Refuse(Verb::Drop))
                || *event == Event::Connect && verdict.ruling != Ruling::Pass;
            verdicts.push(verdict);
        }
        verdicts
    }

    fn decide_one(&mut self, now: Seconds, facts: &Facts, event: Event, suspended: &mut bool) -> Verdict {
        let late = self.limits.iter().any(|limit| !limit.shadow && limit.delay.is_some());
        let (mut refusal, mut delay) = (None, 0.0f64);
        let mut steps = Vec::new();
        for (place, limit) in self.limits.clone().into_iter().enumerate() {
            let (Some(effect), Some(owner)) = (limit.effect(event), facts.owner(limit.per)) else { continue };
            let (key, quota) = self.budget_of(place, &limit, &owner, now);
            let before = self.budgets.get(&key).copied();
            let level = quota.step(before, now, 1.0);
            let own = limit.refuses.filter(|_| quota.is_over(1.0, level));
            if !limit.shadow {
                refusal = refusal.max(own);
                if effect == Effect::Charge && quota.is_over(0.5, level) {
                    delay = delay.max(limit.delay.unwrap_or(0.0));
                }
                if own == Some(Verb::Suspend) {
                    *suspended = true;
                    let until = self.suspended.entry((limit.per, owner)).or_insert(now);
                    *until = until.max(now + limit.suspends);
                }
            }
            steps.push((limit, effect, key, quota, before, State { at: now, level }, own.is_some()));
        }
        let (mut receipts, mut slots) = (Vec::new(), Vec::new());
        for (limit, effect, key, quota, before, after, own_refuses) in steps {
            let is_slot = matches!(quota, Quota::AtOnce { .. });
            let passes = if limit.shadow { !own_refuses } else { refusal.is_none() };
            let is_void = limit.shadow && is_slot && refusal.is_some();
            if effect == Effect::Look || is_void || !(passes || limit.charge == Charge::Attempts) {
                continue;
            }
            self.budgets.insert(key.clone(), after);
            self.touched.push(key.clone());
            match limit.until(late) {
                _ if !passes => {}
                _ if is_slot => slots.push(key),
                Some(until) => receipts.push(Receipt { key, quota, before, after, until }),
                None => {}
            }
        }
        let ruling = refusal.map_or(Ruling::Pass, Ruling::Refuse);
        Verdict { ruling, receipts, slots, delay }
    }

    fn budget_of(&self, place: usize, limit: &Limit, owner: &str, now: Seconds) -> (Key, Quota) {
        let key = Key { limit: place, owner: owner.to_owned(), granted: None };
        match self.grants.get(&(place, owner.to_owned())).filter(|grant| now < grant.until) {
            None => (key, limit.quota),
            Some(Grant { since, amount, period, .. }) => {
                let quota = match limit.quota {
                    Quota::Ewma { .. } => Quota::Ewma { most: *amount, period: *period },
                    Quota::Bucket { .. } => Quota::Bucket { burst: *amount, per_second: amount / period },
                    Quota::AtOnce { .. } => Quota::AtOnce { most: *amount },
                };
                (Key { granted: Some(*since), ..key }, quota)
            }
        }
    }

    fn is_suspended(&self, now: Seconds, facts: &Facts) -> bool {
        let holds = |per: Per| {
            let owner = facts.owner(per)?;
            self.suspended.get(&(per, owner)).filter(|until| now < **until)
        };
        [Per::User, Per::Client, Per::Sender].into_iter().any(|per| holds(per).is_some())
    }

    /// Refunds a charge.
    pub fn refund(&mut self, receipt: &Receipt) {
        let Some(state) = self.budgets.get_mut(&receipt.key) else { return };
        *state = match *state == receipt.after {
            true => receipt.before.unwrap_or(State { level: 0.0, ..receipt.after }),
            false => State { level: receipt.quota.refund(*state, receipt), ..*state },
        };
        self.touched.push(receipt.key.clone());
    }

    /// Lowers a counter of concurrent sessions by one session, which has ended.
    pub fn release(&mut self, key: Key) {
        let state = self.budgets.get_mut(&key).expect("a slot that is held is counted");
        state.level -= 1.0;
        self.touched.push(key);
    }
}

impl Facts {
    pub fn owner(&self, per: Per) -> Option<String> {
        match per {
            Per::All => Some(String::new()),
            Per::User => self.user.clone(),
            Per::Client => Some(self.client.clone()),
            Per::Sender => self.sender.clone(),
        }
    }
}
