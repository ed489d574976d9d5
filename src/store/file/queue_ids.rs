//! Queue ids in the state file.

use super::File;
use crate::store::queue_ids::{AddressHash, Batch, Marks, OutcomeOptions, QueueIdKey, SentMessage};
use crate::time::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Error, Row, params};

/// Maximum rows of one queue id or message id that are read. Only another program could have written more.
const MAX_FOUND: i64 = 50;

/// Number of old rows that one commit deletes for each row that it adds, and in any case.
const DELETED_PER_ADDED: usize = 2;
const MIN_DELETED: usize = 100;

/// Columns of a row, in the order of [`message`].
const COLUMNS: &str = "queue_id, upstream, at, message_id, user, client, sender, listener, recipients, marks";

impl File {
    /// Writes a batch, and deletes rows from before `before` and beyond the maximum number, in one transaction. `stored`
    /// is the number of rows. Returns the new number of rows.
    pub fn write_queue_ids(
        &mut self,
        batch: &Batch,
        stored: u64,
        options: OutcomeOptions,
        before: Timestamp,
    ) -> rusqlite::Result<u64> {
        let transaction = self.connection.transaction()?;
        let mut added = 0;
        for SentMessage { key, message_id, user, client, sender, listener, recipients, .. } in &batch.messages {
            let sql = format!("INSERT OR IGNORE INTO sent ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, '')");
            let octets: Vec<u8> = recipients.iter().flat_map(|hash| hash.0.to_be_bytes()).collect();
            let (at, client) = (key.at.micros(), client.to_string());
            let row =
                params![key.queue_id, key.upstream, at, message_id, user, client, sender, listener, octets.as_slice()];
            added += transaction.prepare_cached(&sql)?.execute(row)?;
        }
        for (key, mark) in &batch.marks {
            let sql = "UPDATE sent SET marks = marks || ?1 WHERE queue_id = ?2 AND upstream = ?3 AND at = ?4";
            let row = params![format!("{mark:016x}"), key.queue_id, key.upstream, key.at.micros()];
            transaction.prepare_cached(sql)?.execute(row)?;
        }
        let stored = stored + added as u64;
        let excess = usize::try_from(stored.saturating_sub(options.max_messages)).unwrap_or(usize::MAX);
        let at_most = (DELETED_PER_ADDED * added).max(MIN_DELETED);
        let sql = "DELETE FROM sent WHERE (queue_id, upstream, at) IN \
                   (SELECT queue_id, upstream, at FROM sent WHERE at < ?1 ORDER BY at LIMIT ?2)";
        let mut delete = transaction.prepare_cached(sql)?;
        let deleted = delete.execute(params![before.micros(), at_most as i64])?;
        let excess = excess.saturating_sub(deleted).min(at_most);
        let deleted = deleted + if excess > 0 { delete.execute(params![i64::MAX, excess as i64])? } else { 0 };
        drop(delete);
        transaction.commit()?;
        Ok(stored.saturating_sub(deleted as u64))
    }

    /// Returns the number of queue ids.
    pub fn count_queue_ids(&self) -> rusqlite::Result<u64> {
        self.connection.query_row("SELECT count(*) FROM sent", [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
    }

    /// Reads the messages with this queue id from between two times, the newest first.
    pub fn messages_of_queue_id(
        &self,
        queue_id: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> rusqlite::Result<Vec<SentMessage>> {
        self.messages("queue_id", queue_id, from, to)
    }

    /// Reads the messages with this `Message-ID` from between two times, the newest first.
    pub fn messages_of_message_id(
        &self,
        message_id: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> rusqlite::Result<Vec<SentMessage>> {
        self.messages("message_id", message_id, from, to)
    }

    fn messages(
        &self,
        column: &str,
        value: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> rusqlite::Result<Vec<SentMessage>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM sent WHERE {column} = ?1 AND at BETWEEN ?2 AND ?3 ORDER BY at DESC LIMIT ?4"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params![value, from.micros(), to.micros(), MAX_FOUND], message)?;
        rows.collect()
    }
}

fn message(row: &Row<'_>) -> rusqlite::Result<SentMessage> {
    let text = |at| Ok::<Box<str>, Error>(row.get_ref(at)?.as_str()?.into());
    let optional = |at| Ok::<Option<Box<str>>, Error>(row.get_ref(at)?.as_str_or_null()?.map(Into::into));
    let client = text(5)?.parse().map_err(|error| Error::FromSqlConversionFailure(5, Type::Text, Box::new(error)))?;
    let recipients: Vec<u8> = row.get(8)?;
    let recipients = recipients
        .chunks_exact(8)
        .map(|octets| AddressHash(octets.iter().fold(0, |number, octet| number << 8 | u64::from(*octet))));
    let marks = text(9)?;
    let marks = marks
        .as_bytes()
        .chunks_exact(16)
        .filter_map(|digits| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
    Ok(SentMessage {
        key: QueueIdKey { queue_id: text(0)?, upstream: text(1)?, at: Timestamp::from_micros(row.get(2)?) },
        message_id: optional(3)?,
        user: optional(4)?,
        client,
        sender: text(6)?,
        listener: text(7)?,
        recipients: recipients.collect(),
        marks: Marks(marks.collect()),
    })
}
