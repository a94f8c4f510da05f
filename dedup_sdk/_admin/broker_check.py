"""Whether a broker answers at all, asked before anything else, so that an address where nobody listens is named."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from dedup_sdk._kafka.client.client_errors import settings_refused, text_of
from dedup_sdk._kafka.client.settings import ASK_S
from dedup_sdk.errors import DedupError

DOWN_S: Final = 3.0
"""Seconds that a broker may refuse connections, because it is starting."""
_FIRST_S: Final = 1.0
_SILENCE: Final = frozenset({
    KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE,  # noqa: SLF001
})  # fmt: skip
_REFUSALS: Final = frozenset({
    KafkaError._SSL, KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED,  # noqa: SLF001 (public)
})  # fmt: skip
"""Errors of a broker that is there."""
_WHERE: Final = re.compile(r"^\S+/bootstrap: | \(after \d+ms in state \w+\)")


def require_broker(
    config: Mapping[str, Any],
    failure: type[DedupError],
    *,
    within_s: float = ASK_S,
    option: str = "--bootstrap",
) -> None:
    """Return as soon as a broker answers; raise ``failure`` in one line that names the address when none does.

    It waits for ``within_s`` seconds, and for `DOWN_S` where connections to all brokers fail. ``config`` is that of a
    client, with ``bootstrap.servers``; ``option`` is what the user should check. Raises `ConfigurationError` for
    settings that the client refuses.
    """
    events: list[KafkaError] = []
    settings: dict[str, Any] = {"log_level": 0, "error_cb": events.append, **config}
    with settings_refused(config):
        admin = AdminClient(settings)
    begun, wait_s = time.monotonic(), min(_FIRST_S, within_s)
    while True:
        try:
            admin.list_topics(timeout=wait_s)
        except KafkaException as error:
            waited_s = time.monotonic() - begun
            admin.poll(0)
            down = any(event.code() == KafkaError._ALL_BROKERS_DOWN for event in events)  # noqa: SLF001 (public)
            wait_s = (min(DOWN_S, within_s) if down else within_s) - waited_s
            if wait_s > 0:
                continue
            causes = [
                event.str()
                for event in events
                if event.code() != KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 (as above)
            ]
            cause = _WHERE.sub("", causes[0] if causes else text_of(error))
            servers = str(config["bootstrap.servers"])
            if any(event.code() in _REFUSALS or "handshake" in event.str() for event in events):
                raise failure(
                    f"the broker at {servers} accepts no connection with these settings ({cause}); check "
                    "security.protocol and the sasl.* and ssl.* settings of --client-config"
                ) from None
            raise failure(no_broker(servers, waited_s, cause, check=option)) from None
        else:
            return


def is_silence(error: KafkaException) -> bool:
    """Whether a request failed because no broker could be reached, or none answered in time."""
    cause = error.args[0]
    return isinstance(cause, KafkaError) and cause.code() in _SILENCE


def no_broker(servers: str, within_s: float, cause: str, *, check: str) -> str:
    """Return the line for brokers that did not answer; ``check`` says what the user should look at."""
    return f"no broker answers at {servers} within {within_s:.0f} s ({cause}); check {check}"
