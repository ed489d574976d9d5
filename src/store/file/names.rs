//! Names in the state file: owners of budgets, and owners in the audit trail.

use super::File;
use crate::policy::NameSearch;
use crate::policy::budgets::{Key, Owner};

impl File {
    /// Passes all owners of the audit trail and all keys of budgets to the search, until the search is done.
    pub fn search_names(&self, search: &mut NameSearch) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare("SELECT DISTINCT owner FROM audit")?;
        let mut owners = statement.query([])?;
        while !search.is_done()
            && let Some(row) = owners.next()?
        {
            search.see_owner(&Owner::from_stored(row.get_ref(0)?.as_str()?));
        }
        let mut statement = self.connection.prepare("SELECT key FROM budget")?;
        let mut keys = statement.query([])?;
        while !search.is_done()
            && let Some(row) = keys.next()?
        {
            search.see_key(Key::from_stored(row.get_ref(0)?.as_str()?).borrowed());
        }
        Ok(())
    }
}
