//! Tests with a real Prometheus and promtool.

use super::{LIMITS, queries_of_alerts, queries_of_dashboard, site_with_shipped_limits};
use crate::harness::{Client, Prometheus, Site, Upstream, promtool, run, succeed, wait_for};
use crate::metrics::promql::Query;

/// Metrics that have no series before their first event.
const WITHOUT_SERIES: [&str; 1] = ["weir_log_lines_suppressed_total"];

fn site(upstream: &Upstream) -> Site {
    Site::builder().open_listener().upstream(upstream.address(), "").more(LIMITS).build()
}

#[test]
fn promtool_accepts_metrics_alerts_and_their_tests() {
    for arguments in
        [["check", "rules", "alerts.yml"], ["check", "config", "prometheus.yml"], ["test", "rules", "alerts.test.yml"]]
    {
        succeed(promtool().args(arguments), "");
    }
    let upstream = Upstream::start();
    let site = site_with_shipped_limits(&upstream);
    let weir = site.start();
    Client::in_transaction(&weir).send_message();
    let outcome = run(promtool().args(["check", "metrics"]), weir.get("/metrics").1);
    assert_eq!((outcome.code, outcome.said()), (Some(0), String::new()));
}

#[test]
fn every_query_of_alerts_and_dashboard_finds_series() {
    let upstream = Upstream::start();
    let site = site(&upstream);
    let weir = site.start();
    let prometheus = Prometheus::start(weir.address("admin"));
    wait_for("first scrape", || (!prometheus.query("weir_build_info").is_empty()).then_some(()));
    let mut missing = Vec::new();
    for query in [queries_of_alerts(), queries_of_dashboard()].concat() {
        // A query that Prometheus does not understand fails.
        prometheus.query(&query);
        for selector in Query::read(&query).selectors {
            let found = prometheus.api("series", &[("match[]", &selector.text)]);
            if found.as_array().unwrap().is_empty() && !WITHOUT_SERIES.contains(&selector.metric.as_str()) {
                missing.push(format!("{}: {query}", selector.text));
            }
        }
    }
    assert!(missing.is_empty(), "no series for\n{}", missing.join("\n"));
}

/// Returns the alert of this name for a limit, if it fires.
fn firing(prometheus: &Prometheus, name: &str, limit: &str) -> Option<serde_json::Value> {
    let alerts = prometheus.api("alerts", &[]);
    let is_it = |alert: &&serde_json::Value| {
        alert["labels"]["alertname"] == name && alert["labels"]["limit"] == limit && alert["state"] == "firing"
    };
    alerts["alerts"].as_array().unwrap().iter().find(is_it).cloned()
}

#[test]
fn a_flood_makes_the_alert_fire_within_two_scrapes() {
    let upstream = Upstream::start();
    let site = site(&upstream);
    let weir = site.start();
    let prometheus = Prometheus::start(weir.address("admin"));
    let refusals = "weir_refusals_total{limit=\"recipients\",stage=\"rcpt\"}";
    let shown = || prometheus.query(refusals).first().map(|series| series["value"][1].clone());
    assert_eq!(wait_for("first scrape", shown), "0");
    assert_eq!(firing(&prometheus, "WeirManyRefusals", "recipients"), None);
    let mut client = Client::greeted_by(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    let refused = (0..310).filter(|n| client.ask(&format!("RCPT TO:<{n}@example.net>")).starts_with('4')).count();
    assert_eq!(refused, 300);
    let ended = weir::clock::now().micros() as f64 / 1e6;
    let alert = wait_for("alert", || firing(&prometheus, "WeirManyRefusals", "recipients"));
    let summary = alert["annotations"]["summary"].as_str().unwrap();
    assert!(summary.starts_with("The limit recipients refused "), "{summary}");
    let begun: jiff::Timestamp = alert["activeAt"].as_str().unwrap().parse().unwrap();
    let begun = begun.as_nanosecond() as f64 / 1e9;
    let scrapes = &prometheus.query("up{job=\"weir\"}[5m]")[0]["values"];
    let times = scrapes.as_array().unwrap().iter().map(|sample| sample[0].as_f64().unwrap());
    let scrapes = times.filter(|time| (ended..=begun).contains(time)).count();
    assert!(scrapes <= 2, "{scrapes} scrapes from the flood to the alert");
    let shadow = || firing(&prometheus, "WeirShadowRefusals", "tried");
    wait_for("alert for the limit in shadow", shadow);
    assert_eq!(firing(&prometheus, "WeirSuspension", "flood"), None);
}
