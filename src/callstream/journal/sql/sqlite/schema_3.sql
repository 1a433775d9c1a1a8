-- Schema 3: which journal this is, and which log lies beside it, if one does. Then pieces of runs are there and not here, and
-- nobody may take the runs for whole without it.

CREATE TABLE journal (
    id  TEXT NOT NULL,  -- a log belongs to one journal
    log TEXT            -- as options of the journal's URL
);
INSERT INTO journal (id) VALUES (lower(hex(randomblob(16))));
