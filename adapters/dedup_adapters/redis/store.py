"""The store itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as LostConnectionError
from redis.exceptions import RedisClusterException, RedisError
from redis.retry import Retry

from dedup_adapters.redis.forgetting import warn_of_forgetting
from dedup_adapters.redis.scripts import CLAIM, COMPLETE, LOAD, RELEASE, RENEW
from dedup_sdk import Claim, ClaimKind, ConfigurationError, SharedStoreError

BATCH_IDS: Final = 1_000
"""IDs of one script: it keeps the server from everything else, for about a millisecond."""
MOST_BUCKETS: Final = 16_384
PREFIX: Final = "dedup:"


class RedisStore:
    """A `dedup_sdk.ClaimStore` in Redis (6.2 or newer) or Valkey.

    Args:
        server: a URL (``redis://``, ``rediss://``, ``unix://``), or a client of redis-py: `redis.Redis`, or `redis.RedisCluster`.
        prefix: what the keys begin with; stores with another one see nothing of each other.
        buckets: into how many parts the IDs are divided, each in one slot of a cluster, and each a script a batch. It is part of the
            keys: with another number what is stored is not found.
        timeout: seconds that an answer may take, for a client that is made of a URL. The consumer waits meanwhile.

    Raises `ConfigurationError` for settings that make no sense. Connects with the first call.
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
            raise ConfigurationError(f"prefix={prefix!r}: give text without braces, e.g. 'dedup:'")
        number: object = buckets
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MOST_BUCKETS:
            raise ConfigurationError(f"buckets={buckets!r}: give a whole number from 1 to {MOST_BUCKETS:,}")
        self._ours = isinstance(server, str)
        self._client: Any = _client_of(server, timeout)
        self._where = _where(self._client)
        self._prefixes = [f"{prefix}{{{bucket}}}".encode() for bucket in range(buckets)]
        self._claim, self._renew, self._complete, self._release, self._load = (
            self._client.register_script(script) for script in (CLAIM, RENEW, COMPLETE, RELEASE, LOAD)
        )
        self._asked_whether_it_forgets = False

    # --- the protocol --------------------------------------------------------------------------------------------

    def claim(
        self, ids: Sequence[bytes], owner: str, lease_ms: int, *, timestamps_ms: Sequence[int], window_ms: int
    ) -> list[Claim]:
        """See `dedup_sdk.ClaimStore`."""
        claims: list[Claim] = [_FOREIGN] * len(ids)
        with self._answers():
            for tag, rows in self._batches(ids):
                asked = json.dumps([timestamps_ms[row] for row in rows])
                keys = [tag + b"token", *(tag + ids[row] for row in rows)]
                first, kinds, numbers = self._claim(keys, [owner, lease_ms, window_ms, asked])
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
        """See `dedup_sdk.ClaimStore`."""
        return self._flags(self._renew, ids, [owner, lease_ms], [list(map(str, tokens))])

    def complete(
        self,
        ids: Sequence[bytes],
        tokens: Sequence[int],
        owner: str,
        *,
        timestamps_ms: Sequence[int],
        window_ms: int,
    ) -> list[bool]:
        """See `dedup_sdk.ClaimStore`."""
        return self._flags(self._complete, ids, [owner, window_ms], [timestamps_ms, list(map(str, tokens))])

    def release(self, ids: Sequence[bytes], tokens: Sequence[int]) -> list[bool]:
        """See `dedup_sdk.ClaimStore`."""
        return self._flags(self._release, ids, [], [list(map(str, tokens))])

    def load(self, ids: Sequence[bytes], *, timestamps_ms: Sequence[int], window_ms: int) -> None:
        """See `dedup_sdk.ClaimStore`."""
        self._flags(self._load, ids, [window_ms], [timestamps_ms])

    def close(self) -> None:
        """See `dedup_sdk.ClaimStore`; a client that was given stays open."""
        if self._ours:
            self._client.close()

    # --- how -----------------------------------------------------------------------------------------------------

    def _flags(
        self, script: Any, ids: Sequence[bytes], plain: list[Any], columns: list[Sequence[Any]]
    ) -> list[bool]:
        """Run a script that answers with a 1 or a 0 for each ID; ``columns`` go along as JSON, ``plain`` for all IDs before them."""
        flags = [False] * len(ids)
        with self._answers():
            for tag, rows in self._batches(ids):
                given = [json.dumps([column[row] for row in rows]) for column in columns]
                answer = _text(script([tag + ids[row] for row in rows], [*plain, *given]))
                for row, flag in zip(rows, answer, strict=True):
                    flags[row] = flag == "1"
        return flags

    def _batches(self, ids: Sequence[bytes]) -> Iterator[tuple[bytes, Sequence[int]]]:
        """Yield which rows go into one script, with what their keys begin with."""
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
            if not self._asked_whether_it_forgets:
                warn_of_forgetting(self._client, self._where)
                self._asked_whether_it_forgets = True
            yield
        # What a cluster's client raises where it finds no node is no RedisError.
        except (RedisError, RedisClusterException) as error:
            raise SharedStoreError(
                f"the shared store in Redis at {self._where} cannot be asked: {_one_line(error)}; start it, or correct the URL"
            ) from error


_FOREIGN: Final = Claim(ClaimKind.FOREIGN)


def _client_of(server: object, timeout: object) -> Any:
    if isinstance(server, Redis | RedisCluster):
        return server
    if not isinstance(server, str):
        raise ConfigurationError(
            f"server={server!r}: give a URL, e.g. 'redis://localhost:6379/0', or a client of redis-py"
        )
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0:
        raise ConfigurationError(f"timeout={timeout!r}: give seconds above 0, e.g. 1.0")
    try:
        # A connection that was closed while nobody used it is no outage: once more, on another one.
        once_more = Retry(NoBackoff(), 1, supported_errors=(LostConnectionError,))
        return Redis.from_url(
            server,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=once_more,
            health_check_interval=0,
        )
    except ValueError as error:
        raise ConfigurationError(
            f"the URL of the shared store is none of Redis ({_one_line(error)}); give e.g. 'redis://localhost:6379/0'"
        ) from None


def _where(client: Any) -> str:
    """Return the address, without user and password."""
    if isinstance(client, RedisCluster):
        nodes: Any = client.get_nodes()  # type: ignore[no-untyped-call]  # it has no types
        return "a cluster of " + ", ".join(sorted(str(node.name) for node in nodes))
    known = client.connection_pool.connection_kwargs
    return str(known.get("path") or f"{known.get('host', 'localhost')}:{known.get('port', 6379)}")


def _text(given: bytes | str) -> str:
    """Return an answer as text: a client that was given may decode."""
    return given if isinstance(given, str) else given.decode("ascii")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
