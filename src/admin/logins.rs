//! Login history of a user.

use super::{Api, ApiError, Errors, Json, Path};
use crate::clock;
use crate::store::{LoginKey, LoginRow};
use crate::time::{Timestamp, format_duration};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Logins of a user.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LoginsAnswer {
    /// One row for each network, the newest login first, in the form of `weir state dump`.
    pub logins: Vec<LoginLine>,
    /// Whether the user has an account.
    pub has_account: bool,
    /// The logins for people: a table, or a sentence if there are none.
    pub message: String,
}

/// Logins of a user from one network, in the form of `weir state dump`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LoginLine {
    /// The user.
    pub login: String,
    pub network: String,
    #[schema(format = DateTime)]
    pub first: String,
    #[schema(format = DateTime)]
    pub last: String,
    /// Number of logins.
    pub logins: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub country: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mechanism: Option<String>,
    /// Names of the client in EHLO, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub helo: Vec<String>,
}

impl LoginLine {
    pub(super) fn new(key: &LoginKey, row: &LoginRow) -> Self {
        let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().map(str::to_owned);
        Self {
            login: key.user.to_string(),
            network: key.network.to_string(),
            first: row.first.rfc3339_exact(),
            last: row.last.rfc3339_exact(),
            logins: row.logins,
            country: text(&row.country),
            tls: text(&row.tls),
            mechanism: text(&row.mechanism),
            helo: row.helo.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Returns the login history of a user: from which networks, since when, with which client.
#[utoipa::path(get, path = "/v1/logins/{user}", params(("user" = String, Path, description = "The user")),
    responses((status = 200, description = "The logins", body = LoginsAnswer), Errors))]
pub async fn logins(State(api): State<Api>, Path(user): Path<String>) -> Result<Json<LoginsAnswer>, ApiError> {
    let server = api.server()?;
    let has_account = match &server.accounts {
        Some(accounts) => accounts.has(&user).await,
        None => false,
    };
    let keep = server.store.policy().login_history.keep;
    if keep.is_zero() {
        return Err(ApiError::refused("no history is kept: login-history is \"0s\" in [accounts]"));
    }
    let read = server.store.logins(&user, clock::now()).await;
    let rows = read.map_err(|why| ApiError::unavailable(format!("the login history cannot be read: {why}")))?;
    let message = match rows.is_empty() {
        true => {
            let doubt = if has_account { "" } else { "; there is no account of this name" };
            format!("{}: no login in the last {}{doubt}\n", user.escape_debug(), format_duration(keep))
        }
        false => table(&rows),
    };
    let logins = rows.iter().map(|(key, row)| LoginLine::new(key, row)).collect();
    Ok(Json(LoginsAnswer { logins, has_account, message }))
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
}
