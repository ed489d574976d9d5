//! Record of the suspicion score of a user.

use crate::policy::limit::Mode;
use crate::policy::{SignPoints, SuspicionScore};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Suspicion score of a user at one time, with the signs that made it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SuspicionRecord {
    /// Score: the sum of the points of all signs of enforced limits.
    pub points: f64,
    /// Class of the user: `watched` or `locked`; left out if the user is in no class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Signs with points, the highest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signs: Vec<SignRecord>,
}

/// Points of one sign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SignRecord {
    /// Name of the limit that raised the sign.
    pub limit: String,
    /// Points that are left.
    pub points: f64,
    /// Most points that the sign can have.
    pub most: f64,
    /// Half-life of the points, in seconds.
    pub half_life_seconds: f64,
    /// Time when the limit last raised the sign.
    #[schema(value_type = String, format = DateTime)]
    pub raised: Timestamp,
    /// Mode of the limit. Only the points of an enforced limit are part of the score.
    pub mode: Mode,
}

impl From<&SuspicionScore> for SuspicionRecord {
    fn from(SuspicionScore { points, class, signs }: &SuspicionScore) -> Self {
        let mut signs: Vec<SignRecord> = signs.iter().map(SignRecord::from).collect();
        signs.sort_by(|one, other| other.points.total_cmp(&one.points));
        Self { points: *points, class: class.map(|class| class.name().to_owned()), signs }
    }
}

impl From<&SignPoints> for SignRecord {
    fn from(SignPoints { limit, points, most, half_life, at, mode }: &SignPoints) -> Self {
        let half_life_seconds = half_life.as_secs_f64();
        Self { limit: limit.to_string(), points: *points, most: *most, half_life_seconds, raised: *at, mode: *mode }
    }
}
