//! Maps of rspamd: lists of items in files.

use super::super::budget::{Allowance, Resource};
use std::path::{Path, PathBuf};

/// Returns the path of a file whose name contains variables of rspamd. `config` is the configuration file that names
/// this file.
pub fn resolved(config: &Path, name: &str) -> PathBuf {
    let folder = config.parent().unwrap_or(Path::new(""));
    let is_part = folder.extension().is_some_and(|extension| extension == "d");
    let root = if is_part { folder.parent().unwrap_or(folder) } else { folder }.display().to_string();
    let name = ["$LOCAL_CONFDIR", "${LOCAL_CONFDIR}", "$CONFDIR", "${CONFDIR}"]
        .into_iter()
        .fold(name.to_owned(), |name, variable| name.replace(variable, &root));
    folder.join(name.replace("${DBDIR}", "/var/lib/rspamd").replace("$DBDIR", "/var/lib/rspamd"))
}

/// Returns the items of a list, and the items in the maps that the list names. Returns an error that says why a map is
/// not read.
pub fn items(names: &[String], config: &str, allowance: &Allowance) -> Result<Vec<String>, String> {
    let mut items = Vec::new();
    for name in names.iter().filter(|name| !name.is_empty()) {
        let path = name.strip_prefix("file://").or(name.strip_prefix("map://")).unwrap_or(name);
        if path.contains("://") {
            return Err(format!("{name} is not read"));
        }
        if !path.starts_with(['/', '$']) {
            items.push(name.clone());
            continue;
        }
        let file = resolved(Path::new(config), path);
        let text = allowance.read(&file).map_err(|error| format!("the map is not read: {error}"))?;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let words = lines.filter_map(|line| line.split_whitespace().next());
        for word in words.take_while(|_| allowance.take(Resource::Lines, 1)) {
            if word.starts_with('/') {
                return Err(format!("the map has the regular expression {word}"));
            }
            items.push(word.to_owned());
        }
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_beside_the_configuration_are_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("local.d")).unwrap();
        std::fs::write(folder.path().join("users.map"), "# all\nalice # one\n\nbob 1\n").unwrap();
        let config = folder.path().join("local.d/ratelimit.conf").display().to_string();
        let read = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            items(&names, &config, &Allowance::default())
        };
        assert_eq!(read(&["$LOCAL_CONFDIR/users.map", "carol"]).unwrap(), ["alice", "bob", "carol"]);
        for name in ["/none.map", "https://example.org/users"] {
            assert!(read(&[name]).unwrap_err().contains("not read"), "{name}");
        }
    }
}
