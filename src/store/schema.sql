-- The state file, version 2. The writer is its only writer; whoever reads it by hand opens it read-only.

-- The last known state of each budget, but for what stands in the journal.
CREATE TABLE budget (
    key   TEXT PRIMARY KEY,    -- limit, count, algorithm and owners, separated by U+001F
    at    INTEGER NOT NULL,    -- microseconds since 1970
    level REAL NOT NULL,       -- in units of what is counted, as of then
    seen  BLOB                 -- the filter of values seen, in the form of entry.rs; for limits that count distinct values
) STRICT, WITHOUT ROWID;

-- Commits that are not folded into the budgets yet: each the changed states of many decisions, in the form of entry.rs.
CREATE TABLE journal (
    seq   INTEGER PRIMARY KEY,
    entry BLOB NOT NULL
) STRICT;
