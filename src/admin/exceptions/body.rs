//! Request body of a command on exceptions: a JSON object, checked.

use crate::time::{format_duration, parse_duration};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// JSON object with known keys only.
pub struct Body(Map<String, Value>);

/// Maximum length of an administrator's name and of a reason, in characters.
const MAX_NAME_LENGTH: usize = 64;
const MAX_REASON_LENGTH: usize = 500;

/// Maximum term of an exception. A longer exception belongs in the configuration.
const MAX_TERM: Duration = Duration::from_secs(3_650 * 86_400);

impl Body {
    /// Parses a request body. Each error names the wrong value. The errors of the methods below do so, too.
    pub fn read(text: &str, known: &[&str]) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| format!("this is not JSON: {error}"))?;
        let Value::Object(mut object) = value else { return Err("this is not a JSON object".to_owned()) };
        object.retain(|_, value| !value.is_null());
        match object.keys().find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(format!("there is no \"{name}\"; known: {}", known.join(", "))),
            None => Ok(Self(object)),
        }
    }

    pub fn text(&self, name: &str) -> Result<&str, String> {
        match self.0.get(name) {
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(format!("{name} is {other}: write a text")),
            None => Err(format!("{name} is missing")),
        }
    }

    pub fn flag(&self, name: &str) -> Result<bool, String> {
        let flag = self.0.get(name).map_or(Some(false), Value::as_bool);
        flag.ok_or_else(|| format!("{name} is {}: write true or false", self.0[name]))
    }

    pub fn number(&self, name: &str) -> Result<Option<usize>, String> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        number.map(Some).ok_or_else(|| format!("{name} is {value}: write a number"))
    }

    /// Returns the term of the exception.
    pub fn time(&self) -> Result<Duration, String> {
        let text = self.text("for").map_err(|_| "it must end by itself: say for how long, as in 8h".to_owned())?;
        let time = parse_duration(text).map_err(|error| error.to_string())?;
        match time {
            Duration::ZERO => Err(format!("\"{text}\" is no time at all")),
            time if time > MAX_TERM => {
                let (time, longest) = (format_duration(time), format_duration(MAX_TERM));
                Err(format!("{time} is too long, {longest} at most: what is to stay belongs into the configuration"))
            }
            time => Ok(time),
        }
    }

    /// Returns the reason for the command. `is_needed` is true for commands that begin an exception: their reason must
    /// not be empty.
    pub fn reason(&self, is_needed: bool) -> Result<Arc<str>, String> {
        let reason = if self.0.contains_key("reason") { self.text("reason")?.trim() } else { "" };
        if is_needed && reason.is_empty() {
            return Err("the reason is empty: give one, for the audit trail".to_owned());
        }
        check("reason", reason, MAX_REASON_LENGTH).map(Into::into)
    }

    /// Returns the administrator's name.
    pub fn by(&self) -> Result<Arc<str>, String> {
        let by = check("by", self.text("by")?, MAX_NAME_LENGTH)?;
        match by.is_empty() || by.contains(char::is_whitespace) {
            true => Err(format!("by is \"{by}\": write one name")),
            false => Ok(by.into()),
        }
    }
}

/// Checks that a text fits into one log line.
fn check<'a>(what: &str, text: &'a str, longest: usize) -> Result<&'a str, String> {
    match text.chars().count() {
        count if count > longest => Err(format!("{what} has {count} characters: {longest} at most")),
        _ if text.contains(char::is_control) => {
            Err(format!("{what} has a control character in it: \"{}\"", text.escape_debug()))
        }
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_bad_value_of_a_request() {
        let read = |text: &str| {
            let body = Body::read(text, &["for", "reason", "by", "json", "last"])?;
            Ok::<_, String>((body.time()?, body.reason(true)?, body.by()?, body.flag("json")?, body.number("last")?))
        };
        let good = r#"{"for":"8h","reason":" news ","by":"root","last":null}"#;
        assert_eq!(read(good), Ok((Duration::from_secs(28_800), "news".into(), "root".into(), false, None)));
        for (from, to, words) in [
            (good, "nonsense", "this is not JSON"),
            (good, "[]", "not a JSON object"),
            ("\"last\":null", "\"least\":1", "there is no \"least\"; known: for"),
            ("\"last\":null", "\"last\":\"x\"", "last is \"x\": write a number"),
            ("\"last\":null", "\"json\":1", "json is 1: write true or false"),
            ("\"for\":\"8h\",", "", "it must end by itself"),
            ("8h", "0s", "\"0s\" is no time at all"),
            ("8h", "soon", "soon"),
            ("8h", "3651d", "3651d is too long, 3650d at most"),
            ("\" news \"", "\"  \"", "the reason is empty"),
            ("\" news \"", "7", "reason is 7: write a text"),
            ("news", "a\\nb", "reason has a control character in it: \"a\\nb\""),
            ("news", &"x".repeat(501), "reason has 501 characters: 500 at most"),
            ("root", "", "by is \"\""),
            ("root", "limit x", "by is \"limit x\": write one name"),
            ("root", "a\\u0007", "by has a control character"),
            ("root", &"x".repeat(65), "by has 65 characters: 64 at most"),
            (",\"by\":\"root\"", "", "by is missing"),
        ] {
            assert!(good.contains(from), "{from}");
            let got = read(&good.replace(from, to)).unwrap_err();
            assert!(got.contains(words), "{to}: {got}");
        }
    }
}
