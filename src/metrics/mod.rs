//! Metrics for Prometheus, in the groups of the guide to monitoring. The other modules update the metrics; only the
//! metrics page reads them.

mod admin;
mod builder;
mod connections;
mod egress;
mod gauge_guard;
mod labelled_counters;
mod limits;
mod mail;
mod notices;
mod outcomes;
mod password_checks;
mod process;
mod service;
mod state;
mod suspicion;
mod upstreams;

pub use admin::AdminMetrics;
pub use connections::ConnectionMetrics;
pub use egress::EgressMetrics;
pub use gauge_guard::GaugeGuard;
pub use limits::{LimitLabels, LimitMetrics};
pub use mail::MailMetrics;
pub use notices::NoticeMetrics;
pub use outcomes::OutcomeMetrics;
pub use password_checks::{PasswordCheckMetrics, PasswordQueue};
pub use service::ServiceMetrics;
pub use state::StateMetrics;
pub use suspicion::SuspicionMetrics;
pub use upstreams::{Counted, Part, ReplyStage, UpstreamMetrics, Upstreams};

use builder::Builder;
use process::ProcessCollector;
use prometheus::{Encoder as _, Error, Registry, TextEncoder};
use std::sync::Arc;

/// All metrics of a process.
pub struct Metrics {
    registry: Registry,
    pub mail: MailMetrics,
    pub limits: LimitMetrics,
    pub connections: ConnectionMetrics,
    pub password_checks: PasswordCheckMetrics,
    pub upstreams: Arc<Upstreams>,
    pub state: StateMetrics,
    pub service: ServiceMetrics,
    pub admin: AdminMetrics,
    pub notices: NoticeMetrics,
    pub suspicion: SuspicionMetrics,
    pub outcomes: OutcomeMetrics,
    pub egress: EgressMetrics,
}

impl Metrics {
    pub fn new() -> Result<Self, Error> {
        let registry = Registry::new();
        registry.register(Box::new(ProcessCollector::new()?))?;
        let build = Builder(&registry);
        Ok(Self {
            mail: MailMetrics::new(&build)?,
            limits: LimitMetrics::new(&build)?,
            connections: ConnectionMetrics::new(&build)?,
            password_checks: PasswordCheckMetrics::new(&build)?,
            upstreams: Arc::new(Upstreams::new(&build)?),
            state: StateMetrics::new(&build)?,
            service: ServiceMetrics::new(&build)?,
            admin: AdminMetrics::new(&build)?,
            notices: NoticeMetrics::new(&build)?,
            suspicion: SuspicionMetrics::new(&build)?,
            outcomes: OutcomeMetrics::new(&build)?,
            egress: EgressMetrics::new(&build)?,
            registry,
        })
    }

    /// Shows the counters of a listener, with the initial value 0, so that Prometheus sees their first event as a
    /// change.
    pub fn show_listener(&self, listener: &str) {
        self.connections.show_listener(listener);
        self.mail.show_listener(listener);
    }

    /// Renders all metrics in the text format of Prometheus.
    pub fn render(&self) -> String {
        let mut out = Vec::new();
        // Encoding to memory fails only for a metric without a name, and such a metric cannot be registered.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut out);
        String::from_utf8(out).unwrap_or_default()
    }
}
