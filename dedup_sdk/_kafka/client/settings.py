"""The client's configuration: the values that the consumer needs, refuses and overrides.

Always set here, because a guarantee depends on it:

- ``enable.auto.commit=false`` and ``enable.auto.offset.store=false``: the consumer itself commits, only completed
  prefixes, and with metadata.
- ``auto.offset.reset=error``: the consumer itself applies the user's policy, so that it detects every jump.

Set here unless the user gives a value:

- ``fetch.queue.backoff.ms=1``: with librdkafka's default of 1,000 a fast consumer waits; this is five times as fast.
- ``socket.timeout.ms``, for cooperative assignors: half of ``revoke_deadline``, and 10 to 60 s (librdkafka's default).
  While a rebalance waits for another member, a commit gets through only when the client gives up its connection; a
  consumer that closes must live to see that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Literal

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk._checks import configuration, seconds
from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError

Reset = Literal["earliest", "latest", "error"]
OnCommit = Callable[[KafkaError | None, list[TopicPartition]], None]

_RESETS: Mapping[str, Reset] = {
    "smallest": "earliest", "earliest": "earliest", "beginning": "earliest", "largest": "latest", "latest": "latest",
    "end": "latest", "error": "error", "none": "error",
}  # fmt: skip
_CLIENT_ARGUMENTS: Final = frozenset({
    "debug", "enabled_events", "error_cb", "log_cb", "log_level", "logger", "oauth_cb", "on_commit", "opaque",
    "rebalance_cb", "stats_cb", "throttle_cb",
})  # fmt: skip
"""The client's settings whose names have no dot."""
DESERIALIZE: Final = (
    "call the deserializer in the loop, e.g. deserializer(message.value(), SerializationContext(message.topic(), "
    "MessageField.VALUE)), so that hidden records are never deserialized"
)
"""The remedy where somebody asks for a consumer that deserializes."""
_MOVED: Final = {
    "dead_letters": "run(dead_letters=...)",
    "history": "recovery=Recovery(history=...)",
    "on_full_disk": "recovery=Recovery(on_full_disk=...)",
    "recent_marks": "store=RocksStore('var/dedup', recent_marks=...)",
    "recovery_timeout": "recovery=Recovery(timeout=...)",
    "snapshot": "recovery=Recovery(snapshot=...)",
}
"""Arguments of earlier versions -> their new place."""
_ALIKE: Final = 0.7
"""Minimum similarity (`difflib`) of a name that an error message suggests."""
_WELL_KNOWN: Final = (
    "auto.commit.interval.ms", "auto.offset.reset", "bootstrap.servers", "client.id", "client.rack",
    "enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof", "fetch.max.bytes", "fetch.min.bytes",
    "fetch.wait.max.ms", "group.id", "group.instance.id", "group.protocol", "heartbeat.interval.ms", "isolation.level",
    "key.deserializer", "max.partition.fetch.bytes", "max.poll.interval.ms", "partition.assignment.strategy",
    "sasl.mechanism", "sasl.mechanisms", "sasl.password", "sasl.username", "security.protocol", "session.timeout.ms",
    "ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "value.deserializer",
)  # fmt: skip
"""The client's settings that users give most: an error suggests them."""
_UNKNOWN_PROPERTY: Final = re.compile(r'No such configuration property: "([^"]*)"')
ASK_S = 10.0
"""Default timeout of a request to a broker, in seconds."""
_DEFAULT_COMMIT_INTERVAL_MS = 5_000
_DEFAULT_POLL_INTERVAL_MS = 300_000
_DEFAULT_SESSION_TIMEOUT_MS = 45_000
_DEFAULT_REQUEST_TIMEOUT_MS: Final = 60_000
_LEAST_REQUEST_TIMEOUT_MS: Final = 10_000


Membership = Literal["classic", "consumer", "static"]
"""How a member belongs to its group: by protocol, or static, with an instance ID that outlives the process."""


def membership_of(client: Mapping[str, Any]) -> Membership:
    """Return the kind of group membership of a client with this configuration."""
    if client.get("group.instance.id"):
        return "static"
    return "consumer" if str(client.get("group.protocol", "")).lower() == "consumer" else "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The values read from the client's configuration; ``client`` is passed to librdkafka, passwords included."""

    client: dict[str, Any] = field(repr=False)
    group: str
    isolation: str
    reset: Reset
    commit_interval_s: float
    """Seconds between commits; infinity without an interval."""
    revoke_deadline_s: float
    """Maximum seconds for handing over partitions; by default a fifth of ``max.poll.interval.ms``."""
    silence_s: float
    """Seconds of silence after which the group removes a member, by the longer of its two limits."""
    poll_interval_s: float
    """``max.poll.interval.ms`` in seconds: after it the group removes a member whose program asks for nothing."""
    fetch_wait_s: float
    """``fetch.wait.max.ms`` in seconds: a broker may hold records back for so long, to send more of them."""
    request_timeout_s: float
    """``socket.timeout.ms`` in seconds: after it the client gives up a connection on which no answer comes."""
    session_s: float
    """Session timeout in seconds: after it the group removes a member whose process stands still."""
    only_user_commits: bool
    """Whether only the application's `commit` commits delivered messages, also at a revocation.

    Hidden records after them are committed by the consumer."""
    only_stored: bool
    """Whether the application marks messages as handled by `store_offsets` or by the offsets of `commit`.

    A `commit` without arguments then includes no others."""
    incremental: bool
    """Whether rebalances are incremental (cooperative assignors and KIP-848)."""
    membership: Membership
    on_commit: OnCommit | None

    @property
    def completes_on_next_call(self) -> bool:
        """Whether the next call may complete delivered messages: not if the application marks them by offsets."""
        return not (self.only_user_commits or self.only_stored)

    def log_in(self, username: str, password: str) -> None:
        """Have every client that is made from here on log in with these credentials."""
        self.client.update({"sasl.username": username, "sasl.password": password})


def _flag(config: Mapping[str, Any], name: str) -> bool | None:
    value = config.get(name)
    if value is None:
        return None
    text = str(value).lower()
    if text not in ("true", "false", "1", "0"):
        raise ConfigurationError(f"{name}={shown(value)}: give true or false")
    return text in ("true", "1")


def _milliseconds(config: Mapping[str, Any], name: str, default: int) -> float:
    value = config.get(name, default)
    try:
        milliseconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        milliseconds = math.nan
    if not math.isfinite(milliseconds):
        raise ConfigurationError(f"{name}={shown(value)}: give a number of milliseconds, e.g. {default}")
    return milliseconds


def refuse_unwritable(config: Mapping[Any, Any]) -> None:
    """Raise `ConfigurationError` for values that would make the client abort the process.

    These are a blank group, and text that cannot be encoded in UTF-8.
    """
    for name, value in config.items():
        if isinstance(name, str) and not is_writable(name):
            raise ConfigurationError(f"the setting name {shown(name)} is not valid UTF-8; write it again")
        if isinstance(value, str) and not is_writable(value):
            # Without the value: it may be a password.
            raise ConfigurationError(f"{name}: its value is not valid UTF-8; write it again")
    group = str(config["group.id"])
    if not group.strip() or "\0" in group:
        raise ConfigurationError(
            f"group.id={shown(group)} is not valid; give a name that is not blank and has no NUL"
        )


def is_writable(text: str) -> bool:
    """Whether the client can take a text, which it encodes in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_unknown(arguments: Collection[str], ours: Collection[str], elsewhere: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` for an unknown keyword argument; the message suggests the intended one.

    ``ours``: the arguments of the consumer. ``elsewhere``: names of other settings -> where they are given. The
    client's own settings have dots and are accepted.
    """
    for name in arguments:
        if "." in name or name in _CLIENT_ARGUMENTS:
            continue
        if name in _MOVED:
            raise ConfigurationError(f"{name}= moved; write {_MOVED[name]}")
        dotted = name.replace("_", ".")
        if name in elsewhere:
            meant = f"write {elsewhere[name]}"
        elif close := get_close_matches(name, ours, n=1, cutoff=_ALIKE):
            meant = f"did you mean {close[0]}=?"
        elif close := get_close_matches(name, elsewhere, n=1, cutoff=_ALIKE):
            meant = f"did you mean {close[0]}=, as in {elsewhere[close[0]]}?"
        elif dotted in _WELL_KNOWN:
            meant = dotted_advice(name)
        else:
            meant = (
                f"DedupConsumer takes {', '.join(sorted(ours))}, and the client's settings, which have dots"
            )
        raise ConfigurationError(f"unknown argument {name}=; {meant}")


def dotted_advice(name: str) -> str:
    """Return the next step for a client's setting whose name has underscores."""
    return f"client settings have dots; put {shown(name.replace('_', '.'))} into the configuration"


def refuse_no_broker(client: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for a configuration that names no broker: its client would wait in silence."""
    servers = client.get("bootstrap.servers") or client.get("metadata.broker.list")
    if isinstance(servers, list | tuple | set | frozenset | bytes):
        raise ConfigurationError(
            f"bootstrap.servers={shown(servers)}: give text, e.g. 'localhost:9092', with commas between several"
        )
    if not servers and not client.get("test.mock.num.brokers"):
        raise ConfigurationError(
            "bootstrap.servers is missing; add the address of a broker, e.g. 'bootstrap.servers': 'localhost:9092'"
        )


@contextmanager
def unknown_settings_explained() -> Iterator[None]:
    """Raise the client's refusal of an unknown setting again, with the next step."""
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        unknown = _UNKNOWN_PROPERTY.search(cause.str()) if isinstance(cause, KafkaError) else None
        if unknown is None:
            raise
        close = get_close_matches(unknown[1].replace("_", "."), _WELL_KNOWN, n=1, cutoff=_ALIKE)
        advice = f"did you mean {close[0]}?" if close else "its settings are in librdkafka's CONFIGURATION.md"
        raise KafkaException(KafkaError(cause.code(), f"{cause.str()}; {advice}")) from None


def _check_names(client: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for the names of another client's settings, or without a group."""
    for name in ("group_id", "bootstrap_servers"):
        if name in client:
            raise ConfigurationError(f"unknown setting {name}: {dotted_advice(name)}")
    group = client.get("group.id")
    if group is None or group == "":
        raise ConfigurationError(
            "group.id is missing, and the key store belongs to a group; add it, e.g. 'group.id': 'billing'"
        )
    if isinstance(group, bool) or not isinstance(group, str | int):
        raise ConfigurationError(f"group.id={shown(group)}: give text, e.g. 'billing'")


def client_settings(
    config: Mapping[str, Any], more: Mapping[str, Any] | None = None, *, revoke_deadline: float | None = None
) -> ClientSettings:
    """Read and complete a ``confluent_kafka.Consumer`` configuration; raise `ConfigurationError` if it is not valid.

    ``more`` are settings given as keyword arguments; they take precedence over ``config``, as in the plain client.
    ``revoke_deadline``: seconds, in place of the default.
    """
    client = {**configuration("the configuration", config, client="Consumer"), **(more or {})}
    nested = client.get("default.topic.config")
    if isinstance(nested, Mapping):
        client.pop("default.topic.config")
        client = {**nested, **client}
    _check_names(client)
    refuse_unwritable(client)
    for name in ("key.deserializer", "value.deserializer"):
        if name in client:
            raise ConfigurationError(f"{name} is a setting of DeserializingConsumer alone: {DESERIALIZE}")
    auto_store = _flag(client, "enable.auto.offset.store")
    if auto_store:
        raise ConfigurationError(
            "enable.auto.offset.store=true commits records before they are handled, which loses messages; leave it out"
        )
    auto_commit = _flag(client, "enable.auto.commit")
    if auto_commit and auto_store is None:
        raise ConfigurationError(
            "enable.auto.commit=true lets the client commit without metadata and past unfinished records; leave it out "
            "(then completed records are committed on auto.commit.interval.ms), or set false and call commit(), or add "
            "enable.auto.offset.store=false and call store_offsets()"
        )
    reset = _RESETS.get(str(client.get("auto.offset.reset", "latest")))
    if reset is None:
        raise ConfigurationError(
            f"auto.offset.reset={shown(client['auto.offset.reset'])}: choose earliest, latest or error"
        )
    strategy = str(client.get("partition.assignment.strategy", ""))
    on_commit = client.pop("on_commit", None)
    if on_commit is not None and not callable(on_commit):
        raise ConfigurationError(
            f"on_commit={shown(on_commit)} is not callable: give a function (error, partitions)"
        )
    client |= {"enable.auto.commit": False, "enable.auto.offset.store": False, "auto.offset.reset": "error"}
    client.setdefault("fetch.queue.backoff.ms", 1)
    interval_ms = _milliseconds(client, "auto.commit.interval.ms", _DEFAULT_COMMIT_INTERVAL_MS)
    poll_interval_ms = _milliseconds(client, "max.poll.interval.ms", _DEFAULT_POLL_INTERVAL_MS)
    session_ms = _milliseconds(client, "session.timeout.ms", _DEFAULT_SESSION_TIMEOUT_MS)
    revoke_deadline_s = (
        poll_interval_ms / 5_000 if revoke_deadline is None else seconds("revoke_deadline", revoke_deadline)
    )
    if "cooperative" in strategy:
        limit_ms = revoke_deadline_s * 1_000 / 2
        client.setdefault(
            "socket.timeout.ms",
            round(min(max(limit_ms, _LEAST_REQUEST_TIMEOUT_MS), _DEFAULT_REQUEST_TIMEOUT_MS)),
        )
    return ClientSettings(
        client=client,
        group=str(client["group.id"]),
        isolation=str(client.get("isolation.level", "read_committed")),
        reset=reset,
        commit_interval_s=float("inf") if interval_ms <= 0 else interval_ms / 1000,
        revoke_deadline_s=revoke_deadline_s,
        silence_s=max(poll_interval_ms, session_ms) / 1_000,
        poll_interval_s=poll_interval_ms / 1_000,
        fetch_wait_s=_milliseconds(client, "fetch.wait.max.ms", 500) / 1_000,
        request_timeout_s=_milliseconds(client, "socket.timeout.ms", _DEFAULT_REQUEST_TIMEOUT_MS) / 1_000,
        session_s=session_ms / 1_000,
        only_user_commits=auto_commit is False,
        only_stored=auto_store is False,
        membership=membership_of(client),
        incremental="cooperative" in strategy or str(client.get("group.protocol", "")).lower() == "consumer",
        on_commit=on_commit,
    )


_GROUP_SETTINGS = (
    "group.instance.id", "group.protocol", "group.remote.assignor", "partition.assignment.strategy",
    "session.timeout.ms", "heartbeat.interval.ms", "group.protocol.type", "max.poll.interval.ms",
)  # fmt: skip
_OF_ONE_CLIENT: Final = frozenset({
    "error_cb", "on_commit", "on_delivery", "statistics.interval.ms", "stats_cb", "throttle_cb",
})  # fmt: skip
"""What the application hears of its own client only: of the others it would hear the same outage several times.

``oauth_cb`` and ``logger`` are for every client: each logs in, and logs, by itself."""


def other_client(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that every other client shares with the application's own one.

    All settings of these clients come from here, so that no callback of the application reaches a client that is used
    while the consumer's state is locked: the callback might wait for a thread that waits for this state.
    """
    # A copy, made at once: another thread may add credentials (`ClientSettings.log_in`).
    return {name: value for name, value in dict(client).items() if name not in _OF_ONE_CLIENT}


def asking_settings(settings: ClientSettings) -> dict[str, Any]:
    """Return the configuration of a consumer outside the group that answers the application's questions.

    It keeps the group's name, whose offsets it is asked for, and on which access rights may depend. It never commits.
    """
    return _as_text({k: v for k, v in other_client(settings.client).items() if k not in _GROUP_SETTINGS})


def reader_settings(settings: ClientSettings) -> dict[str, Any]:
    """Return the configuration of a reader outside the group, for the same topics at the same isolation level."""
    return _as_text({
        **asking_settings(settings),
        "enable.partition.eof": True,
        "queued.max.messages.kbytes": 16_384,
        "fetch.wait.max.ms": 10,
        "allow.auto.create.topics": False,
    })  # fmt: skip


def _as_text(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with numbers and flags as text.

    Where the client itself makes text of a value, and a signal's handler raises then, it calls the setting wrong.
    """
    return {name: str(v) if isinstance(v, bool | int | float) else v for name, v in settings.items()}


_OF_CONSUMERS: Final = frozenset({
    "auto.commit.enable", "auto.commit.interval.ms", "auto.offset.reset", "check.crcs", "consume.callback.max.messages",
    "consume_cb", "coordinator.query.interval.ms", "enable.auto.commit", "enable.auto.offset.store",
    "enable.partition.eof", "fetch.error.backoff.ms", "fetch.max.bytes", "fetch.message.max.bytes", "fetch.min.bytes",
    "fetch.queue.backoff.ms", "fetch.wait.max.ms", "group.id", "isolation.level", "max.partition.fetch.bytes",
    "max.poll.records", "offset.store.method", "offset.store.path", "offset.store.sync.interval.ms",
    "offset_commit_cb", "queued.max.messages.kbytes", "queued.min.messages", "rebalance_cb",
    "share.acknowledgement.mode", *_GROUP_SETTINGS,
})  # fmt: skip
"""The client's settings that only a consumer knows."""
_OF_PRODUCERS: Final = frozenset({
    "acks", "batch.num.messages", "batch.size", "compression.codec", "compression.level", "compression.type",
    "delivery.report.only.error", "delivery.timeout.ms", "dr_cb", "dr_msg_cb", "enable.gapless.guarantee",
    "enable.idempotence", "linger.ms", "message.send.max.retries", "message.timeout.ms", "msg_order_cmp", "partitioner",
    "partitioner_cb", "produce.offset.report", "queue.buffering.backpressure.threshold",
    "queue.buffering.max.kbytes", "queue.buffering.max.messages", "queue.buffering.max.ms", "queuing.strategy",
    "request.required.acks", "request.timeout.ms", "retries", "sticky.partitioning.linger.ms",
    "transaction.timeout.ms", "transactional.id",
})  # fmt: skip
"""The client's settings that only a producer knows."""
_OF_THE_LOOP: Final = frozenset({
    # A consumer's topics and requests under way are not those of a client that asks, or sends dead letters.
    "allow.auto.create.topics", "max.in.flight", "max.in.flight.requests.per.connection", "topic.blacklist",
})  # fmt: skip


def admin_settings(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a client that is neither a consumer nor the application's producer.

    It must reach the cluster as the application's own client does, so that it gets every setting but those that one
    kind of client has for itself.
    """
    left_out = _OF_CONSUMERS | _OF_PRODUCERS | _OF_THE_LOOP
    return _as_text({name: value for name, value in other_client(client).items() if name not in left_out})
