-- Schema 2: runs in an archive. Their rows stay, and so do those of their calls, without their contents; the rest is erased.

-- The objects of the archive, from before they are written until after they are deleted.
CREATE TABLE pack (
    pack_key   INTEGER PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,        -- the digest of its contents
    state      TEXT NOT NULL,               -- writing, kept, dirty, gone
    runs       INTEGER NOT NULL DEFAULT 0,
    bytes      INTEGER NOT NULL DEFAULT 0,
    changed_at REAL NOT NULL
);
CREATE INDEX pack_work ON pack (state) WHERE state <> 'kept';

ALTER TABLE run ADD COLUMN pack INTEGER;    -- the pack that it is in, if it has left the tables
ALTER TABLE run ADD COLUMN pack_start INTEGER;
ALTER TABLE run ADD COLUMN pack_size INTEGER;
CREATE INDEX run_unpacked ON run (started_at) WHERE pack IS NULL;
CREATE INDEX run_packed ON run (pack) WHERE pack IS NOT NULL;
