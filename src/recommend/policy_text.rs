//! Policies from the text of limits: the limits are read as a part of a configuration file, exactly as `weir simulate`
//! reads them.

use super::SetupError;
use super::family::{FAMILIES, SpecialUsers, lock_limit};
use crate::config::{self, ConfigError};
use crate::policy::Policy;

/// Least configuration in which limits can be tried.
const BASE: &str = "hostname = \"weir.invalid\"\n\
    listener.trial = { address = \"127.0.0.1:2587\", tls = \"none\", auth = \"none\", xclient = [\"127.0.0.1/32\"] }\n\
    upstream = [{ name = \"smart-host\", address = \"127.0.0.1:25\" }]\n\
    state = { path = \"state.db\" }\n";

/// Limits of a recommendation: for each family, the number and the users that the limit treats differently.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenLimits {
    /// In the order of [`FAMILIES`]; `None`: without this family.
    pub families: Vec<Option<Number>>,
    /// Number of refused strangers after which an account is locked.
    pub lock: Option<u32>,
}

/// Number of one family.
#[derive(Clone, Debug, PartialEq)]
pub struct Number {
    /// Index in the numbers of the family.
    pub index: usize,
    pub special: SpecialUsers,
}

/// Name and text of an override table.
pub type Table = (String, String);

impl ChosenLimits {
    /// Returns the limits as text of a configuration file, and the override tables that they name. The names of the
    /// tables begin with `stem`.
    pub fn text(&self, is_shadow: bool, stem: &str) -> (String, Vec<Table>) {
        let (mut texts, mut tables) = (Vec::new(), Vec::new());
        for (family, number) in FAMILIES.iter().zip(&self.families) {
            let Some(number) = number else { continue };
            let file = format!("{stem}-{}.csv", family.name);
            texts.push(family.limit(family.numbers[number.index], is_shadow, &number.special, &file));
            tables.extend(number.special.csv(family).map(|text| (file, text)));
        }
        texts.extend(self.lock.map(|number| lock_limit(number, is_shadow)));
        (texts.join("\n"), tables)
    }

    /// Returns the limits as a policy.
    pub fn policy(&self, is_shadow: bool) -> Result<Policy, SetupError> {
        let (text, tables) = self.text(is_shadow, "overrides");
        parse(&text, &tables)
    }
}

/// Reads limits. `tables` has the name and text of each override table.
pub fn parse(limits: &str, tables: &[Table]) -> Result<Policy, SetupError> {
    // The reader of the configuration takes override tables from files only.
    let folder = tempfile::Builder::new().prefix("weir-recommend-").tempdir().map_err(SetupError::Folder)?;
    for (name, text) in tables {
        std::fs::write(folder.path().join(name), text).map_err(SetupError::Folder)?;
    }
    match config::parse(&folder.path().join("weir.toml"), format!("{BASE}{limits}")) {
        Ok(config) => Ok(config.policy),
        Err(ConfigError::Diagnostics(problems)) => Err(SetupError::Limits(problems.render(false))),
        Err(ConfigError::Io(_, error)) => Err(SetupError::Folder(error)),
    }
}
