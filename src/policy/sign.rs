//! Signs and scores. The suspicion score of a user is the sum of the points that signs have raised. A sign is a limit with
//! an action `suspect`. Each sign has one budget for each user, whose points decay and never exceed a cap.

use super::Policy;
use super::budgets::{Budget, Key, KeyRef};
use super::limit::{Action, Limit, Mode};
use super::suspicion::{Suspect, SuspicionClass, rounded};
use crate::engine::{State, decay};
use crate::time::Timestamp;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Sign: a limit with an action `suspect`. All rates of the limit share the sign.
#[derive(Clone, Debug, PartialEq)]
pub struct Sign {
    /// Name of the limit.
    pub limit: Arc<str>,
    pub rule: decay::Rule,
    /// Mode of the limit. Only an enforced limit adds to the score.
    pub mode: Mode,
}

/// Score of a user at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SuspicionScore {
    /// Sum of the points of all signs of enforced limits; at least 0.
    pub points: f64,
    /// Class of the user; `None` in shadow mode.
    pub class: Option<SuspicionClass>,
    /// Signs with points.
    pub signs: Vec<SignPoints>,
}

/// Points of one sign for a user.
#[derive(Clone, Debug, PartialEq)]
pub struct SignPoints {
    /// Name of the limit.
    pub limit: Arc<str>,
    /// Points that are left; above 0.
    pub points: f64,
    /// Most points that the sign can have.
    pub most: f64,
    /// Half-life of the points.
    pub half_life: Duration,
    /// Time when the limit last raised the sign.
    pub at: Timestamp,
    /// Mode of the limit. Only an enforced limit adds to the score.
    pub mode: Mode,
}

impl Sign {
    /// Returns the signs of these limits. Sets the index of its sign in each limit that is a sign. The rates of a limit are
    /// neighbours in the list.
    pub(super) fn of_limits(limits: &mut [Limit]) -> Vec<Self> {
        let mut signs: Vec<Self> = Vec::new();
        for limit in limits {
            let suspects = limit.ladder.rungs().iter().filter_map(|rung| match rung.action {
                Action::Suspect(suspect) => Some(suspect),
                _ => None,
            });
            let highest = suspects.reduce(|one, other| Suspect {
                points: one.points.max(other.points),
                most: one.most.max(other.most),
                half_life: one.half_life.max(other.half_life),
            });
            let Some(Suspect { most, half_life, .. }) = highest else { continue };
            if signs.last().is_none_or(|last| last.limit != limit.name) {
                let rule = decay::Rule::new(half_life, most);
                signs.push(Self { limit: limit.name.clone(), rule, mode: limit.mode });
            }
            limit.derived.sign = Some(signs.len() - 1);
        }
        signs
    }

    /// Returns the kind of the sign's budgets: see [`Key::kind`].
    pub(super) fn kind(&self) -> String {
        KeyRef::of_sign(&self.limit, "", &mut String::new()).owned().kind()
    }

    /// Returns the points of the sign that are left; `None` if there are none.
    fn read(&self, state: Option<State>, now: Timestamp) -> Option<SignPoints> {
        // As in a decision, a state from the future, which a wrong clock wrote, is a state of now.
        let state = state.map(|state| State { at: state.at.min(now), ..state })?;
        let points = self.rule.level(Some(state), now);
        (points > 0.0).then(|| SignPoints {
            limit: self.limit.clone(),
            points,
            most: self.rule.most(),
            half_life: Duration::try_from_secs_f64(self.rule.half_life()).unwrap_or_default(),
            at: state.at,
            mode: self.mode,
        })
    }

    /// Merges two states of one sign. `counted` began at 0 while `stored` could not be read.
    pub(super) fn merged(&self, stored: Budget, counted: Budget) -> Budget {
        let now = stored.state.at.max(counted.state.at);
        let counted = self.rule.level(Some(counted.state), now);
        Budget { state: self.rule.add(Some(stored.state), now, counted), ..stored }
    }
}

impl Policy {
    /// Returns the signs of the policy.
    pub fn signs(&self) -> &[Sign] {
        &self.signs
    }

    /// Returns the signs of limits that are not in force.
    pub fn signs_of(limits: &mut [Limit]) -> Vec<Sign> {
        Sign::of_limits(limits)
    }

    /// Returns the keys of a user's signs, in the order of [`Policy::signs`]. `user` is normalized.
    pub fn sign_keys(&self, user: &str) -> Vec<Key> {
        let mut buffer = String::new();
        self.signs.iter().map(|sign| KeyRef::of_sign(&sign.limit, user, &mut buffer).owned()).collect()
    }

    /// Returns the user and the points that one budget adds to the user's score; `None` if it is no budget of a sign, or
    /// adds nothing.
    pub fn counted_points<'k>(&self, key: KeyRef<'k>, state: State, now: Timestamp) -> Option<(&'k str, f64)> {
        let (limit, user) = key.sign()?;
        let sign = self.signs.iter().find(|sign| *sign.limit == *limit && sign.mode == Mode::Enforce)?;
        Some((user, sign.read(Some(state), now)?.points))
    }

    /// Returns the score of a user. `states`: the state of each sign, in the order of [`Policy::signs`].
    pub fn suspicion_score(&self, states: impl IntoIterator<Item = Option<State>>, now: Timestamp) -> SuspicionScore {
        let read = self.signs.iter().zip(states).filter_map(|(sign, state)| sign.read(state, now));
        let signs: Vec<SignPoints> = read.collect();
        let counted = signs.iter().filter(|sign| sign.mode == Mode::Enforce);
        // `sum` of no numbers is -0.0.
        let points = counted.fold(0.0, |sum, sign| sum + sign.points);
        SuspicionScore { points, class: self.suspicion.class(points), signs }
    }
}

impl SuspicionScore {
    /// Returns the signs that add to the score, for people: `regular-gaps 40, strangers 40`.
    pub fn signs_text(&self) -> String {
        let counted = self.signs.iter().filter(|sign| sign.mode == Mode::Enforce);
        counted.map(|sign| format!("{} {}", sign.limit, rounded(sign.points))).collect::<Vec<_>>().join(", ")
    }
}

/// Text for people: `80 points: regular-gaps 40, strangers 40`.
impl fmt::Display for SuspicionScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signs = self.signs_text();
        write!(f, "{} points", rounded(self.points))?;
        if signs.is_empty() { Ok(()) } else { write!(f, ": {signs}") }
    }
}
