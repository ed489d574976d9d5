//! `lease`: the amount that a node takes ahead of a budget that nodes share.

use super::check::Draft;
use super::{Context, for_any, number};
use crate::config::section::{Placed, Section};
use crate::policy::limit::{Count, Quota, RateTerms};
use crate::time::format_amount;

/// Size of a lease.
#[derive(Clone, Copy)]
pub enum Size {
    /// Amount, in units of what is counted.
    Amount(f64),
    /// Share of the burst.
    Share(f64),
}

/// Largest share of the burst. What nodes hold and do not spend is missing elsewhere.
const MAX_SHARE: f64 = 0.1;

impl Size {
    /// Returns the amount for a quota; `None` if the quota is no rate.
    pub fn of(self, quota: &Quota) -> Option<f64> {
        let Quota::Rate { rule, .. } = quota else { return None };
        Some(match self {
            Self::Amount(amount) => amount,
            Self::Share(share) => rule.burst() * share,
        })
    }
}

/// Reads the key.
pub fn read(s: &mut Section<'_>, count: Option<Count>, terms: RateTerms) -> Option<Placed<Size>> {
    s.optional("lease", |value| {
        let text = number(value)?;
        let Some(share) = text.strip_suffix('%') else {
            return for_any(count, terms, |terms| terms.amount(&text)).map(Size::Amount);
        };
        match share.trim().parse::<f64>() {
            Ok(share) if share > 0.0 && share <= 100.0 => Ok(Size::Share(share / 100.0)),
            _ => Err(format!("\"{text}\" is no share: write \"1 %\", or an amount")),
        }
    })
}

/// Checks that the limit has one bucket for all, whose charges a node can take ahead.
pub fn check(s: &Section<'_>, lease: &Placed<Size>, draft: &Draft<'_>, cx: &Context<'_>) {
    let limit = &draft.limit;
    let error = |keys: &[&str], message: &str, help: &str| s.error_unless(keys, &lease.span, message, Some(help));
    let quotas = draft.rates.map_or(&[][..], |rates| &rates.value);
    if !limit.algorithm.is_bucket() {
        error(
            &["algorithm"],
            "lease works only with a bucket algorithm: a moving average depends on when each event comes",
            "algorithm = \"token-bucket\", or leave lease out",
        );
    } else if limit.distinct.is_some() {
        error(
            &["distinct"],
            "lease cannot be used with distinct: no node knows alone which values are new",
            "leave lease out",
        );
    } else if draft.per.as_ref().is_some_and(|per| !per.value.is_empty()) {
        error(
            &["per"],
            "lease works only with per = []: a node would hold a part of the budget of each owner",
            "per = [], or leave lease out",
        );
    } else if limit.overrides.is_some() {
        error(
            &["overrides"],
            "lease cannot be used with overrides: the budget would have several sizes",
            "leave one of them out",
        );
    } else if !quotas.iter().all(|quota| matches!(quota, Quota::Rate { .. })) {
        error(
            &["rate"],
            "lease works only with an amount in a period, as in rate = \"100000 / 1d\"",
            "leave lease out",
        );
    } else if let Some((size, burst)) = quotas.iter().find_map(|quota| too_large(lease.value, quota)) {
        let message = format!(
            "lease = {}: more than a tenth of the bucket, which holds {}: what a node holds is missing on the others",
            format_amount(size),
            format_amount(burst),
        );
        error(&["rate", "burst"], &message, "lease = \"1 %\"");
    }
    if !cx.is_shared {
        let message = "lease: used only with store = \"redis\"";
        s.source().warn_unless(&["state"], &lease.span, message, Some("leave it out"));
    }
}

/// Returns the size of a lease and the burst, if the lease is too large a part of it.
fn too_large(size: Size, quota: &Quota) -> Option<(f64, f64)> {
    let (size, burst) = (size.of(quota)?, quota.rule()?.burst());
    (size > burst * MAX_SHARE).then_some((size, burst))
}
