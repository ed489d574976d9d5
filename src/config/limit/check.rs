//! Checks a limit for keys that contradict each other, and for conditions that can never be true.

use super::moment::{Moment, is_of_history};
use super::{Context, exceeded, policy_only};
use crate::config::section::{Placed, Section};
use crate::engine::distinct::MAX_OCTETS;
use crate::policy::KnownTo;
use crate::policy::limit::{Charge, Count, Distinct, Likelihood, Limit, Quota, Scope, Share};
use crate::policy::matching::{AllOf, Condition, Field};
use crate::policy::request::Stage;
use crate::time::{format_amount, format_duration};
use std::ops::Range;

/// A limit as read, with the positions of its keys.
pub struct Draft<'a> {
    /// The limit, still without its rates and actions.
    pub limit: Limit,
    pub rates: Option<&'a Placed<Vec<Quota>>>,
    pub count: Placed<Count>,
    pub stage: Option<Placed<Stage>>,
    pub charge: Placed<Charge>,
    pub per: Option<Placed<Vec<Field>>>,
    /// The keys of `match` and `except`.
    pub keys: Vec<Placed<&'static str>>,
    /// The column of the override table whose patterns decide which row applies.
    pub column: Option<Placed<&'static str>>,
    pub distinct: Option<Placed<Distinct>>,
    pub remember: Option<Range<usize>>,
}

impl Draft<'_> {
    fn quotas(&self) -> &[Quota] {
        self.rates.map_or(&[], |rates| &rates.value)
    }

    fn has(&self, is: impl Fn(&Quota) -> bool) -> bool {
        self.quotas().iter().any(is)
    }

    /// Returns whether the level of a budget continues to rise while the limit refuses attempts.
    pub fn is_climbed(&self) -> bool {
        self.limit.charge == Charge::Attempts || self.limit.count.is_of_past_events()
    }
}

pub fn check(s: &Section<'_>, draft: &Draft<'_>, cx: &Context<'_>) {
    check_charge(s, draft);
    check_stage(s, draft, cx);
    if !cx.has_logins() {
        warn_of_users(s, draft);
    } else {
        warn_of_nobody(s, draft);
    }
    if !cx.takes_mail {
        let at_once = |quota: &Quota| matches!(quota, Quota::Counter { scope: Scope::AtOnce, .. });
        if let Some(message) = policy_only::doubt(draft.limit.count, draft.has(at_once)) {
            s.source().warn_unless(&["listener"], &draft.count.span, message, None);
        }
    } else if cx.has_logins() && !cx.has_auth && matches!(draft.limit.count, Count::Logins | Count::LoginFailures) {
        let message = "nothing is counted: no listener has logins";
        s.source().warn_unless(&["listener"], &draft.count.span, message, Some(NO_AUTH));
    }
    if matches!(draft.limit.count, Count::Bounces | Count::Complaints) {
        check_outcomes(s, draft, cx);
    }
    if let Some(key) = draft.keys.iter().find(|key| key.value == "registered-network" && !cx.has_login_networks) {
        let message = "registered-network: only users with allow_nets in the users file have login networks";
        let help = "\"login-networks\" of [accounts] names a file with the networks of other users";
        s.source().warn_unless(&["accounts"], &key.span, message, Some(help));
    }
    if let Some(distinct) = &draft.distinct {
        check_distinct(s, draft, distinct);
        check_filter(s, draft, distinct);
        warn_of_chosen_keys(s, draft, distinct);
    }
}

/// Checks that outcomes can be charged to the limit. Weir stores of a message who sent it, and not how its session was.
fn check_outcomes(s: &Section<'_>, draft: &Draft<'_>, cx: &Context<'_>) {
    if !cx.has_outcomes {
        let message = "nothing is counted: without [outcomes] no outcome can be attributed";
        s.source().warn_unless(&["outcomes"], &draft.count.span, message, Some("add a section [outcomes]"));
    }
    let message = |key: &str| format!("{key}: it is not known of a message whose outcome arrives");
    if let Some(per) = draft.per.as_ref().filter(|per| per.value.contains(&Field::Helo)) {
        s.error(&per.span, message("helo"), Some("leave it out, or use \"user\", \"client\" or \"sender\""));
    }
    // An exception also decides which later mail the limit leaves alone, so it is of use.
    let is_unknown = |condition: &Condition| {
        matches!(
            condition,
            Condition::Field(Field::Helo, _) | Condition::Tls(_) | Condition::RegisteredNetwork(_) | Condition::New(..)
        )
    };
    let matches = &draft.limit.matcher.matches;
    let is_key =
        |key: &&Placed<&str>| matches!(key.value, "helo" | "tls" | "registered-network") || is_of_history(key.value);
    if !matches.is_empty()
        && matches.iter().all(|table| table.0.iter().any(is_unknown))
        && let Some(key) = draft.keys.iter().find(is_key)
    {
        s.warn(&key.span, format!("nothing is counted: {}", message(key.value)), Some("leave it out of match"));
    }
}

/// Checks that the algorithm and the count allow this value of `charge`.
fn check_charge(s: &Section<'_>, draft: &Draft<'_>) {
    let Draft { limit, charge, .. } = draft;
    let is_counter = |quota: &Quota| matches!(quota, Quota::Counter { .. });
    let error = |message: &str| s.error(&charge.span, message, Some("charge = \"accepted\""));
    if limit.count == Count::Refusals && charge.value != Charge::Attempts {
        let message = "each refusal is charged: count = \"refusals\" works only with charge = \"attempts\"";
        s.error(&charge.span, message, Some("leave charge out"));
    }
    match charge.value {
        Charge::Accepted => {}
        Charge::Attempts => {
            if limit.algorithm.is_bucket() {
                error(
                    "charge = \"attempts\" cannot be used with a bucket: refused attempts would lower it without end",
                );
            }
            if draft.has(is_counter) {
                error("charge = \"attempts\" cannot be used with a counter: nothing empties it");
            }
            if draft.has(|quota| matches!(quota, Quota::Regularity(_))) {
                error(
                    "charge = \"attempts\" cannot be used with a regularity: a client that retries at once would pass",
                );
            }
            if limit.count.is_of_past_events() {
                let name = limit.count.name();
                error(&format!(
                    "charge = \"attempts\" has no effect on {name}: each {} is charged anyway",
                    name.trim_end_matches('s')
                ));
            }
        }
        Charge::Sent => {
            if limit.distinct.is_some() {
                error("charge = \"sent\" cannot be used with distinct: a value that was counted cannot be refunded");
            }
            if !matches!(limit.count, Count::Messages | Count::Recipients | Count::Bytes | Count::Refusals) {
                error(&format!(
                    "charge = \"sent\" works only with count = \"messages\", \"recipients\" or \"bytes\", not {}",
                    limit.count.name()
                ));
            }
            if draft.has(is_counter) {
                error("charge = \"sent\" cannot be used with a counter: a counter has no refunds");
            }
            if draft.has(|quota| matches!(quota, Quota::Regularity(_))) {
                error("charge = \"sent\" cannot be used with a regularity: the time of an event cannot be refunded");
            }
        }
    }
}

/// Checks that every field that the limit uses is known at the stage at which the limit is charged.
fn check_stage(s: &Section<'_>, draft: &Draft<'_>, cx: &Context<'_>) {
    let limit = &draft.limit;
    if let Some(Placed { value: stage, span }) = draft.stage.as_ref().filter(|stage| stage.value != limit.stage) {
        let (count, at) = (limit.count.name(), limit.stage.name());
        let message =
            format!("{count} are charged at {at} and not at {}, as this limit is about recipients", stage.name());
        s.error(span, message, Some("leave stage out"));
    }
    let moment = Moment { stage: limit.stage, count: Some(limit.count) };
    if let Some(per) = &draft.per {
        per.value.iter().for_each(|field| moment.check(s, &per.span, &field.name(), false, cx));
    }
    if let Some(column) = &draft.column {
        moment.check(s, &column.span, column.value, false, cx);
    }
    if let Some(distinct) = draft.distinct.as_ref().filter(|distinct| !distinct.value.what.is_of_recipient()) {
        moment.check(s, &distinct.span, &distinct.value.what.name(), false, cx);
    }
    draft.keys.iter().for_each(|key| moment.check(s, &key.span, key.value, true, cx));
    exceeded::check_stage(s, &moment, limit, &draft.keys, cx);
    check_recipients(s, draft);
}

/// Checks a limit that counts per recipient: the number of its budgets must be bounded, and something must be charged
/// to them.
fn check_recipients(s: &Section<'_>, draft: &Draft<'_>) {
    let limit = &draft.limit;
    let Some(per) = draft.per.as_ref().filter(|_| limit.is_per_recipient()) else { return };
    let is_of_connection = |quota: &Quota| matches!(quota, Quota::Counter { scope: Scope::Connection, .. });
    if draft.quotas().iter().any(is_of_connection) {
        let message =
            "\"/ connection\" cannot be used per recipient: the connection would have to remember every recipient";
        s.error(&per.span, message, Some("write a rate in a period, or \"/ message\""));
    }
    let is_of_messages = |quota: &Quota| {
        matches!(
            quota,
            Quota::Share(Share { of: Count::Messages, .. }) | Quota::Likelihood(Likelihood { of: Count::Messages, .. })
        )
    };
    if draft.quotas().iter().any(is_of_messages) {
        let message = "of = \"messages\" cannot be used per recipient: a message has no single recipient";
        s.error(&per.span, message, Some("of = \"recipients\""));
    }
}

/// Warns if `match` requires that no user has logged in, although the limit is for users.
fn warn_of_nobody(s: &Section<'_>, draft: &Draft<'_>) {
    let (matches, Some(per)) = (&draft.limit.matcher.matches, &draft.per) else { return };
    let is_anonymous = |table: &AllOf| table.0.contains(&Condition::Authenticated(false));
    let key = draft.keys.iter().find(|key| key.value == "authenticated");
    if let Some(key) = key.filter(|_| !matches.is_empty() && matches.iter().all(is_anonymous))
        && let Some(field) = per.value.iter().find(|field| field.is_of_user())
    {
        let message = format!("this limit never applies: it is per {}, and match wants no user", field.name());
        s.warn(&key.span, message, Some("per = [\"client\"], or authenticated = true"));
    }
}

const NO_AUTH: &str = "no listener has auth = \"required\" or \"optional\"";

/// Warns if a limit refers to users, although no session can have a user.
fn warn_of_users(s: &Section<'_>, draft: &Draft<'_>) {
    let is_login = |key: &str| {
        matches!(key, "user" | "user-domain" | "group" | "own-sender" | "registered-network" | "suspicion")
            || is_of_history(key)
    };
    let counts_logins = matches!(draft.limit.count, Count::Logins | Count::LoginFailures);
    let count = Some(&draft.count.span).filter(|_| counts_logins);
    let per = draft.per.as_ref().filter(|per| per.value.iter().any(|field| field.is_of_user()));
    let is_of_user = |distinct: &Distinct| {
        let known_to = distinct.known_to.map(|memory| memory.known_to);
        distinct.what.is_of_user() || matches!(known_to, Some(KnownTo::Each(field)) if field.is_of_user())
    };
    let distinct = draft.distinct.as_ref().filter(|distinct| is_of_user(&distinct.value));
    if let Some(span) = count.or(per.map(|per| &per.span)).or(distinct.map(|distinct| &distinct.span)) {
        let message = "this limit is for users, and no listener has logins: it never applies";
        s.source().warn_unless(&["listener"], span, message, Some(NO_AUTH));
    }
    for key in draft.keys.iter().chain(&draft.column).filter(|key| is_login(key.value)) {
        let message = format!("{} never matches: no listener has logins", key.value);
        s.source().warn_unless(&["listener"], &key.span, message, Some(NO_AUTH));
    }
}

/// Reports `distinct` if its values can never be new: either each budget has only one such value, or the counted events
/// have no such value. Also reports `distinct` together with counts and rates that cannot be combined with it.
fn check_distinct(s: &Section<'_>, draft: &Draft<'_>, distinct: &Placed<Distinct>) {
    let (Placed { value: Distinct { what, .. }, span }, limit) = (distinct, &draft.limit);
    let has_recipient = matches!(limit.count, Count::Recipients | Count::Messages | Count::Refusals)
        || limit.count.is_of_past_events() && limit.count != Count::BlockedConnections;
    let is_in = |field: &Field| {
        field == what
            || matches!(
                (field, what),
                (Field::User, Field::UserDomain)
                    | (Field::Sender, Field::SenderDomain)
                    | (Field::Recipient, Field::RecipientDomain)
            )
    };
    let name = what.name();
    if limit.count == Count::Bytes {
        s.error(span, "distinct cannot be used with count = \"bytes\"", Some("count = \"messages\""));
    } else if what.is_of_recipient() && limit.count == Count::Messages && limit.stage != Stage::Rcpt {
        let message = "distinct = \"recipient\" cannot be used with messages that are counted after RCPT";
        s.error(span, message, Some("leave message-recipients out of match and except, or count = \"recipients\""));
    } else if what.is_of_recipient() && !has_recipient {
        let message = format!("distinct = \"{name}\" cannot be used with count = \"{}\"", limit.count.name());
        let is_blocked = limit.count == Count::BlockedConnections;
        s.error(span, message, Some(if is_blocked { "distinct = \"destination\"" } else { "count = \"recipients\"" }));
    } else if *what == Field::Destination && limit.count != Count::BlockedConnections {
        let message = "distinct = \"destination\" works only with count = \"blocked-connections\"";
        s.error_unless(&["count"], span, message, Some("distinct = \"recipient\", or count = \"blocked-connections\""));
    } else if let Some(field) = limit.per.iter().find(|field| is_in(field)) {
        let message = format!("distinct = \"{name}\" has no effect per {}: each has only one {name}", field.name());
        s.error(span, message, Some(&format!("leave \"{}\" out of per, or distinct out", field.name())));
    }
    if draft.has(|quota| matches!(quota, Quota::Share(_) | Quota::Likelihood(_))) {
        s.error(
            span,
            "distinct cannot be used with a share or likelihood of rejections: it counts all of them",
            Some("leave distinct out"),
        );
    }
    if draft.has(|quota| matches!(quota, Quota::Counter { scope: Scope::AtOnce, .. })) {
        s.error(
            span,
            "distinct cannot be used with \"at once\": it counts all that exist at once",
            Some("leave distinct out"),
        );
    }
}

/// Checks that the filter of a budget has room for the distinct values, and that it remembers each value for at least
/// the period of the rate.
fn check_filter(s: &Section<'_>, draft: &Draft<'_>, distinct: &Placed<Distinct>) {
    let all = || {
        let others = draft.limit.overrides.iter();
        let others = others.flat_map(|overrides| (0..draft.quotas().len()).flat_map(|n| overrides.quotas(n)));
        draft.quotas().iter().copied().chain(others)
    };
    let needs_one = |quota: &Quota| matches!(quota, Quota::Rate { .. } | Quota::Counter { .. });
    let is_too_large = |quota: &Quota| needs_one(quota) && distinct.value.filter(draft.limit.count, quota).is_none();
    if let Some(quota) = all().find(is_too_large) {
        let (most, amount) = (MAX_OCTETS / 2, quota.amount());
        let message = format!("{amount} distinct values are too many: a filter has room for {most}");
        s.error(&distinct.span, message, Some("it has to hold rate × (1 + remember / period)"));
    }
    let (Some(remember), Some(span)) = (distinct.value.remember, &draft.remember) else { return };
    if draft.limit.charge == Charge::Attempts {
        s.error(
            span,
            "remember cannot be used with charge = \"attempts\": refused values would be remembered as known",
            Some("charge = \"accepted\", or no remember"),
        );
    }
    if draft.has(|quota| matches!(quota, Quota::Counter { .. })) {
        s.error(
            span,
            "remember cannot be used with a counter: it is deleted at the end of the message or connection",
            Some("leave remember out"),
        );
    }
    if draft.has(|quota| matches!(quota, Quota::Regularity(_))) {
        let help = "known-to = \"user\" counts only mail to recipients that the user does not know";
        s.error(span, "remember cannot be used with a regularity, which has no period", Some(help));
    }
    let shorter = all().find_map(|quota| match quota {
        Quota::Rate { rate, .. } if rate.period > remember => Some(rate),
        _ => None,
    });
    if let Some(rate) = shorter {
        let (remember, amount, period) =
            (format_duration(remember), format_amount(rate.amount), format_duration(rate.period));
        let message = format!("remember = {remember} is shorter than the period of the rate {amount} / {period}");
        s.error(span, message, Some("without remember, a value stays known for this period"));
    }
}

/// Maximum size in octets of a filter that causes no warning, if clients choose the keys of the budgets. A filter of 4
/// KiB has room for 2,048 values.
const MAX_CHOSEN_FILTER: usize = 4096;

/// Warns of large filters in budgets per sender, recipient or EHLO name. One client can create any number of these
/// budgets, because it can send a new address or name each time.
fn warn_of_chosen_keys(s: &Section<'_>, draft: &Draft<'_>, distinct: &Placed<Distinct>) {
    let Some(per) = &draft.per else { return };
    let is_chosen = |field: &&Field| {
        matches!(field, Field::Sender | Field::SenderDomain | Field::Recipient | Field::RecipientDomain | Field::Helo)
    };
    let Some(field) = per.value.iter().find(is_chosen) else { return };
    let rates = draft.quotas().iter().filter(|quota| matches!(quota, Quota::Rate { .. }));
    let octets =
        rates.filter_map(|quota| distinct.value.filter(draft.limit.count, quota)).map(|rule| rule.octets()).max();
    let Some(octets) = octets.filter(|octets| *octets > MAX_CHOSEN_FILTER) else { return };
    let name = field.name();
    let message = format!(
        "clients choose their {name} freely, and the state file keeps up to {octets} octets of distinct values for each"
    );
    let help = format!(
        "leave \"{name}\" out of per, as in per = [\"user\"] or [\"client\"], or lower the rate: a filter has two octets for each value"
    );
    s.warn(&per.span, message, Some(&help));
}
