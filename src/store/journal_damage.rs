//! Report of damaged journal entries.

/// Logs that this entry of the journal is damaged.
pub fn warn_damaged(entry: &str) {
    tracing::error!(entry, "an entry of the state file's journal is damaged: some of its charges are lost");
}
