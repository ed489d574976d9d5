//! Translation of Exim's reply texts and delays.

use super::Verb;
use crate::policy::limit::{KnownValues, Template};
use crate::time::{format_duration, parse_exim_duration};

/// Translates the text of a reply. Returns an error that says why limits cannot express the text.
pub fn text(message: &str, verb: Verb) -> Result<String, String> {
    let mut text = message.trim().to_owned();
    // The longer names are replaced first, because they begin with sender_rate, too.
    for (name, place) in [("sender_rate_period", "period"), ("sender_rate_limit", "limit"), ("sender_rate", "level")] {
        text = text.replace(&format!("${{{name}}}"), &format!("\u{1}{place}\u{2}"));
        text = text.replace(&format!("${name}"), &format!("\u{1}{place}\u{2}"));
    }
    if text.contains('$') {
        return Err(format!(
            "message = {message}: it uses a variable that texts of Weir do not have, so Weir's standard text is used"
        ));
    }
    // Line breaks become spaces, and braces become parentheses: in Weir's templates braces enclose placeholders.
    let text = text.replace("\\n", " ").replace('{', "(").replace('}', ")").replace('\\', "");
    let text = text.replace('\u{1}', "{").replace('\u{2}', "}");
    let text = without_other_code(&text, verb);
    match Template::parse(text, KnownValues::default()) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("message = {message}: {error}, so Weir's standard text is used")),
    }
}

/// Removes a reply code whose class (4xx or 5xx) does not fit the verb, because Exim ignores such a code, too. With
/// `drop`, both classes are allowed.
fn without_other_code(text: &str, verb: Verb) -> &str {
    let class = match verb {
        Verb::Defer => "4",
        Verb::Deny => "5",
        Verb::Drop | Verb::Warn | Verb::Suspend => return text,
    };
    let is_code = |word: &str| word.len() == 3 && word.bytes().all(|b| b.is_ascii_digit());
    match text.split_once(' ') {
        Some((code, rest)) if is_code(code) && !code.starts_with(class) => match rest.split_once(' ') {
            Some((enhanced, words)) if enhanced.matches('.').count() == 2 => words,
            _ => rest,
        },
        _ => text,
    }
}

/// Translates a delay: a duration, or the expression in Exim's documentation that waits 1 second for each event above
/// the limit.
pub fn delay(value: &str) -> Result<String, String> {
    let plain: String = value.chars().filter(|c| !c.is_whitespace()).collect();
    let plain = plain.replace("${sender_rate}", "$sender_rate").replace("${sender_rate_limit}", "$sender_rate_limit");
    if matches!(
        &*plain,
        "${eval:${sg{$sender_rate}{[.].*}{}}-$sender_rate_limit}s" | "${eval:$sender_rate-$sender_rate_limit}s"
    ) {
        return Ok("1s per 1".to_owned());
    }
    match parse_exim_duration(&plain) {
        Ok(time) if !time.is_zero() => Ok(format_duration(time)),
        _ => Err(format!("delay = {value}: this is neither a duration nor one second for each event above the limit")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_texts_are_translated() {
        for (message, verb, expected) in [
            (
                "Sender rate $sender_rate exceeds ${sender_rate_limit} messages per $sender_rate_period",
                Verb::Defer,
                "Sender rate {level} exceeds {limit} messages per {period}",
            ),
            ("554 5.7.1 too {much}\\nof it", Verb::Deny, "554 5.7.1 too (much) of it"),
            ("450 4.7.1 too much", Verb::Deny, "too much"),
            ("421 too much", Verb::Drop, "421 too much"),
        ] {
            assert_eq!(text(message, verb).as_deref(), Ok(expected));
        }
        for message in ["$sender_host_address is too fast", "", "\u{fc}ber"] {
            assert!(text(message, Verb::Deny).is_err(), "{message}");
        }
    }

    #[test]
    fn delays_are_durations_or_one_second_for_each_event() {
        assert_eq!(delay("90s").as_deref(), Ok("1m30s"));
        let documented = "${eval: ${sg{$sender_rate}{[.].*}{}} - $sender_rate_limit }s";
        assert_eq!(delay(documented).as_deref(), Ok("1s per 1"));
        assert!(delay("${eval:2*$sender_rate}s").is_err());
    }
}
