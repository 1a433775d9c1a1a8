-- PostgreSQL. The clock is the server's; {now} is its time in seconds. {schema} is the schema, {name} its name.

-- == schema ==

-- name: has_schema
SELECT EXISTS (
    SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = pg_class.relnamespace
    WHERE pg_namespace.nspname = '{name}' AND pg_class.relname = 'schema_version')

-- A table that would be in the way.
-- name: foreign_table
SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace('{schema}') AND relname IN (
    'schema_version', 'lease', 'run', 'live', 'source', 'tool_call', 'record', 'archive', 'forgotten', 'pack', 'journal',
    'runs', 'calls', 'tool_arg_delta')
ORDER BY relname LIMIT 1

-- One process at a time creates the schema. IF NOT EXISTS would need the right to create schemas even if this one exists.
-- name: lock_schema
DO $create$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('callstream'), hashtext('{name}'));
    IF to_regnamespace('{schema}') IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
END
$create$

-- name: read_version
SELECT version, oldest_code FROM {schema}.schema_version

-- name: clear_version
DELETE FROM {schema}.schema_version

-- name: write_version
INSERT INTO {schema}.schema_version (version, oldest_code) VALUES (:version, :oldest_code)

-- name: read_journal
SELECT id, log FROM {schema}.journal

-- name: note_log
UPDATE {schema}.journal SET log = :name

-- == leases ==

-- name: renew_writer
INSERT INTO {schema}.lease (name, holder, renewed_at, expires_at)
VALUES ('writer:' || :writer, :writer, clock_timestamp(), clock_timestamp() + make_interval(secs => :ttl))
ON CONFLICT (name) DO UPDATE SET renewed_at = excluded.renewed_at, expires_at = excluded.expires_at

-- Checks whether anything can be written: a lease that is never looked up.
-- name: write_check
INSERT INTO {schema}.lease (name, holder, renewed_at, expires_at)
VALUES ('check:' || :writer, :holder, clock_timestamp(), clock_timestamp())
ON CONFLICT (name) DO UPDATE
SET holder = excluded.holder, renewed_at = excluded.renewed_at, expires_at = excluded.expires_at

-- name: hold_lease
INSERT INTO {schema}.lease (name, holder, renewed_at, expires_at)
VALUES (:name, :writer, clock_timestamp(), clock_timestamp() + make_interval(secs => :ttl))
ON CONFLICT (name) DO UPDATE
SET holder = excluded.holder, renewed_at = excluded.renewed_at, expires_at = excluded.expires_at
WHERE lease.holder = excluded.holder OR lease.expires_at < clock_timestamp()

-- name: release_leases
DELETE FROM {schema}.lease WHERE holder = :writer

-- name: writers
SELECT holder FROM {schema}.lease WHERE name LIKE 'writer:%'

-- name: live_writers
SELECT holder FROM {schema}.lease WHERE name LIKE 'writer:%' AND expires_at >= clock_timestamp()

-- name: drop_dead_leases
DELETE FROM {schema}.lease
WHERE expires_at < clock_timestamp() - interval '1 hour'
  AND holder NOT IN (SELECT writer FROM {schema}.live WHERE ended_at IS NULL)

-- == writing ==

-- name: take_turn
INSERT INTO {schema}.lease (name, holder, renewed_at, expires_at)
VALUES ('writer:' || :writer, :writer, clock_timestamp(), clock_timestamp() + make_interval(secs => :ttl))
ON CONFLICT (name) DO UPDATE SET turn = lease.turn + 1
RETURNING turn

-- name: load_run
SELECT wanted.run_id,
       coalesce(run.run_key, nextval(pg_get_serial_sequence('{schema}.run', 'run_key'))::integer) AS run_key,
       live.writer, run.epoch, run.started_at, coalesce(run.last_seq, last.seq), coalesce(last.at_ms, 0),
       run.outcome IS NOT NULL
FROM unnest(:run_ids::text[]) AS wanted (run_id)
LEFT JOIN {schema}.run ON run.run_id = wanted.run_id
LEFT JOIN {schema}.live ON live.run_key = run.run_key
LEFT JOIN LATERAL {schema}.last_record_1(run.run_key) AS last ON run.run_key IS NOT NULL

-- name: load_run_calls
SELECT call_id, run_key, number, state, args_seq IS NOT NULL FROM {schema}.tool_call WHERE run_key = ANY(:run_keys::integer[]) ORDER BY number

-- name: load_run_sources
SELECT run_key, response_id, author, message_id, number FROM {schema}.source
WHERE run_key = ANY(:run_keys::integer[]) ORDER BY number

-- name: load_call
SELECT call_id, run_key, number, state, args_seq IS NOT NULL FROM {schema}.tool_call WHERE call_id = ANY(:call_ids::text[])

-- name: busy_threads
SELECT live.only_of, run.run_id FROM {schema}.live JOIN {schema}.run ON run.run_key = live.run_key
WHERE live.only_of = ANY(:thread_ids::text[])

-- name: ask_to_stop
UPDATE {schema}.live SET stop_reason = coalesce(live.stop_reason, :reason) FROM {schema}.run
WHERE run.run_id = :run_id AND live.run_key = run.run_key AND live.ended_at IS NULL

-- name: asked_to_stop
SELECT run.run_id, live.stop_reason FROM {schema}.live JOIN {schema}.run ON run.run_key = live.run_key
WHERE live.stop_reason IS NOT NULL AND live.ended_at IS NULL AND live.writer = :writer

-- name: append
SELECT {schema}.append_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::json, $11, $12)

-- name: copy_piece
INSERT INTO {schema}.record (run_key, seq, at_ms, source, call, kind, body) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING

-- Records of a compacted or erased run are in the archive, or nowhere. The lock keeps the others from being compacted.
-- name: lock_live
SELECT run_key FROM {schema}.live WHERE run_key = ANY(:run_keys::integer[]) ORDER BY run_key FOR SHARE

-- name: is_compacted
SELECT compacted FROM {schema}.run WHERE run_key = :run_key

-- name: stored_rows
SELECT kind, body FROM {schema}.record WHERE run_key = :run_key AND seq BETWEEN :first AND :last ORDER BY seq

-- == reading ==

-- name: read_run
SELECT run_key, started_at, outcome IS NOT NULL, coalesce(last_seq, (SELECT seq FROM {schema}.last_record_1(run_key))),
       compacted
FROM {schema}.run WHERE run_id = :run_id

-- name: read_log
SELECT * FROM {schema}.read_log_1(:run_key, :after, :limit)

-- name: read_archive
SELECT archive.seq, archive.at_ms, archive.kind, archive.body,
       source.response_id, source.author, source.message_id, tool_call.call_id, archive.first_seq
FROM {schema}.archive
LEFT JOIN {schema}.source ON source.run_key = archive.run_key AND source.number = archive.source
LEFT JOIN {schema}.tool_call ON tool_call.run_key = archive.run_key AND tool_call.number = archive.call
WHERE archive.run_key = :run_key AND archive.seq > :after
ORDER BY archive.seq LIMIT :limit

-- name: read_runs
SELECT run.run_id, run.started_at, wanted.place, piece.seq, piece.at_ms, piece.kind, piece.body,
       source.response_id, source.author, source.message_id, tool_call.call_id, piece.first_seq
FROM unnest(:run_ids::text[]) WITH ORDINALITY AS wanted (run_id, place)
JOIN {schema}.run ON run.run_id = wanted.run_id
JOIN LATERAL (
    SELECT record.seq, record.at_ms, record.kind, record.body, record.source, record.call, NULL::integer AS first_seq
    FROM {schema}.record WHERE record.run_key = run.run_key
    UNION ALL
    SELECT archive.seq, archive.at_ms, archive.kind, archive.body, archive.source, archive.call,
           archive.first_seq
    FROM {schema}.archive WHERE archive.run_key = run.run_key
) AS piece ON true
LEFT JOIN {schema}.source ON source.run_key = run.run_key AND source.number = piece.source
LEFT JOIN {schema}.tool_call ON tool_call.run_key = run.run_key AND tool_call.number = piece.call
ORDER BY wanted.place, coalesce(piece.first_seq, piece.seq)

-- name: read_run_heads
SELECT run.run_id, run.run_key, run.started_at, run.compacted, coalesce(live.writer, '')
FROM {schema}.run LEFT JOIN {schema}.live ON live.run_key = run.run_key WHERE run.run_id = ANY(:run_ids::text[])

-- name: read_writers
SELECT writer FROM {schema}.live UNION SELECT holder FROM {schema}.lease WHERE expires_at >= clock_timestamp()

-- name: read_sources
SELECT run_key, number, response_id, author, message_id FROM {schema}.source WHERE run_key = ANY(:run_keys::integer[])
ORDER BY run_key, number

-- name: read_call_ids
SELECT run_key, number, call_id FROM {schema}.tool_call WHERE run_key = ANY(:run_keys::integer[])

-- name: folded_ranges
SELECT first_seq, seq FROM {schema}.archive WHERE run_key = :run_key AND first_seq IS NOT NULL

-- name: followed_runs
SELECT run.run_id, coalesce(run.last_seq, (SELECT seq FROM {schema}.last_record_1(run.run_key)))
FROM {schema}.run LEFT JOIN {schema}.live ON live.run_key = run.run_key
WHERE run.run_id = ANY(:run_ids::text[]) AND live.writer IS DISTINCT FROM :writer

-- name: read_call
SELECT tool_call.call_id, tool_call.name, tool_call.state, run.run_id, run.thread_id, tool_call.provider_id,
       tool_call.message_id, tool_call.signature, tool_call.encoding, tool_call.reason, tool_call.detail,
       tool_call.result, tool_call.error, tool_call.ran_early, tool_call.started_at, tool_call.updated_at,
       tool_call.run_key, tool_call.number, tool_call.first_seq,
       coalesce(tool_call.args_seq, run.last_seq, (SELECT seq FROM {schema}.last_record_1(run.run_key)))
FROM {schema}.tool_call JOIN {schema}.run ON run.run_key = tool_call.run_key
WHERE tool_call.call_id = :call_id

-- name: read_call_pieces
SELECT * FROM {schema}.read_call_pieces_1(:run_key, :number, :first, :last)

-- name: list_calls
SELECT tool_call.call_id, tool_call.name, tool_call.state, run.run_id, run.thread_id, tool_call.provider_id,
       tool_call.message_id, tool_call.signature, tool_call.encoding, tool_call.reason, tool_call.detail,
       tool_call.result, tool_call.error, tool_call.ran_early, tool_call.started_at, tool_call.updated_at
FROM {schema}.tool_call JOIN {schema}.run ON run.run_key = tool_call.run_key
WHERE {where}
ORDER BY tool_call.started_at {way}, tool_call.run_key {way}, tool_call.number {way} LIMIT :limit

-- The epoch also rises when a process merely ends the run of a dead one.
-- name: list_runs
SELECT run.run_id, run.thread_id, run.principal, run.outcome, run.reason, run.started_at, run.ended_at,
       coalesce(run.last_seq, (SELECT seq FROM {schema}.last_record_1(run.run_key))),
       greatest(1, run.epoch - coalesce(run.outcome = 'failed' AND run.reason = 'interrupted', false)::integer)
FROM {schema}.run
WHERE {where}
ORDER BY run.run_key DESC LIMIT :limit

-- name: taken_call_ids
SELECT call_id FROM {schema}.tool_call WHERE call_id = ANY(:call_ids::text[])

-- name: count_all
SELECT (SELECT count(*) FROM {schema}.run),
       (SELECT count(*) FROM {schema}.live WHERE ended_at IS NULL),
       (SELECT count(*) FROM {schema}.tool_call),
       (SELECT coalesce(sum(coalesce(last_seq, (SELECT seq FROM {schema}.last_record_1(run_key)))), 0)::bigint
        FROM {schema}.live JOIN {schema}.run USING (run_key))
           + (SELECT count(*) FROM {schema}.archive)

-- name: count_leases
SELECT count(*) FROM {schema}.lease WHERE name LIKE 'writer:%' AND expires_at >= clock_timestamp()

-- name: left_open
SELECT run.run_id FROM {schema}.live JOIN {schema}.run ON run.run_key = live.run_key
WHERE live.ended_at IS NULL AND NOT EXISTS (
    SELECT FROM {schema}.lease
    WHERE lease.name = 'writer:' || live.writer
      AND (lease.expires_at >= clock_timestamp()
           OR lease.renewed_at < pg_postmaster_start_time()
              AND pg_postmaster_start_time() + (lease.expires_at - lease.renewed_at) >= clock_timestamp()))
ORDER BY live.run_key

-- name: stored_bytes
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = '{schema}.run'::regclass) AND relkind = 'r'

-- == housekeeping ==

-- name: fence_dead
INSERT INTO {schema}.lease (name, holder, renewed_at, expires_at)
SELECT 'writer:' || dead.writer, dead.writer, clock_timestamp(), clock_timestamp()
FROM (
    SELECT DISTINCT live.writer FROM {schema}.live
    WHERE live.ended_at IS NULL AND live.writer <> :writer
      AND NOT EXISTS (
          SELECT FROM {schema}.lease
          WHERE lease.name = 'writer:' || live.writer
            AND (lease.expires_at >= clock_timestamp()
                 -- While the server was down no lease could be renewed, so older ones count again from the restart.
                 OR lease.renewed_at < pg_postmaster_start_time()
                    AND pg_postmaster_start_time() + (lease.expires_at - lease.renewed_at) >= clock_timestamp()))
    ORDER BY live.writer LIMIT :limit
) AS dead
ON CONFLICT (name) DO UPDATE SET turn = lease.turn + 1
RETURNING holder

-- name: orphaned_runs
SELECT run.run_id, run.run_key, live.writer, run.epoch, run.started_at, last.seq, last.at_ms, false
FROM {schema}.live JOIN {schema}.run ON run.run_key = live.run_key, LATERAL {schema}.last_record_1(run.run_key) AS last
WHERE live.ended_at IS NULL AND live.writer = ANY(:dead::text[]) AND (:run_id::text IS NULL OR run.run_id = :run_id)
  AND live.run_key > :after
ORDER BY live.run_key LIMIT :limit
FOR UPDATE OF live

-- name: take_over
WITH taken AS (
    UPDATE {schema}.run SET epoch = epoch + 1 WHERE run_key = ANY(:run_keys::integer[]) RETURNING run_key)
UPDATE {schema}.live SET writer = :writer FROM taken WHERE live.run_key = taken.run_key

-- name: events_of_run
SELECT run_key, kind, body FROM {schema}.record
WHERE run_key = ANY(:run_keys::integer[]) AND kind IN (0, 8) ORDER BY run_key, seq

-- name: compactable_runs
SELECT run.run_id FROM {schema}.live JOIN {schema}.run ON run.run_key = live.run_key
WHERE live.ended_at < {now} - :age::double precision
ORDER BY live.ended_at LIMIT :limit

-- name: lock_run
SELECT run_key, compacted FROM {schema}.run WHERE run_id = :run_id FOR UPDATE

-- name: log_of_run
SELECT record.seq, record.at_ms, record.source, record.call, record.kind, record.body, source.message_id
FROM {schema}.record
LEFT JOIN {schema}.source ON source.run_key = record.run_key AND source.number = record.source
WHERE record.run_key = :run_key ORDER BY record.seq

-- name: insert_archive
INSERT INTO {schema}.archive (run_key, seq, at_ms, source, call, kind, body, first_seq)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)

-- name: delete_log
DELETE FROM {schema}.record WHERE run_key = ANY(:run_keys::integer[])

-- name: mark_compacted
WITH no_longer AS (DELETE FROM {schema}.live WHERE run_key = :run_key)
UPDATE {schema}.run SET compacted = true WHERE run_key = :run_key

-- name: give_back
SELECT {schema}.give_back_1()

-- name: has_forgotten
SELECT true FROM {schema}.forgotten WHERE thread = :thread

-- In order, so that two processes that forget the same threads do not wait for each other.
-- name: insert_forgotten
INSERT INTO {schema}.forgotten (thread) SELECT unnest(:threads::text[]) ORDER BY 1 ON CONFLICT DO NOTHING

-- name: forgettable_runs
SELECT run.run_key, run.run_id, run.thread_id, run.principal FROM {schema}.run
WHERE {where} ORDER BY run.started_at LIMIT :limit FOR UPDATE

-- name: delete_archive
DELETE FROM {schema}.archive WHERE run_key = ANY(:run_keys::integer[])

-- name: delete_sources
DELETE FROM {schema}.source WHERE run_key = ANY(:run_keys::integer[])

-- name: delete_calls
DELETE FROM {schema}.tool_call WHERE run_key = ANY(:run_keys::integer[])

-- name: delete_run
WITH no_longer AS (DELETE FROM {schema}.live WHERE run_key = ANY(:run_keys::integer[]))
DELETE FROM {schema}.run WHERE run_key = ANY(:run_keys::integer[])

-- == packs ==

-- name: sync_commit
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'

-- name: due_for_pack
SELECT run_key, run_id, thread_id, principal, {now} - ended_at
FROM {schema}.run
WHERE pack IS NULL AND started_at < {now} - :age::double precision AND compacted
  AND ended_at < {now} - :age::double precision
  AND NOT EXISTS (
      SELECT FROM {schema}.tool_call
      WHERE tool_call.run_key = run.run_key AND tool_call.state IN ('running_early', 'executing', 'awaiting'))
ORDER BY started_at LIMIT :limit

-- name: begin_pack
INSERT INTO {schema}.pack (name, state, changed_at) VALUES (:name, 'writing', clock_timestamp())

-- name: keep_pack
UPDATE {schema}.pack SET state = 'kept', runs = :runs, bytes = :bytes, changed_at = clock_timestamp()
WHERE name = :name AND state = 'writing' RETURNING pack_key

-- name: pack_runs
UPDATE {schema}.run
SET pack = :pack, pack_start = (new.place ->> 2)::integer, pack_size = (new.place ->> 3)::integer
FROM json_array_elements(:places::json) AS new (place)
WHERE run.run_key = (new.place ->> 0)::integer AND run.run_id = new.place ->> 1
  AND run.pack IS NOT DISTINCT FROM (SELECT pack_key FROM {schema}.pack WHERE name = :instead_of)

-- name: empty_calls
UPDATE {schema}.tool_call SET signature = NULL, detail = NULL, result = NULL, error = NULL
WHERE run_key = ANY(:run_keys::integer[]) AND coalesce(signature, detail, result, error) IS NOT NULL

-- Only a pack that holds no run.
-- name: give_up_pack
UPDATE {schema}.pack SET state = 'gone', changed_at = clock_timestamp()
WHERE name = :name AND NOT EXISTS (SELECT FROM {schema}.run WHERE run.pack = pack.pack_key)

-- name: give_up_stale
UPDATE {schema}.pack SET state = 'gone', changed_at = clock_timestamp()
WHERE state = 'writing' AND changed_at < clock_timestamp() - make_interval(secs => :age)

-- name: drop_pack
DELETE FROM {schema}.pack WHERE name = :name AND state = 'gone'

-- name: soil_packs
UPDATE {schema}.pack SET state = 'dirty'
WHERE state = 'kept' AND pack_key IN (SELECT pack FROM {schema}.run WHERE run_key = ANY(:run_keys::integer[]))

-- name: list_packs
SELECT name FROM {schema}.pack WHERE state <> 'kept' AND state = :state ORDER BY pack_key

-- name: newest_pack
SELECT name FROM {schema}.pack WHERE state IN ('kept', 'dirty') ORDER BY pack_key DESC LIMIT 1

-- name: runs_in_pack
SELECT run.run_key, run.run_id, pack.name, run.pack_start, run.pack_size
FROM {schema}.pack JOIN {schema}.run ON run.pack = pack.pack_key WHERE pack.name = :name ORDER BY run.pack_start

-- name: places_of_runs
SELECT run.run_key, run.run_id, pack.name, run.pack_start, run.pack_size
FROM {schema}.run JOIN {schema}.pack ON pack.pack_key = run.pack WHERE run.run_id = ANY(:run_ids::text[])

-- name: pack_figures
SELECT count(*), coalesce(sum(runs), 0)::bigint, coalesce(sum(bytes), 0)::bigint FROM {schema}.pack
WHERE state IN ('kept', 'dirty')

-- name: has_packs
SELECT true FROM {schema}.pack WHERE state IN ('kept', 'dirty') LIMIT 1

-- == copying ==

-- name: run_sizes
SELECT run_key, run_id, outcome IS NULL, coalesce(last_seq, (SELECT seq FROM {schema}.last_record_1(run_key))), compacted
FROM {schema}.run WHERE run_key > :after AND run_key <= coalesce(:last::integer, run_key) ORDER BY run_key LIMIT :limit

-- name: whole_runs
SELECT run.run_key, run_id, thread_id, principal, outcome, reason, started_at, run.ended_at, last_seq, compacted, epoch,
       CASE WHEN outcome IS NULL THEN live.writer ELSE '' END, outcome IS NULL AND live.only_of IS NOT NULL
FROM {schema}.run LEFT JOIN {schema}.live ON live.run_key = run.run_key
WHERE run.run_key = ANY(:run_keys::integer[]) ORDER BY run.run_key

-- name: whole_calls
SELECT run_key, number, call_id, name, state, provider_id, message_id, signature, encoding, reason, detail, result, error,
       ran_early, started_at, updated_at, first_seq, args_seq
FROM {schema}.tool_call WHERE run_key = ANY(:run_keys::integer[]) ORDER BY run_key, number

-- name: whole_records
SELECT run_key, seq, at_ms, source, call, kind, body, NULL FROM {schema}.record WHERE run_key = ANY(:run_keys::integer[])
UNION ALL
SELECT run_key, seq, at_ms, source, call, kind, body, first_seq FROM {schema}.archive WHERE run_key = ANY(:run_keys::integer[])
ORDER BY 1, 2

-- name: list_forgotten
SELECT thread FROM {schema}.forgotten WHERE thread > :after ORDER BY thread LIMIT :limit

-- Runs that begin later get keys after these.
-- name: advance_keys
SELECT setval(pg_get_serial_sequence('{schema}.run', 'run_key'), greatest(:last::integer, (
    SELECT coalesce(max(run_key), 1) FROM {schema}.run)))

-- == conditions that a list may have ==

-- name: where_any
true

-- name: where_run_id
run.run_id = :run_id

-- name: where_thread_id
run.thread_id = :thread_id

-- name: where_principal
run.principal = :principal

-- name: where_active
run.run_key IN (SELECT run_key FROM {schema}.live WHERE ended_at IS NULL)

-- name: where_ended
run.ended_at IS NOT NULL

-- The index is on the beginnings, which never change; a run that ended before then also began before then.
-- name: where_ended_before
run.started_at < :ended_before AND run.ended_at < :ended_before

-- name: where_states
tool_call.state = ANY(:states::text[])

-- There is no index on these alone.
-- name: where_open
true

-- name: where_provider_id
tool_call.provider_id = :provider_id
