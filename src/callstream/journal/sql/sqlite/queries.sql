-- SQLite. The clock is the machine's; {now} is its time in seconds, to the millisecond.

-- == schema ==

-- name: has_schema
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'schema_version'

-- Any table: a file belongs to one program.
-- name: foreign_table
SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name LIMIT 1

-- The transaction has the lock.
-- name: lock_schema
SELECT 1

-- name: read_version
SELECT version, oldest_code FROM schema_version

-- name: clear_version
DELETE FROM schema_version

-- name: write_version
INSERT INTO schema_version (version, oldest_code) VALUES (:version, :oldest_code)

-- name: read_journal
SELECT id, log FROM journal

-- name: note_log
UPDATE journal SET log = :name

-- == leases ==

-- name: renew_writer
INSERT INTO lease (name, holder, expires_at)
VALUES ('writer:' || :writer, :writer, {now} + :ttl)
ON CONFLICT (name) DO UPDATE SET expires_at = excluded.expires_at

-- Checks whether anything can be written: a lease that is never looked up.
-- name: write_check
INSERT INTO lease (name, holder, expires_at)
VALUES ('check:' || :writer, :holder, {now})
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at

-- name: hold_lease
INSERT INTO lease (name, holder, expires_at)
VALUES (:name, :writer, {now} + :ttl)
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
WHERE lease.holder = excluded.holder OR lease.expires_at < {now}

-- name: release_leases
DELETE FROM lease WHERE holder = :writer

-- name: writers
SELECT holder FROM lease WHERE name LIKE 'writer:%'

-- name: live_writers
SELECT holder FROM lease WHERE name LIKE 'writer:%' AND expires_at >= {now}

-- name: drop_dead_leases
DELETE FROM lease
WHERE expires_at < {now} - 3600
  AND holder NOT IN (SELECT writer FROM run WHERE compacted = 0 AND ended_at IS NULL)

-- == writing ==

-- name: load_run
SELECT wanted.value, coalesce(run.run_key, (SELECT coalesce(max(run_key), 0) FROM run) + 1 + wanted.key), run.writer, run.epoch,
       run.started_at,
       coalesce(run.last_seq, (SELECT max(record.seq) FROM record WHERE record.run_key = run.run_key)),
       coalesce((SELECT at_ms FROM record WHERE record.run_key = run.run_key ORDER BY seq DESC LIMIT 1), 0),
       run.outcome IS NOT NULL
FROM json_each(:run_ids) AS wanted LEFT JOIN run ON run.run_id = wanted.value

-- name: load_run_calls
SELECT call_id, run_key, number, state, args_seq IS NOT NULL FROM tool_call
WHERE run_key IN (SELECT value FROM json_each(:run_keys)) ORDER BY run_key, number

-- name: load_run_sources
SELECT run_key, response_id, author, message_id, number FROM source
WHERE run_key IN (SELECT value FROM json_each(:run_keys)) ORDER BY run_key, number

-- name: load_call
SELECT call_id, run_key, number, state, args_seq IS NOT NULL FROM tool_call WHERE call_id IN (SELECT value FROM json_each(:call_ids))

-- name: insert_run
INSERT INTO run (run_key, run_id, thread_id, principal, started_at, writer, epoch, exclusive)
VALUES (:key, :run_id, :thread_id, :principal, :started_at, :writer, :epoch, :exclusive)

-- name: busy_threads
SELECT thread_id, run_id FROM run
WHERE exclusive AND outcome IS NULL AND thread_id IN (SELECT value FROM json_each(:thread_ids))

-- name: ask_to_stop
UPDATE run SET stop_reason = coalesce(stop_reason, :reason) WHERE run_id = :run_id AND outcome IS NULL

-- name: asked_to_stop
SELECT run_id, stop_reason FROM run WHERE stop_reason IS NOT NULL AND outcome IS NULL AND writer = :writer

-- name: check_runs
SELECT run_id, run_key, writer, epoch,
       coalesce(last_seq, (SELECT max(record.seq) FROM record WHERE record.run_key = run.run_key))
FROM run WHERE run_key IN (SELECT value FROM json_each(:run_keys))

-- name: end_run
UPDATE run SET outcome = :outcome, reason = :reason, ended_at = :ended_at, last_seq = :last_seq, writer = :writer, epoch = :epoch
WHERE run_key = :key

-- name: insert_record
INSERT INTO record (run_key, seq, at_ms, source, call, kind, body) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: copy_piece
INSERT INTO record (run_key, seq, at_ms, source, call, kind, body) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING

-- Records of a compacted or erased run are in the archive, or nowhere.
-- name: lock_live
SELECT run_key FROM run WHERE run_key IN (SELECT value FROM json_each(:run_keys)) AND NOT compacted

-- name: insert_source
INSERT INTO source (run_key, number, response_id, author, message_id) VALUES (?, ?, ?, ?, ?)

-- name: insert_call
INSERT INTO tool_call (
    run_key, number, call_id, name, state, provider_id, message_id, signature, encoding,
    reason, detail, result, error, ran_early, started_at, updated_at, first_seq, args_seq)
VALUES (
    :run_key, :number, :call_id, :name, :state, :provider_id, :message_id, :signature, :encoding,
    :reason, :detail, :result, :error, coalesce(:ran_early, 0), :started_at, :updated_at, :first_seq, :args_seq)

-- name: advance_call
UPDATE tool_call SET
    state = :state,
    updated_at = :updated_at,
    signature = coalesce(:signature, signature),
    reason = coalesce(:reason, reason),
    detail = coalesce(:detail, detail),
    result = coalesce(:result, result),
    error = coalesce(:error, error),
    ran_early = coalesce(:ran_early, ran_early),
    args_seq = coalesce(:args_seq, args_seq)
WHERE run_key = :run_key AND number = :number AND state = :old_state

-- name: is_compacted
SELECT compacted FROM run WHERE run_key = :run_key

-- name: stored_rows
SELECT kind, body FROM record WHERE run_key = :run_key AND seq BETWEEN :first AND :last ORDER BY seq

-- == reading ==

-- name: read_run
SELECT run_key, started_at, outcome IS NOT NULL,
       coalesce(last_seq, (SELECT max(record.seq) FROM record WHERE record.run_key = run.run_key)), compacted
FROM run WHERE run_id = :run_id

-- name: read_log
SELECT record.seq, record.at_ms, record.kind, record.body,
       source.response_id, source.author, source.message_id, tool_call.call_id, NULL
FROM record
LEFT JOIN source ON source.run_key = record.run_key AND source.number = record.source
LEFT JOIN tool_call ON tool_call.run_key = record.run_key AND tool_call.number = record.call
WHERE record.run_key = :run_key AND record.seq > :after
ORDER BY record.seq LIMIT coalesce(:limit, -1)

-- name: read_archive
SELECT archive.seq, archive.at_ms, archive.kind, archive.body,
       source.response_id, source.author, source.message_id, tool_call.call_id, archive.first_seq
FROM archive
LEFT JOIN source ON source.run_key = archive.run_key AND source.number = archive.source
LEFT JOIN tool_call ON tool_call.run_key = archive.run_key AND tool_call.number = archive.call
WHERE archive.run_key = :run_key AND archive.seq > :after
ORDER BY archive.seq LIMIT coalesce(:limit, -1)

-- name: read_run_heads
SELECT run_id, run_key, started_at, compacted, writer FROM run
WHERE run_id IN (SELECT value FROM json_each(:run_ids))

-- name: read_writers
SELECT writer FROM run WHERE NOT compacted UNION SELECT holder FROM lease WHERE expires_at >= {now}

-- Records of many short runs: one row and one JSON text per run, with the numbers of sources and calls instead of these.
-- Reading each record as a row, joined with its source and call, would cost twice as much.
-- name: read_logs
SELECT run_key, json_group_array(json_array(seq, at_ms, kind, body, source, call, NULL, NULL, NULL))
FROM record WHERE run_key IN (SELECT value FROM json_each(:run_keys)) GROUP BY run_key

-- name: read_archives
SELECT run_key, json_group_array(json_array(seq, at_ms, kind, body, source, call, NULL, NULL, first_seq))
FROM archive WHERE run_key IN (SELECT value FROM json_each(:run_keys)) GROUP BY run_key

-- name: read_sources
SELECT run_key, number, response_id, author, message_id
FROM source WHERE run_key IN (SELECT value FROM json_each(:run_keys))
ORDER BY run_key, number

-- name: read_call_ids
SELECT run_key, number, call_id
FROM tool_call WHERE run_key IN (SELECT value FROM json_each(:run_keys))

-- name: folded_ranges
SELECT first_seq, seq FROM archive WHERE run_key = :run_key AND first_seq IS NOT NULL

-- name: followed_runs
SELECT run.run_id,
       coalesce(run.last_seq, (SELECT max(record.seq) FROM record WHERE record.run_key = run.run_key))
FROM json_each(:run_ids) AS wanted JOIN run ON run.run_id = wanted.value WHERE run.writer <> :writer

-- name: read_call
SELECT tool_call.call_id, tool_call.name, tool_call.state, run.run_id, run.thread_id, tool_call.provider_id,
       tool_call.message_id, tool_call.signature, tool_call.encoding, tool_call.reason, tool_call.detail,
       tool_call.result, tool_call.error, tool_call.ran_early, tool_call.started_at, tool_call.updated_at,
       tool_call.run_key, tool_call.number, tool_call.first_seq, coalesce(
           tool_call.args_seq, run.last_seq,
           (SELECT max(record.seq) FROM record WHERE record.run_key = run.run_key))
FROM tool_call JOIN run ON run.run_key = tool_call.run_key
WHERE tool_call.call_id = :call_id

-- name: read_call_pieces
SELECT seq, kind, body FROM record
WHERE run_key = :run_key AND seq BETWEEN :first AND :last AND (call = :number OR seq = :last)
UNION ALL
SELECT seq, kind, body FROM archive
WHERE run_key = :run_key AND seq BETWEEN :first AND :last AND (call = :number OR seq = :last)
ORDER BY seq

-- name: list_calls
SELECT tool_call.call_id, tool_call.name, tool_call.state, run.run_id, run.thread_id, tool_call.provider_id,
       tool_call.message_id, tool_call.signature, tool_call.encoding, tool_call.reason, tool_call.detail,
       tool_call.result, tool_call.error, tool_call.ran_early, tool_call.started_at, tool_call.updated_at
FROM tool_call JOIN run ON run.run_key = tool_call.run_key
WHERE {where}
ORDER BY tool_call.started_at {way}, tool_call.run_key {way}, tool_call.number {way} LIMIT coalesce(:limit, -1)

-- The epoch also rises when a process merely ends the run of a dead one.
-- name: list_runs
SELECT run.run_id, run.thread_id, run.principal, run.outcome, run.reason, run.started_at, run.ended_at,
       coalesce(run.last_seq, (SELECT max(record.seq) FROM record WHERE record.run_key = run.run_key)),
       max(1, run.epoch - coalesce(run.outcome = 'failed' AND run.reason = 'interrupted', 0))
FROM run
WHERE {where}
ORDER BY run.run_key DESC LIMIT coalesce(:limit, -1)

-- name: taken_call_ids
SELECT wanted.value FROM json_each(:call_ids) AS wanted JOIN tool_call ON tool_call.call_id = wanted.value

-- name: count_all
SELECT (SELECT count(*) FROM run),
       (SELECT count(*) FROM run WHERE compacted = 0 AND ended_at IS NULL),
       (SELECT count(*) FROM tool_call),
       (SELECT coalesce(sum(coalesce(last_seq, (
                   SELECT max(record.seq) FROM record WHERE record.run_key = run.run_key))), 0)
        FROM run WHERE compacted = 0)
           + (SELECT count(*) FROM archive)

-- name: count_leases
SELECT count(*) FROM lease WHERE name LIKE 'writer:%' AND expires_at >= {now}

-- name: left_open
SELECT run_id FROM run
WHERE compacted = 0 AND ended_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM lease WHERE lease.name = 'writer:' || run.writer AND lease.expires_at >= {now})
ORDER BY run_key

-- name: count_active
SELECT count(*) FROM run WHERE compacted = 0 AND ended_at IS NULL

-- name: stored_bytes
SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()

-- == housekeeping ==

-- The writers that are dead and have runs that have not ended. No other process writes while this transaction has the lock.
-- name: fence_dead
SELECT DISTINCT writer FROM run
WHERE compacted = 0 AND ended_at IS NULL AND writer <> :writer
  AND NOT EXISTS (SELECT 1 FROM lease WHERE lease.name = 'writer:' || run.writer AND lease.expires_at >= {now})
ORDER BY writer LIMIT :limit

-- name: orphaned_runs
SELECT run_id, run_key, writer, epoch, started_at,
       coalesce(last_seq, (SELECT max(record.seq) FROM record WHERE record.run_key = run.run_key)),
       coalesce((SELECT at_ms FROM record WHERE record.run_key = run.run_key ORDER BY seq DESC LIMIT 1), 0),
       outcome IS NOT NULL
FROM run
WHERE compacted = 0 AND ended_at IS NULL AND writer IN (SELECT value FROM json_each(:dead))
  AND (:run_id IS NULL OR run_id = :run_id) AND run_key > :after
ORDER BY run_key LIMIT :limit

-- name: take_over
UPDATE run SET writer = :writer, epoch = epoch + 1 WHERE run_key IN (SELECT value FROM json_each(:run_keys))

-- name: events_of_run
SELECT run_key, kind, body FROM record
WHERE run_key IN (SELECT value FROM json_each(:run_keys)) AND kind IN (0, 8) ORDER BY run_key, seq

-- name: compactable_runs
SELECT run_id FROM run
WHERE compacted = 0 AND ended_at < {now} - :age
ORDER BY ended_at LIMIT coalesce(:limit, -1)

-- name: lock_run
SELECT run_key, compacted FROM run WHERE run_id = :run_id

-- name: log_of_run
SELECT record.seq, record.at_ms, record.source, record.call, record.kind, record.body, source.message_id
FROM record LEFT JOIN source ON source.run_key = record.run_key AND source.number = record.source
WHERE record.run_key = :run_key ORDER BY record.seq

-- name: insert_archive
INSERT INTO archive (run_key, seq, at_ms, source, call, kind, body, first_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: delete_log
DELETE FROM record WHERE run_key IN (SELECT value FROM json_each(:run_keys))

-- name: mark_compacted
UPDATE run SET compacted = 1 WHERE run_key = :run_key

-- name: has_forgotten
SELECT 1 FROM forgotten WHERE thread = :thread

-- name: insert_forgotten
INSERT OR IGNORE INTO forgotten (thread) SELECT value FROM json_each(:threads)

-- name: forgettable_runs
SELECT run.run_key, run.run_id, run.thread_id, run.principal FROM run WHERE {where} LIMIT coalesce(:limit, -1)

-- name: delete_archive
DELETE FROM archive WHERE run_key IN (SELECT value FROM json_each(:run_keys))

-- name: delete_sources
DELETE FROM source WHERE run_key IN (SELECT value FROM json_each(:run_keys))

-- name: delete_calls
DELETE FROM tool_call WHERE run_key IN (SELECT value FROM json_each(:run_keys))

-- name: delete_run
DELETE FROM run WHERE run_key IN (SELECT value FROM json_each(:run_keys))

-- == packs ==

-- name: due_for_pack
SELECT run_key, run_id, thread_id, principal, {now} - ended_at FROM run
WHERE pack IS NULL AND started_at < {now} - :age AND compacted AND ended_at < {now} - :age
  AND NOT EXISTS (
      SELECT 1 FROM tool_call
      WHERE tool_call.run_key = run.run_key AND tool_call.state IN ('running_early', 'executing', 'awaiting'))
ORDER BY started_at LIMIT coalesce(:limit, -1)

-- name: begin_pack
INSERT INTO pack (name, state, changed_at) VALUES (:name, 'writing', {now})

-- name: keep_pack
UPDATE pack SET state = 'kept', runs = :runs, bytes = :bytes, changed_at = {now}
WHERE name = :name AND state = 'writing' RETURNING pack_key

-- name: pack_runs
UPDATE run SET pack = :pack, pack_start = json_extract(new.value, '$[2]'), pack_size = json_extract(new.value, '$[3]')
FROM json_each(:places) AS new
WHERE run.run_key = json_extract(new.value, '$[0]') AND run.run_id = json_extract(new.value, '$[1]')
  AND run.pack IS (SELECT pack_key FROM pack WHERE name = :instead_of)

-- name: empty_calls
UPDATE tool_call SET signature = NULL, detail = NULL, result = NULL, error = NULL
WHERE run_key IN (SELECT value FROM json_each(:run_keys))

-- Only a pack that holds no run.
-- name: give_up_pack
UPDATE pack SET state = 'gone', changed_at = {now}
WHERE name = :name AND NOT EXISTS (SELECT 1 FROM run WHERE run.pack = pack.pack_key)

-- name: give_up_stale
UPDATE pack SET state = 'gone', changed_at = {now} WHERE state = 'writing' AND changed_at < {now} - :age

-- name: drop_pack
DELETE FROM pack WHERE name = :name AND state = 'gone'

-- name: soil_packs
UPDATE pack SET state = 'dirty' WHERE state = 'kept' AND pack_key IN (SELECT pack FROM run WHERE run_key IN (SELECT value FROM json_each(:run_keys)))

-- name: list_packs
SELECT name FROM pack WHERE state <> 'kept' AND state = :state ORDER BY pack_key

-- name: newest_pack
SELECT name FROM pack WHERE state IN ('kept', 'dirty') ORDER BY pack_key DESC LIMIT 1

-- name: runs_in_pack
SELECT run.run_key, run.run_id, pack.name, run.pack_start, run.pack_size
FROM pack JOIN run ON run.pack = pack.pack_key WHERE pack.name = :name ORDER BY run.pack_start

-- name: places_of_runs
SELECT run.run_key, run.run_id, pack.name, run.pack_start, run.pack_size
FROM run JOIN pack ON pack.pack_key = run.pack WHERE run.run_id IN (SELECT value FROM json_each(:run_ids))

-- name: pack_figures
SELECT count(*), coalesce(sum(runs), 0), coalesce(sum(bytes), 0) FROM pack WHERE state IN ('kept', 'dirty')

-- name: has_packs
SELECT 1 FROM pack WHERE state IN ('kept', 'dirty') LIMIT 1

-- == copying ==

-- name: run_sizes
SELECT run_key, run_id, outcome IS NULL,
       coalesce(last_seq, (SELECT max(record.seq) FROM record WHERE record.run_key = run.run_key)), compacted
FROM run WHERE run_key > :after AND run_key <= coalesce(:last, run_key) ORDER BY run_key LIMIT coalesce(:limit, -1)

-- name: whole_runs
SELECT run_key, run_id, thread_id, principal, outcome, reason, started_at, ended_at, last_seq, compacted, epoch,
       CASE WHEN outcome IS NULL THEN writer ELSE '' END, exclusive AND outcome IS NULL
FROM run WHERE run_key IN (SELECT value FROM json_each(:run_keys)) ORDER BY run_key

-- name: whole_calls
SELECT run_key, number, call_id, name, state, provider_id, message_id, signature, encoding, reason, detail, result, error,
       ran_early, started_at, updated_at, first_seq, args_seq
FROM tool_call WHERE run_key IN (SELECT value FROM json_each(:run_keys)) ORDER BY run_key, number

-- name: whole_records
SELECT run_key, seq, at_ms, source, call, kind, body, NULL FROM record
WHERE run_key IN (SELECT value FROM json_each(:run_keys))
UNION ALL
SELECT run_key, seq, at_ms, source, call, kind, body, first_seq FROM archive
WHERE run_key IN (SELECT value FROM json_each(:run_keys))
ORDER BY run_key, seq

-- name: list_forgotten
SELECT thread FROM forgotten WHERE thread > :after ORDER BY thread LIMIT coalesce(:limit, -1)

-- A new run gets the key after the last one.
-- name: advance_keys
SELECT 1

-- == conditions that a list may have ==

-- name: where_any
1 = 1

-- name: where_run_id
run.run_id = :run_id

-- name: where_thread_id
run.thread_id = :thread_id

-- name: where_principal
run.principal = :principal

-- name: where_active
run.compacted = 0 AND run.ended_at IS NULL

-- name: where_ended
run.ended_at IS NOT NULL

-- Whether the run is compacted does not matter, but the index begins with that column.
-- name: where_ended_before
run.compacted IN (0, 1) AND run.ended_at < :ended_before

-- name: where_states
tool_call.state IN (SELECT value FROM json_each(:states))

-- There is an index on these, which SQLite uses only for exactly this condition.
-- name: where_open
tool_call.state NOT IN ('completed', 'failed', 'released', 'discarded')

-- name: where_provider_id
tool_call.provider_id = :provider_id
