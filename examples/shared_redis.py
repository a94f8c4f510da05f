"""Two consumers of two groups divide the work by one memory in Redis: each order is shipped once, by whoever is first.

Runs against librdkafka's mock cluster inside this process, and a Redis that it starts itself where ``redis-server`` is
installed; elsewhere with the same memory inside this process, so that nothing has to be installed:

    python examples/shared_redis.py

``RedisStore("redis://localhost:6379/0")`` is all that a service needs.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import ExitStack
from tempfile import TemporaryDirectory

from confluent_kafka import Message, Producer

from dedup_adapters.redis import RedisStore
from dedup_sdk import DedupConsumer, Lookup, Window, header
from dedup_sdk.shared import ClaimStore, MemoryClaimStore, Shared, SharedStoreError
from dedup_sdk.testing import MockKafka, free_port


def main() -> None:
    """Send orders in two topics, and ship each once."""
    with ExitStack() as stack:
        kafka = stack.enter_context(MockKafka())
        store = shared_store(stack)
        for topic in ("web", "phone"):
            kafka.create_topic(topic)
        send(kafka.bootstrap, "web", "order-1", "order-2")
        send(kafka.bootstrap, "phone", "order-2", "order-3")
        berlin = stack.enter_context(consumer_of("berlin", "web", kafka.bootstrap, store, stack))
        # One list for both consumers: a signal ends every loop of this program.
        caught = stack.enter_context(berlin.stop_on_signals())
        print("berlin reads the web shop's orders, and is slow with the last one")
        ship(berlin, "berlin", caught)
        in_hand = next_message(berlin, caught)
        print(
            "paris reads those by phone: order-2 is in flight in berlin, and neither dropped nor shipped twice"
        )
        paris = stack.enter_context(consumer_of("paris", "phone", kafka.bootstrap, store, stack))
        ship(paris, "paris", caught)
        berlin.complete(in_hand)
        print(f"  berlin ships {text_of(in_hand)}")
        while not (paris.counters.verdicts["duplicate"] or caught):
            paris.poll(0.1)
        print("paris is told that it was completed, and its copy is a duplicate")


def consumer_of(group: str, topic: str, bootstrap: str, store: ClaimStore, stack: ExitStack) -> DedupConsumer:
    """Make a consumer that shares its memory with all groups."""
    consumer = DedupConsumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"},
        dedup=Lookup(id=header("dedup-id"), window=Window(days=7)),
        store=stack.enter_context(TemporaryDirectory()),
        shared=Shared(store, scope="global"),
        completion="explicit",
    )
    consumer.subscribe([topic])
    return consumer


def ship(consumer: DedupConsumer, city: str, caught: list[int]) -> None:
    """Ship the next order."""
    message = next_message(consumer, caught)
    print(f"  {city} ships {text_of(message)}")
    consumer.complete(message)


def next_message(consumer: DedupConsumer, caught: list[int]) -> Message:
    """Wait for the next message; end the program, in order, after a signal."""
    while not caught:
        message: Message | None = consumer.poll(0.2)
        if message is not None:
            return message
    raise SystemExit


def text_of(message: Message) -> str:
    """Return a message's value."""
    return (message.value() or b"").decode()


def send(bootstrap: str, topic: str, *orders: str) -> None:
    """Send orders; those who order by phone and in the web shop are in both topics."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for order in orders:
        producer.produce(topic, value=order, headers=[("dedup-id", order.encode())])
    producer.flush()


def shared_store(stack: ExitStack) -> ClaimStore:
    """Start a Redis, where it is installed."""
    program = shutil.which("redis-server")
    if program is None:
        return MemoryClaimStore()
    port = free_port()
    folder = stack.enter_context(TemporaryDirectory())
    # With an append-only file, as it is to have: else a restart would forget every ID.
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--appendonly", "yes"]
    # In a group of its own: Ctrl-C must not end it before the consumers are closed.
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, process_group=0)  # noqa: S603 (a command made here)
    stack.callback(server.wait)
    stack.callback(server.terminate)
    store = RedisStore(f"redis://127.0.0.1:{port}/0")
    while True:
        try:
            store.release([], [])
            break
        except SharedStoreError:
            time.sleep(0.05)
    stack.callback(store.close)
    return store


if __name__ == "__main__":
    main()
