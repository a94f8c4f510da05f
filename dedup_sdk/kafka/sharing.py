"""What a consumer needs to share a memory with others, made of what the user gave."""

from __future__ import annotations

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.shared.claims import Claims
from dedup_sdk.shared.protocol import ClaimStore
from dedup_sdk.shared.settings import Shared
from dedup_sdk.strategy import Lookup, Strategy
from dedup_sdk.window import Window


def sharing_of(
    given: Shared | ClaimStore | None,
    dedup: Strategy,
    *,
    observes: bool,
    session_s: float,
) -> Shared | None:
    """Return how a memory is shared, None without one.

    ``observes``: whether nothing is to be hidden; ``session_s``: how long the group misses a silent member. Raises `ConfigurationError` for what does not go together.
    """
    if given is None:
        return None
    shared = given if isinstance(given, Shared) else Shared(given)
    window = dedup.window if isinstance(dedup, Lookup) else None
    if not isinstance(dedup, Lookup) or dedup.unit is not None:
        raise ConfigurationError(
            "shared needs Lookup without units: sources and units lie in one partition; leave out shared"
        )
    if observes:
        raise ConfigurationError(
            "mode='observe' hides nothing, and a shared memory would hide it from others; leave out shared, or choose mode='dedup'"
        )
    if isinstance(window, Window) and (window.is_off or window.time_ms is None or window.count is not None):
        raise ConfigurationError(
            f"window={str(window)!r}: a shared memory forgets by time alone; give e.g. Window(days=7), or leave out shared"
        )
    shared.warn_of_retries()
    shared.warn_of_lease(session_s)
    return shared


def share(engine: Deduplicator, sharing: Shared | None, settings: ClientSettings) -> None:
    """Have an engine claim what it hands out, where a memory is shared."""
    if sharing is None:
        return
    engine.share(
        Claims(
            sharing,
            engine.counters,
            group=settings.group,
            silence_s=settings.silence_s,
        )
    )
