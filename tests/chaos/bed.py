"""The cluster of a run: a real broker, a proxy before its producers, and one before each of its consumers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final, Self

from dedup_sdk.testing import CuttingProxy, LocalKafka, free_port
from tests.chaos.options import SESSION_MS

CONSUMER_PROXIES: Final = 5
_CUT_EVERY_ANSWERS: Final = 25
_SETTINGS: Final = {
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    # Aborted transactions are ended soon, and hanging ones too.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


class Bed:
    """A broker and its proxies; several scenarios may follow each other on it."""

    def __init__(self, seed: int) -> None:
        ports = {name: free_port() for name in ("PRODUCERS", *map(_listener, range(CONSUMER_PROXIES)))}
        self.kafka = LocalKafka(config=_SETTINGS, extra_listeners=ports)
        self._ports, self._seed = ports, seed
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(self.kafka)
        self.producers = self._proxy("PRODUCERS", every=_CUT_EVERY_ANSWERS)
        self.consumers = [self._proxy(_listener(index)) for index in range(CONSUMER_PROXIES)]
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _proxy(self, listener: str, every: int = 0) -> CuttingProxy:
        proxy = CuttingProxy(
            self.kafka.address(listener), listen_port=self._ports[listener], every=every, seed=self._seed
        )
        return self._open.enter_context(proxy)


def _listener(index: int) -> str:
    return f"CONSUMERS{'ABCDE'[index]}"
