//! Imported limit: printed as a `[[limit]]` for `weir.toml`, with comments.

use super::source_line::{SourceLine, plain};
use crate::policy::limit::{Algorithm, Charge, Count, Mode};
use crate::policy::matching::Field;
use crate::policy::request::Stage;
use std::fmt;

/// Imported limit.
#[derive(Clone, Debug)]
pub struct Limit {
    pub name: String,
    /// Comments: the place of the limit in the source, and the differences between the limit and the source.
    pub comments: Vec<String>,
    /// Parts of the source that the limit does not express. The limit still applies to the same mail.
    pub lost: Vec<(SourceLine, String)>,
    /// Differences between the source and the limit. If there are any, the limit is in shadow mode.
    pub shadow_reasons: Vec<(SourceLine, String)>,
    pub budget: Budget,
    pub stage: Option<Stage>,
    /// Conditions of `match`: the limit applies to mail that meets all these conditions.
    pub matches: Vec<Condition>,
    /// Tables of `except`: the limit does not apply to mail that meets all conditions of one of these tables.
    pub except: Vec<Vec<Condition>>,
    /// Name of the file with the override table.
    pub overrides: Option<String>,
    pub rung: Rung,
}

/// Budget of an imported limit.
#[derive(Clone, Debug)]
pub enum Budget {
    Own {
        count: Count,
        per: Vec<Field>,
        rate: String,
        algorithm: Algorithm,
        /// The burst, written as a number.
        burst: Option<String>,
        charge: Charge,
        distinct: Option<Field>,
    },
    /// The budget of the limit with this name, which the imported limit watches.
    Watched(String),
}

/// A condition: one key and value of `match` or `except`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub key: &'static str,
    pub value: MatchValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatchValue {
    Flag(bool),
    Texts(Vec<String>),
}

/// The level from which a limit acts, and its actions on mail from this level on.
#[derive(Clone, Debug)]
pub struct Rung {
    pub at: f64,
    /// The key of each action, and its value in TOML.
    pub actions: Vec<(&'static str, String)>,
}

impl Limit {
    /// Returns a limit with this budget, without conditions and actions.
    pub fn new(budget: Budget) -> Self {
        Self {
            name: budget.name(),
            comments: Vec::new(),
            lost: Vec::new(),
            shadow_reasons: Vec::new(),
            budget,
            stage: None,
            matches: Vec::new(),
            except: Vec::new(),
            overrides: None,
            rung: Rung { at: 1.0, actions: Vec::new() },
        }
    }

    pub fn comment(&mut self, words: impl fmt::Display) {
        self.comments.push(plain(&words.to_string()));
    }

    /// Records a part of the source that the limit does not express. The limit keeps its mode.
    pub fn lose(&mut self, place: &SourceLine, words: impl fmt::Display) {
        self.lost.push((place.clone(), plain(&words.to_string())));
    }

    /// Records a difference because of which the limit can apply to other mail than its source. The limit is in shadow
    /// mode until an administrator has checked it.
    pub fn shadow(&mut self, place: &SourceLine, words: impl fmt::Display) {
        self.shadow_reasons.push((place.clone(), plain(&words.to_string())));
    }

    pub fn is_in_shadow(&self) -> bool {
        !self.shadow_reasons.is_empty()
    }

    /// Returns whether all mail of one budget has the same value for this key of `match`. A condition on such a key
    /// excludes whole budgets, never a part of a budget. A limit that watches another budget counts nothing: returns
    /// true.
    pub fn owns(&self, key: &str) -> bool {
        let Budget::Own { per, .. } = &self.budget else { return true };
        per.iter().any(|field| {
            let implied = match field {
                Field::User => ["user-domain", "authenticated"],
                Field::UserDomain => ["authenticated"; 2],
                Field::Sender => ["sender-domain"; 2],
                Field::Recipient => ["recipient-domain"; 2],
                _ => return field.name() == key,
            };
            field.name() == key || implied.contains(&key)
        })
    }

    /// Returns whether the limit can treat the recipients of one message differently.
    pub fn depends_on_recipient(&self) -> bool {
        let Budget::Own { per, distinct, .. } = &self.budget else { return false };
        let conditions = self.matches.iter().chain(self.except.iter().flatten());
        per.iter().chain(distinct).any(|field| field.is_of_recipient())
            || conditions.into_iter().any(|condition| condition.key.starts_with("recipient"))
    }

    /// Adds a condition to `match`. Returns false if `match` has another value for the same key.
    pub fn add_match(&mut self, condition: Condition) -> bool {
        let is_there = |known: &Condition| known.key == condition.key;
        if let Some(known) = self.matches.iter().find(|known| is_there(known)) {
            return *known == condition;
        }
        self.matches.push(condition);
        true
    }

    pub fn act(&mut self, verb: &'static str, value: impl Into<String>) {
        self.rung.actions.push((verb, value.into()));
    }
}

impl Budget {
    /// Returns a name for the limit, made of its count and the fields of `per`.
    fn name(&self) -> String {
        match self {
            Self::Watched(name) => format!("{name}-look"),
            Self::Own { count, per, distinct, .. } => {
                let new = match distinct {
                    None => String::new(),
                    Some(Field::Recipient) => "new-".to_owned(),
                    Some(what) => format!("new-{}-", what.name().replace('/', "-")),
                };
                let fields: Vec<_> = per.iter().map(|field| field.name().replace('/', "-")).collect();
                match fields.is_empty() {
                    true => format!("all-{new}{}", count.name()),
                    false => format!("{new}{}-per-{}", count.name(), fields.join("-")),
                }
            }
        }
    }
}

/// Returns a quoted TOML string.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", plain(text).replace('\\', "\\\\").replace('"', "\\\""))
}

fn list(texts: &[String]) -> String {
    match texts {
        [one] => quoted(one),
        _ => format!("[{}]", texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ")),
    }
}

fn table(conditions: &[Condition]) -> String {
    let key = |condition: &Condition| {
        let value = match &condition.value {
            MatchValue::Flag(flag) => flag.to_string(),
            MatchValue::Texts(texts) => list(texts),
        };
        format!("{} = {value}", condition.key)
    };
    format!("{{ {} }}", conditions.iter().map(key).collect::<Vec<_>>().join(", "))
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, per, rate, algorithm, burst, charge, distinct) = match self {
            Self::Watched(name) => return writeln!(f, "watch = {}", quoted(name)),
            Self::Own { count, per, rate, algorithm, burst, charge, distinct } => {
                (count, per, rate, algorithm, burst, charge, distinct)
            }
        };
        let per: Vec<String> = per.iter().map(|field| quoted(&field.name())).collect();
        writeln!(f, "count = \"{}\"\nper = [{}]\nrate = {}", count.name(), per.join(", "), quoted(rate))?;
        if *algorithm != Algorithm::Ewma {
            writeln!(f, "algorithm = \"{}\"", algorithm.name())?;
        }
        if let Some(burst) = burst {
            writeln!(f, "burst = {burst}")?;
        }
        // For these counts Weir's default of `charge` is "sent", so `charge` is always written.
        let has_modes = matches!(count, Count::Messages | Count::Recipients | Count::Bytes) && distinct.is_none();
        if *charge != Charge::Accepted || has_modes {
            writeln!(f, "charge = \"{}\"", charge.name())?;
        }
        match distinct {
            Some(what) => writeln!(f, "distinct = \"{}\"", what.name()),
            None => Ok(()),
        }
    }
}

/// Writes the limit in TOML, without its comments.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[[limit]]\nname = {}\n{}", quoted(&self.name), self.budget)?;
        if let Some(stage) = self.stage {
            writeln!(f, "stage = \"{}\"", stage.name())?;
        }
        if self.is_in_shadow() {
            writeln!(f, "mode = \"{}\"", Mode::Shadow.name())?;
        }
        if !self.matches.is_empty() {
            writeln!(f, "match = {}", table(&self.matches))?;
        }
        let except: Vec<String> = self.except.iter().map(|one| table(one)).collect();
        match &except[..] {
            [] => {}
            [one] => writeln!(f, "except = {one}")?,
            several => writeln!(f, "except = [{}]", several.join(", "))?,
        }
        if let Some(overrides) = &self.overrides {
            writeln!(f, "overrides = {}", quoted(overrides))?;
        }
        if self.rung.actions.is_empty() {
            return Ok(());
        }
        writeln!(f, "  [[limit.action]]")?;
        if self.rung.at != 1.0 {
            writeln!(f, "  at = {:?}", self.rung.at)?;
        }
        self.rung.actions.iter().try_for_each(|(verb, value)| writeln!(f, "  {verb} = {value}"))
    }
}
