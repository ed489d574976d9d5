//! Files of a recommendation: the limits in shadow mode, and the override tables beside them.

use super::Recommendation;
use super::family::FAMILIES;
use super::policy_text::Table;
use super::report::{percent, reach};
use std::fmt::Write as _;

/// Files of a recommendation.
pub struct Files {
    /// Text of the limits, to be appended to `weir.toml`.
    pub limits: String,
    /// Name and text of each override table.
    pub tables: Vec<Table>,
}

impl Recommendation {
    /// Returns the files. `history` names the history in comments; the names of the tables begin with `stem`.
    pub fn files(&self, history: &str, stem: &str) -> Files {
        let (limits, tables) = self.chosen.text(true, stem);
        let plain = history.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect::<String>();
        Files { limits: format!("{}\n{limits}", self.head(&plain, &tables)), tables }
    }

    fn head(&self, history: &str, tables: &[Table]) -> String {
        let [first, counted, trained, last] = self.times.map(|at| at.rfc3339());
        let mut text = format!(
            "# Limits that weir recommend computed from {history}: {} messages to {} recipients by {} users.\n#\n\
             # Promise: at most {} of honest recipients are refused.\n\
             # Training: mail from {first} to {trained}. Mail before {counted} only taught who is known.\n\
             # Evaluation: mail from {trained} to {last}. The enforced limits refuse {} of {} recipients ({}) of {} users.\n#\n",
            self.messages,
            self.recipients,
            self.users,
            percent(self.options.refuse_at_most),
            self.evaluation.evaluated.refused,
            self.evaluation.evaluated.recipients,
            percent(self.evaluation.evaluated.share()),
            self.evaluation.evaluated.users.len(),
        );
        text += "# Attacks on the enforced limits, of the account at which the first refusal comes last:\n";
        for results in &self.stolen.chosen {
            let _ = writeln!(text, "#   {}: {}", results.kind.description(), reach(results));
        }
        text += "#\n# Append this file to weir.toml, and run weir check. The limits are in shadow mode: they refuse nothing, and the log\n\
                 # says what they would have refused. To enforce a limit, remove its line mode = \"shadow\".\n";
        if !tables.is_empty() {
            let names: Vec<&str> = tables.iter().map(|(name, _)| name.as_str()).collect();
            let _ = writeln!(text, "# Copy the override tables beside weir.toml: {}.", names.join(", "));
        }
        text
    }

    /// Returns the users that need another number than the limits say: the limit, the user, and the rate; `None`: the
    /// limit does not apply to the user.
    pub fn special_users(&self) -> Vec<(&'static str, &str, Option<String>)> {
        let numbers = FAMILIES.iter().zip(&self.chosen.families);
        numbers
            .filter_map(|(family, number)| Some((family, number.as_ref()?)))
            .flat_map(|(family, number)| {
                let rows = number.special.overrides.iter();
                let rows = rows.map(|(user, number)| (family.name, user.as_str(), Some(family.rate(*number))));
                rows.chain(number.special.exempt.iter().map(|user| (family.name, user.as_str(), None)))
            })
            .collect()
    }
}
