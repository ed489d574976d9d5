//! Tests of the metrics: alerts, dashboard and guide name only metrics and labels that exist; counters exist from the
//! start; a real Prometheus takes the metrics and the alerts; the page stays small.

mod described;
mod live;
mod promql;
mod senders;

use crate::harness::{Client, Site, Upstream};
use described::{Described, metrics, series};
use promql::Query;
use senders::{name_senders, site_with_shipped_limits};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Labels that Prometheus adds to each series.
const OF_PROMETHEUS: [&str; 2] = ["instance", "job"];

fn conf(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conf").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(conf(name)).unwrap()
}

/// Returns the queries of the alerts. Each query is in one line of the file.
fn queries_of_alerts() -> Vec<String> {
    let file = text("prometheus/alerts.yml");
    let queries = file.lines().filter_map(|line| line.trim_start().strip_prefix("expr: "));
    let queries: Vec<String> = queries.map(str::to_owned).collect();
    assert_eq!(queries.len(), file.matches("- alert: ").count());
    assert!(queries.iter().all(|query| !query.starts_with(['|', '>', '\'', '"'])), "a query is in one line, unquoted");
    queries
}

/// Returns the queries of the dashboard, with values for Grafana's variables.
fn queries_of_dashboard() -> Vec<String> {
    fn find(value: &serde_json::Value, queries: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                queries.extend(fields.get("expr").map(|query| query.as_str().unwrap().to_owned()));
                fields.values().for_each(|value| find(value, queries));
            }
            serde_json::Value::Array(values) => values.iter().for_each(|value| find(value, queries)),
            _ => {}
        }
    }
    let mut queries = Vec::new();
    find(&serde_json::from_str(&text("grafana/weir.json")).unwrap(), &mut queries);
    assert!(queries.len() > 40, "only {} queries", queries.len());
    queries.iter().map(|query| query.replace("$__rate_interval", "1m").replace("$instance", ".+")).collect()
}

/// Returns the mistakes in a query: metrics and labels that do not exist.
fn mistakes(query: &str, metrics: &BTreeMap<String, Described>) -> Vec<String> {
    let mut mistakes = Vec::new();
    let parsed = Query::read(query);
    let mut all: BTreeSet<String> = OF_PROMETHEUS.map(str::to_owned).into();
    for selector in &parsed.selectors {
        let up = || Described { kind: "gauge", labels: BTreeSet::new() };
        let known = series(metrics, &selector.metric).or_else(|| (selector.metric == "up").then(up));
        let Some(known) = known else {
            mistakes.push(format!("no series {}: {query}", selector.metric));
            continue;
        };
        let unknown = |label: &&String| !known.labels.contains(*label) && !OF_PROMETHEUS.contains(&label.as_str());
        mistakes.extend(selector.labels.iter().filter(unknown).map(|label| format!("no label {label}: {query}")));
        all.extend(known.labels);
    }
    mistakes.extend(parsed.grouping.difference(&all).map(|label| format!("no label {label}: {query}")));
    if parsed.selectors.is_empty() {
        mistakes.push(format!("no metric: {query}"));
    }
    mistakes
}

#[test]
fn alerts_and_dashboard_name_only_metrics_and_labels_that_exist() {
    let metrics = metrics();
    let queries = [queries_of_alerts(), queries_of_dashboard()].concat();
    let mistakes: Vec<String> = queries.iter().flat_map(|query| mistakes(query, &metrics)).collect();
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    // Variables of the dashboard.
    assert!(text("grafana/weir.json").contains("label_values(weir_build_info, instance)"));
    assert!(metrics.contains_key("weir_build_info"));
}

#[test]
fn a_query_with_a_wrong_metric_or_label_is_found() {
    let metrics = metrics();
    for (query, wrong) in [
        ("weir_refusals_total", ""),
        ("rate(weir_refusals_total[5m]) > 1e3", ""),
        ("sum by (limit) (increase(weir_refusals_total{stage=\"mail\"}[10m])) > 100", ""),
        ("histogram_quantile(0.9, sum by (le) (rate(weir_state_commit_seconds_bucket[5m])))", ""),
        ("up{job=\"weir\"} == 0 unless on (instance) weir_config_good offset 5m", ""),
        ("sum(weir_refusals) > 1", "no series weir_refusals: "),
        ("weir_state_commit_seconds", "no series weir_state_commit_seconds: "),
        ("weir_refusals_total_bucket", "no series weir_refusals_total_bucket: "),
        ("weir_refusals_total{user=\"a\"}", "no label user: "),
        ("weir_refusals_total{limit=\"{a}\", user=\"a\"}", "no label user: "),
        ("sum by (user, limit) (weir_refusals_total)", "no label user: "),
        ("sum(weir_refusals_total) by (le)", "no label le: "),
        ("weir_sessions / on (user) weir_max_connections", "no label user: "),
        ("time() - 5", "no metric: "),
    ] {
        let expected = if wrong.is_empty() { String::new() } else { format!("{wrong}{query}") };
        assert_eq!(mistakes(query, &metrics).join("\n"), expected);
    }
}

#[test]
fn the_guide_describes_each_metric_with_its_type_and_labels() {
    let mut described: BTreeMap<String, Described> = BTreeMap::new();
    let guide = text("guide/monitoring.md");
    for line in guide.lines().filter(|line| line.starts_with("| `weir_") || line.starts_with("| `process_")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let ticked = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
        let Some(kind) = ["counter", "gauge", "histogram"].into_iter().find(|kind| cells[1] == *kind) else { continue };
        // The process metrics have no labels, and their table has no column for labels.
        let labels = if line.contains("| `weir_") { ticked(cells[2]) } else { BTreeSet::new() };
        described.extend(ticked(cells[0]).into_iter().map(|name| (name, Described { kind, labels: labels.clone() })));
    }
    assert_eq!(described, metrics());
}

#[test]
fn each_alert_is_tested_both_ways_and_names_the_next_command() {
    let (alerts, tests) = (text("prometheus/alerts.yml"), text("prometheus/alerts.test.yml"));
    for alert in alerts.split("- alert: ").skip(1) {
        let name = alert.lines().next().unwrap();
        let tests: Vec<&str> =
            tests.split("- name: ").filter(|test| test.contains(&format!("alertname: {name}\n"))).collect();
        let silent = tests.iter().filter(|test| test.contains("exp_alerts: []")).count();
        assert_eq!((tests.len(), silent), (2, 1), "{name}: one test in which it fires, one in which it does not");
        for key in ["severity: ", "summary: ", "description: "] {
            assert!(alert.contains(key), "{name} has no {key}");
        }
        let description = alert.split("description: ").nth(1).unwrap();
        assert!(description.contains("Run \""), "{name} names no next command: {description}");
    }
}

/// Returns the value of a series on a page of metrics; `None` if there is none.
fn value(page: &str, series: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Limits with all kinds of counters: enforced, suspending, and in shadow.
const LIMITS: &str = r#"
notify.ops = { at-most = "1 / 1d" }
[[limit]]
name = "recipients"
count = "recipients"
per = ["client"]
rate = "10.5 / 1h"
action = [{ at = 0.5, notify = "ops" }, { at = 1, defer = true }]
[[limit]]
name = "flood"
count = "messages"
per = ["sender"]
stage = "mail"
rate = "1000 / 1h"
action = [{ at = 1, suspend = "1h" }]
[[limit]]
name = "tried"
count = "recipients"
per = ["client"]
rate = "5.5 / 1h"
mode = "shadow"
action = [{ at = 1, deny = true }]
"#;

#[test]
fn counters_exist_from_the_start_and_those_of_removed_limits_disappear() {
    let upstream = Upstream::start();
    let site = Site::builder().open_listener().upstream(upstream.address(), "name = \"u\"").more(LIMITS).build();
    let weir = site.start();
    let page = weir.get("/metrics").1;
    for series in [
        "weir_refusals_total{limit=\"recipients\",stage=\"mail\"}",
        "weir_refusals_total{limit=\"recipients\",stage=\"rcpt\"}",
        "weir_refusals_total{limit=\"suspended\",stage=\"rcpt\"}",
        "weir_shadow_refusals_total{limit=\"tried\",stage=\"rcpt\"}",
        "weir_limit_decisions_total{action=\"defer\",limit=\"recipients\",mode=\"enforce\",stage=\"rcpt\"}",
        "weir_limit_decisions_total{action=\"notify\",limit=\"recipients\",mode=\"enforce\",stage=\"rcpt\"}",
        "weir_limit_decisions_total{action=\"suspend\",limit=\"flood\",mode=\"enforce\",stage=\"mail\"}",
        "weir_limit_decisions_total{action=\"deny\",limit=\"tried\",mode=\"shadow\",stage=\"rcpt\"}",
        "weir_notices_total{limit=\"recipients\",notify=\"ops\"}",
        "weir_suspensions_total{limit=\"flood\"}",
        "weir_new_budgets_shared_total{limit=\"flood\"}",
        "weir_connections_refused_total{listener=\"s\",reason=\"max-connections\"}",
        "weir_upstream_replies_total{class=\"5xx\",stage=\"end\",upstream=\"u\"}",
        "weir_password_checks_waiting{source=\"file\"}",
        "weir_messages_total{result=\"over-limit\"}",
    ] {
        assert_eq!(value(&page, series), Some(0.0), "{series}");
    }
    assert!(!page.contains("weir_refusals_total{limit=\"tried\""), "a limit in shadow refuses nothing");
    let mut client = Client::greeted_by(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    let accepted = (0..12).filter(|n| client.ask(&format!("RCPT TO:<{n}@example.net>")).starts_with("250")).count();
    assert_eq!(accepted, 10);
    let page = weir.get("/metrics").1;
    for (series, expected) in [
        ("weir_refusals_total{limit=\"recipients\",stage=\"rcpt\"}", 2.0),
        ("weir_limit_decisions_total{action=\"defer\",limit=\"recipients\",mode=\"enforce\",stage=\"rcpt\"}", 2.0),
        // Recipients 6 to 10: the level is at least half of the limit.
        ("weir_limit_decisions_total{action=\"notify\",limit=\"recipients\",mode=\"enforce\",stage=\"rcpt\"}", 5.0),
        ("weir_limit_decisions_total{action=\"deny\",limit=\"tried\",mode=\"shadow\",stage=\"rcpt\"}", 7.0),
        ("weir_shadow_refusals_total{limit=\"tried\",stage=\"rcpt\"}", 7.0),
        ("weir_upstream_replies_total{class=\"2xx\",stage=\"rcpt\",upstream=\"u\"}", 10.0),
        ("weir_upstream_replies_total{class=\"2xx\",stage=\"mail\",upstream=\"u\"}", 1.0),
    ] {
        assert_eq!(value(&page, series), Some(expected), "{series}");
    }
    for n in 0..3 {
        let (from, to) = (if n == 0 { "tried".to_owned() } else { format!("tried-{}", n - 1) }, format!("tried-{n}"));
        site.reload(&weir, &format!("\"{from}\""), &format!("\"{to}\""), "limits read again");
        let page = weir.get("/metrics").1;
        assert!(!page.contains(&format!("limit=\"{from}\"")), "{from} is gone");
        let new = format!("weir_shadow_refusals_total{{limit=\"{to}\",stage=\"rcpt\"}}");
        assert_eq!(value(&page, &new), Some(0.0));
        assert_eq!(value(&page, "weir_refusals_total{limit=\"recipients\",stage=\"rcpt\"}"), Some(2.0), "it stays");
    }
}

#[test]
fn a_hundred_thousand_senders_leave_the_page_below_200_kb() {
    const SENDERS: usize = 100_000;
    let upstream = Upstream::start();
    let site = site_with_shipped_limits(&upstream);
    let weir = site.start();
    let address = weir.address("s");
    name_senders(address, 0..1);
    let series = |page: &str| page.lines().filter(|line| !line.starts_with('#')).count();
    let before = weir.get("/metrics").1;
    std::thread::scope(|scope| {
        for part in 0..4 {
            scope.spawn(move || name_senders(address, part * SENDERS / 4..(part + 1) * SENDERS / 4));
        }
    });
    let after = weir.get("/metrics").1;
    assert_eq!(series(&after), series(&before), "no series is added by a sender");
    assert!(after.len() < 200_000, "{} octets", after.len());
    assert!(!after.contains("example.org"), "no label names a sender");
    assert!(value(&after, "weir_state_commit_seconds_count").unwrap() > 0.0);
    assert_eq!(value(&after, "weir_state_transactions_waiting"), Some(0.0));
}
