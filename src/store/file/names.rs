//! Names in the state file: owners of budgets.

use super::File;
use crate::policy::NameSearch;
use crate::policy::budgets::Key;

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
}
