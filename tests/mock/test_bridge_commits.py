"""The commits of a bridge at its source, when a commit is late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from dedup_sdk.bridge._counters import BridgeCounters
from dedup_sdk.bridge._settings import source_settings
from dedup_sdk.bridge._source import Source
from dedup_sdk.errors import BridgeError
from tests.support.bridging import QUICK, bridge

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Send

PLACE = ("orders", 0)


def test_a_commit_that_waited_does_not_set_a_transaction_s_back(
    kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a partition could not be committed; the next copies, with their offsets, are further on."""
    commits: list[list[int]] = []

    class Refusing(Consumer):
        """A member whose first commit is not answered."""

        def commit(self, *_: Any, offsets: Any = (), **__: Any) -> Any:
            commits.append([each.offset for each in offsets])
            if len(commits) == 1:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr("dedup_sdk.bridge._source.Consumer", Refusing)
    config = {"bootstrap.servers": kafka.bootstrap, **QUICK}
    source = Source(source_settings(config, "g", reports_ends=True), ["orders"], BridgeCounters())
    try:
        source.copied({PLACE: 5}, committed=False)
        assert commits == [[5]]
        source.copied({PLACE: 8}, committed=True)
        source.copied({}, committed=True)
        assert commits == [[5]], "the group stands at 8 already"
    finally:
        source.close()


def test_a_producer_that_cannot_abort_does_not_keep_the_member_in_its_group(
    kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client goes on to delivery reports with its exception set.

    The bridge ends without a traceback, and leaves its group.
    """
    left: list[Source] = []
    real = Source.close

    def close(self: Source) -> None:
        left.append(self)
        real(self)

    class Done(Producer):
        """A producer that has failed for good."""

        def abort_transaction(self, *_: object) -> None:
            raise SystemError("returned a result with an exception set")

    monkeypatch.setattr("dedup_sdk._transactions.producer.Producer", Done)
    monkeypatch.setattr(Source, "close", close)
    bridge(kafka.bootstrap, kafka.bootstrap, rename="pairs").run(until_end=True)
    assert left


@pytest.mark.parametrize("place", ["chain", "nowhere"])
def test_a_fatal_error_that_the_interpreter_hides_is_found(
    kafka: MockKafka, send: Send, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A bridge whose transactional ID another producer has taken ends.

    Else the two would take it from each other for ever.
    """
    fenced = KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))

    class Overtaken(Producer):
        """The client runs callbacks while its exception is set, and the interpreter makes another one of it, or two."""

        began = 0

        def begin_transaction(self) -> None:
            self.began += 1
            if self.began > 1 and place == "nowhere":
                raise fenced
            super().begin_transaction()

        def flush(self, *_: object) -> int:
            first = SystemError("returned a result with an exception set")
            first.__cause__ = fenced if place == "chain" else None
            raise SystemError("returned a result with an exception set") from first

    send("a")
    monkeypatch.setattr("dedup_sdk._transactions.producer.Producer", Overtaken)
    taken = bridge(kafka.bootstrap, kafka.bootstrap, rename="pairs", config={"transactional.id": "mine"})
    with pytest.raises(BridgeError, match="was taken by another producer"):
        taken.run(until_end=True)
