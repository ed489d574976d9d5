-- The state file, version 3. The writer is its only writer; whoever reads it by hand opens it read-only.

-- The last known state of each budget, but for what stands in the journal.
CREATE TABLE budget (
    hash  INTEGER NOT NULL,    -- of the key, by which the budgets lie: SipHash-1-3 without a key
    key   TEXT NOT NULL,       -- limit, count, algorithm and owners, separated by U+001F
    at    INTEGER NOT NULL,    -- microseconds since 1970
    level REAL NOT NULL,       -- in units of what is counted, as of then
    seen  BLOB,                -- the filter of values seen, in the form of entry.rs; for limits that count distinct values
    PRIMARY KEY (hash, key)
) STRICT, WITHOUT ROWID;

-- Commits that are not folded into the budgets yet: each the changed states of many decisions, in the form of entry.rs.
CREATE TABLE journal (
    seq   INTEGER PRIMARY KEY,
    entry BLOB NOT NULL
) STRICT;

-- The limits that budgets belong to, and when each was last in force: some time after that its budgets go.
CREATE TABLE kind (
    name     TEXT PRIMARY KEY, -- limit, count, algorithm and kinds of owners, separated by slashes
    in_force INTEGER NOT NULL  -- microseconds since 1970
) STRICT, WITHOUT ROWID;
