-- Schema 3: which log lies beside this store, if one does. Then pieces of runs are there and not here, and nobody may take the
-- runs for whole without it.

CREATE TABLE {schema}.noted_log (
    name text COLLATE "C" NOT NULL  -- as options of the journal's URL; one row at most
);
