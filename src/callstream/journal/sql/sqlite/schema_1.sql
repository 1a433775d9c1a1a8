-- Schema 1. Numbers instead of names in the log, because a record of eight characters must not weigh a hundred bytes.
-- Times are seconds since 1970 in UTC; the views show them as ISO 8601.

CREATE TABLE schema_version (
    version     INTEGER NOT NULL,  -- what this store is
    oldest_code INTEGER NOT NULL   -- the oldest code that can use it
);

-- Who is alive, by this machine's clock: a row per process (writer:…), and a row per duty that one process at a time has.
CREATE TABLE lease (
    name       TEXT PRIMARY KEY,
    holder     TEXT NOT NULL,
    expires_at REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE run (
    run_key    INTEGER PRIMARY KEY,
    run_id     TEXT NOT NULL UNIQUE,
    thread_id  TEXT NOT NULL,
    principal  TEXT,
    outcome    TEXT,
    reason     TEXT,
    started_at REAL NOT NULL,
    ended_at   REAL,
    last_seq   INTEGER,            -- set when it has ended; until then it is the log's last number, so records change no row
    compacted  INTEGER NOT NULL DEFAULT 0,
    writer     TEXT NOT NULL,      -- the process that owns it
    epoch      INTEGER NOT NULL,   -- rises with every change of owner
    exclusive  INTEGER NOT NULL DEFAULT 0,  -- no other such run in its thread until it ends
    stop_reason TEXT               -- set when it was asked to stop
);
CREATE UNIQUE INDEX run_exclusive ON run (thread_id) WHERE exclusive AND outcome IS NULL;
CREATE INDEX run_stop ON run (writer) WHERE stop_reason IS NOT NULL AND outcome IS NULL;
CREATE INDEX run_thread ON run (thread_id);
CREATE INDEX run_principal ON run (principal) WHERE principal IS NOT NULL;
CREATE INDEX run_due ON run (compacted, ended_at);

-- What records carry beside their event. It changes once per response, so a record holds only its number. Records that
-- carry nothing have 0, for which there is no row.
CREATE TABLE source (
    run_key     INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    response_id TEXT,
    author      TEXT,
    message_id  TEXT,
    PRIMARY KEY (run_key, number)
) WITHOUT ROWID;

CREATE TABLE tool_call (
    run_key     INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    call_id     TEXT NOT NULL UNIQUE,
    name        TEXT NOT NULL,
    state       TEXT NOT NULL,
    provider_id TEXT,
    message_id  TEXT,
    signature   TEXT,
    encoding    TEXT NOT NULL,
    reason      TEXT,
    detail      TEXT,
    result      TEXT,              -- JSON
    error       TEXT,
    ran_early   INTEGER NOT NULL DEFAULT 0,  -- its tool began before the response had ended
    started_at  REAL NOT NULL,
    updated_at  REAL NOT NULL,     -- of the last change of state
    first_seq   INTEGER NOT NULL,  -- its first record
    args_seq    INTEGER,           -- the record that ended its arguments
    PRIMARY KEY (run_key, number)
) WITHOUT ROWID;
CREATE INDEX tool_call_open ON tool_call (state) WHERE state NOT IN ('completed', 'failed', 'released', 'discarded');
CREATE INDEX tool_call_provider ON tool_call (provider_id) WHERE provider_id IS NOT NULL;

-- The log of runs that are not compacted.
CREATE TABLE record (
    run_key INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    at_ms   INTEGER NOT NULL,      -- since the run started
    source  INTEGER NOT NULL,
    call    INTEGER,               -- the number of the call, for pieces of arguments
    kind    INTEGER NOT NULL,      -- 0 event, 1 piece of arguments, 2 of text, 3 of reasoning; +8: body is ASCII JSON
    body    TEXT NOT NULL,         -- the piece itself, or the event as JSON
    PRIMARY KEY (run_key, seq)
) WITHOUT ROWID;

-- The log of compacted runs. A run is in one of the two as a whole.
CREATE TABLE archive (
    run_key   INTEGER NOT NULL,
    seq       INTEGER NOT NULL,
    at_ms     INTEGER NOT NULL,
    source    INTEGER NOT NULL,
    call      INTEGER,
    kind      INTEGER NOT NULL,
    body      TEXT NOT NULL,
    first_seq INTEGER,             -- the first of the pieces that were folded, if any; seq is the last
    PRIMARY KEY (run_key, seq)
) WITHOUT ROWID;

-- Threads whose runs were permanently erased, so that nothing brings them back: a digest of thread and principal, since
-- neither may be kept.
CREATE TABLE forgotten (
    thread TEXT PRIMARY KEY
) WITHOUT ROWID;

-- For people and reports.

CREATE VIEW runs AS
    SELECT run_id, thread_id, principal, coalesce(outcome, 'running') AS state, reason,
           strftime('%Y-%m-%dT%H:%M:%fZ', started_at, 'unixepoch') AS started_at,
           strftime('%Y-%m-%dT%H:%M:%fZ', ended_at, 'unixepoch') AS ended_at
    FROM run;

CREATE VIEW calls AS
    SELECT tool_call.call_id, run.run_id, run.thread_id, run.principal, tool_call.name AS tool, tool_call.state,
           tool_call.reason, tool_call.detail, tool_call.error, tool_call.result,
           strftime('%Y-%m-%dT%H:%M:%fZ', tool_call.started_at, 'unixepoch') AS started_at,
           strftime('%Y-%m-%dT%H:%M:%fZ', tool_call.updated_at, 'unixepoch') AS updated_at,
           tool_call.provider_id, tool_call.message_id, tool_call.ran_early
    FROM tool_call JOIN run ON run.run_key = tool_call.run_key;

CREATE VIEW tool_arg_delta (call_id, seq, text) AS
    SELECT tool_call.call_id, record.seq, record.body
    FROM record JOIN tool_call ON tool_call.run_key = record.run_key AND tool_call.number = record.call
    WHERE record.kind IN (1, 9)
    UNION ALL
    SELECT tool_call.call_id, archive.seq, archive.body
    FROM archive JOIN tool_call ON tool_call.run_key = archive.run_key AND tool_call.number = archive.call
    WHERE archive.kind IN (1, 9);
