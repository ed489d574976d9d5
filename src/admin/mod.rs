//! HTTP server for administrators and monitoring. It serves `/metrics`, `/healthz` and `/readyz` to everyone, and the
//! API, whose routes are in [`routes`], to callers whom the [`gate`] admits: at the Unix socket everyone, and over TCP
//! the holders of [`tokens`], and browsers that have logged in with a token ([`browser_sessions`]). The pages for these
//! browsers are in [`dashboard`].

mod activity;
mod api;
mod audit;
mod browser_request;
mod browser_sessions;
mod budget_row;
pub mod budgets;
mod caller;
mod credentials;
mod dashboard;
pub mod egress;
mod error;
mod events;
mod evidence;
pub mod exceptions;
mod extract;
mod gate;
mod head_errors;
mod hosts;
mod json_lines;
mod level_chart;
mod level_sampler;
mod limit_counts;
mod limit_texts;
mod limits;
pub mod logins;
pub mod memories;
pub mod outcomes;
mod owner_keys;
mod problems;
mod public;
mod readers;
pub mod refusals;
mod rehearsal;
mod reload;
mod response_headers;
mod routes;
mod serve;
mod sessions;
mod socket;
mod state;
pub mod status;
mod suspicion;
pub mod tokens;
pub mod top;
mod upstreams;
mod what_if;

pub use api::{Api, LimitReader, Parts, ReloadFuture, ReloadOutcome, Reloaded, TriedLimit};
pub use audit::{AuditAnswer, AuditLine, MAX_RECORDS};
pub use budget_row::{BudgetRow, OverrideSource};
pub use caller::{ADMINISTRATOR_HEADER, Caller};
pub use credentials::Credentials;
pub use dashboard::dashboard_router;
pub use error::{ApiError, ErrorAnswer, ErrorCode, ErrorDetails, Errors, ErrorsOrDoubts};
pub use events::{EventKind, Missed};
pub use evidence::{EvidenceAnswer, EvidenceCounts, SenderEvidence};
pub use extract::{Json, Path, Query};
pub use gate::Gate;
pub use hosts::Hosts;
pub use level_sampler::sample_levels;
pub use limit_texts::{CurrentLimitTexts, LimitText, LimitTexts};
pub use problems::{Problem, ProblemCode};
pub use public::{Readiness, public_router};
pub use readers::Readers;
pub use rehearsal::{MAX_TESTS, TestAnswer, TestRequest};
pub use reload::ReloadRequest;
pub use routes::{openapi, router, with_fallbacks};
pub use serve::{MAX_CONNECTIONS, Peer, serve};
pub use socket::{ControlListener, ControlPeer, bind};
pub use upstreams::UpstreamStatus;
pub use what_if::{MAX_REPLAYS, WhatIfAnswer, WhatIfRequest};

use std::net::SocketAddr;
use std::path::PathBuf;

/// Addresses to listen on.
#[derive(Clone, Debug)]
pub struct Options {
    /// TCP address of HTTP. Every client that can connect is permitted to read metrics and health; the API needs a token.
    pub address: Option<SocketAddr>,
    /// The tokens file.
    pub tokens: Option<PathBuf>,
    /// Names of the TCP address that requests for the API may have in `Host`.
    pub hosts: Vec<String>,
    /// Path of the Unix socket for control requests.
    pub socket: PathBuf,
}
