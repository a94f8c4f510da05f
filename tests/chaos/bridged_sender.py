"""The sender of a topic that bridges copy into the workers' topic.

Processes of their own, which are killed, stopped and cut off.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from dedup_sdk._commit_text import log_name, topic_digits
from dedup_sdk._kafka.client.client import topic_id_of
from dedup_sdk._kafka.client.client_errors import is_retriable
from dedup_sdk.bridge import Bridge
from dedup_sdk.bridge._record_ids import source_id
from tests.chaos.options import ID_HEADER, SESSION_MS
from tests.chaos.sabotage import sabotage
from tests.chaos.sender import Sender, plain
from tests.chaos.topic_log import read_log, read_messages, record_of
from tests.support.fork_server import ForkedChild, ForkServer
from tests.support.producing import Outgoing

_ITSELF: Final = "tests.chaos.bridged_sender"
_LOOK_S: Final = 0.2
_COPIED_S: Final = 90.0
_END_S: Final = 30.0
_TRANSACTION_MS: Final = 5_000
SOURCE: Final = "{topic}-source"
BRIDGES: Final = 2


def half_nameless(number: int, chosen: random.Random) -> Outgoing:
    """Every second message bears no ID: the bridge names it."""
    message = plain(number, chosen)
    return Outgoing(key=message.key, value=message.value) if number % 2 else message


class BridgedSender(Sender):
    """A `Sender` into a topic of its own, and the bridges that copy it.

    Args:
        straight: the cluster's address; the sender goes through a proxy.
        bridged: the addresses of the bridges.
        atomic: whether batches and offsets are in transactions: then each record is copied once.
    """

    def __init__(
        self, bootstrap: str, topic: str, folder: Path, *, straight: str, bridged: list[str], atomic: bool,
        broken: str, **others: Any
    ) -> None:  # fmt: skip
        super().__init__(bootstrap, SOURCE.format(topic=topic), **others)
        self.folder, self._straight, self._bridged, self._atomic = folder, straight, bridged, atomic
        self._told = {"source": self.topic, "target": topic, "atomic": atomic, "broken": broken}
        self._log = folder / "bridges.log"
        self._forks = ForkServer([_ITSELF], folder)
        self._processes: list[ForkedChild | None] = [None] * BRIDGES

    def start(self) -> None:
        """Begin to send, and to copy."""
        for number in range(BRIDGES):
            self.start_bridge(number)
        super().start()

    def start_bridge(self, number: int) -> None:
        """Start a bridge, or start it again."""
        folder = self.folder / f"bridge-{number}"
        folder.mkdir(exist_ok=True)
        told = {**self._told, "bootstrap": self._bridged[number]}
        self._processes[number] = self._forks.start(_ITSELF, json.dumps(told), self._log)

    def kill_bridge(self, number: int) -> None:
        """SIGKILL."""
        process, self._processes[number] = self._processes[number], None
        if process is not None:
            process.kill()

    def signal_bridge(self, number: int, what: signal.Signals) -> None:
        """SIGSTOP, SIGCONT and the like."""
        process = self._processes[number]
        if process is not None:
            process.signal(what)

    def lift_fallen(self) -> int:
        """Start bridges again that ended by themselves; return how many."""
        fallen = [
            n for n, each in enumerate(self._processes) if each is not None and each.exit_status is not None
        ]
        for number in fallen:
            self.kill_bridge(number)
            self.start_bridge(number)
        return len(fallen)

    def copied(self) -> int:
        """Return how many offsets of the source the bridges' group has committed."""
        return sum(self._committed().values())

    def stop(self) -> None:
        """End when everything is confirmed, and copied."""
        super().stop()
        ends: dict[int, int] = {}
        for record in read_log(self._straight, self.topic, self.partitions):
            ends[record.partition] = max(ends.get(record.partition, 0), record.offset + 1)
        until = time.monotonic() + _COPIED_S
        while any(self._committed().get(partition, 0) < end for partition, end in ends.items()):
            if time.monotonic() > until:
                raise TimeoutError(f"{self.topic}: the bridges do not get to the end; see {self._log}")
            self.lift_fallen()
            time.sleep(_LOOK_S)
        for process in self._processes:
            if process is not None:
                process.signal(signal.SIGTERM)
        late = [
            process for process in self._processes if process is not None and process.wait(_END_S) is None
        ]
        self.end()
        if late:
            raise TimeoutError(f"{self.topic}: a bridge did not end in order; see {self.folder}")

    def end(self) -> None:
        """End whatever the state is."""
        for number in range(BRIDGES):
            self.kill_bridge(number)
        self._forks.end()

    def persisted(self) -> frozenset[bytes]:
        """Return the IDs that records of the target may bear, and each of which it must have."""
        return frozenset(self._names())

    def copies(self) -> Counter[bytes] | None:
        """Return how often the target may have each ID; None where records may be copied again."""
        return Counter(self._names()) if self._atomic else None

    def _names(self) -> list[bytes]:
        admin = AdminClient({"bootstrap.servers": self._straight, "log_level": 0})
        cluster = str(admin.list_topics(timeout=_END_S).cluster_id)
        described = admin.describe_topics(TopicCollection([self.topic]))[self.topic].result(_END_S)
        mark = topic_digits(log_name(cluster, topic_id_of(described)))
        lies_in = f"{cluster}.{self.topic}{mark and '~' + mark}"
        return [
            self._name(lies_in, each) for each in read_messages(self._straight, self.topic, self.partitions)
        ]

    @staticmethod
    def _name(lies_in: str, message: Any) -> bytes:
        ident = record_of(message).ident
        return (
            source_id(f"{lies_in}-{message.partition()}", message, message.headers())
            if ident is None
            else ident
        )

    def _committed(self) -> dict[int, int]:
        reader = Consumer({"bootstrap.servers": self._straight, "group.id": self.topic, "log_level": 0})
        try:
            places = [TopicPartition(self.topic, number) for number in range(self.partitions)]
            until = time.monotonic() + _END_S
            while True:
                try:
                    return {tp.partition: max(0, tp.offset) for tp in reader.committed(places, timeout=10)}
                except KafkaException as error:
                    # A coordinator that is made, or moves, says so.
                    if not is_retriable(error) or time.monotonic() > until:
                        raise
                    time.sleep(_LOOK_S)
        finally:
            reader.close()


def main(argument: str) -> int:
    """Copy until SIGTERM."""
    faulthandler.register(signal.SIGUSR2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
    told = json.loads(argument)
    sabotage(told["broken"])
    common = {
        "bootstrap.servers": told["bootstrap"],
        "log_level": 0,
        "reconnect.backoff.max.ms": 200,
        "socket.timeout.ms": 5_000,
    }
    bridge = Bridge(
        {**common, "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": SESSION_MS // 10,
         "topic.metadata.refresh.interval.ms": 1_000},
        {**common, "transaction.timeout.ms": _TRANSACTION_MS},
        topics=[told["source"]], rename=told["target"], partitions="same", group=told["source"],
        id=f"header:{ID_HEADER}",
        transactions="always" if told["atomic"] else "never",
    )  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: bridge.stop())
    bridge.run()
    return 0
