"""Every public method, called by a second thread while the first one waits for messages of a quiet topic."""

from __future__ import annotations

import re
import signal
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from confluent_kafka import KafkaException, TopicPartition

from dedup_sdk import ConfigurationError, DedupConsumer
from tests.support.consuming import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

    from tests.support.worlds import World

LATE_S: Final = 5.0
"""Ten times what a call may take; a call that waits for the loop to end its wait never returns."""


class Beside(NamedTuple):
    """What a call of the second thread is given."""

    consumer: DedupConsumer
    topic: str
    message: Message
    """The first message, which the loop has got."""
    other: str
    """A topic that is not subscribed."""

    @property
    def place(self) -> TopicPartition:
        """The only partition."""
        return TopicPartition(self.topic, 0)


def refused(call: Callable[[], object], error: type[BaseException]) -> None:
    """Expect an error at once."""
    with pytest.raises(error):
        call()


def once(it: Beside) -> None:
    """Enter a block, and leave it."""
    with it.consumer.once(it.message):
        pass


def signals(it: Beside) -> None:
    """Only the main thread may: this is an error at once."""
    stack = ExitStack()
    refused(lambda: stack.enter_context(it.consumer.stop_on_signals(signal.SIGUSR1)), Exception)


def assign(it: Beside) -> None:
    """Assign by hand, once the member has left its group: until then the client refuses it, at once."""
    while True:
        try:
            it.consumer.assign([it.place])
        except KafkaException:
            time.sleep(0.01)
        else:
            return


CALLS: Final[dict[str, Callable[[Beside], object]]] = {
    "assignment": lambda it: it.consumer.assignment(),
    "cluster_id": lambda it: it.consumer.cluster_id(LATE_S),
    "commit": lambda it: it.consumer.commit(message=it.message, asynchronous=False),
    "committed": lambda it: it.consumer.committed([it.place], LATE_S),
    "complete": lambda it: it.consumer.complete(it.message),
    "consume": lambda it: refused(lambda: it.consumer.consume(1, 1), RuntimeError),
    "consumer_group_metadata": lambda it: it.consumer.consumer_group_metadata(),
    "counters": lambda it: it.consumer.counters,
    "effective_window_ms": lambda it: it.consumer.effective_window_ms,
    "get_watermark_offsets": lambda it: (
        it.consumer.get_watermark_offsets(it.place, LATE_S),
        it.consumer.get_watermark_offsets(it.place, cached=True),
    ),
    "health": lambda it: it.consumer.health(),
    "holds": lambda it: it.consumer.holds(it.message),
    "list_topics": lambda it: it.consumer.list_topics(it.topic, LATE_S),
    "memberid": lambda it: it.consumer.memberid(),
    "metrics": lambda it: it.consumer.metrics(),
    "offsets_for_times": lambda it: it.consumer.offsets_for_times([TopicPartition(it.topic, 0, 1)], LATE_S),
    "once": once,
    "partition_statuses": lambda it: it.consumer.partition_statuses,
    "pause": lambda it: it.consumer.pause([it.place]),
    "poll": lambda it: refused(lambda: it.consumer.poll(1), RuntimeError),
    "position": lambda it: it.consumer.position([it.place]),
    "release": lambda it: it.consumer.release(it.message),
    "resume": lambda it: it.consumer.resume([it.place]),
    "run": lambda it: refused(lambda: it.consumer.run(print), RuntimeError),
    "seek": lambda it: it.consumer.seek(TopicPartition(it.topic, 0, 1)),
    "set_sasl_credentials": lambda it: it.consumer.set_sasl_credentials("shop", "secret"),
    "stop_on_signals": signals,
    "store_offsets": lambda it: it.consumer.store_offsets(message=it.message),
    "transaction_aborted": lambda it: it.consumer.transaction_aborted([]),
    "transaction_committed": lambda it: it.consumer.transaction_committed([], []),
    "transaction_offsets": lambda it: refused(
        lambda: it.consumer.transaction_offsets([]), ConfigurationError
    ),
    "transactions": lambda it: refused(lambda: it.consumer.transactions(max_messages=0), ConfigurationError),
    "verdict": lambda it: it.consumer.verdict(it.message),
    # These change what is assigned.
    "unsubscribe": lambda it: it.consumer.unsubscribe(),
    "assign": assign,
    "incremental_assign": lambda it: refused(
        lambda: it.consumer.incremental_assign([TopicPartition(it.other, 0, 0)]), KafkaException
    ),
    "incremental_unassign": lambda it: refused(
        lambda: it.consumer.incremental_unassign([it.place]), KafkaException
    ),
    "unassign": lambda it: it.consumer.unassign(),
    "subscribe": lambda it: it.consumer.subscribe([it.topic]),
    # These end the loop.
    "stop": lambda it: it.consumer.stop(),
    "close": lambda it: it.consumer.close(),
}
"""One call of each public name, in the order in which they are made."""
INTERNAL: Final = {"leave_to_parent"}
"""Called in the child of a fork, where no other thread is."""


class Loop:
    """A thread in ``for message in consumer:``."""

    def __init__(self, consumer: DedupConsumer) -> None:
        self.got: list[Message] = []
        self.began = threading.Event()
        self._consumer = consumer
        self._thread: threading.Thread | None = None

    def go_on(self) -> None:
        """Begin again if the loop has ended."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()

    def ends(self) -> bool:
        """Whether it ends soon."""
        assert self._thread is not None
        self._thread.join(PATIENCE_S)
        return not self._thread.is_alive()

    def _read(self) -> None:
        try:
            for message in self._consumer:
                self.got.append(message)
                self.began.set()
        except RuntimeError as error:
            assert "closed" in str(error)  # noqa: PT017 - it is the end of this thread


def test_each_method_says_whether_any_thread_may_call_it() -> None:
    """But for those that belong to the loop, and are refused beside it."""
    of_the_loop = {"consume", "poll", "run", "stop_on_signals", "transactions", "transaction_offsets"}
    silent = {name for name in CALLS if not re.search("any thread|another thread", text_of(name))}
    assert silent == of_the_loop


def text_of(name: str) -> str:
    """Return the docstring of a public name, in one line."""
    return " ".join(str(getattr(DedupConsumer, name).__doc__).split())


def test_every_public_method_answers_beside_a_quiet_loop(world: World) -> None:
    """Also those that ask a broker, and those whose answer only the client has, which waits for records meanwhile."""
    names = {name for name in dir(DedupConsumer) if not name.startswith("_")}
    assert set(CALLS) == names - INTERNAL, "a public name without a call"
    world.send("a")
    consumer = world.consumer()
    loop = Loop(consumer)
    loop.go_on()
    assert loop.began.wait(PATIENCE_S)
    other = world.create_topic(f"{world.topic}-other")
    it = Beside(consumer, world.topic, loop.got[0], other)
    late: list[str] = []
    for name, call in CALLS.items():
        loop.go_on()
        errors: list[BaseException] = []
        thread = threading.Thread(target=answered, args=(call, it, errors), daemon=True)
        thread.start()
        thread.join(LATE_S)
        if thread.is_alive():
            late.append(name)
        assert errors == [], name
    assert late == []
    assert loop.ends()


def answered(call: Callable[[Beside], object], it: Beside, errors: list[BaseException]) -> None:
    """Make a call; keep its error."""
    try:
        call(it)
    except BaseException as error:  # noqa: BLE001
        errors.append(error)
