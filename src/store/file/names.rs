//! Names in the state file: owners of budgets.

use super::File;
use crate::engine::State;
use crate::policy::NameSearch;
use crate::policy::budgets::{Key, KeyRef};
use crate::time::Timestamp;

impl File {
    /// Passes all keys of budgets to the search, until the search is done.
    pub fn search_names(&self, search: &mut NameSearch) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare("SELECT key FROM budget")?;
        let mut keys = statement.query([])?;
        while !search.is_done()
            && let Some(row) = keys.next()?
        {
            search.see_key(Key::from_stored(row.get_ref(0)?.as_str()?).borrowed());
        }
        Ok(())
    }

    /// Calls `take` with the key and the state of each budget in the table, until `take` returns false. Returns whether
    /// all budgets were read.
    pub fn for_each_budget(&self, mut take: impl FnMut(KeyRef<'_>, State) -> bool) -> rusqlite::Result<bool> {
        let mut statement = self.connection.prepare("SELECT key, at, level FROM budget")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let state = State { at: Timestamp::from_micros(row.get(1)?), level: row.get(2)? };
            if !take(Key::from_stored(row.get_ref(0)?.as_str()?).borrowed(), state) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
