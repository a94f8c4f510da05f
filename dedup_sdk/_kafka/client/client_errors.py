"""Errors of the Kafka client: retriable errors, error events, and refused settings.

Messages about settings contain names only, because a value may be a password.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from dedup_sdk.errors import ConfigurationError

logger = logging.getLogger("dedup_sdk")

_RETRIABLE: Final = frozenset({
    KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._WAIT_COORD,  # noqa: SLF001
    KafkaError._DESTROY_BROKER, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT, KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.STALE_MEMBER_EPOCH,
    # A partition that was just added, and is not in the client's metadata yet.
    KafkaError._UNKNOWN_PARTITION, KafkaError.LEADER_NOT_AVAILABLE,  # noqa: SLF001
    # A restarted broker that is not in the client's metadata yet.
    KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION,
    # A leader that was just elected, or is resigning.
    KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.KAFKA_STORAGE_ERROR, KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
})  # fmt: skip
"""Errors of brokers and coordinators that end by themselves: start-up, a new leader, a rebalance."""


def is_retriable(error: KafkaException) -> bool:
    """Whether a later retry may succeed: broker unreachable, coordinator not ready, or group rebalancing."""
    cause = error.args[0]
    return isinstance(cause, KafkaError) and (cause.retriable() or cause.code() in _RETRIABLE)


def handle_error(error: KafkaError) -> None:
    """Raise a fatal error that the client returned as an event; log any other."""
    if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001 (that is its public name)
        raise KafkaException(error)
    logger.warning("%s: %s", error.name(), error.str(), extra={"event": "client-error"})


@contextmanager
def settings_refused(config: Mapping[str, Any], option: str = "--client-config") -> Generator[None]:
    """Raise `ConfigurationError` where the client refuses its settings.

    ``option`` names, for the message, where the user gave them.
    """
    try:
        yield
    except KafkaException as error:
        raise ConfigurationError(f"the client refuses its settings: {text_of(error)}; see {option}") from None
    except (TypeError, ValueError, AttributeError, SystemError) as error:
        # Names only: a value may be a password.
        names = ", ".join(sorted(config.keys() - {"log_level", "bootstrap.servers"}))
        raise ConfigurationError(
            f"the client refuses its settings ({type(error).__name__}): one of {names} cannot be given as text; "
            f"see {option}"
        ) from None


def text_of(error: KafkaException) -> str:
    """Return the description in a client's error."""
    cause = error.args[0] if error.args else error
    described = getattr(cause, "str", None)
    return described() if callable(described) else str(cause)
