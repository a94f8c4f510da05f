"""The common parts of the bridge's tests: records in, bridges that run, and the records of the target."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from dedup_sdk.bridge import Bridge
from tests.support.consuming import PATIENCE_S
from tests.support.topic_records import topic_records

if TYPE_CHECKING:
    from dedup_sdk.bridge import BridgeCounters

QUICK = {"log_level": 0, "session.timeout.ms": 1200, "heartbeat.interval.ms": 100, "fetch.wait.max.ms": 20}
"""For a bridge that is the only member of its group.

On the mock cluster who joins after it waits for a second less than its session.
"""


class Lies(NamedTuple):
    """A record as it lies in a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def ident(self) -> bytes | None:
        """Its dedup ID."""
        return dict(self.headers).get("dedup-id")


def bridge(
    source: str,
    target: str,
    *topics: str,
    config: dict[str, Any] | None = None,
    source_config: dict[str, Any] | None = None,
    session_ms: int = 1_200,
    **options: Any,
) -> Bridge:
    """A bridge between two addresses that says nothing to stderr.

    ``config`` and ``source_config`` are more settings of the two clients.
    """
    return Bridge(
        {"bootstrap.servers": source, **QUICK, "session.timeout.ms": session_ms, **(source_config or {})},
        {"bootstrap.servers": target, "log_level": 0, "linger.ms": 0, **(config or {})},
        **{"topics": topics or ["orders"], **options},
    )  # fmt: skip


def copy_all(source: str, target: str, *topics: str, **options: Any) -> BridgeCounters:
    """Copy all that there is, and return the counters."""
    made = bridge(source, target, *topics, **options)
    made.run(until_end=True)
    return made.counters


def until(condition: Any) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Running:
    """A bridge in a thread of its own, which is stopped at the end; its error is raised then."""

    def __init__(self, made: Bridge, **how: Any) -> None:
        self.made, self._how = made, how
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.made.run(**self._how)
        except BaseException as error:  # noqa: BLE001 (raised by the test's thread)
            self.error = error

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def __enter__(self) -> Bridge:
        self._thread.start()
        return self.made

    def __exit__(self, kind: object, *_: object) -> None:
        self.made.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self.error is not None and kind is None:
            raise self.error


def lying(bootstrap: str, topic: str, partitions: int = 1) -> list[Lies]:
    """Every committed record of a topic, partition by partition."""
    found = map(_lies, topic_records(bootstrap, topic, partitions))
    return sorted(found, key=lambda each: (each.partition, each.offset))


def _lies(message: Any) -> Lies:
    return Lies(
        message.partition(), message.offset(), message.key(), message.value(), message.timestamp()[1],
        tuple(message.headers() or ()),
    )  # fmt: skip
