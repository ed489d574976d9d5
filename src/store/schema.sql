-- The state file, version 10. Weir's writer is its only writer; open it read-only to read it by hand.

-- The last state of each budget, without the changes in the journal.
CREATE TABLE IF NOT EXISTS budget (
    hash  INTEGER NOT NULL,    -- of the key, by which budgets are sorted: SipHash-1-3 without a secret
    key   TEXT NOT NULL,       -- limit, count, algorithm and owners, separated by U+001F
    at    INTEGER NOT NULL,    -- microseconds since 1970
    level REAL NOT NULL,       -- in units of the count, at that time
    seen  BLOB,                -- filter of seen values, as in journal.rs; for limits that count distinct values
    times BLOB,                -- times of the last events, as in journal.rs; for limits that measure regularity
    PRIMARY KEY (hash, key)
) STRICT, WITHOUT ROWID;

-- Number that marks the files of this file's journal: see file/journal_files.rs.
CREATE TABLE IF NOT EXISTS journal_id (
    id INTEGER NOT NULL
) STRICT;
INSERT INTO journal_id SELECT random() WHERE NOT EXISTS (SELECT 1 FROM journal_id);

-- The limits that budgets belong to, and when each was last in force: its budgets are deleted some time after that.
CREATE TABLE IF NOT EXISTS kind (
    name     TEXT PRIMARY KEY, -- limit, count, algorithm and fields of owners, separated by slashes
    in_force INTEGER NOT NULL  -- microseconds since 1970
) STRICT, WITHOUT ROWID;

-- Exceptions from the limits: grants and suspensions that hold, or held until a moment ago.
CREATE TABLE IF NOT EXISTS exception (
    of_limit TEXT NOT NULL,    -- limit of a grant; empty for a suspension
    owner    TEXT NOT NULL,    -- owner of the budget, or the suspended owner: as in the keys of budgets
    rate     TEXT,             -- rate of a grant, as in the configuration
    since    INTEGER NOT NULL, -- microseconds since 1970
    until    INTEGER NOT NULL,
    author   TEXT NOT NULL,    -- name of an administrator, or "limit " and the name of the limit that began it
    reason   TEXT NOT NULL,
    lenient  INTEGER NOT NULL DEFAULT 0, -- 1: a suspension that lets mail to the recipients of [suspensions] pass
    password TEXT,             -- of a suspension that a new password of the user ends: fingerprint of the password hash
                               -- at its beginning, or empty until it is known; NULL: no new password ends it
    known_to TEXT,             -- of a lock: memory whose recipients the owner may still write to; NULL: no lock
    PRIMARY KEY (of_limit, owner)
) STRICT, WITHOUT ROWID;

-- Register of direct ways: networks that may connect to mail servers outside, or receive mail, and quarantined ones.
CREATE TABLE IF NOT EXISTS egress (
    network    TEXT NOT NULL,    -- address, or network without host bits
    quarantine INTEGER NOT NULL, -- 1: a quarantine; 0: a registration
    rule       TEXT NOT NULL,    -- out, in, out-and-in, quarantine
    owner      TEXT NOT NULL,    -- the person or office that is responsible
    since      INTEGER NOT NULL, -- microseconds since 1970
    until      INTEGER NOT NULL,
    author     TEXT NOT NULL,    -- name of an administrator
    reason     TEXT NOT NULL,
    PRIMARY KEY (network, quarantine)
) STRICT, WITHOUT ROWID;

-- Audit trail of exceptions, of direct ways and of resets. Records older than a year are deleted.
CREATE TABLE IF NOT EXISTS audit (
    id       INTEGER PRIMARY KEY,
    at       INTEGER NOT NULL, -- microseconds since 1970
    act      TEXT NOT NULL,    -- granted, revoked, suspended, released, reset, ended, and others: see audit.rs
    of_limit TEXT,
    owner    TEXT NOT NULL,
    rate     TEXT,
    until    INTEGER,
    was      TEXT,             -- level of a budget before its reset
    author   TEXT NOT NULL,
    reason   TEXT NOT NULL
) STRICT;

CREATE INDEX IF NOT EXISTS audit_at ON audit (at);

-- Login history: the successful logins of the last weeks, one row for each user and client network. A row takes about
-- 120 octets.
CREATE TABLE IF NOT EXISTS login (
    user      TEXT NOT NULL,    -- as in the keys of budgets
    network   TEXT NOT NULL,    -- IPv4 /24 or IPv6 /56
    first     INTEGER NOT NULL, -- time of the first login, in microseconds since 1970
    last      INTEGER NOT NULL, -- time of the latest login; country, tls and mechanism are those of this login
    logins    INTEGER NOT NULL, -- number of logins
    country   TEXT,
    tls       TEXT,             -- version
    mechanism TEXT,
    helo      TEXT,             -- normalized names in EHLO, separated by spaces, the latest first
    PRIMARY KEY (user, network)
) STRICT, WITHOUT ROWID;

-- Records of refusals of the last days. The oldest ones are deleted. In a flood, one record stands for many refusals.
CREATE TABLE IF NOT EXISTS refusal (
    id       INTEGER PRIMARY KEY, -- the order in which the records began
    at       INTEGER NOT NULL,    -- time of the first refusal, in milliseconds since 1970
    tag      TEXT NOT NULL,       -- of the group, as in references; only its first 2 digits if all owners are coalesced
    number   INTEGER,             -- of the refusal, as in references; NULL if refusals are coalesced
    last     INTEGER NOT NULL,    -- time of the last refusal
    times    INTEGER NOT NULL,    -- number of refusals
    user     TEXT,
    client   TEXT,
    of_limit TEXT,
    octets   INTEGER NOT NULL,    -- approximate octets of the record in this file
    body     TEXT NOT NULL,       -- the decision, as JSON; of the first refusal if refusals are coalesced
    owner    TEXT,                -- user=NAME or client=NETWORK; NULL if the refusals of several owners are coalesced
    shadow   INTEGER NOT NULL DEFAULT 0 -- 1 if nothing was refused: a limit in shadow or soft mode would have refused
) STRICT;

CREATE INDEX IF NOT EXISTS refusal_at ON refusal (at);

-- All columns that the evidence of a limit needs, so that the bodies are not read.
CREATE INDEX IF NOT EXISTS refusal_evidence ON refusal (of_limit, last, shadow, owner, times, at, tag, number);

-- Sums over the table of refusals, in one row, which the triggers keep.
CREATE TABLE IF NOT EXISTS refusal_sum (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    records INTEGER NOT NULL,    -- number of records of refusals, without those of shadow or soft mode
    octets  INTEGER NOT NULL     -- of all records
) STRICT;

INSERT OR IGNORE INTO refusal_sum VALUES (1, 0, 0);

CREATE TRIGGER IF NOT EXISTS refusal_added AFTER INSERT ON refusal BEGIN
    UPDATE refusal_sum SET records = records + (NEW.shadow = 0), octets = octets + NEW.octets;
END;

CREATE TRIGGER IF NOT EXISTS refusal_deleted AFTER DELETE ON refusal BEGIN
    UPDATE refusal_sum SET records = records - (OLD.shadow = 0), octets = octets - OLD.octets;
END;

-- Notices that have not been delivered yet: one row for each notice and target.
CREATE TABLE IF NOT EXISTS notice (
    id     TEXT NOT NULL,    -- of the notice
    target TEXT NOT NULL,    -- webhook, command, mail and an address, or user and an address
    notify TEXT NOT NULL,    -- name of the notification in the configuration
    at     INTEGER NOT NULL, -- microseconds since 1970
    body   TEXT NOT NULL,    -- the notice, as JSON
    PRIMARY KEY (id, target)
) STRICT, WITHOUT ROWID;

-- Open episodes of notifications: the limit is exceeded, and the notice of it has been made.
CREATE TABLE IF NOT EXISTS episode (
    name TEXT PRIMARY KEY,   -- notification, limit and key of the budget, separated by U+001E
    body TEXT NOT NULL       -- the episode, as JSON
) STRICT, WITHOUT ROWID;

-- Messages of the last days, under the queue ids that upstreams gave them, so that outcomes of deliveries can be
-- attributed. The oldest ones are deleted. A row takes about 200 octets, and 8 more for each recipient.
CREATE TABLE IF NOT EXISTS sent (
    queue_id   TEXT NOT NULL,
    upstream   TEXT NOT NULL,    -- name in the configuration
    at         INTEGER NOT NULL, -- time of the upstream's reply, in microseconds since 1970
    message_id TEXT,
    user       TEXT,
    client     TEXT NOT NULL,
    sender     TEXT NOT NULL,
    listener   TEXT NOT NULL,
    recipients BLOB NOT NULL,    -- hashes of 8 octets
    marks      TEXT NOT NULL,    -- hashes of the outcomes that have been counted, 16 digits each
    PRIMARY KEY (queue_id, at, upstream)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS sent_at ON sent (at);

CREATE INDEX IF NOT EXISTS sent_message_id ON sent (message_id) WHERE message_id IS NOT NULL;
