"""The only place where tests reach into a consumer: states that no public call shows, and events that none causes.

Before you use a function of this file, look whether `partition_statuses`, `counters`, an observer, `committed`, a log
line, or the messages of a second consumer show the same. Returned objects are used by their public names.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from threading import Event, Thread, get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from dedup_sdk import DedupConsumer
    from dedup_sdk._engine.gates import Gatekeeper
    from dedup_sdk._engine.partition import Partition
    from dedup_sdk._kafka.client.client import MetadataRequests
    from dedup_sdk._kafka.client.guards import ClientLock
    from dedup_sdk._kafka.deliver.fetcher import Fetcher
    from dedup_sdk.aio import AsyncDedupConsumer

_ENTERED_S = 60.0


def consumer_of(consumer: AsyncDedupConsumer) -> DedupConsumer:
    """Return the synchronous consumer, which outlives an asynchronous one that is dropped."""
    inner: DedupConsumer = consumer._consumer
    return inner


def queued(consumer: AsyncDedupConsumer) -> int:
    """Return how many messages and events wait for the application, which no public call counts."""
    return len(consumer._owner.buffer)


def metadata_requests(consumer: DedupConsumer) -> MetadataRequests:
    """Return what asks for metadata, which replaces its client when a leader seems to have changed."""
    requests: MetadataRequests = consumer._client.requests
    return requests


def next_offset(consumer: DedupConsumer, topic: str = "orders", partition: int = 0) -> int | None:
    """Return the offset of the first record that is not completed; None if the partition is not open.

    A status shows how many records are in flight, and not which: this is the offset that a commit would commit.
    """
    return consumer._engine.next_offset(topic, partition)


def partition_of(consumer: DedupConsumer, topic: str = "orders", partition: int = 0) -> Partition:
    """Return an open partition: its records in flight, its memory, and its store."""
    return open_partitions(consumer)[topic, partition]


def open_partitions(consumer: DedupConsumer) -> Mapping[tuple[str, int], Partition]:
    """Return the partitions whose stores are open, by topic and number."""
    return consumer._engine.partitions


def fetcher_of(consumer: DedupConsumer) -> Fetcher:
    """Return the messages that the client gave and that are not judged yet; it can fetch more without judging them."""
    return consumer._fetcher


def alone(consumer: DedupConsumer) -> list[Any]:
    """The messages that were judged one by one since something of their partition was written last."""
    tails = (partition.flight._tail for partition in consumer._engine.partitions.values())
    return [message for tail in tails if tail is not None for message in tail.items]


def rest_from_maintenance(consumer: DedupConsumer) -> None:
    """Have maintenance due only when something asks for it."""
    consumer._interruption.schedule_maintenance(float("inf"))
    consumer._poller._maintenance.recover_at = float("inf")


def keep_error(consumer: DedupConsumer, error: Exception) -> None:
    """Behave as if a callback had raised this error just now."""
    consumer._callback_errors.keep(error)


def runs_callback(consumer: DedupConsumer) -> bool:
    """Whether this thread is in a callback of the client."""
    return consumer._callback_errors.runs_here()


def begins_release(frame: FrameType) -> bool:
    """Whether a frame is that of a release as it is carried out."""
    return frame.f_code.co_qualname == "DedupConsumer._release"


def run_as_callback(consumer: DedupConsumer, callback: Callable[[], object]) -> None:
    """Call a function as the client calls a callback."""
    consumer._callback_errors.run(callback)


def strike_next_assignment(consumer: DedupConsumer) -> None:
    """Have an exception of a signal come when the next assignment of the group begins."""

    class Striking(set[Any]):
        def clear(self) -> None:
            consumer._assignment._pausing = set()
            raise KeyboardInterrupt

    consumer._assignment._pausing = Striking()


def is_in_on_assign(consumer: DedupConsumer) -> bool:
    """Return whether `assign` would give offsets for an assignment of the group."""
    return consumer._assignment._assigning is not None


def leave_mark_in_client(consumer: DedupConsumer) -> None:
    """Do as an exception of a signal does that comes before this thread can say that it has left the client."""
    lock_of(consumer).client_thread = get_ident()


def leave_mark_of_poll(consumer: DedupConsumer) -> None:
    """Do as an exception of a signal does that comes before a call for messages can say that it is over."""
    consumer._poller.thread = get_ident()


def leave_mark_of_close(consumer: DedupConsumer) -> None:
    """Do as a second exception of a signal does, which comes before `close` can say that it is over."""
    lock_of(consumer).closer = get_ident()


def ready(consumer: DedupConsumer) -> list[Any]:
    """Return the judged messages that `poll` returns next."""
    return list(consumer._delivery.batch.ready)


def gatekeeper_of(consumer: DedupConsumer) -> Gatekeeper | None:
    """Return the claims of a consumer with a shared memory; None without one."""
    return consumer._engine.gatekeeper


def lock_of(consumer: DedupConsumer) -> ClientLock:
    """Return the lock of a consumer's state; it knows which thread is inside the client."""
    return consumer._access


def recover(consumer: DedupConsumer) -> None:
    """Take the next steps of recoveries and commits, without fetching a message."""
    consumer._upkeep.work()


def lose_all(consumer: DedupConsumer) -> None:
    """Take all partitions from a consumer as a killed process loses them: nothing is written, nothing is committed."""
    consumer._session.lose(consumer.assignment())


def interrupt(consumer: DedupConsumer) -> None:
    """Have the next call for messages find a step that an exception left half done."""
    consumer._interruption.note()


def let_time_pass(consumer: DedupConsumer) -> None:
    """Have the next call for messages do what it does when it comes late: maintenance is due, the group must hear."""
    consumer._interruption.request_maintenance()
    consumer._poller.heard_at = float("-inf")


@contextmanager
def busy_client(consumer: DedupConsumer, *, in_callback: bool = False) -> Iterator[None]:
    """Keep another thread inside the client during the block; ``in_callback``: in a rebalance callback."""
    lock, entered, over = lock_of(consumer), Event(), Event()

    def stay() -> None:
        with lock.in_callback() if in_callback else nullcontext():
            entered.set()
            over.wait()

    thread = Thread(target=lock.call_client, args=[stay])
    thread.start()
    try:
        assert entered.wait(_ENTERED_S), "another thread does not leave the client"
        yield
    finally:
        over.set()
        thread.join()
