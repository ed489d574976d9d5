//! Bodies of requests that have one JSON object in each line.

use super::ApiError;
use serde::de::DeserializeOwned;

/// Reads the lines of a body, at most `max` `things`. If one is wrong, none counts.
pub fn read<L: DeserializeOwned, T>(
    body: &[u8],
    max: usize,
    things: &str,
    check: impl Fn(L) -> Result<T, String>,
) -> Result<Vec<T>, ApiError> {
    let mut found = Vec::new();
    for (index, line) in body.split(|octet| *octet == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let refused = |why: String| ApiError::refused(format!("line {}: {why}", index + 1));
        if found.len() == max {
            return Err(refused(format!("more than {max} {things}: send them in several requests")));
        }
        // serde also accepts a list of the values, which no reader of the OpenAPI file expects.
        if !line.trim_ascii_start().starts_with(b"{") {
            return Err(refused("it is no JSON object".to_owned()));
        }
        let line: L = serde_json::from_slice(line).map_err(|error| refused(error.to_string()))?;
        found.push(check(line).map_err(refused)?);
    }
    if found.is_empty() {
        return Err(ApiError::refused("the body has no JSON object"));
    }
    Ok(found)
}
