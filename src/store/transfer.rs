//! Copies all budgets from a state file or Redis to another state file or Redis.

use super::dump_error::DumpError;
use super::file::{self, OpenError};
use super::hashed_key::HashedKey;
use super::jsonl::Line;
use super::shared::{PutEffect, SharedBulk, SharedOptions};
use super::shared_writer::{SharedWriter, Written};
use super::whole_file::{StateReader, fill};
use crate::policy::Policy;
use crate::policy::budgets::{Budget, Key};
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Where budgets are.
pub enum Place {
    File(PathBuf),
    Redis(SharedOptions),
}

/// Budgets that were copied.
pub struct Copied {
    /// Numbers of budgets of each kind, such as `l/recipients/ewma/user`.
    pub kinds: BTreeMap<String, Written>,
    /// Reason why some budgets were left out; `None` if all were copied.
    pub left_out: Option<DumpError>,
}

/// An opened [`Place`] from which budgets are read.
enum Source<'a> {
    /// The lock keeps a Weir process from changing the file meanwhile.
    File(Box<StateReader<'a>>, std::fs::File),
    Redis(Box<SharedBulk>),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Redis(options) => f.write_str(&options.servers.join(", ")),
        }
    }
}

/// Copies all budgets. No Weir process is allowed to use a state file meanwhile. A budget that the target has already
/// becomes the [larger](Policy::larger) of both, so that a copy can be repeated. After an error, a state file is
/// unchanged, and Redis may have some of the budgets.
pub fn copy(from: &Place, to: &Place, policy: &Policy, now: Timestamp) -> Result<Copied, DumpError> {
    let source = Source::open(from)?;
    match to {
        Place::Redis(options) => {
            let shared = SharedBulk::open(options)?;
            let mut writer = SharedWriter::new(&shared, policy, now);
            let left_out = source.each(|key, budget| writer.put(key, budget))?;
            Ok(Copied { kinds: writer.end()?, left_out })
        }
        Place::File(path) => fill(path, |writer| {
            let mut kinds: BTreeMap<String, Written> = BTreeMap::new();
            let wrong = |error| DumpError::Sqlite(path.clone(), error);
            let left_out = source.each(|key, budget| {
                let hashed_key = HashedKey::of(key);
                let stored = writer.budget(&hashed_key).map_err(wrong)?;
                let of_kind = kinds.entry(hashed_key.key.kind()).or_default();
                let (budget, effect) = match stored {
                    None => (budget, PutEffect::New),
                    Some(stored) => {
                        let larger = policy.larger(&hashed_key.key, stored.clone(), budget);
                        let is_same = larger == stored;
                        (larger, if is_same { PutEffect::Unchanged } else { PutEffect::Changed })
                    }
                };
                of_kind.count(effect);
                match effect {
                    PutEffect::Unchanged => Ok(()),
                    _ => writer.put(Line::Budget(hashed_key, budget)).map_err(wrong),
                }
            })?;
            Ok(Copied { kinds, left_out })
        }),
    }
}

impl<'a> Source<'a> {
    fn open(place: &'a Place) -> Result<Self, DumpError> {
        match place {
            Place::File(path) => {
                // Locking would create a file beside one that does not exist.
                std::fs::metadata(path).map_err(|error| OpenError::Io(path.clone(), error))?;
                let lock = file::lock(path)?;
                Ok(Self::File(Box::new(StateReader::open(path)?), lock))
            }
            Place::Redis(options) => Ok(Self::Redis(Box::new(SharedBulk::open(options)?))),
        }
    }

    /// Calls `take` with each budget, until `take` returns an error. Returns the reason why some were left out.
    fn each(self, mut take: impl FnMut(Key, Budget) -> Result<(), DumpError>) -> Result<Option<DumpError>, DumpError> {
        match self {
            Self::File(mut reader, _lock) => {
                reader.each(|hashed_key, budget| take(hashed_key.key, budget))?;
                Ok(reader.end().err())
            }
            Self::Redis(shared) => {
                let skipped =
                    shared.each(|budgets| budgets.into_iter().try_for_each(|(key, budget)| take(key, budget)))?;
                Ok(DumpError::of_skipped(&shared, skipped))
            }
        }
    }
}
