//! `weir status`: the status of the running Weir. The exit code is 1 if it has problems.

use super::table::{Alignment, Column, Paint, Row, Tone, USUAL_WIDTH, harmless, span, table, wrapped};
use super::{CommandError, ConfigArgument, control_client, exit, print, print_json};
use crate::admin::status::StatusAnswer;
use crate::cli::top::ago;
use clap::Args;

#[derive(Args)]
pub struct Arguments {
    /// Print JSON, as the API answers
    #[arg(long)]
    json: bool,
    /// Use no colours
    #[arg(long)]
    no_color: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

pub fn run(Arguments { json, no_color, config }: &Arguments) -> Result<(), CommandError> {
    let answer: StatusAnswer = control_client::get(&config.config, "/v1/status")?;
    match json {
        true => print_json(&answer)?,
        false => print(&text(&answer, USUAL_WIDTH, Paint::for_output(*no_color)))?,
    }
    match answer.problems.is_empty() {
        true => Ok(()),
        false => Err(CommandError::new(exit::REFUSED, "")),
    }
}

const ROWS: [Column; 4] = [
    Column { title: "", alignment: Alignment::Left },
    Column { title: "name", alignment: Alignment::Flexible },
    Column { title: "address", alignment: Alignment::Flexible },
    Column { title: "state", alignment: Alignment::Flexible },
];

fn text(answer: &StatusAnswer, width: usize, paint: Paint) -> String {
    let state = if answer.problems.is_empty() { "no problems" } else { "degraded" };
    let first =
        format!("weir {}: {state}, up for {}, since {}", answer.version, span(answer.uptime_seconds), answer.started);
    let mut text = wrapped(&harmless(&first), 0, width);
    for problem in &answer.problems {
        for line in wrapped(&harmless(&problem.message), 2, width).lines() {
            text += &(paint.paint(Tone::Bad, line) + "\n");
        }
        text += &wrapped(&problem.remedy, 4, width);
    }
    let hour = answer.last_hour;
    text += &wrapped(
        &format!("last hour: {} messages, {} recipients, {} refusals", hour.messages, hour.recipients, hour.refusals),
        0,
        width,
    );
    let count = |count: u64, noun: &str| super::counted(count, noun);
    let sessions: u64 = answer.listeners.iter().map(|listener| listener.sessions).sum();
    let sums = [
        format!("{} of at most {}", count(sessions, "session"), answer.max_sessions),
        count(answer.limits, "limit"),
        count(answer.suspensions, "suspension"),
        count(answer.grants, "grant"),
    ];
    text += &wrapped(&sums.join(", "), 0, width);
    text + "\n" + &table(&ROWS, &rows(answer), width, paint)
}

fn rows(answer: &StatusAnswer) -> Vec<Row> {
    let row = |kind: &str, name: &str, address: &str, state: String, tone| Row {
        cells: vec![kind.to_owned(), name.to_owned(), address.to_owned(), state],
        tone,
    };
    let mut rows = Vec::new();
    for listener in &answer.listeners {
        let sessions = super::counted(listener.sessions, "session");
        rows.push(row("listener", &listener.name, &listener.address, sessions, Tone::Plain));
    }
    for upstream in &answer.upstreams {
        let (state, tone) = match (upstream.enabled, upstream.up) {
            (false, _) => ("disabled", Tone::Plain),
            (true, true) => ("up", Tone::Plain),
            (true, false) => ("down", Tone::Bad),
        };
        rows.push(row(
            "upstream",
            &upstream.name,
            &format!("{}:{}", upstream.host, upstream.port),
            state.to_owned(),
            tone,
        ));
    }
    for certificate in &answer.certificates {
        let is_expired = certificate.expires <= answer.time;
        let (state, tone) = match is_expired {
            true => (format!("expired {} ago", ago(&certificate.expires, &answer.time)), Tone::Bad),
            false => (format!("expires in {}", ago(&answer.time, &certificate.expires)), Tone::Plain),
        };
        rows.push(row("certificate", &certificate.file, "", state, tone));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::status::{CertificateRow, ListenerRow};
    use crate::admin::top::LastHour;
    use crate::admin::{Problem, ProblemCode, UpstreamStatus};
    use crate::cli::table::columns_of;

    fn problem(message: &str) -> Problem {
        let (message, remedy) = (message.to_owned(), "Look at the upstream's own log.".to_owned());
        Problem { code: ProblemCode::UpstreamDown, message, remedy }
    }

    fn answer(problems: &[Problem]) -> StatusAnswer {
        StatusAnswer {
            time: "2026-11-23T23:00:00Z".into(),
            version: "0.1.0".into(),
            started: "2026-11-20T19:00:00Z".into(),
            uptime_seconds: 273_600.0,
            problems: problems.to_vec(),
            listeners: vec![ListenerRow { name: "submission".into(), address: "[::]:587".into(), sessions: 12 }],
            max_sessions: 1_000,
            upstreams: vec![UpstreamStatus {
                name: "ppsw".into(),
                host: "ppsw.example.org".into(),
                port: 25,
                enabled: true,
                up: problems.is_empty(),
                error: None,
                priority: 0,
                weight: 1,
                only_routed: false,
            }],
            limits: 5,
            suspensions: 1,
            grants: 0,
            last_hour: LastHour { messages: 10, recipients: 20, refusals: 3 },
            certificates: vec![CertificateRow {
                file: "/etc/weir/certs/fullchain.pem".into(),
                expires: "2026-12-23T23:00:00Z".into(),
            }],
        }
    }

    #[test]
    fn the_status_fits_80_columns() {
        assert_eq!(
            text(&answer(&[problem("upstream ppsw is down")]), USUAL_WIDTH, Paint { is_coloured: false }),
            "\
weir 0.1.0: degraded, up for 3d4h, since 2026-11-20T19:00:00Z
  upstream ppsw is down
    Look at the upstream's own log.
last hour: 10 messages, 20 recipients, 3 refusals
12 sessions of at most 1000, 5 limits, 1 suspension, 0 grants

             name                           address              state
listener     submission                     [::]:587             12 sessions
upstream     ppsw                           ppsw.example.org:25  down
certificate  /etc/weir/certs/fullchain.pem                       expires in 30d
"
        );
    }

    #[test]
    fn long_and_hostile_names_do_not_break_the_status() {
        let mut answer = answer(&[problem("state degraded: \x1b[2J")]);
        answer.upstreams[0].name = "ש".repeat(200);
        answer.certificates[0].file = "/x".repeat(120);
        for line in text(&answer, USUAL_WIDTH, Paint { is_coloured: false }).lines() {
            assert!(columns_of(line) <= USUAL_WIDTH && !line.contains('\x1b'), "{line:?}");
        }
    }
}
