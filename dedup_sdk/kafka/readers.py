"""Plain readers' connections, which one recovery leaves to the next.

A client that was just made asks its first question a tenth of a second later: it has to meet the brokers first. A wave of
partitions that recover one after the other would pay that several times each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaException

from dedup_sdk.kafka.settings import ASK_S, ClientSettings, reader_settings

_MEETING_S = 2.0
"""Seconds that a question of a reader that was just made may take at least, to a broker that has just answered another."""


class Readers:
    """Consumers outside any group; the idle ones wait for the next who needs one. Not thread-safe.

    ``isolation``: at which level they read; None: at the consumer's own.
    """

    def __init__(self, settings: ClientSettings, *, isolation: str | None = None) -> None:
        self._settings = settings
        self._own = {} if isolation is None else {"isolation.level": isolation}
        self._idle: list[Consumer] = []
        self.answer_s = ASK_S
        """Seconds that a question may take now."""
        self._others: dict[str, Readers] = {}

    def at(self, isolation: str) -> Readers:
        """Return readers at this isolation level: ``read_uncommitted`` ones see the records of open and aborted transactions too."""
        if isolation not in self._others:
            self._others[isolation] = Readers(self._settings, isolation=isolation)
        others = self._others[isolation]
        others.answer_s = max(self.answer_s, _MEETING_S)
        return others

    def take(self) -> Consumer:
        """Return a consumer that reads nothing; to be given back, or closed."""
        return self._idle.pop() if self._idle else Consumer({**reader_settings(self._settings), **self._own})

    def give_back(self, reader: Consumer) -> None:
        """Let the next one have it; what it was assigned is over."""
        try:
            reader.unassign()
        except KafkaException:
            reader.close()
        else:
            self._idle.append(reader)

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Wait as long as a caller may who asked for it."""
        before, self.answer_s = self.answer_s, ASK_S
        try:
            yield
        finally:
            self.answer_s = before

    def close(self) -> None:
        """End the connections of the idle ones."""
        while self._idle:
            self._idle.pop().close()
        for others in self._others.values():
            others.close()
