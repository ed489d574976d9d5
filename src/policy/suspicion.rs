//! Suspicion: the classes of users by their scores, and the action by which a limit raises a score.

use std::time::Duration;

/// `[suspicion]`: the classes of users, by their scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SuspicionRules {
    /// False in shadow mode: scores are counted and shown, and no user is in a class.
    pub is_enforced: bool,
    /// Half-life of a sign that has none of its own.
    pub half_life: Duration,
    /// Score from which a user is watched.
    pub watched: f64,
    /// Score from which a user is locked; at least `watched`.
    pub locked: f64,
}

/// Class of a suspicious user. A locked user is also watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SuspicionClass {
    Watched,
    Locked,
}

/// Action `suspect` of a rung.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suspect {
    /// Points that one event adds.
    pub points: f64,
    /// Most points that the sign can have.
    pub most: f64,
    pub half_life: Duration,
}

impl Default for SuspicionRules {
    fn default() -> Self {
        let half_life = Duration::from_secs(7 * 86_400);
        Self { is_enforced: true, half_life, watched: 50.0, locked: 100.0 }
    }
}

impl SuspicionRules {
    /// Returns the class of a user with this score; `None` if the user is in no class. The score is compared with one
    /// decimal, as texts show it: two signs of 20 points, a few seconds apart, reach 40.
    pub fn class(&self, points: f64) -> Option<SuspicionClass> {
        match one_decimal(points) {
            _ if !self.is_enforced => None,
            points if points >= self.locked => Some(SuspicionClass::Locked),
            points if points >= self.watched => Some(SuspicionClass::Watched),
            _ => None,
        }
    }

    /// Returns the score from which a user is in this class.
    pub fn from(&self, class: SuspicionClass) -> f64 {
        match class {
            SuspicionClass::Watched => self.watched,
            SuspicionClass::Locked => self.locked,
        }
    }

    /// Returns the score from which a user is in this class, for people: `watched from 50`.
    pub fn need(&self, class: SuspicionClass) -> String {
        let shadow = if self.is_enforced { "" } else { ", but mode is \"shadow\" in [suspicion]" };
        format!("{} from {}{shadow}", class.name(), rounded(self.from(class)))
    }
}

impl SuspicionClass {
    pub const ALL: [Self; 2] = [Self::Watched, Self::Locked];

    /// Returns the word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Watched => "watched",
            Self::Locked => "locked",
        }
    }
}

/// Formats points for people, with one decimal.
pub fn rounded(points: f64) -> String {
    crate::time::format_amount(one_decimal(points))
}

fn one_decimal(points: f64) -> f64 {
    (points * 10.0).round() / 10.0
}
