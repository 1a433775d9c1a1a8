-- Schema 3: which journal this is, and which log lies beside it, if one does. Then pieces of runs are there and not here, and
-- without it no run may be taken for whole.

CREATE TABLE {schema}.journal (
    id  text COLLATE "C" NOT NULL,  -- a log belongs to one journal
    log text COLLATE "C"            -- as options of the journal's URL
);
INSERT INTO {schema}.journal (id) VALUES (gen_random_uuid()::text);
