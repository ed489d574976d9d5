//! Level and quota of a notice, for people.

use crate::engine::Rule;
use crate::policy::limit::{Count, Quota, Scope, plain_period};
use crate::policy::verdict;

/// Formats the level of a notice: `101 recipients`, `12.5% of recipients`.
pub fn counted(notice: &verdict::Notice) -> String {
    match notice.quota {
        Quota::Share(share) => format!("{} of {} were rejected", notice.quota.level(notice.level), share.of.name()),
        Quota::Likelihood(likelihood) => {
            format!("too many {} were rejected: {}", likelihood.of.name(), notice.quota.level(notice.level))
        }
        Quota::Regularity(_) => format!("{} regular", notice.quota.level(notice.level)),
        // Fractions of a byte do not interest people.
        _ if notice.thing.count == Count::Bytes => notice.thing.plain_amount(notice.level.round()),
        _ => notice.thing.plain_amount(notice.level),
    }
}

/// Formats level and quota of a notice as what the owner has reached: `101 of 100 recipients per day`. The level is no
/// count of recent events: the level of a moving average or of a bucket has decayed since the earlier ones.
pub fn reached(notice: &verdict::Notice) -> String {
    let noun = notice.thing.noun(2.0);
    match notice.quota {
        Quota::Never => format!("a limit that allows no {noun}"),
        Quota::Unlimited => format!("a limit that allows any number of {noun}"),
        Quota::Share(share) => {
            let (level, period) = (notice.quota.level(notice.level), plain_period(share.period));
            format!("{level} of rejected {}, of at most {} per {period}", share.of.name(), notice.quota.amount())
        }
        Quota::Likelihood(likelihood) => {
            let (level, of) = (notice.quota.level(notice.level), likelihood.of.name());
            format!("{level} of the allowed likelihood of rejected {of}")
        }
        Quota::Regularity(_) => {
            let (level, gaps) = (notice.quota.level(notice.level), notice.quota.period());
            format!("{level} regularity of the last {gaps}, of at most {}", notice.quota.amount())
        }
        Quota::Rate { .. } | Quota::Counter { .. } => {
            format!("{} of {}", notice.thing.plain_number(notice.level), quota(notice))
        }
    }
}

/// Formats the quota of a notice: `100 recipients per day`.
pub fn quota(notice: &verdict::Notice) -> String {
    let thing = notice.thing;
    match notice.quota {
        Quota::Never => "none".to_owned(),
        Quota::Unlimited => "unlimited".to_owned(),
        Quota::Share(share) => format!("{} per {}", notice.quota.amount(), plain_period(share.period)),
        Quota::Likelihood(_) => format!("a likelihood {}", notice.quota.period()),
        Quota::Regularity(_) => format!("{} regular over {}", notice.quota.amount(), notice.quota.period()),
        Quota::Counter { scope, most } => {
            let within = match scope {
                Scope::Message => "per message",
                Scope::Connection => "per connection",
                Scope::AtOnce => "at once",
            };
            format!("{} {within}", thing.plain_amount(most))
        }
        Quota::Rate { rate, rule: Rule::Bucket(bucket) } if bucket.burst() != rate.amount => {
            let (burst, more) = (thing.plain_amount(bucket.burst()), thing.plain_number(rate.amount));
            format!("{burst} at once, then {more} per {}", plain_period(rate.period))
        }
        Quota::Rate { rate, .. } => format!("{} per {}", thing.plain_amount(rate.amount), plain_period(rate.period)),
    }
}
