"""What clients say of settings that commands hand on, in a line that shows no value: it may be a password."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException

from dedup_sdk.errors import ConfigurationError


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
