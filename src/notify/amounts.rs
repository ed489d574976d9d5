//! Level and quota of a notice, for people.

use crate::engine::Rule;
use crate::policy::limit::{Count, Quota, Scope, plain_period};
use crate::policy::verdict;

/// Formats the level of a notice: `101 recipients`, `12.5% of recipients`.
pub fn counted(notice: &verdict::Notice) -> String {
    match notice.quota {
        Quota::Share(share) => format!("{} of {} were rejected", notice.quota.level(notice.level), share.of.name()),
        // Fractions of a byte do not interest people.
        _ if notice.thing.count == Count::Bytes => notice.thing.plain_amount(notice.level.round()),
        _ => notice.thing.plain_amount(notice.level),
    }
}

/// Formats the quota of a notice: `100 recipients per day`.
pub fn quota(notice: &verdict::Notice) -> String {
    let thing = notice.thing;
    match notice.quota {
        Quota::Never => "none".to_owned(),
        Quota::Unlimited => "unlimited".to_owned(),
        Quota::Share(share) => format!("{} per {}", notice.quota.amount(), plain_period(share.period)),
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
