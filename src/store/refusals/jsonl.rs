//! Records of refusals as lines of JSON:
//! `{"refusal":"k3f7q2","number":93872,"first":"2026-11-21T10:00:00Z","last":"2026-11-21T10:00:00Z","times":1,"owner":"user=alice","user":"alice","client":"192.0.2.7","limit":"user-recipients","decision":"…"}`.
//! `refusal` is the tag of the references. `number` is left out if refusals are coalesced, and unknown values are left
//! out. `"shadow":true` marks what a limit in shadow or soft mode would have refused. `decision` is the body.

use super::row::{MAX_BODY_OCTETS, Refusal, RefusalRow};
use crate::reference::Tag;
use crate::time::{Timestamp, parse_time};
use serde_json::{Map, Value, json};

/// Key by which the line of a refusal is known.
pub const KEY: &str = "refusal";

/// Maximum octets of a text other than the body.
const MAX_TEXT_OCTETS: usize = 1_024;

pub fn of_refusal(row: &RefusalRow) -> Value {
    let Refusal { is_shadow, owner, user, client, limit, body } = &row.refusal;
    let tag = row.tag.map_or_else(|| row.cause.clone(), |tag| tag.to_string());
    let time = |millis: u64| Timestamp::from_micros(i64::try_from(millis).unwrap_or(0).saturating_mul(1_000));
    let mut line = json!({KEY: tag, "first": time(row.millis).rfc3339_exact(), "last": time(row.last).rfc3339_exact(),
        "times": row.times, "decision": body});
    if let Some(number) = row.number {
        line["number"] = json!(number);
    }
    if *is_shadow {
        line["shadow"] = json!(true);
    }
    for (name, text) in [("owner", owner), ("user", user), ("client", client), ("limit", limit)] {
        if let Some(text) = text {
            line[name] = json!(text);
        }
    }
    line
}

/// Parses the object of a line.
pub fn read(line: &Map<String, Value>) -> Result<RefusalRow, String> {
    const KEYS: [&str; 11] =
        [KEY, "number", "first", "last", "times", "shadow", "owner", "user", "client", "limit", "decision"];
    if let Some(name) = line.keys().find(|name| !KEYS.contains(&name.as_str())) {
        return Err(format!("\"{name}\" is not known"));
    }
    let written = text(line, KEY, MAX_TEXT_OCTETS)?.ok_or("\"refusal\" is missing")?;
    let tag: Option<Tag> = written.parse().ok();
    if tag.is_none() && (written.len() != 2 || !written.bytes().all(|b| b.is_ascii_alphanumeric())) {
        return Err(format!("\"{KEY}\" is not a tag of 6, 5 or 2 digits"));
    }
    let number = match line.get("number") {
        None => None,
        Some(number) => Some(whole(number).filter(|n| i64::try_from(*n).is_ok()).ok_or("\"number\" is not a number")?),
    };
    let is_shadow = line.get("shadow").is_some_and(|shadow| shadow == true);
    let times = line.get("times").and_then(whole).filter(|times| *times > 0);
    Ok(RefusalRow {
        id: 0,
        millis: millis(line, "first")?,
        tag,
        cause: tag.map_or(written, Tag::cause),
        number,
        last: millis(line, "last")?,
        times: times.ok_or("\"times\" must be a number of at least 1")?,
        refusal: Refusal {
            is_shadow,
            owner: text(line, "owner", MAX_TEXT_OCTETS)?,
            user: text(line, "user", MAX_TEXT_OCTETS)?,
            client: text(line, "client", MAX_TEXT_OCTETS)?,
            limit: text(line, "limit", MAX_TEXT_OCTETS)?,
            body: text(line, "decision", MAX_BODY_OCTETS)?.ok_or("\"decision\" is missing")?,
        },
    })
}

fn whole(value: &Value) -> Option<u64> {
    value.as_u64()
}

fn text(line: &Map<String, Value>, name: &str, max_octets: usize) -> Result<Option<String>, String> {
    match line.get(name).map(Value::as_str) {
        None => Ok(None),
        Some(Some(text)) if text.len() <= max_octets => Ok(Some(text.to_owned())),
        Some(Some(_)) => Err(format!("\"{name}\" is longer than {max_octets} octets")),
        Some(None) => Err(format!("\"{name}\" is not a string")),
    }
}

fn millis(line: &Map<String, Value>, name: &str) -> Result<u64, String> {
    let time = text(line, name, MAX_TEXT_OCTETS)?.ok_or_else(|| format!("\"{name}\" is missing"))?;
    let time = parse_time(&time).map_err(|error| error.to_string())?;
    u64::try_from(time.micros() / 1_000).map_err(|_| format!("\"{name}\" is before 1970"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let refusal = Refusal { user: Some("alice".to_owned()), body: "{\"a\":1}".to_owned(), ..Refusal::default() };
        let mut row = RefusalRow {
            id: 0,
            millis: 1_700_000_000_123,
            tag: "k3f7q".parse().ok(),
            cause: "k3".to_owned(),
            number: Some(7),
            last: 1_700_000_000_123,
            times: 1,
            refusal,
        };
        for (tag, number, times) in [(row.tag, Some(7), 1), (row.tag, None, 70), (None, None, 700)] {
            (row.tag, row.number, row.times) = (tag, number, times);
            let Value::Object(line) = of_refusal(&row) else { panic!("no object") };
            assert_eq!(read(&line), Ok(row.clone()));
            (row.refusal.is_shadow, row.refusal.owner) = (true, Some("user=alice".to_owned()));
        }
    }

    #[test]
    fn a_wrong_line_is_refused_with_the_name_of_the_wrong_value() {
        let good = json!({KEY: "k3f7q", "first": "2026-11-21T10:00:00Z", "last": "2026-11-21T10:00:00Z", "times": 1,
            "decision": "{}"});
        for (name, value) in [
            (KEY, json!("k3f7")),
            (KEY, json!(7)),
            ("first", json!("yesterday")),
            ("first", json!("1960-01-01T00:00:00Z")),
            ("times", json!(0)),
            ("number", json!(-1)),
            ("user", json!("x".repeat(2_000))),
            ("decision", json!(null)),
            ("colour", json!("red")),
        ] {
            let Value::Object(mut line) = good.clone() else { panic!("no object") };
            assert!(read(&line).is_ok());
            line.insert(name.to_owned(), value);
            assert!(read(&line).is_err(), "{name}");
        }
    }
}
