//! Comparison of the configuration of the running process with a new one: finds the changes that need a restart.

use super::Setting;
use std::collections::BTreeMap;

/// Sections and top-level keys that a reload applies, including all keys and sub-tables of these sections. The
/// running Weir does not read `egress` at all.
const RELOADED: [&str; 13] = [
    "limit",
    "list",
    "addresses",
    "senders",
    "suspensions",
    "location",
    "timezone",
    "delay",
    "notify",
    "help-url",
    "upstream",
    "dns",
    "egress",
];

/// Keys that a reload applies, although it does not apply the other keys of the same section.
const RELOADED_KEYS: [(&str, &str); 5] = [
    ("state", "max-new-budgets"),
    ("accounts", "login-networks"),
    ("accounts", "other-networks"),
    ("accounts", "login-history"),
    ("accounts", "known-after"),
];

/// The keys of one section, with their values.
type Keys<'a> = BTreeMap<&'static str, Option<&'a str>>;

/// Compares the settings at the start of the process (`before`) with the new settings (`now`). Returns the names of the
/// changes that a reload does not apply, such as `[listener.x] address`. If the number of sections with one title has
/// changed, the name is the title: `[listener.x]`.
pub fn needs_restart(before: &[Setting], now: &[Setting]) -> Vec<String> {
    let (before, now) = (by_title(before), by_title(now));
    let mut names: Vec<String> = Vec::new();
    let gone = before.keys().filter(|title| !now.contains_key(*title)).map(|title| (*title).to_owned());
    names.extend(gone);
    for (title, sections) in &now {
        let Some(former) = before.get(title).filter(|former| former.len() == sections.len()) else {
            names.push((*title).to_owned());
            continue;
        };
        for (before, now) in former.values().zip(sections.values()) {
            let keys = before.keys().chain(now.keys()).filter(|key| before.get(*key) != now.get(*key));
            names.extend(keys.map(|key| format!("{title} {key}").trim_start().to_owned()));
        }
    }
    names.sort();
    names.dedup();
    names
}

/// Selects the settings that a reload does not apply, and groups them by section title. Sections with the same title
/// stay in the order of the file.
fn by_title(settings: &[Setting]) -> BTreeMap<&str, BTreeMap<usize, Keys<'_>>> {
    let mut sections: BTreeMap<&str, BTreeMap<usize, Keys<'_>>> = BTreeMap::new();
    for setting in settings {
        let path = setting.section.trim_matches(['[', ']']);
        let top = if path.is_empty() { Some(setting.key) } else { path.split('.').next() };
        let is_reloaded = |top| RELOADED.contains(&top) || RELOADED_KEYS.contains(&(top, setting.key));
        if !top.is_some_and(is_reloaded) {
            let section = sections.entry(&setting.section).or_default().entry(setting.place).or_default();
            section.insert(setting.key, setting.value.as_deref());
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigError, parse};
    use std::path::Path;

    const BASE: &str = "hostname = \"a.example\"\nlog = { format = \"json\" }\n\
        listener.a = { address = \"127.0.0.1:1\", tls = \"none\", auth = \"none\" }\n\
        upstream = [{ address = \"192.0.2.1:25\" }, { address = \"192.0.2.2:25\" }]\n";

    fn settings(text: &str) -> Vec<Setting> {
        match parse(Path::new("weir.toml"), text.to_owned()) {
            Ok(config) => config.settings,
            Err(ConfigError::Diagnostics(problems)) => panic!("{}", problems.render(false)),
            Err(ConfigError::Io(..)) => unreachable!(),
        }
    }

    #[test]
    fn only_changes_that_need_a_restart_are_named() {
        let limit = "[[limit]]\nname = \"l\"\ncount = \"messages\"\nper = []\nrate = \"9 / 1d\"\n";
        let second = "listener.b = { address = \"127.0.0.1:2\", tls = \"none\", auth = \"none\" }\n";
        for (from, to, names) in [
            ("", "", &[][..]),
            // Each of the next three texts moves sections to other positions, or writes out a default value.
            ("hostname", "# a comment\nhostname", &[]),
            ("tls = \"none\", auth", "xclient = [], tls = \"none\", auth", &[]),
            ("upstream =", "session = { idle-timeout = \"5m\" }\nupstream =", &[]),
            ("a.example", "b.example", &["hostname"]),
            ("127.0.0.1:1", "127.0.0.1:9", &["[listener.a] address"]),
            ("192.0.2.2:25", "192.0.2.9:25", &[]),
            ("{ address = \"192.0.2.1:25\" }, ", "", &[]),
            ("hostname", "state.max-new-budgets = 7\nhostname", &[]),
            ("hostname", "state = { max-new-budgets = 7, on-failure = \"defer\" }\nhostname", &["[state] on-failure"]),
            ("hostname", "timezone = \"Europe/Vienna\"\nhostname", &[]),
            (
                "upstream =",
                &format!("{second}session = {{ idle-timeout = \"1m\" }}\nupstream ="),
                &["[listener.b]", "[session] idle-timeout"],
            ),
            ("\"json\"", "\"logfmt\"", &["[log] format"]),
        ] {
            let now = BASE.replacen(from, to, 1) + limit;
            assert_eq!(needs_restart(&settings(BASE), &settings(&now)), names, "{from} -> {to}");
        }
        let without = BASE.replace("upstream =", &format!("{second}upstream ="));
        assert_eq!(needs_restart(&settings(&without), &settings(BASE)), ["[listener.b]"]);
    }
}
