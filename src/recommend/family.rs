//! Families of limits: templates of a limit with one free number, and the numbers to try.

use crate::config::quoted;
use std::fmt::Write as _;

/// Template of a limit per user, with one free number.
#[derive(Debug)]
pub struct Family {
    /// Name of the limit.
    pub name: &'static str,
    /// Comment above the limit.
    comment: &'static str,
    /// Keys that select the counted events: `count`, and for strangers `distinct` and `known-to`.
    counted: &'static str,
    /// Value of the key `rate`; `{}` stands for the number.
    rate: &'static str,
    /// Keys of the action.
    action: &'static str,
    /// Numbers to try, from the strictest to the loosest.
    pub numbers: &'static [u32],
    /// Share of the permitted refusals that this family may use. The shares of all families add up to 1.
    pub share: f64,
    /// Minimum margin between the smallest number that keeps the promise in the training and the recommended number, in
    /// steps of the numbers; a step is about a quarter, and three steps are twice the number.
    pub min_margin: usize,
    /// Overrides can give a user another number. Without overrides, `except` exempts a user.
    pub has_overrides: bool,
}

/// Users that a limit treats differently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialUsers {
    /// Users with a row in the override table, and the number of this row.
    pub overrides: Vec<(String, u32)>,
    /// Users to whom the limit does not apply.
    pub exempt: Vec<String>,
}

impl SpecialUsers {
    /// Returns the override table in CSV; `None` if it has no rows.
    pub fn csv(&self, family: &Family) -> Option<String> {
        let mut out = csv::Writer::from_writer(Vec::new());
        out.write_record(["user", "rate"]).ok()?;
        for (user, number) in &self.overrides {
            out.write_record([user, &family.rate(*number)]).ok()?;
        }
        let text = String::from_utf8(out.into_inner().ok()?).ok()?;
        (!self.overrides.is_empty()).then_some(text)
    }
}

const STRANGERS: &str = "distinct = \"recipient\"\nknown-to = \"user\"\n";

/// Families, in the order of the limits in the configuration.
pub const FAMILIES: [Family; 9] = [
    Family {
        name: "messages-to-strangers",
        comment: "Messages to strangers: recipients to whom this user has not written for half a year. A message counts once.",
        counted: "count = \"messages\"\ndistinct = \"recipient\"\nknown-to = \"user\"\n",
        rate: "{} / 1d",
        action: "defer = \"{level} messages to people you have never written to, {limit} per {period} at most; try again in {wait} ({reference})\"",
        numbers: &[10, 12, 15, 20, 25, 30, 40, 50, 65, 80, 100, 130, 160, 200],
        share: 0.3,
        min_margin: 1,
        has_overrides: true,
    },
    Family {
        name: "strangers",
        comment: "The strangers themselves, for messages to many of them.",
        counted: "count = \"recipients\"\ndistinct = \"recipient\"\nknown-to = \"user\"\n",
        rate: "{} / 1d",
        action: "defer = \"{level} people you have never written to, {limit} per {period} at most; try again in {wait} ({reference})\"",
        numbers: &[20, 25, 30, 40, 50, 65, 80, 100, 130, 160, 200, 250, 300, 400, 500, 650],
        share: 0.25,
        min_margin: 3,
        has_overrides: true,
    },
    Family {
        name: "regular-strangers",
        comment: "A program that writes to strangers at regular times, however slowly. The account is locked: it may write to known\n# recipients, until the administrator says \"weir release\".",
        counted: "count = \"messages\"\ndistinct = \"recipient\"\nknown-to = \"user\"\n",
        rate: "{}% regular over 15 gaps",
        action: "lock = \"until-released\"",
        numbers: &[69, 71, 74, 77, 80, 83, 87, 91, 95],
        share: 0.1,
        min_margin: 1,
        has_overrides: false,
    },
    Family {
        name: "steady-strangers",
        comment: "A program that writes to strangers at random times: over some hours, people write in bursts. Within one hour, a person can\n# be as steady as a program.",
        counted: "count = \"messages\"\ndistinct = \"recipient\"\nknown-to = \"user\"\n",
        rate: "43% regular over {} gaps within 1h to 8h",
        action: "defer = \"messages to people you have never written to come like those of a program; try again in {wait} ({reference})\"",
        numbers: &[15, 17, 20, 25, 30, 40],
        share: 0.05,
        min_margin: 1,
        has_overrides: false,
    },
    Family {
        name: "messages-to-site-strangers",
        comment: "Messages to recipients to whom nobody here has written for half a year.",
        counted: "count = \"messages\"\ndistinct = \"recipient\"\nknown-to = \"all\"\n",
        rate: "{} / 1d",
        action: "defer = \"{level} messages to people to whom nobody here has written, {limit} per {period} at most; try again in {wait} ({reference})\"",
        numbers: &[5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50],
        share: 0.1,
        min_margin: 2,
        has_overrides: true,
    },
    Family {
        name: "recipients-an-hour",
        comment: "All recipients in an hour, known ones too: mail to the whole site from a stolen account.",
        counted: "count = \"recipients\"\n",
        rate: "{} / 1h",
        action: "defer = \"{level} of {limit} recipients per {period}; try again in {wait} ({reference})\"",
        numbers: &[50, 65, 80, 100, 130, 160, 200, 250, 300, 400, 500, 650, 800, 1000, 1300, 1600, 2000],
        share: 0.05,
        min_margin: 3,
        has_overrides: true,
    },
    Family {
        name: "recipients-a-day",
        comment: "All recipients in a day.",
        counted: "count = \"recipients\"\n",
        rate: "{} / 1d",
        action: "defer = \"{level} of {limit} recipients per {period}; try again in {wait} ({reference})\"",
        numbers: &[100, 130, 160, 200, 250, 300, 400, 500, 650, 800, 1000, 1300, 1600, 2000, 2500, 3000, 4000, 5000],
        share: 0.05,
        min_margin: 3,
        has_overrides: true,
    },
    Family {
        name: "messages-an-hour",
        comment: "All messages in an hour.",
        counted: "count = \"messages\"\n",
        rate: "{} / 1h",
        action: "defer = \"{level} of {limit} messages per {period}; try again in {wait} ({reference})\"",
        numbers: &[20, 25, 30, 40, 50, 65, 80, 100, 130, 160, 200, 250, 300, 400, 500, 650],
        share: 0.05,
        min_margin: 3,
        has_overrides: true,
    },
    Family {
        name: "messages-a-day",
        comment: "All messages in a day.",
        counted: "count = \"messages\"\n",
        rate: "{} / 1d",
        action: "defer = \"{level} of {limit} messages per {period}; try again in {wait} ({reference})\"",
        numbers: &[50, 65, 80, 100, 130, 160, 200, 250, 300, 400, 500, 650, 800, 1000, 1300],
        share: 0.05,
        min_margin: 3,
        has_overrides: true,
    },
];

/// Number of refused strangers after which an account is locked, from the strictest to the loosest.
pub const LOCK_NUMBERS: [u32; 6] = [20, 25, 30, 40, 50, 80];

impl Family {
    /// Returns the value of `rate` with this number.
    pub fn rate(&self, number: impl std::fmt::Display) -> String {
        self.rate.replace("{}", &number.to_string())
    }

    /// Returns the family's limit as a table of the configuration. `overrides` names the file of `special`, if `special`
    /// has rows for it.
    pub fn limit(&self, number: u32, is_shadow: bool, special: &SpecialUsers, overrides: &str) -> String {
        let rate = self.rate(number);
        let mut text = limit(self.name, self.counted, &rate, is_shadow);
        if !special.overrides.is_empty() {
            let _ = writeln!(text, "overrides = {}", quoted(overrides));
        }
        if !special.exempt.is_empty() {
            let users: Vec<String> = special.exempt.iter().map(|user| quoted(user)).collect();
            let _ = writeln!(text, "except = {{ user = [{}] }}", users.join(", "));
        }
        format!("# {}\n{text}  [[limit.action]]\n  {}\n", self.comment, self.action)
    }

    /// Returns a limit in shadow mode for a trial of one number.
    pub fn candidate(&self, number: u32) -> String {
        limit(&format!("{}-{number}", self.name), self.counted, &self.rate(number), true)
            + &format!("  [[limit.action]]\n  {}\n", self.action)
    }
}

/// Returns the limit that locks an account after refusals.
pub fn lock_limit(number: u32, is_shadow: bool) -> String {
    let counted = format!("count = \"refusals\"\n{STRANGERS}");
    let text = limit("refused-strangers", &counted, &format!("{number} / 1d"), is_shadow);
    format!(
        "# A sender who goes on after refusals, to ever more strangers. The limit counts the refusals of enforced limits\n\
         # only: while the other limits are in shadow mode, it has nothing to count.\n\
         {text}  [[limit.action]]\n  lock = \"until-released\"\n"
    )
}

fn limit(name: &str, counted: &str, rate: &str, is_shadow: bool) -> String {
    let mode = if is_shadow { "mode = \"shadow\"\n" } else { "" };
    format!("[[limit]]\nname = \"{name}\"\n{counted}per = [\"user\"]\nrate = \"{rate}\"\n{mode}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_share_the_permitted_refusals() {
        assert!((FAMILIES.iter().map(|family| family.share).sum::<f64>() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn numbers_ascend() {
        for family in &FAMILIES {
            assert!(family.numbers.is_sorted(), "{}", family.name);
        }
    }
}
