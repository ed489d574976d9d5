//! Fuzz target of configuration files.

use std::path::Path;
use weir::config::{Config, ConfigError, Diagnostics, parse};

/// Property: each diagnostic points to a position within the text. The printed form of a valid configuration, with its
/// defaults, can be read again and has the same values, but for the secret paths of webhooks, which are not printed.
pub fn target(input: &[u8]) {
    let text = String::from_utf8_lossy(input).into_owned();
    match read(&text) {
        Ok(config) => {
            check(&config.problems, &text);
            let effective = config.effective(|_| None);
            match read(&effective) {
                Ok(again) => assert_eq!(values(&again), values(&config), "{effective}"),
                Err(problems) => panic!("{}", problems.render(false)),
            }
        }
        Err(problems) => {
            assert!(problems.has_errors());
            check(&problems, &text);
        }
    }
}

fn read(text: &str) -> Result<Config, Diagnostics> {
    match parse(Path::new("weir.toml"), text.to_owned()) {
        Ok(config) => Ok(config),
        Err(ConfigError::Diagnostics(problems)) => Err(problems),
        Err(ConfigError::Io(_, error)) => panic!("no file is read here: {error}"),
    }
}

/// Returns section, key and value of each setting, including settings that have their default value. Leaves out the
/// values of webhooks.
fn values(config: &Config) -> Vec<(&str, &str, Option<&str>)> {
    let value = |key, value| if key == "webhook" { None } else { value };
    config.settings.iter().map(|s| (s.section.as_str(), s.key, value(s.key, s.value.as_deref()))).collect()
}

fn check(problems: &Diagnostics, text: &str) {
    assert_eq!(problems.text, text);
    for problem in &problems.found {
        assert!(text.get(problem.span.clone()).is_some(), "{problem:?}");
        assert!(!problem.message.is_empty());
    }
    // Rendering diagnostics takes longer than all other steps, so render them only for some inputs.
    if text.len().is_multiple_of(64) {
        assert_eq!(problems.render(false).is_empty(), problems.found.is_empty());
    }
}
