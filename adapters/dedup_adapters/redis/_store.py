"""`RedisStore`: a memory that consumers share, in Redis or Valkey."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

from redis import Redis
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from dedup_adapters.redis._clients import client_maker, passes, run_ids, told, warn_of_forgetting
from dedup_adapters.redis._scripts import CLAIM, COMPLETE, LOAD, RELEASE, RENEW
from dedup_sdk import ConfigurationError
from dedup_sdk.errors import shown
from dedup_sdk.shared import Claim, ClaimKind, SharedStoreError

BATCH_IDS: Final = 1_000
"""IDs per script; a script blocks the server, here for about a millisecond."""
MOST_BUCKETS: Final = 16_384
PREFIX: Final = "dedup:"


class RedisStore:
    """A `dedup_sdk.shared.ClaimStore` in Redis (6.2 or newer) or Valkey.

    Args:
        server: a URL (``redis://``, ``rediss://``, ``unix://``; for any node of a cluster
            ``redis+cluster://``, ``rediss+cluster://``), or a client of redis-py: `redis.Redis`, or
            `redis.RedisCluster`.
        prefix: the beginning of all keys; stores with different prefixes are independent.
        buckets: the number of parts that IDs are divided into. Each part lies in one slot of a cluster, and
            takes one script per batch. The number is part of the keys: with another one, stored IDs are not
            found.
        timeout: the most seconds to wait for an answer, for a client that is made from a URL; the consumer
            waits meanwhile.

    Raises `ConfigurationError` for invalid settings. Connects with the first call.
    """

    def __init__(
        self,
        server: str | Redis | RedisCluster,
        *,
        prefix: str = PREFIX,
        buckets: int = 1,
        timeout: float = 1.0,
    ) -> None:
        given: object = prefix  # what callers without a type checker pass
        if not isinstance(given, str) or not given or {"{", "}"} & set(given):
            raise ConfigurationError(f"prefix={shown(prefix)}: give text without braces, e.g. 'dedup:'")
        number: object = buckets
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MOST_BUCKETS:
            raise ConfigurationError(
                f"buckets={shown(buckets)}: give a whole number from 1 to {MOST_BUCKETS:,}"
            )
        self._ours = isinstance(server, str)
        self._make_client, self._where = client_maker(server, timeout)
        self._prefixes = [f"{prefix}{{{bucket}}}".encode() for bucket in range(buckets)]
        self._connecting = Lock()
        self._client: Any = None
        self._scripts: dict[str, Any] = {}
        self._asked_whether_it_forgets = False

    # --- the protocol --------------------------------------------------------------------------------------------

    def claim(
        self, ids: Sequence[bytes], owner: str, lease_ms: int, *, timestamps_ms: Sequence[int], window_ms: int
    ) -> list[Claim]:
        """See `dedup_sdk.shared.ClaimStore`."""
        claims: list[Claim] = [_FOREIGN] * len(ids)
        with self._answers():
            for tag, rows in self._batches(ids):
                asked = json.dumps([timestamps_ms[row] for row in rows])
                keys = [tag + b"token", *(tag + ids[row] for row in rows)]
                first, kinds, numbers = self._scripts[CLAIM](keys, [owner, lease_ms, window_ms, asked])
                token, given = int(first), map(int, numbers)
                for row, kind in zip(rows, _text(kinds), strict=True):
                    if kind == "F":
                        claims[row] = Claim(ClaimKind.FRESH, token)
                        token += 1
                    elif kind == "D":
                        claims[row] = Claim(ClaimKind.DUPLICATE, seen_ms=next(given))
                    elif kind == "I":
                        claims[row] = Claim(ClaimKind.IN_FLIGHT, left_ms=next(given))
        return claims

    def renew(self, ids: Sequence[bytes], tokens: Sequence[int], owner: str, lease_ms: int) -> list[bool]:
        """See `dedup_sdk.shared.ClaimStore`."""
        return self._flags(RENEW, ids, [owner, lease_ms], [list(map(str, tokens))])

    def complete(
        self,
        ids: Sequence[bytes],
        tokens: Sequence[int],
        owner: str,
        *,
        timestamps_ms: Sequence[int],
        window_ms: int,
    ) -> list[bool]:
        """See `dedup_sdk.shared.ClaimStore`."""
        return self._flags(COMPLETE, ids, [owner, window_ms], [timestamps_ms, list(map(str, tokens))])

    def release(self, ids: Sequence[bytes], tokens: Sequence[int]) -> list[bool]:
        """See `dedup_sdk.shared.ClaimStore`."""
        return self._flags(RELEASE, ids, [], [list(map(str, tokens))])

    def load(self, ids: Sequence[bytes], *, timestamps_ms: Sequence[int], window_ms: int) -> None:
        """See `dedup_sdk.shared.ClaimStore`."""
        self._flags(LOAD, ids, [window_ms], [timestamps_ms])

    def incarnation(self) -> str:
        """Return a text that changes when a server restarts, or another one takes over; empty where unknown."""
        with self._answers():
            return run_ids(self._client)

    def close(self) -> None:
        """See `dedup_sdk.shared.ClaimStore`; a client of yours stays open."""
        if self._ours and self._client is not None:
            self._client.close()

    # --- how -----------------------------------------------------------------------------------------------------

    def _flags(
        self, script: str, ids: Sequence[bytes], plain: list[Any], columns: list[Sequence[Any]]
    ) -> list[bool]:
        """Run a script that returns a 1 or a 0 for each ID.

        ``plain`` are arguments for all IDs; ``columns`` have a value for each ID, and are sent after them
        as JSON.
        """
        flags = [False] * len(ids)
        with self._answers():
            for tag, rows in self._batches(ids):
                given = [json.dumps([column[row] for row in rows]) for column in columns]
                answer = _text(self._scripts[script]([tag + ids[row] for row in rows], [*plain, *given]))
                for row, flag in zip(rows, answer, strict=True):
                    flags[row] = flag == "1"
        return flags

    def _batches(self, ids: Sequence[bytes]) -> Iterator[tuple[bytes, Sequence[int]]]:
        """Yield the rows of each script, with the prefix of their keys."""
        rows_of: list[Sequence[int]] = [range(len(ids))]
        if len(self._prefixes) > 1:
            lists: list[list[int]] = [[] for _ in self._prefixes]
            for row, key in enumerate(ids):
                lists[int.from_bytes(key[:4]) % len(lists)].append(row)
            rows_of = [*lists]
        for tag, rows in zip(self._prefixes, rows_of, strict=True):
            for begin in range(0, len(rows), BATCH_IDS):
                yield tag, rows[begin : begin + BATCH_IDS]

    @contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            self._connect()
            yield
        # RedisClusterException, which a cluster's client raises when it finds no node, is not a RedisError.
        except (RedisError, RedisClusterException) as error:
            raise SharedStoreError(
                f"the shared store in Redis at {self._where} failed: {told(error, self._client)}",
                passes=passes(error),
            ) from error

    def _connect(self) -> None:
        if self._asked_whether_it_forgets:
            return
        with self._connecting:
            if self._client is None:
                client = self._make_client()
                self._scripts = {
                    script: client.register_script(script)
                    for script in (CLAIM, RENEW, COMPLETE, RELEASE, LOAD)
                }
                self._client = client
        warn_of_forgetting(self._client, self._where)
        self._asked_whether_it_forgets = True


_FOREIGN: Final = Claim(ClaimKind.FOREIGN)


def _text(given: bytes | str) -> str:
    """Return an answer as text: a client of yours may decode answers."""
    return given if isinstance(given, str) else given.decode("ascii")
