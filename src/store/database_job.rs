//! Jobs of the database writer, beside folding.

use super::hashed_key::HashedKey;
use super::login_history::LoginKey;
use crate::time::Timestamp;

/// Job of the database writer.
pub enum DatabaseJob {
    /// Deletes each of these budgets from the table, unless its row has changed since the given time.
    DeleteBudgets(Vec<(HashedKey, Timestamp)>),
    /// Checkpoints the remaining pages of the write-ahead log, so that the next commit can reset the log.
    Checkpoint,
    /// Records in the file that limits of these kinds are in force at this time. A kind is a limit's name, count,
    /// algorithm and fields, such as `l/recipients/ewma/user`.
    RecordKinds(Vec<String>, Timestamp),
    /// Deletes the records of these kinds of limits (see [`DatabaseJob::RecordKinds`]).
    DeleteKinds(Vec<String>),
    /// Deletes audit records from before this time.
    PruneAudit(Timestamp),
    /// Writes logins that are not in the file yet.
    WriteLogins,
    /// Deletes each of these rows of the login history, unless there was a login since the given time.
    DeleteLogins(Vec<(LoginKey, Timestamp)>),
    /// Writes records of refusals that are not in the file yet.
    WriteRefusals,
    /// Deletes records of refusals from before this time.
    PruneRefusals(Timestamp),
    /// Writes changes of notices and of their episodes that are not in the file yet.
    WriteNotices,
    /// Writes queue ids, and marks of counted outcomes, that are not in the file yet.
    WriteQueueIds,
    /// Writes the changed exceptions and the audit records that are not in the file yet.
    WriteExceptions,
}

impl DatabaseJob {
    /// Returns the word for the log and the metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::DeleteBudgets(_) => "delete-budgets",
            Self::Checkpoint => "checkpoint",
            Self::RecordKinds(..) => "record-limits",
            Self::DeleteKinds(_) => "delete-limits",
            Self::PruneAudit(_) => "delete-audit",
            Self::WriteLogins => "write-logins",
            Self::DeleteLogins(_) => "delete-logins",
            Self::WriteRefusals => "write-refusals",
            Self::PruneRefusals(_) => "delete-refusals",
            Self::WriteNotices => "write-notices",
            Self::WriteQueueIds => "write-queue-ids",
            Self::WriteExceptions => "write-exceptions",
        }
    }
}
