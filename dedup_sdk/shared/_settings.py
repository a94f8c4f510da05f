"""Settings of a consumer for a shared store."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from dedup_sdk._checks import choice, seconds, text
from dedup_sdk._engine.gates import Gatekeeper
from dedup_sdk._masking import shown
from dedup_sdk._observe import Counters
from dedup_sdk._rule_fingerprint import known_cluster
from dedup_sdk._strategy import Lookup, Strategy
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.shared._protocol import ClaimStore
from dedup_sdk.shared._scope import Scope, scope_name

logger = logging.getLogger("dedup_sdk")

InFlight = Literal["park", "wait"]
OnOutage = Literal["deliver", "pause"]

LEASE_S: Final = 60.0
MIN_LEASE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Shared:
    """A shared store, and how a consumer uses it.

    Args:
        store: e.g. `dedup_adapters.redis.RedisStore`; consumers may share it, and none of them closes it.
        scope: where equal IDs of one ID spec are the same message: in a ``partition``, a ``topic``, a ``group``, or
            ``global`` (all groups of all clusters: one of them handles each message).
        cluster: the name of the cluster in the scope; None: the ID that its brokers report. Give two clusters that
            share a scope the same name, e.g. where one mirrors the other. Not used in the scope ``global``.
        prefix: separates scopes in one store that would otherwise be equal, e.g. by environment.
        origins: topic -> the topic whose scope it shares, e.g. ``{"orders.retry": "orders"}``.
        in_flight: handling of a message whose ID another consumer has in flight: ``park`` (hold it back; later messages
            go on) or ``wait`` (stop its partition, so that order is kept).
        on_outage: handling of messages while the store does not answer: ``deliver`` (as unverified, and counted) or
            ``pause``.
        lease: seconds that a claim lasts without renewal. A thread of the consumer renews it three times per lease for
            as long as the group waits for the consumer. Messages of a dead consumer wait for the rest of the lease. A
            consumer that stops, or cannot reach the store, for longer than this loses its claims.

    Raises `ConfigurationError` for invalid settings.
    """

    store: ClaimStore
    scope: Scope = field(default="topic", kw_only=True)
    cluster: str | None = field(default=None, kw_only=True)
    prefix: str = field(default="", kw_only=True)
    origins: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    in_flight: InFlight = field(default="park", kw_only=True)
    on_outage: OnOutage = field(default="deliver", kw_only=True)
    lease: float = field(default=LEASE_S, kw_only=True)

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for the first invalid setting."""
        if isinstance(self.store, type) or not callable(getattr(self.store, "claim", None)):
            raise ConfigurationError(
                f"shared={shown(self.store)} is not a shared store; "
                "give e.g. RedisStore('redis://localhost:6379/0') of dedup_adapters.redis"
            )
        choice("scope", self.scope, ("partition", "topic", "group", "global"))
        if self.cluster is not None:
            text("cluster", self.cluster)
            if not self.cluster:
                raise ConfigurationError(
                    "cluster='': give the name that two clusters share, or None for the ID of each"
                )
        text("prefix", self.prefix)
        choice("in_flight", self.in_flight, ("park", "wait"))
        choice("on_outage", self.on_outage, ("deliver", "pause"))
        if seconds("lease", self.lease) < MIN_LEASE_S:
            raise ConfigurationError(f"lease={shown(self.lease)}: give at least a second, e.g. 60")
        given: object = self.origins  # what callers without a type checker pass
        if not isinstance(given, Mapping) or not all(
            isinstance(topic, str) and isinstance(origin, str) for topic, origin in given.items()
        ):
            raise ConfigurationError(
                f"origins={shown(self.origins)}: map each topic to the topic whose scope it shares, "
                "e.g. {'orders.retry': 'orders'}"
            )

    def warn_of_retries(self) -> None:
        """Warn that handlers must not send messages themselves to a topic that shares another's scope."""
        shared = {topic: origin for topic, origin in self.origins.items() if topic != origin}
        if shared:
            logger.warning(
                "%s: equal IDs are one message. If this is a retry topic, your handler must not send messages to it: "
                "the original is then completed, and its retry hidden as a duplicate. Let the handler raise instead, "
                "with consumer.run(..., on_error='dead-letter', dead_letters=...) and the retry topic; "
                "or remove it from origins",
                ", ".join(f"{topic} shares the scope of {origin}" for topic, origin in shared.items()),
                extra={"event": "shared-origins"},
            )

    def warn_of_lease(self, session_s: float) -> None:
        """Warn if a lease is shorter than ``session_s``: a stopped process would keep partitions and lose claims."""
        if self.lease < session_s:
            logger.warning(
                "lease=%g s is shorter than session.timeout.ms (%g s): a process that stops for longer than the lease "
                "keeps its partitions but loses its claims, so that its messages in flight are handled twice; "
                "give at least lease=%g",
                self.lease, session_s, session_s,
                extra={"event": "lease-too-short"},
            )  # fmt: skip

    def gatekeeper(self, counters: Counters, *, group: str, silence_s: float) -> Gatekeeper:
        """Return the gatekeeper of one consumer's partitions.

        ``silence_s``: seconds after its last call for messages in which its group still waits for the consumer, so that
        its claims are renewed.
        """
        from dedup_sdk.shared._claims import ClaimGatekeeper

        return ClaimGatekeeper(self, counters, group=group, silence_s=silence_s)

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds."""
        return round(self.lease * 1000)

    def scope_of(self, group: str, topic: str, partition: int, *, cluster: str, id_spec: str) -> bytes:
        """Return the name of the scope of a partition's records; ``cluster`` is the ID that its brokers report."""
        return scope_name(
            self.scope,
            id_spec=id_spec,
            cluster=known_cluster(cluster) if self.cluster is None else self.cluster,
            prefix=self.prefix,
            group=group,
            topic=self.origins.get(topic, topic),
            partition=partition,
        )


def shared_for(given: Shared | ClaimStore, dedup: Strategy, *, observes: bool, session_s: float) -> Shared:
    """Return how a consumer shares a memory, and log warnings about risky settings.

    ``observes``: the consumer hides nothing. ``session_s``: seconds after which its group removes a silent member.
    Raises `ConfigurationError` where a shared memory does not fit the strategy or the mode.
    """
    shared = given if isinstance(given, Shared) else Shared(given)
    if not isinstance(dedup, Lookup) or dedup.unit is not None:
        raise ConfigurationError(
            "shared needs Lookup without units: sources and units lie in one partition; leave out shared"
        )
    if observes:
        raise ConfigurationError(
            "mode='observe' hides nothing, and a shared memory would hide it from others; leave out shared, or choose "
            "mode='dedup'"
        )
    window = dedup.window
    if isinstance(window, Window) and (window.is_off or window.time_ms is None or window.count is not None):
        raise ConfigurationError(
            f"window={shown(str(window))}: a shared memory forgets by time alone; give e.g. Window(days=7), or leave "
            "out shared"
        )
    shared.warn_of_retries()
    shared.warn_of_lease(session_s)
    return shared
