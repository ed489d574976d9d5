//! Enumeration of all budgets in Redis, in bounded memory: one master after the other, some hundred names at a time.

use super::cells::{Confirmed, Wanted};
use super::connection::{Connection, Master};
use super::names::Namer;
use super::reader;
use super::value::Stored;
use crate::policy::budgets::{Budget, Key};
use redis::cmd;
use std::fmt;
use std::sync::Arc;

/// Enumeration that is under way. While it runs, nodes can change budgets: each budget that exists all the time is found
/// at least once, in a state that it had at some moment meanwhile. A budget is found twice if Redis resizes its table at
/// this moment. Budgets are missed if a Cluster moves their slot to another master at this moment.
pub struct Scan<'a> {
    connection: &'a Connection,
    namer: &'a Namer,
    /// Masters to be scanned. The last one is being scanned.
    masters: Vec<Master>,
    /// Place in the last master's table, as Redis gave it; "0" at the beginning.
    cursor: Vec<u8>,
    /// Budgets whose names were found, and whose filters are to be read.
    with_filter: Vec<Wanted>,
    skipped: Skipped,
}

/// Numbers of entries that an enumeration has found and left out, or found in part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Budgets whose names were hashed and sealed with another secret.
    pub foreign: u64,
    /// Entries that are no budgets of this format.
    pub damaged: u64,
    /// Budgets that were found, but whose filter of seen values is missing or damaged.
    pub without_filter: u64,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.foreign, "sealed with another secret-file, and left out"),
            (self.damaged, "damaged, or of another program, and left out"),
            (self.without_filter, "without the values that it had seen, which are lost"),
        ];
        let words = all.iter().filter(|(count, _)| *count > 0).map(|(count, words)| format!("{count} {words}"));
        write!(f, "some budgets are incomplete: {}", words.collect::<Vec<_>>().join("; "))
    }
}

/// Number of names that Redis looks at for one reply.
const NAMES_AT_ONCE: usize = 500;

/// Number of budgets with filters that are read together. A filter can have some megabytes.
const FILTERS_AT_ONCE: usize = 16;

impl<'a> Scan<'a> {
    pub async fn begin(connection: &'a Connection, namer: &'a Namer) -> Result<Self, String> {
        let masters = connection.masters().await.map_err(|error| error.to_string())?;
        let (cursor, skipped) = (b"0".to_vec(), Skipped::default());
        Ok(Self { connection, namer, masters, cursor, with_filter: Vec::new(), skipped })
    }

    /// Returns further budgets, perhaps none; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<(Key, Budget)>>, String> {
        if !self.with_filter.is_empty() {
            return self.read_filters().await.map(Some);
        }
        let Some(master) = self.masters.last() else { return Ok(None) };
        let mut scan = cmd("SCAN");
        scan.arg(&self.cursor).arg("MATCH").arg(self.namer.pattern()).arg("COUNT").arg(NAMES_AT_ONCE);
        scan.arg("TYPE").arg("string");
        let reply = self.connection.send_to(master, scan).await.map_err(|error| error.to_string())?;
        let (cursor, mut names): (Vec<u8>, Vec<Vec<u8>>) =
            redis::from_redis_value(reply).map_err(|error| error.to_string())?;
        if cursor == b"0" {
            self.masters.pop();
        }
        self.cursor = cursor;
        names.retain(|name| self.namer.may_be_state(name));
        self.read_states(names).await.map(Some)
    }

    /// Returns what was left out until now.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Reads the states with these names. Returns the budgets without a filter.
    async fn read_states(&mut self, names: Vec<Vec<u8>>) -> Result<Vec<(Key, Budget)>, String> {
        let states = reader::states(self.connection, names.iter().map(|name| &name[..])).await?;
        let mut budgets = Vec::new();
        for (name, state) in names.iter().zip(states) {
            // A budget without a state has expired since its name was found.
            let Some(state) = state else { continue };
            match self.identify(name, &state) {
                Some((wanted, Confirmed { filter: None, budget: Some(budget), .. })) => {
                    budgets.push((wanted.key, budget));
                }
                Some((wanted, _)) => self.with_filter.push(wanted),
                None => {}
            }
        }
        Ok(budgets)
    }

    /// Reads some of the budgets with filters.
    async fn read_filters(&mut self) -> Result<Vec<(Key, Budget)>, String> {
        let rest = self.with_filter.len().saturating_sub(FILTERS_AT_ONCE);
        let wanted = self.with_filter.split_off(rest);
        let mut budgets = Vec::with_capacity(wanted.len());
        for read in reader::read(self.connection, wanted).await? {
            if let Some(budget) = read.stored() {
                self.skipped.without_filter += u64::from(budget.seen.is_none());
                budgets.push((read.key, budget));
            }
        }
        Ok(budgets)
    }

    /// Returns the budget of an entry; counts the entry as left out if there is none.
    fn identify(&mut self, name: &[u8], state: &[u8]) -> Option<(Wanted, Confirmed)> {
        let stored = Stored::decode(state).map(|(stored, text)| (stored.state.level, self.namer.open(text)));
        if let Some((level, Some(text))) = &stored {
            let key = Key::from_stored(text);
            let names = Arc::new(self.namer.names(key.borrowed()));
            if *names.state == *name && level.is_finite() {
                return Some((Wanted { key, names, filter: None }, Confirmed::decode(Some(state))));
            }
        }
        match stored {
            // In clear text, the filter and the log of a budget have names like that of a state.
            _ if name.ends_with(b":f") || name.ends_with(b":l") => {}
            Some((level, _)) if level.is_finite() => self.skipped.foreign += 1,
            _ => self.skipped.damaged += 1,
        }
        None
    }
}
