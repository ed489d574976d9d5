//! Metrics of the upstreams. A reload of the configuration can add and remove upstreams.

use super::builder::Builder;
use prometheus::{Error, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Metrics by upstream.
pub struct Upstreams {
    up: IntGaugeVec,
    connections: IntGaugeVec,
    idle: IntGaugeVec,
    opened: IntCounterVec,
    reused: IntCounterVec,
    failures: IntCounterVec,
    replies: IntCounterVec,
    connect_seconds: HistogramVec,
    reply_seconds: HistogramVec,
    /// Number of [`UpstreamMetrics`] for each name of an upstream. It can be 2, because after a change of the
    /// configuration the new upstream starts before the old upstream of the same name stops. The lock is held to change
    /// the number, and to remove the metrics of a name that is no longer in use.
    counting: Mutex<HashMap<String, usize>>,
}

/// Metrics of one upstream. They are removed when the upstream has been removed and all connections to it are closed.
pub struct UpstreamMetrics {
    name: String,
    all: Arc<Upstreams>,
    /// 1 while Weir considers the upstream usable, otherwise 0.
    pub up: IntGauge,
    /// Open connections, busy or idle.
    connections: IntGauge,
    /// Idle connections, which wait for a message.
    pub idle: IntGauge,
    /// Connections opened.
    pub opened: IntCounter,
    /// Number of times that an open connection was reused for another message.
    pub reused: IntCounter,
    /// Number of times that the upstream could not be reached, did not answer in time, or sent an invalid answer.
    pub failures: IntCounter,
    /// Usual replies by stage and class of the reply code. Their counters are found without the lock of the metric.
    usual_replies: [(ReplyStage, &'static str, IntCounter); USUAL_REPLIES.len()],
    /// Seconds to open a connection: name lookup, connection, TLS, EHLO and login.
    pub connect_seconds: Histogram,
    /// Seconds until the upstream replies. There is one histogram for each part of a message, in the order of [`Part`].
    reply_seconds: [Histogram; 3],
}

/// Part of a message to which an upstream replies.
#[derive(Clone, Copy)]
pub enum Part {
    /// MAIL and all RCPT that are sent together.
    Envelope,
    Data,
    /// The final dot.
    End,
}

/// Stage of a connection to an upstream at which the upstream replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStage {
    /// Greeting, EHLO, STARTTLS and login. All these replies together count once.
    Connect,
    Mail,
    Rcpt,
    Data,
    /// The final dot.
    End,
}

impl ReplyStage {
    const ALL: [Self; 5] = [Self::Connect, Self::Mail, Self::Rcpt, Self::Data, Self::End];

    fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Mail => "mail",
            Self::Rcpt => "rcpt",
            Self::Data => "data",
            Self::End => "end",
        }
    }
}

/// Values of the label `class`, by the first digit of the reply code. The reader of replies accepts only codes from 200
/// to 599.
const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// Replies whose counters exist from the start, so that Prometheus sees the first such reply as a change.
const USUAL_REPLIES: [(ReplyStage, &str); 15] = [
    (ReplyStage::Connect, "2xx"),
    (ReplyStage::Connect, "4xx"),
    (ReplyStage::Connect, "5xx"),
    (ReplyStage::Mail, "2xx"),
    (ReplyStage::Mail, "4xx"),
    (ReplyStage::Mail, "5xx"),
    (ReplyStage::Rcpt, "2xx"),
    (ReplyStage::Rcpt, "4xx"),
    (ReplyStage::Rcpt, "5xx"),
    (ReplyStage::Data, "3xx"),
    (ReplyStage::Data, "4xx"),
    (ReplyStage::Data, "5xx"),
    (ReplyStage::End, "2xx"),
    (ReplyStage::End, "4xx"),
    (ReplyStage::End, "5xx"),
];

/// Values of the label `part`, in the order of [`Part`].
const PARTS: [&str; 3] = ["envelope", "data", "end"];

/// Upper bounds of the histograms' buckets, in seconds. The bound 300 is the default timeout of replies.
const SECONDS: [f64; 10] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0, 30.0, 300.0];

impl Upstreams {
    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        Ok(Self {
            up: build.gauges(
                "weir_upstream_up",
                "1 while the upstream is healthy and enabled, as far as Weir knows",
                &["upstream"],
            )?,
            connections: build.gauges(
                "weir_upstream_connections",
                "Open connections to the upstream, busy or idle",
                &["upstream"],
            )?,
            idle: build.gauges("weir_upstream_connections_idle", "Idle connections to the upstream", &["upstream"])?,
            opened: build.counters(
                "weir_upstream_connections_opened_total",
                "Connections opened to the upstream",
                &["upstream"],
            )?,
            reused: build.counters(
                "weir_upstream_connections_reused_total",
                "Times that a connection to the upstream was used for another message",
                &["upstream"],
            )?,
            failures: build.counters(
                "weir_upstream_failures_total",
                "Times that the upstream could not be reached, did not reply in time, or sent an invalid reply",
                &["upstream"],
            )?,
            replies: build.counters(
                "weir_upstream_replies_total",
                "Replies of the upstream, by the stage and the class of the reply code",
                &["upstream", "stage", "class"],
            )?,
            connect_seconds: build.histograms(
                "weir_upstream_connect_seconds",
                "Time to open a connection to the upstream, with TLS, EHLO and login",
                &["upstream"],
                &SECONDS,
            )?,
            reply_seconds: build.histograms(
                "weir_upstream_reply_seconds",
                "Time until the upstream replied to a part of a message: envelope, data, end",
                &["upstream", "part"],
                &SECONDS,
            )?,
            counting: Mutex::default(),
        })
    }

    /// Returns the metrics of the upstream of this name.
    pub fn of(self: &Arc<Self>, name: &str) -> Arc<UpstreamMetrics> {
        let mut counting = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        *counting.entry(name.to_owned()).or_default() += 1;
        Arc::new(UpstreamMetrics {
            up: self.up.with_label_values(&[name]),
            connections: self.connections.with_label_values(&[name]),
            idle: self.idle.with_label_values(&[name]),
            opened: self.opened.with_label_values(&[name]),
            reused: self.reused.with_label_values(&[name]),
            failures: self.failures.with_label_values(&[name]),
            usual_replies: USUAL_REPLIES
                .map(|(stage, class)| (stage, class, self.replies.with_label_values(&[name, stage.name(), class]))),
            connect_seconds: self.connect_seconds.with_label_values(&[name]),
            reply_seconds: PARTS.map(|part| self.reply_seconds.with_label_values(&[name, part])),
            name: name.to_owned(),
            all: self.clone(),
        })
    }

    /// Removes the metrics of an upstream. Ignores errors, because an error means that there is no such metric.
    fn forget(&self, name: &str) {
        for gauges in [&self.up, &self.connections, &self.idle] {
            let _ = gauges.remove_label_values(&[name]);
        }
        for counters in [&self.opened, &self.reused, &self.failures] {
            let _ = counters.remove_label_values(&[name]);
        }
        for stage in ReplyStage::ALL {
            for class in CLASSES {
                let _ = self.replies.remove_label_values(&[name, stage.name(), class]);
            }
        }
        let _ = self.connect_seconds.remove_label_values(&[name]);
        for part in PARTS {
            let _ = self.reply_seconds.remove_label_values(&[name, part]);
        }
    }
}

impl UpstreamMetrics {
    /// Counts a connection until the guard is dropped.
    pub fn count_connection(self: &Arc<Self>) -> Counted {
        self.connections.inc();
        Counted(self.clone())
    }

    /// Counts a reply with this code.
    pub fn count_reply(&self, stage: ReplyStage, code: u16) {
        let Some(class) = usize::from(code / 100).checked_sub(2).and_then(|class| CLASSES.get(class)) else { return };
        match self.usual_replies.iter().find(|(usual, usual_class, _)| (usual, usual_class) == (&stage, class)) {
            Some((_, _, counter)) => counter.inc(),
            None => self.all.replies.with_label_values(&[&*self.name, stage.name(), class]).inc(),
        }
    }
}

impl Drop for UpstreamMetrics {
    fn drop(&mut self) {
        let mut counting = self.all.counting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = counting.get_mut(&self.name) else { return };
        *count -= 1;
        if *count == 0 {
            counting.remove(&self.name);
            self.all.forget(&self.name);
        }
    }
}

/// Guard that counts an open connection until it is dropped.
pub struct Counted(Arc<UpstreamMetrics>);

impl Counted {
    /// Records how long the upstream took to reply to a part of a message.
    pub fn observe_reply(&self, part: Part, time: Duration) {
        self.0.reply_seconds[part as usize].observe(time.as_secs_f64());
    }

    /// Counts a reply with this code.
    pub fn count_reply(&self, stage: ReplyStage, code: u16) {
        self.0.count_reply(stage, code);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}
