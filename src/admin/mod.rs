//! HTTP server for administrators and monitoring. The TCP address serves `/metrics`, `/healthz` and `/readyz` to
//! everyone. The Unix socket serves these three paths and the API, whose routes are in [`routes`].

mod api;
mod audit;
mod budget_row;
pub mod budgets;
mod caller;
mod error;
pub mod exceptions;
mod extract;
mod gate;
pub mod logins;
mod public;
pub mod refusals;
mod rehearsal;
mod reload;
mod routes;
mod serve;
mod socket;
pub mod status;
pub mod top;

pub use api::{Api, Parts, ReloadFuture, Reloaded};
pub use audit::{AuditAnswer, AuditLine, MAX_RECORDS};
pub use budget_row::{BudgetRow, OverrideSource};
pub use caller::{ADMINISTRATOR_HEADER, Caller};
pub use error::{ApiError, ErrorAnswer, ErrorCode, ErrorDetails, Errors, ErrorsOrDoubts};
pub use extract::{Json, Path, Query};
pub use gate::Gate;
pub use public::{Readiness, public_router};
pub use rehearsal::{TestAnswer, TestRequest};
pub use reload::ReloadRequest;
pub use routes::{openapi, router, with_fallbacks};
pub use serve::{MAX_CONNECTIONS, Peer, serve};
pub use socket::{ControlListener, ControlPeer, SocketError, SocketFile, bind};

use std::net::SocketAddr;
use std::path::PathBuf;

/// Addresses to listen on.
#[derive(Clone, Debug)]
pub struct Options {
    /// TCP address of the read-only routes. Every client that can connect is permitted to read them.
    pub address: Option<SocketAddr>,
    /// Path of the Unix socket for control requests.
    pub socket: PathBuf,
}
