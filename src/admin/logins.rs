//! Login history of a user, as a table or as lines of JSON.

use super::Outcome;
use crate::clock;
use crate::store::{LoginKey, LoginRow, Store, jsonl};
use crate::time::{Timestamp, format_duration};
use serde_json::Value;

/// Path of the request on the control socket.
pub const PATH: &str = "/logins";

/// Request for the login history of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginsRequest {
    pub user: String,
    /// True for lines of JSON instead of a table.
    pub json: bool,
}

impl LoginsRequest {
    /// Parses `{"user": "alice", "json": false}`.
    pub fn parse(body: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(body).map_err(|error| format!("this is not JSON: {error}"))?;
        let user = value["user"].as_str().filter(|user| !user.is_empty()).ok_or("\"user\" must be a name")?;
        Ok(Self { user: user.to_owned(), json: value["json"].as_bool().unwrap_or(false) })
    }

    /// Answers the request. `has_account`: whether the user has an account.
    pub async fn answer(&self, store: &Store, has_account: bool) -> Outcome {
        let keep = store.policy().login_history.keep;
        let user = self.user.escape_debug();
        if keep.is_zero() {
            return Outcome::Refused("no history is kept: login-history is \"0s\" in [accounts]\n".to_owned());
        }
        match store.logins(&self.user, clock::now()).await {
            Ok(rows) if self.json => {
                Outcome::Done(rows.iter().map(|(key, row)| format!("{}\n", jsonl::of_login(key, row))).collect())
            }
            Ok(rows) if rows.is_empty() => {
                let doubt = if has_account { "" } else { "; there is no account of this name" };
                Outcome::Done(format!("{user}: no login in the last {}{doubt}\n", format_duration(keep)))
            }
            Ok(rows) => Outcome::Done(table(&rows)),
            Err(why) => Outcome::Unavailable(format!("the login history cannot be read: {why}\n")),
        }
    }
}

/// Titles of the columns.
const TITLES: [&str; 8] = ["first", "last", "logins", "network", "country", "TLS", "mechanism", "EHLO"];

/// Returns a table of a user's logins: a line for each network.
pub fn table(rows: &[(LoginKey, LoginRow)]) -> String {
    let lines: Vec<[String; 8]> =
        [TITLES.map(str::to_owned)].into_iter().chain(rows.iter().map(|(key, row)| cells(key, row))).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; 8] = std::array::from_fn(width);
    let line = |cells: &[String; 8]| {
        let padded: Vec<String> = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    lines.iter().map(line).collect()
}

fn cells(key: &LoginKey, row: &LoginRow) -> [String; 8] {
    // Weir stores printable names only, but an administrator may have loaded or edited the state file.
    let shown = |text: Option<&str>| text.map_or_else(|| "-".to_owned(), |text| text.escape_debug().to_string());
    let time = |at: Timestamp| at.rfc3339();
    let helo = (!row.helo.is_empty()).then(|| row.helo.join(", "));
    [
        time(row.first),
        time(row.last),
        row.logins.to_string(),
        shown(Some(&key.network)),
        shown(row.country.as_deref()),
        shown(row.tls.as_deref()),
        shown(row.mechanism.as_deref()),
        shown(helo.as_deref()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_per_network_and_escapes_hostile_names() {
        let at = |seconds: i64| Timestamp::from_micros((1_700_000_000 + seconds) * 1_000_000);
        let row = |network: &str, country: Option<&str>, helo: &[&str]| {
            let key = LoginKey { user: "alice".into(), network: network.into() };
            let row = LoginRow {
                first: at(0),
                last: at(60),
                logins: 12,
                country: country.map(Into::into),
                tls: Some("TLSv1.3".into()),
                mechanism: None,
                helo: helo.iter().map(|name| (*name).into()).collect(),
            };
            (key, row)
        };
        let rows = [
            row("192.0.2.0/24", Some("AT"), &["laptop.example", "[10.0.0.7]"]),
            row("2001:db8::/56", None, &["a\u{1b}[2J\nb"]),
        ];
        let expected = "\
first                 last                  logins  network        country  TLS      mechanism  EHLO
2023-11-14T22:13:20Z  2023-11-14T22:14:20Z  12      192.0.2.0/24   AT       TLSv1.3  -          laptop.example, [10.0.0.7]
2023-11-14T22:13:20Z  2023-11-14T22:14:20Z  12      2001:db8::/56  -        TLSv1.3  -          a\\u{1b}[2J\\nb
";
        assert_eq!(table(&rows), expected);
    }

    #[test]
    fn a_request_without_a_user_is_refused() {
        for (body, user) in [("{}", None), (r#"{"user":""}"#, None), ("x", None), (r#"{"user":"a"}"#, Some("a"))] {
            assert_eq!(LoginsRequest::parse(body).ok().map(|request| request.user).as_deref(), user, "{body}");
        }
    }
}
