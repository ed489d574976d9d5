//! Task that notes the levels of the present top senders' budgets, for the charts of the dashboard.

use super::owner_keys::Wanted;
use super::top::groups;
use crate::clock;
use crate::policy::budgets::{Key, Owner};
use crate::policy::limit::Limit;
use crate::policy::{BudgetViews, Policy};
use crate::server::Server;
use crate::time::Timestamp;
use crate::top::{Level, LevelHistory, SenderKind, Span};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Maximum number of senders of a round.
const MAX_SENDERS: usize = 200;

/// Notes the levels in rounds, until Weir stops. Reads only budgets in memory: a sender that sends has its budgets there.
pub async fn sample_levels(server: Weak<Server>, history: Arc<LevelHistory>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(Span::Hour.interval().into()));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(server) = server.upgrade() else { break };
        let (policy, now) = (server.store.policy(), clock::now());
        for (kind, name) in server.top.busiest(now, MAX_SENDERS) {
            let Some(wanted) = wanted(kind, &name, &policy) else { continue };
            let levels = levels(&server, &policy, &wanted, now).await;
            history.add(&wanted.text(), &levels, now);
            // Mail comes first.
            tokio::task::yield_now().await;
        }
    }
}

fn wanted(kind: SenderKind, name: &str, policy: &Policy) -> Option<Wanted> {
    let field = match kind {
        SenderKind::User => "user",
        SenderKind::Client => "client",
    };
    Wanted::new(&Owner::of_sender(&format!("{field}={name}"), &policy.normalizer).ok()?)
}

/// Returns the present levels of the budgets that have this owner alone and are in memory.
async fn levels(server: &Server, policy: &Policy, wanted: &Wanted, now: Timestamp) -> Vec<Level> {
    let mut levels = Vec::new();
    for key in wanted.own_keys(policy, now) {
        let Some(state) = server.store.state_in_memory(&key) else { continue };
        let groups = match limit_of(policy, &key, now) {
            Some(limit) => groups(server.accounts.as_ref(), limit, &key.owner()).await,
            None => continue,
        };
        let Some(view) = BudgetViews::new(policy, now).of(key.borrowed(), groups.as_deref()) else { continue };
        let total = view.total_key(&key).and_then(|key| server.store.state_in_memory(&key));
        let reading = view.read(Some(state), total, now);
        levels.push(Level {
            limit: view.limit.name.clone(),
            ordinal: view.limit.ordinal,
            level: reading.level,
            allowed: reading.allowed.unwrap_or(f64::INFINITY),
        });
    }
    levels
}

fn limit_of<'a>(policy: &'a Policy, key: &Key, now: Timestamp) -> Option<&'a Limit> {
    BudgetViews::new(policy, now).of(key.borrowed(), None).map(|view| view.limit)
}
