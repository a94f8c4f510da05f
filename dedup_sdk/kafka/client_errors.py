"""Errors of the client: those that pass by themselves, those of events, and settings that it refuses, in a line that shows no value: it may be a password."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from dedup_sdk.errors import ConfigurationError

logger = logging.getLogger("dedup_sdk")

_PASSING: Final = frozenset({
    KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._WAIT_COORD,  # noqa: SLF001
    KafkaError._DESTROY_BROKER, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT, KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.STALE_MEMBER_EPOCH,
    # A partition that was added a moment ago: the client has not heard of it yet.
    KafkaError._UNKNOWN_PARTITION, KafkaError.LEADER_NOT_AVAILABLE,  # noqa: SLF001
    # A broker that was started again, and a client that has not heard of it yet.
    KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION,
    # A leader that is new, or leaves.
    KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.KAFKA_STORAGE_ERROR, KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.NETWORK_EXCEPTION,
})  # fmt: skip
"""What an answer of the group's coordinator may say while it is not ready, or while the group rebalances."""


def passes(error: KafkaException) -> bool:
    """Whether asking again later makes sense: the broker is away, the coordinator not ready, or the group rebalances."""
    cause = error.args[0]
    return isinstance(cause, KafkaError) and (cause.retriable() or cause.code() in _PASSING)


def handle_error(error: KafkaError) -> None:
    """Raise a fatal error that the client handed out as an event, log any other."""
    if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001 (that is its public name)
        raise KafkaException(error)
    logger.warning("%s: %s", error.name(), error.str())


@contextmanager
def settings_refused(config: Mapping[str, Any], option: str = "--config") -> Generator[None]:
    """Raise `ConfigurationError` for settings of which no client can be made; ``option`` is how messages name where they were given."""
    try:
        yield
    except KafkaException as error:
        raise ConfigurationError(f"the client refuses its settings: {text_of(error)}; see {option}") from None
    except (TypeError, ValueError, AttributeError, SystemError) as error:
        # Their names alone: a value may be a password.
        names = ", ".join(sorted(config.keys() - {"log_level", "bootstrap.servers"}))
        raise ConfigurationError(
            f"the client refuses its settings ({type(error).__name__}): one of {names} cannot be given as text; see {option}"
        ) from None


def text_of(error: KafkaException) -> str:
    """Return what a client's error says."""
    cause = error.args[0] if error.args else error
    described = getattr(cause, "str", None)
    return described() if callable(described) else str(cause)
