-- Schema 3: which journal this is, and which log lies beside it, if one does. Then pieces of runs are there and not here, and
-- without it no run may be taken for whole.

CREATE TABLE journal (
    id  TEXT NOT NULL,  -- a log belongs to one journal
    log TEXT            -- as options of the journal's URL
);
INSERT INTO journal (id) VALUES (lower(hex(randomblob(16))));
