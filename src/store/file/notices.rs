//! Notices and episodes in the state file.

use super::File;
use crate::store::notices::{Batch, EpisodeRow, NoticeKey, NoticeRow, StoredNotices};
use crate::time::Timestamp;
use rusqlite::{Row, params};

/// Maximum rows of each table that are read. The table has fewer rows, unless another program has written to it.
const MAX_ROWS: i64 = 50_000;

impl File {
    /// Writes changes of notices and episodes, in one transaction.
    pub fn write_notices(&mut self, batch: &Batch) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for (key, row) in &batch.notices {
            match row {
                Some(row) => transaction
                    .prepare_cached("INSERT OR REPLACE INTO notice VALUES (?1, ?2, ?3, ?4, ?5)")?
                    .execute(params![key.id, key.target, row.notify, row.at.micros(), row.body])?,
                None => transaction
                    .prepare_cached("DELETE FROM notice WHERE id = ?1 AND target = ?2")?
                    .execute(params![key.id, key.target])?,
            };
        }
        for (name, row) in &batch.episodes {
            match row {
                Some(row) => transaction
                    .prepare_cached("INSERT OR REPLACE INTO episode VALUES (?1, ?2)")?
                    .execute(params![name, row.body])?,
                None => transaction.prepare_cached("DELETE FROM episode WHERE name = ?1")?.execute([name])?,
            };
        }
        transaction.commit()
    }

    /// Reads all notices and episodes. The oldest notices come first.
    pub fn notices(&self) -> rusqlite::Result<StoredNotices> {
        let sql = "SELECT id, target, notify, at, body FROM notice ORDER BY at, id LIMIT ?1";
        let mut statement = self.connection.prepare(sql)?;
        let notices = statement.query_map([MAX_ROWS], notice_row)?.collect::<rusqlite::Result<_>>()?;
        let mut statement = self.connection.prepare("SELECT name, body FROM episode LIMIT ?1")?;
        let episode = |row: &Row<'_>| Ok(EpisodeRow { name: row.get(0)?, body: row.get(1)? });
        let episodes = statement.query_map([MAX_ROWS], episode)?.collect::<rusqlite::Result<_>>()?;
        Ok(StoredNotices { notices, episodes })
    }
}

fn notice_row(row: &Row<'_>) -> rusqlite::Result<NoticeRow> {
    let key = NoticeKey { id: row.get(0)?, target: row.get(1)? };
    Ok(NoticeRow { key, notify: row.get(2)?, at: Timestamp::from_micros(row.get(3)?), body: row.get(4)? })
}
