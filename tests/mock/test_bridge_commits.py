"""What a bridge commits of its source, when a commit is late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from dedup_sdk.bridge._counters import BridgeCounters
from dedup_sdk.bridge._settings import source_settings
from dedup_sdk.bridge._source import Source
from tests.support.bridging import QUICK, bridge

if TYPE_CHECKING:
    import pytest

    from dedup_sdk.testing import MockKafka

PLACE = ("orders", 0)


def test_a_commit_that_waited_does_not_set_a_transaction_s_back(
    kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a partition could not be committed; what was copied next, with its offsets, is further on."""
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
    """The client goes on to delivery reports with its exception set; the bridge ends without a traceback, and leaves its group."""
    left: list[Source] = []
    real = Source.close

    def close(self: Source) -> None:
        left.append(self)
        real(self)

    class Done(Producer):
        """A producer that has failed for good."""

        def abort_transaction(self, *_: object) -> None:
            raise SystemError("returned a result with an exception set")

    monkeypatch.setattr("dedup_sdk.bridge._target.Producer", Done)
    monkeypatch.setattr(Source, "close", close)
    bridge(kafka.bootstrap, kafka.bootstrap, rename="pairs").run(until_end=True)
    assert left
