-- Schema 3: which journal this is, and which log is beside it, if there is one. In that case pieces of runs are in that log,
-- and without it no run may be taken for complete.

CREATE TABLE {schema}.journal (
    id  text COLLATE "C" NOT NULL,  -- a log belongs to one journal
    log text COLLATE "C"            -- as options of the journal's URL
);
INSERT INTO {schema}.journal (id) VALUES (gen_random_uuid()::text);
