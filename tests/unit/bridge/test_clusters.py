"""Two ends with one cluster ID: whether they are of one cluster."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid

from dedup_sdk._kafka.client.client import PendingRequest
from dedup_sdk.bridge import _source_log as source_log

if TYPE_CHECKING:
    from collections.abc import Iterable

NONE = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
FORBIDDEN = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))


class Ends:
    """In the place of the questions: an answer a round, by end and topic; the last one stays."""

    def __init__(self, **answers: dict[str, list[Any]]) -> None:
        self.answers = answers

    def __call__(self, client: dict[str, str]) -> Any:
        """An end's questions."""
        return SimpleNamespace(describe=lambda topics: self._described(client["end"], topics))

    def _described(self, end: str, topics: Iterable[str]) -> dict[str, PendingRequest]:
        return {
            topic: PendingRequest(self._answer(self.answers[end][topic]), cast("Any", None))
            for topic in topics
        }

    @staticmethod
    def _answer(answers: list[Any]) -> Future[Any]:
        now, future = answers.pop(0) if len(answers) > 1 else answers[0], Future[Any]()
        if isinstance(now, Exception):
            future.set_exception(now)
        else:
            future.set_result(SimpleNamespace(topic_id=now))
        return future


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        (["1"], ["1"], None), (["1"], ["2"], "t"), (["1"], [NONE], "t"), ([NONE], ["2"], "t"), ([NONE], [NONE], None),
        # A topic that may not be seen, or has no ID, tells nothing.
        ([FORBIDDEN], ["1"], None), ([str(Uuid(0, 0))], ["1"], None), ([str(Uuid(0, 0))], [NONE], None),
        ([None], ["1"], None),
        # A broker that had not heard of it.
        (["1"], [NONE, "1"], None), (["1", "2"], ["2"], None),
    ],
)  # fmt: skip
def test_a_topic_tells_two_clusters_apart(
    monkeypatch: pytest.MonkeyPatch, source: list[Any], target: list[Any], told: str | None
) -> None:
    """Where two looks agree that it is another one there, or not there; an ID that both have alike tells nothing."""
    ends = Ends(source={"same": ["9"], "t": [*source]}, target={"same": ["9"], "t": [*target]})
    monkeypatch.setattr(source_log, "MetadataRequests", ends)
    monkeypatch.setattr(source_log, "PAUSE_S", 0.0)
    assert source_log.differing_topic({"end": "source"}, {"end": "target"}, ["t", "same", "t"]) == told
