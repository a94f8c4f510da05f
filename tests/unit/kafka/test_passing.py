"""Which answers are asked for again, and which end the loop."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from dedup_sdk._kafka.client.client_errors import is_retriable


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._DESTROY_BROKER,
        KafkaError._WAIT_COORD,
        KafkaError.NOT_COORDINATOR,
        KafkaError.STALE_MEMBER_EPOCH,
    ],
)
def test_a_broker_that_is_away_for_a_moment_is_asked_again(code: int) -> None:
    """Whichever way the client says it: no answer came, none could be asked for, or the coordinator is not up."""
    assert is_retriable(KafkaException(KafkaError(code)))


@pytest.mark.parametrize(
    "code",
    [KafkaError._AUTHENTICATION, KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._FATAL],
)
def test_what_asking_again_does_not_change_ends_the_loop(code: int) -> None:
    """The application is told of it."""
    assert not is_retriable(KafkaException(KafkaError(code)))


def test_an_exception_of_another_kind_does_not_pass() -> None:
    """An exception without an error of Kafka's is nothing that time heals."""
    assert not is_retriable(KafkaException("something else"))
