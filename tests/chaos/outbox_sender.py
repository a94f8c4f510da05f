"""The application that sends with an outbox.

A process of its own, which is killed and stopped, and started again on the same outbox.
"""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any, Final

from dedup_sdk.producer import DedupProducer
from tests.chaos.options import ID_HEADER
from tests.chaos.sabotage import sabotage
from tests.chaos.sender import Sender, plain
from tests.support.fork_server import ForkedChild, ForkServer
from tests.support.outbox_worker import audit, audited

_ITSELF: Final = "tests.chaos.outbox_sender"
_LIFE: Final = 1_000_000
"""Numbers of messages in one life at most: those of the next begin behind them."""
_TICK_S: Final = 0.02
_CONFIRM_S: Final = 180.0
_GRACE_S: Final = 20.0
_BEGIN_S: Final = 60.0
BEGAN: Final = "began"
"""A file that a process makes when the broker has some of its messages, and it hears signals."""
_AT_WORK: Final = 30
"""So many messages: a process that is killed before proves nothing."""


class OutboxSender(Sender):
    """A `Sender` whose messages go through a `DedupProducer` in a process that may be killed.

    The messages ever on its disk are known (`persisted`): a trigger notes each dedup key in the transaction that
    persists it.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        folder: Path,
        *,
        per_second: float,
        seed: int,
        broken: str,
        **others: Any,
    ) -> None:
        super().__init__(bootstrap, topic, per_second=per_second, seed=seed, **others)
        self.folder = folder / "outbox"
        self._told = {
            "bootstrap": bootstrap, "topic": topic, "folder": str(self.folder), "per_second": per_second,
            "seed": seed, "broken": broken
        }  # fmt: skip
        self._lives = 0
        self._process: ForkedChild | None = None
        self._log = folder / "outbox.log"
        self._forks = ForkServer([_ITSELF], self.folder)
        audit(self.folder)

    def start(self) -> None:
        """Begin to send, or go on after `kill`."""
        told = {**self._told, "first": _LIFE * self._lives}
        self._lives += 1
        self._began().unlink(missing_ok=True)
        self._process = self._forks.start(_ITSELF, json.dumps(told), self._log)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def await_work(self) -> None:
        """Return when it has begun to send; raises `TimeoutError` when it does not."""
        until = time.monotonic() + _BEGIN_S
        while not self._began().exists():
            if time.monotonic() > until or self._process is None or self._process.exit_status is not None:
                raise TimeoutError(f"{self.topic}: the producer does not begin; see {self._log}")
            time.sleep(_TICK_S)

    def _began(self) -> Path:
        return self.folder / BEGAN

    def freeze(self) -> None:
        """SIGSTOP."""
        if self._process is not None:
            self._process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        if self._process is not None:
            self._process.signal(signal.SIGCONT)

    def stop(self) -> None:
        """End in order, when the broker has confirmed everything."""
        if self._process is None:
            self.start()
        self.await_work()
        if self._process is None:
            raise RuntimeError("the sender was not started")
        self._process.signal(signal.SIGTERM)
        status = self._process.wait(_CONFIRM_S + _GRACE_S)
        self._process.kill()
        self._process = None
        if status != 0:
            raise TimeoutError(f"{self.topic}: the producer ended with status {status}, and not in order")

    def end(self) -> None:
        """End whatever the state is."""
        self.kill()
        self._forks.end()

    def persisted(self) -> frozenset[bytes]:
        """Return the dedup keys that were ever on disk."""
        return frozenset(audited(self.folder))


def main(argument: str) -> int:
    """Send at a steady rate until SIGTERM; return 0 when all is confirmed."""
    told = json.loads(argument)
    sabotage(told["broken"])
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    chosen = random.Random(told["seed"] + told["first"])
    producer = DedupProducer(
        {"bootstrap.servers": told["bootstrap"], "linger.ms": 0, "reconnect.backoff.max.ms": 200, "log_level": 0},
        outbox=told["folder"], id_header=ID_HEADER, close_timeout=_CONFIRM_S,
    )  # fmt: skip
    number, due = told["first"], 0.0
    while not ending:
        due += told["per_second"] * _TICK_S
        while due >= 1:
            due -= 1
            message = plain(number, chosen)
            producer.produce(told["topic"], message.value, message.key)
            number += 1
        producer.poll(0)
        if number - told["first"] - len(producer) >= _AT_WORK:
            Path(told["folder"], BEGAN).touch()
        time.sleep(_TICK_S)
    producer.close()
    return len(producer)
