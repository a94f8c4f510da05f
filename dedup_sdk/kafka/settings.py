"""The client's configuration: what we need of it, what we refuse, and what we set.

Set by us, because a promise hangs on it:

- ``enable.auto.commit=false`` and ``enable.auto.offset.store=false``: offsets are committed by us, only over a completed
  prefix, and with metadata.
- ``auto.offset.reset=error``: the user's policy is applied by us, so that no jump goes unseen.

Set by us unless the user says otherwise:

- ``fetch.queue.backoff.ms=1``: librdkafka's default of 1,000 lets a fast consumer wait; this is worth a factor of 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Literal

from confluent_kafka import KafkaError, TopicPartition

from dedup_sdk.errors import ConfigurationError

Reset = Literal["earliest", "latest", "error"]
OnCommit = Callable[[KafkaError | None, list[TopicPartition]], None]

_RESETS: Mapping[str, Reset] = {
    "smallest": "earliest", "earliest": "earliest", "beginning": "earliest", "largest": "latest", "latest": "latest",
    "end": "latest", "error": "error", "none": "error",
}  # fmt: skip
_CLIENT_ARGUMENTS: Final = frozenset({
    "debug", "enabled_events", "error_cb", "log_cb", "log_level", "logger", "oauth_cb", "on_commit", "opaque", "rebalance_cb", "stats_cb",
    "throttle_cb",
})  # fmt: skip
"""The client's settings without a dot."""
_ALIKE: Final = 0.7
"""How like a name has to be, by `difflib`, to be meant."""
ASK_S = 10.0
"""Seconds that a question to the broker may take."""
_DEFAULT_COMMIT_INTERVAL_MS = 5_000
_DEFAULT_POLL_INTERVAL_MS = 300_000
_DEFAULT_SESSION_TIMEOUT_MS = 45_000


Membership = Literal["classic", "consumer", "static"]
"""How a member belongs to its group: by which protocol, or (static) with an ID of its own that outlives it."""


def membership_of(client: Mapping[str, Any]) -> Membership:
    """Return how a client with this configuration belongs to its group."""
    if client.get("group.instance.id"):
        return "static"
    return "consumer" if str(client.get("group.protocol", "")).lower() == "consumer" else "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What is read from the client's configuration; ``client`` is what librdkafka gets, passwords included."""

    client: dict[str, Any] = field(repr=False)
    group: str
    isolation: str
    reset: Reset
    commit_interval_s: float
    """Seconds between our commits; infinity when there is no interval."""
    revoke_deadline_s: float
    """Seconds that handing partitions over may take: a fifth of ``max.poll.interval.ms`` unless the user says otherwise."""
    silence_s: float
    """Seconds that a member may be silent before its group gives it up, by the longer of the two limits."""
    session_s: float
    """Seconds after which the group gives up a member whose process stands still."""
    only_user_commits: bool
    """Whether delivered messages are committed by `commit` only, also when a partition goes; hidden records behind them are by us."""
    only_stored: bool
    """Whether what is handled is said by `store_offsets`, or named by `commit`: a commit of everything takes nothing else along."""
    incremental: bool
    membership: Membership
    """Whether rebalances come as deltas (cooperative assignors and KIP-848)."""
    on_commit: OnCommit | None

    @property
    def completes_on_next_call(self) -> bool:
        """Whether asking for more may complete what was handed out: not where the user says by offsets what is handled."""
        return not (self.only_user_commits or self.only_stored)


def _flag(config: Mapping[str, Any], name: str) -> bool | None:
    value = config.get(name)
    if value is None:
        return None
    text = str(value).lower()
    if text not in ("true", "false", "1", "0"):
        raise ConfigurationError(f"{name}={value!r}: it is true or false")
    return text in ("true", "1")


def _milliseconds(config: Mapping[str, Any], name: str, default: int) -> float:
    value = config.get(name, default)
    try:
        milliseconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        milliseconds = math.nan
    if not math.isfinite(milliseconds):
        raise ConfigurationError(f"{name}={value!r}: give a number of milliseconds, e.g. {default}")
    return milliseconds


def refuse_unwritable(config: Mapping[Any, Any]) -> None:
    """Raise `ConfigurationError` where the client would abort the process: a blank group, and what UTF-8 cannot write."""
    for name, value in config.items():
        if isinstance(name, str) and not _is_writable(name):
            raise ConfigurationError(f"{name!r} is no name of a setting, it is not UTF-8; write it again")
        if isinstance(value, str) and not _is_writable(value):
            # Not the value: it may be a password.
            raise ConfigurationError(f"{name}: its value is not UTF-8; write it again")
    group = str(config["group.id"])
    if not group.strip() or "\0" in group:
        raise ConfigurationError(f"group.id={group!r} is no name; give one that is not blank, without NUL")


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_unknown(arguments: Collection[str], ours: Collection[str], strategys: Collection[str]) -> None:
    """Raise `ConfigurationError` for a keyword argument that is no setting of the client's, whose names have dots.

    ``ours``, ``strategys``: the arguments of the consumer and of strategies, one of which may be meant.
    """
    for name in arguments:
        if "." in name or name in _CLIENT_ARGUMENTS:
            continue
        dotted = name.replace("_", ".")
        if close := get_close_matches(name, ours, n=1, cutoff=_ALIKE):
            meant = f"did you mean {close[0]}=?"
        elif close := get_close_matches(name, strategys, n=1, cutoff=_ALIKE):
            meant = f"did you mean {close[0]}= of the strategy, e.g. dedup=Lookup({close[0]}=...)?"
        elif "_" in name:
            meant = f"the client's settings have dots: put {dotted!r} into the configuration"
        else:
            meant = f"DedupConsumer takes {', '.join(sorted(ours))}, and the client's settings"
        raise ConfigurationError(f"unknown argument {name}=; {meant}")


def client_settings(config: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> ClientSettings:
    """Read and complete a ``confluent_kafka.Consumer`` configuration; raises `ConfigurationError` in one line.

    ``more`` are the settings that came as keyword arguments; they go before those of ``config``, as the plain client has it.
    """
    if not isinstance(config, Mapping):
        raise ConfigurationError(
            # Not the value: it may hold a password.
            f"config is of type {type(config).__name__}: give the dictionary that confluent_kafka.Consumer takes"
        )
    client = {**config, **(more or {})}
    nested = client.get("default.topic.config")
    if isinstance(nested, Mapping):
        client.pop("default.topic.config")
        client = {**nested, **client}
    if not client.get("group.id"):
        raise ConfigurationError("group.id is missing: what is remembered belongs to a group; set 'group.id'")
    refuse_unwritable(client)
    auto_store = _flag(client, "enable.auto.offset.store")
    if auto_store:
        raise ConfigurationError(
            "enable.auto.offset.store=true commits records that are not handled yet and so loses messages; leave it out"
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
            f"auto.offset.reset={client['auto.offset.reset']!r}: choose earliest, latest or error"
        )
    strategy = str(client.get("partition.assignment.strategy", ""))
    on_commit = client.pop("on_commit", None)
    client |= {"enable.auto.commit": False, "enable.auto.offset.store": False, "auto.offset.reset": "error"}
    client.setdefault("fetch.queue.backoff.ms", 1)
    interval_ms = _milliseconds(client, "auto.commit.interval.ms", _DEFAULT_COMMIT_INTERVAL_MS)
    poll_interval_ms = _milliseconds(client, "max.poll.interval.ms", _DEFAULT_POLL_INTERVAL_MS)
    session_ms = _milliseconds(client, "session.timeout.ms", _DEFAULT_SESSION_TIMEOUT_MS)
    return ClientSettings(
        client=client,
        group=str(client["group.id"]),
        isolation=str(client.get("isolation.level", "read_committed")),
        reset=reset,
        commit_interval_s=float("inf") if interval_ms <= 0 else interval_ms / 1000,
        revoke_deadline_s=poll_interval_ms / 5_000,
        silence_s=max(poll_interval_ms, session_ms) / 1_000,
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
_CALLBACKS = ("stats_cb", "throttle_cb", "on_commit", "statistics.interval.ms")


def reader_settings(settings: ClientSettings) -> dict[str, Any]:
    """Return the configuration of a plain reader of the same topics: no group membership, the same isolation level.

    It keeps the group's name (access rights are given by it) and never commits.
    """
    reader = {k: v for k, v in settings.client.items() if k not in _GROUP_SETTINGS and k not in _CALLBACKS}
    return {
        **reader,
        "enable.partition.eof": True,
        "queued.max.messages.kbytes": 16_384,
        "fetch.wait.max.ms": 10,
        "allow.auto.create.topics": False,
    }


_ADMIN_PREFIXES = ("bootstrap.servers", "metadata.broker.list", "security.", "sasl.", "ssl.", "enable.ssl", "socket.", "client.id", "client.dns", "broker.address", "oauth", "log_level", "logger")  # fmt: skip


def admin_settings(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a client's configuration that says how to reach the cluster."""
    return {k: v for k, v in client.items() if k.startswith(_ADMIN_PREFIXES)}
