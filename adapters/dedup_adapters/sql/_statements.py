"""The statements of a shared memory in PostgreSQL: each works on the IDs of a batch.

`dedup_adapters.sql._shared` fills in the names in braces, such as ``{table}``.

A call is a transaction with its own ``lock_timeout`` and ``idle_in_transaction_session_timeout``. Without a
transaction a consumer could not stop between a statement and its ``COMMIT``; but then the role's
``default_transaction_isolation`` would apply, and ``lock_timeout`` would have to be set for the session,
which a connection pooler lends to others.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

NOW: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
"""The current time, not that of the transaction's beginning: a row is judged when its lock was granted."""
ROWS: Final = """(
  SELECT substring(CAST(:ids AS bytea) FROM CAST(16 * place - 15 AS integer) FOR 16) AS id, timestamp_ms, token
  FROM unnest(CAST(:timestamps_ms AS bigint[]), CAST(:tokens AS bigint[]))
    WITH ORDINALITY AS u(timestamp_ms, token, place)
) AS g ORDER BY id"""
"""The batch's rows. The IDs are one value of bytes, which costs half as much as an array.

Every batch uses the same order, so that two batches cannot deadlock.
"""
COLUMNS: Final = "id, token, owner, attempt, claimed, lease_ms, seen_ms, before_ms, until_ms"

CLAIM: Final = """
INSERT INTO {table} AS t ({columns})
SELECT id, nextval('{numbers}'), :owner, :attempt, true, :lease_ms, timestamp_ms, timestamp_ms, {now} + :lease_ms
FROM {rows}
ON CONFLICT (id) DO UPDATE SET (token, owner, attempt, claimed, lease_ms, seen_ms, before_ms, until_ms) = (
  SELECT
    CASE WHEN free THEN nextval('{numbers}') ELSE t.token END,
    CASE WHEN free THEN EXCLUDED.owner ELSE t.owner END,
    CASE WHEN free THEN EXCLUDED.attempt ELSE t.attempt END,
    free OR t.claimed,
    CASE WHEN free THEN EXCLUDED.lease_ms ELSE t.lease_ms END,
    CASE WHEN free THEN EXCLUDED.seen_ms WHEN t.claimed THEN t.seen_ms ELSE greatest(t.seen_ms, EXCLUDED.seen_ms) END,
    t.seen_ms,
    CASE
      WHEN free THEN {now} + :lease_ms
      WHEN t.claimed THEN {now} + least(t.until_ms - {now}, t.lease_ms)
      ELSE {now} + :window_ms
    END
  FROM (
    SELECT t.until_ms <= {now} OR CASE
      WHEN t.claimed THEN t.owner = EXCLUDED.owner ELSE abs(EXCLUDED.seen_ms - t.seen_ms) > :window_ms
    END AS free
  ) AS f
)
RETURNING id, token, attempt = :attempt AND claimed, claimed, until_ms - {now}, before_ms
"""
RENEW: Final = """
INSERT INTO {table} AS t ({columns})
SELECT id, token, :owner, :attempt, true, :lease_ms, timestamp_ms, timestamp_ms, {now} + :lease_ms FROM {rows}
ON CONFLICT (id) DO UPDATE SET (token, owner, claimed, lease_ms, until_ms) = (
  SELECT
    CASE WHEN ours THEN EXCLUDED.token ELSE t.token END,
    CASE WHEN ours THEN EXCLUDED.owner ELSE t.owner END,
    ours OR t.claimed,
    CASE WHEN ours THEN EXCLUDED.lease_ms ELSE t.lease_ms END,
    CASE WHEN ours THEN EXCLUDED.until_ms ELSE t.until_ms END
  FROM (SELECT t.until_ms <= {now} OR (t.claimed AND t.token = EXCLUDED.token) AS ours) AS f
)
RETURNING id, token, claimed
"""
COMPLETE: Final = """
INSERT INTO {table} AS t ({columns})
SELECT id, token, '', :attempt, false, 0, timestamp_ms, timestamp_ms, {now} + :window_ms FROM {rows}
ON CONFLICT (id) DO UPDATE SET (token, claimed, seen_ms, until_ms) = (
  SELECT
    CASE WHEN ends THEN EXCLUDED.token ELSE t.token END,
    NOT ends AND t.claimed,
    CASE WHEN ends THEN EXCLUDED.seen_ms WHEN t.claimed THEN t.seen_ms ELSE greatest(t.seen_ms, EXCLUDED.seen_ms) END,
    CASE WHEN ends OR NOT t.claimed THEN EXCLUDED.until_ms ELSE t.until_ms END
  FROM (
    SELECT t.until_ms <= {now} OR (
      t.claimed AND (t.token = EXCLUDED.token OR (EXCLUDED.token = 0 AND t.owner = :owner))
    ) AS ends
  ) AS f
)
RETURNING id, token, NOT claimed
"""
LOAD: Final = """
INSERT INTO {table} AS t ({columns})
SELECT id, token, '', :attempt, false, 0, timestamp_ms, timestamp_ms, {now} + :window_ms FROM {rows}
ON CONFLICT (id) DO UPDATE SET (token, claimed, seen_ms, until_ms) = (
  SELECT
    CASE WHEN over THEN 0 ELSE t.token END,
    NOT over AND t.claimed,
    CASE WHEN over THEN EXCLUDED.seen_ms WHEN t.claimed THEN t.seen_ms ELSE greatest(t.seen_ms, EXCLUDED.seen_ms) END,
    CASE WHEN t.claimed AND NOT over THEN t.until_ms ELSE greatest(t.until_ms, EXCLUDED.until_ms) END
  FROM (SELECT t.until_ms <= {now} AS over) AS f
)
"""
RELEASE: Final = """
WITH mine AS (
  SELECT held.id, held.token FROM (SELECT * FROM {rows}) AS g CROSS JOIN LATERAL (
    SELECT id, token FROM {table} AS t
    WHERE t.id = g.id AND t.claimed AND t.token = g.token AND t.until_ms > {now} FOR UPDATE
  ) AS held
)
DELETE FROM {table} AS t USING mine WHERE t.id = mine.id
RETURNING t.id, t.token, true
"""
"""Row by row, in the common order; a plain join would scan the whole table, which has many marks and few claims."""
EXPIRE: Final = """
DELETE FROM {table} WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM {table} WHERE until_ms <= :horizon_ms LIMIT {at_once} FOR UPDATE SKIP LOCKED
))
"""
"""The time is a parameter: no index serves a condition that may change from row to row."""

STARTED: Final = text(
    "SELECT CAST(extract(epoch FROM pg_postmaster_start_time()) AS text) || ' ' || "
    "coalesce(CAST(inet_server_addr() AS text), '')"
)
WAITS: Final = text(
    "SELECT set_config('lock_timeout', :lock_ms, true), set_config('idle_in_transaction_session_timeout', "
    ":idle_ms, true)"
)
"""Local to the transaction, because a connection pooler may lend the session to others.

A client that stops or dies between two statements releases its locks before a client that waits for them gives up.
"""
ONE_AFTER_THE_OTHER: Final = text("SELECT pg_advisory_xact_lock(hashtext(:name), 1)")
