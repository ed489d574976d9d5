-- The state file, version 4. The writer is its only writer; whoever reads it by hand opens it read-only.

-- The last known state of each budget, but for what stands in the journal.
CREATE TABLE IF NOT EXISTS budget (
    hash  INTEGER NOT NULL,    -- of the key, by which the budgets lie: SipHash-1-3 without a key
    key   TEXT NOT NULL,       -- limit, count, algorithm and owners, separated by U+001F
    at    INTEGER NOT NULL,    -- microseconds since 1970
    level REAL NOT NULL,       -- in units of what is counted, as of then
    seen  BLOB,                -- the filter of values seen, in the form of entry.rs; for limits that count distinct values
    PRIMARY KEY (hash, key)
) STRICT, WITHOUT ROWID;

-- Commits that are not folded into the budgets yet: each the changed states of many decisions, in the form of entry.rs.
CREATE TABLE IF NOT EXISTS journal (
    seq   INTEGER PRIMARY KEY,
    entry BLOB NOT NULL
) STRICT;

-- The limits that budgets belong to, and when each was last in force: some time after that its budgets go.
CREATE TABLE IF NOT EXISTS kind (
    name     TEXT PRIMARY KEY, -- limit, count, algorithm and kinds of owners, separated by slashes
    in_force INTEGER NOT NULL  -- microseconds since 1970
) STRICT, WITHOUT ROWID;

-- Exceptions from the limits: grants and suspensions that hold, or did until a moment ago.
CREATE TABLE IF NOT EXISTS exception (
    of_limit TEXT NOT NULL,    -- of a grant; empty of a suspension
    owner    TEXT NOT NULL,    -- whose budget it is, or who is suspended: as in the keys of budgets
    rate     TEXT,             -- of a grant, as people write it
    since    INTEGER NOT NULL, -- microseconds since 1970
    until    INTEGER NOT NULL,
    author   TEXT NOT NULL,    -- somebody's name, or "limit " and that of the limit that began it
    reason   TEXT NOT NULL,
    PRIMARY KEY (of_limit, owner)
) STRICT, WITHOUT ROWID;

-- What was done about exceptions, and to budgets by hand. What is older than a year goes.
CREATE TABLE IF NOT EXISTS audit (
    id       INTEGER PRIMARY KEY,
    at       INTEGER NOT NULL, -- microseconds since 1970
    act      TEXT NOT NULL,    -- granted, revoked, suspended, released, reset, ended
    of_limit TEXT,
    owner    TEXT NOT NULL,
    rate     TEXT,
    until    INTEGER,
    was      TEXT,             -- how full a budget was that was reset
    author   TEXT NOT NULL,
    reason   TEXT NOT NULL
) STRICT;

CREATE INDEX IF NOT EXISTS audit_at ON audit (at);
