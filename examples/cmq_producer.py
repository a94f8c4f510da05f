"""Persist before send: a producer dies before its messages are confirmed; the next one sends them with the same keys.

Runs against librdkafka's mock cluster inside this process, so that nothing has to be installed or started:

    python examples/cmq_producer.py

The scheme is that of Tencent CMQ's guide: the key is made of the producer's address, its process and thread, the time
and an increment.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dedup_adapters import cmq
from dedup_sdk import DedupConsumer
from dedup_sdk.testing import MockKafka

DEDUP = cmq.lookup(max_retention="4d", max_retry="1h", max_network="1m")


def main() -> None:
    """Send three orders twice, and handle three."""
    with MockKafka() as kafka, TemporaryDirectory() as folder:
        kafka.create_topic("orders")
        config = {
            "bootstrap.servers": kafka.bootstrap,
            "log_level": 0,
        }  # this shows a broker that is away
        outbox, left_behind = Path(folder, "outbox"), Path(folder, "left-behind")
        with cmq.producer(config, outbox=outbox, address="10.0.0.5") as producer:
            kafka.set_broker_down()
            for order in ("order-1", "order-2", "order-3"):
                producer.produce("orders", order)
            producer.persist()  # from here on they will be sent, whatever happens to this process
            shutil.copytree(outbox, left_behind)  # the files of a process that is killed now
            kafka.set_broker_up()
            print(
                f"the first producer: {producer.flush()} unconfirmed, {producer.counters.confirmed} confirmed"
            )
        with cmq.producer(config, outbox=left_behind, address="10.0.0.5") as producer:
            producer.produce("orders", "order-4")
            producer.flush()
            print(
                f"the next one found {producer.counters.recovered} in the outbox, and sent {producer.counters.sent}"
            )
        handle(kafka.bootstrap, Path(folder, "store"))


def handle(bootstrap: str, store: Path) -> None:
    """Handle each order once."""
    with (
        DedupConsumer(
            {"bootstrap.servers": bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"},
            dedup=DEDUP,
            store=store,
            idle_timeout=1,  # seconds; a service leaves it out and runs for ever
        ) as consumer,
        consumer.stop_on_signals(),
    ):
        consumer.subscribe(["orders"])
        for message in consumer:
            headers: dict[str, Any] = dict(message.headers() or ())
            key = cmq.ProducerKey.read(headers[cmq.DEDUP_KEY] or b"")
            made_by = "another's" if key is None else f"{key.address}, number {key.increment}"
            print(f"handle {(message.value() or b'').decode()} ({made_by})")
        print(f"duplicates: {consumer.counters.verdicts['duplicate']}")


if __name__ == "__main__":
    main()
