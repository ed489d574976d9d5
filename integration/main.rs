//! Everything that tests Weir from outside. One binary: it links once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "in a test they are how to fail")]

mod admin_http;
mod announced_client;
mod bad_config;
mod certificates;
mod command_line;
mod dialogue;
mod differential;
mod examples;
mod exceptions;
mod explain;
mod fault_counts;
mod fault_matrix;
mod faults;
mod flood;
mod groups;
mod harness;
mod import;
mod layers;
mod listeners;
mod model;
mod logins;
mod new_budgets;
mod oracles;
mod policy;
mod proxy_protocol;
mod real_clients;
mod reload;
mod secrets;
mod service;
mod simulate;
mod slow_clients;
mod smuggling;
mod state;
mod test_command;
mod transcript;
mod upstream_bound;
mod upstream_changes;
mod upstream_failover;
mod upstream_faults;
mod upstream_login;
mod upstream_names;
mod upstream_pool;
mod upstream_routes;
mod upstream_tls;
