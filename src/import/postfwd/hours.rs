//! Translation of postfwd's hours, days and numbers of recipients into values of `match`.

use super::rules::Item;

/// Days of the week in postfwd's order: its ranges begin with Sunday.
const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

/// Translates the items `days` and `time` of a rule into one value of `time`: `Mon-Fri 08:00-18:00`.
pub fn of(items: &[Item]) -> Result<String, String> {
    let [days, times] = ["days", "time"].map(|key| items.iter().filter(|item| item.key == key).collect::<Vec<_>>());
    if days.len() > 1 || times.len() > 1 {
        return Err("of several ranges any one is enough, and limits have one for each condition".to_owned());
    }
    if items.iter().any(|item| !matches!(&*item.operator, "=" | "==" | "=~")) {
        return Err("the negation has no translation".to_owned());
    }
    let days = days.first().map(|item| self::days(&item.value)).transpose()?;
    let times = times.first().map(|item| times_of(&item.value)).transpose()?;
    Ok([days, times].into_iter().flatten().collect::<Vec<_>>().join(" "))
}

fn days(value: &str) -> Result<String, String> {
    let day = |text: &str| {
        let number = text.parse::<usize>().ok().filter(|number| (1..7).contains(number));
        let named = DAYS.iter().position(|day| *day == text);
        number.or(named).ok_or_else(|| format!("\"{text}\" is no day (postfwd has Sun, Mon, … Sat)"))
    };
    let (from, to) = value.split_once('-').unwrap_or((value, value));
    let (from, to) = (day(from.trim())?, day(to.trim())?);
    match (from, to) {
        _ if from > to => Err("postfwd's week begins with Sunday, so that this range has no day".to_owned()),
        _ if from == to => Ok(DAYS[from].to_owned()),
        // Weir's week begins with Monday.
        (0, 1) => Ok("Sun,Mon".to_owned()),
        (0, _) => Ok(format!("Sun,Mon-{}", DAYS[to])),
        _ => Ok(format!("{}-{}", DAYS[from], DAYS[to])),
    }
}

fn times_of(value: &str) -> Result<String, String> {
    let bad = || "a time is written HH:MM:SS-HH:MM:SS".to_owned();
    let seconds = |text: &str| {
        let parts: Vec<u32> = text.trim().split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        let [hours, minutes, seconds] = parts[..] else { return None };
        (hours < 24 && minutes < 60 && seconds < 60).then_some(hours * 3600 + minutes * 60 + seconds)
    };
    let (from, to) = value.split_once('-').ok_or_else(bad)?;
    let (from, to) = (seconds(from).ok_or_else(bad)?, seconds(to).ok_or_else(bad)?);
    if to <= from {
        return Err(
            "the end is before the beginning, and postfwd does not count over midnight: it never holds".to_owned()
        );
    }
    // In postfwd, the last second belongs to the range: 17:59:59 means the end of the hour.
    let to = if to % 60 == 59 { to + 1 } else { to };
    if !from.is_multiple_of(60) || !to.is_multiple_of(60) {
        return Err("limits have whole minutes".to_owned());
    }
    let minutes = |seconds: u32| format!("{:02}:{:02}", seconds / 3600, seconds / 60 % 60);
    Ok(format!("{}-{}", minutes(from), minutes(to)))
}

/// Translates a condition on `recipient_count` into a value of `message-recipients`.
pub fn recipients(item: &Item) -> Result<String, String> {
    let number: u32 = item.value.parse().map_err(|_| format!("\"{}\" is no number", item.value))?;
    let operator = match &*item.operator {
        "=" | "=~" | "=>" | ">=" => ">=",
        "==" => "=",
        "=<" => "<=",
        ">" | "!<" => ">",
        "<" | "!>" => "<",
        operator => return Err(format!("the operator {operator} is not known here")),
    };
    Ok(format!("{operator} {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(text: &str) -> Item {
        let at = text.find(['=', '<', '>', '!']).unwrap();
        let value = text[at..].trim_start_matches(['=', '<', '>', '!', '~']);
        Item {
            key: text[..at].to_owned(),
            operator: text[at..text.len() - value.len()].to_owned(),
            value: value.to_owned(),
        }
    }

    #[test]
    fn hours_and_days_are_those_of_postfwd() {
        for (items, expected) in [
            (&["days=Mon-Fri", "time=08:00:00-17:59:59"][..], Ok("Mon-Fri 08:00-18:00")),
            (&["time=20:00:00-23:59:59"], Ok("20:00-24:00")),
            (&["days=6"], Ok("Sat")),
            (&["days=Sun-Thu"], Ok("Sun,Mon-Thu")),
            (&["days=Sat-Sun"], Err("begins with Sunday")),
            (&["time=22:00:00-06:00:00"], Err("never holds")),
            (&["time=08:00-18:00"], Err("HH:MM:SS")),
            (&["time=08:00:30-18:00:00"], Err("whole minutes")),
            (&["days!=Mon"], Err("negation")),
            (&["days=Mon", "days=Wed"], Err("any one")),
        ] {
            let items: Vec<Item> = items.iter().map(|text| item(text)).collect();
            match (of(&items), expected) {
                (Ok(text), Ok(expected)) => assert_eq!(text, expected),
                (Err(why), Err(words)) => assert!(why.contains(words), "{why}"),
                (found, expected) => panic!("{found:?} {expected:?}"),
            }
        }
    }

    #[test]
    fn numbers_of_recipients_have_postfwds_operators() {
        for (text, expected) in [
            ("recipient_count=20", ">= 20"),
            ("recipient_count=>20", ">= 20"),
            ("recipient_count=<20", "<= 20"),
            ("recipient_count==1", "= 1"),
            ("recipient_count>50", "> 50"),
            ("recipient_count!>50", "< 50"),
        ] {
            assert_eq!(recipients(&item(text)).as_deref(), Ok(expected), "{text}");
        }
        assert!(recipients(&item("recipient_count!=2")).is_err());
    }
}
