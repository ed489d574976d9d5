//! Names that the state file knows: owners of budgets.

use super::File;
use crate::policy::NameSearch;
use crate::policy::budgets::Key;

impl File {
    /// Shows the search all keys of budgets, until nothing is left to be found.
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
