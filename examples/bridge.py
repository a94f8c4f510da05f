"""A bridge that forgets: it copies everything twice, and each order is handled once.

Runs against two of librdkafka's mock clusters inside this process, so that nothing has to be installed or started:

    python examples/bridge.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import Producer

from dedup_sdk import DedupConsumer, Lookup, Window, header
from dedup_sdk.bridge import Bridge
from dedup_sdk.testing import MockKafka


def main() -> None:
    """Copy three orders twice, and handle three."""
    with MockKafka() as old, MockKafka() as new, TemporaryDirectory() as store:
        old.create_topic("orders")
        new.create_topic("orders")
        producer = Producer({"bootstrap.servers": old.bootstrap, "log_level": 0})
        producer.produce("orders", "order-1", headers={"dedup-id": "order-1"})
        producer.produce("orders", "order-2")
        producer.produce("orders", "order-3")
        producer.flush()
        # A group that has lost its offsets acts like a bridge that was killed before it committed them: it sends
        # again.
        for group in ("bridge", "bridge-without-offsets"):
            copy(old.bootstrap, new.bootstrap, group)
        handle(new.bootstrap, Path(store, "store"))


def copy(source: str, target: str, group: str) -> None:
    """Copy all that there is; without ``until_end`` it would go on until `stop`."""
    bridge = Bridge(
        {"bootstrap.servers": source, "log_level": 0},
        {"bootstrap.servers": target, "log_level": 0},
        topics=["orders"],
        group=group,
    )
    bridge.run(until_end=True)
    print(f"{bridge.counters.copied} copied, {bridge.counters.named} of them given an ID")


def handle(bootstrap: str, store: Path) -> None:
    """Handle each order once."""
    with (
        DedupConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "billing",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            },
            dedup=Lookup(id=header("dedup-id"), window=Window(days=7)),
            store=store,
            idle_timeout=1,  # seconds; a service leaves it out and runs for ever
        ) as consumer,
        consumer.stop_on_signals(),
    ):
        consumer.subscribe(["orders"])
        for message in consumer:
            headers: dict[str, Any] = dict(message.headers() or ())
            ident = headers["dedup-id"] or b""
            # The cluster's name and the time are others each time that this runs.
            shown = ident.decode().rpartition("@")[0].partition(".")[2] or ident.decode()
            print(f"handle {(message.value() or b'').decode()} ({shown})")
        print(f"duplicates: {consumer.counters.verdicts['duplicate']}")


if __name__ == "__main__":
    main()
