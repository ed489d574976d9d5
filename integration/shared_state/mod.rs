//! Tests of nodes that share their budgets: Weir processes, SMTP sessions and Redis servers, all real.

mod admission;
mod connections;
mod further_limits;
mod leases;
mod outages;
mod sessions;
