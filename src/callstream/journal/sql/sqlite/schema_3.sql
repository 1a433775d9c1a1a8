-- Schema 3: which journal this is, and which log is beside it, if there is one. In that case pieces of runs are in that log,
-- and without it no run may be taken for complete.

CREATE TABLE journal (
    id  TEXT NOT NULL,  -- a log belongs to one journal
    log TEXT            -- as options of the journal's URL
);
INSERT INTO journal (id) VALUES (lower(hex(randomblob(16))));
