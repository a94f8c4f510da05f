"""Redis clients: making one from a URL, naming its server, and classifying its errors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostConnectionError
from redis.exceptions import TimeoutError as LateError
from redis.retry import Retry

from dedup_adapters.redis._url_options import check_options
from dedup_sdk import ConfigurationError
from dedup_sdk.errors import shown

logger = logging.getLogger("dedup_adapters")

CLUSTER_SCHEMES: Final = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
"""The URL schemes of a cluster's node, and the schemes that redis-py uses for them."""
_PASSING: Final = (
    LostConnectionError,
    LateError,
    ClusterDownError,
    TryAgainError,
    ReadOnlyError,
    # A cluster's client raises it when it finds no node, or not all of them.
    RedisClusterException,
)
_REFUSED: Final = (AuthenticationError, AuthorizationError)
"""redis-py derives these from its lost-connection error, though a retry does not help."""


def client_maker(server: object, timeout: object) -> tuple[Callable[[], Any], str]:
    """Return a function that makes the client, and the server's address without user and password.

    A cluster's client connects when it is made.

    Raises:
        ConfigurationError: ``server`` is neither a client nor a URL, or the timeout is invalid.
    """
    if isinstance(server, Redis | RedisCluster):
        if isinstance(server, Redis) and not server.connection_pool.connection_kwargs.get("socket_timeout"):
            logger.warning(
                "the client of Redis at %s has no socket_timeout: while the server does not answer, the consumer "
                "waits without a time limit; set one, e.g. 1.0",
                where(server),
                extra={"event": "redis-without-time-limit"},
            )
        return lambda: server, where(server)
    if not isinstance(server, str):
        raise ConfigurationError(
            f"server={shown(server)}: give a URL, e.g. 'redis://localhost:6379/0', or a client of redis-py"
        )
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0:
        raise ConfigurationError(f"timeout={shown(timeout)}: give seconds above 0, e.g. 1.0")
    # An idle connection that was closed is not an outage: retry once, on another one.
    once_more = Retry(NoBackoff(), 1, supported_errors=(LostConnectionError,))
    settings: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": once_more,
    }
    scheme, _, rest = server.partition("://")
    is_cluster = scheme in CLUSTER_SCHEMES
    url = f"{CLUSTER_SCHEMES[scheme]}://{rest}" if is_cluster else server
    try:
        check_options(url, is_cluster=is_cluster)
        # It does not connect, and tells whether the URL is one.
        client = Redis.from_url(url, health_check_interval=0, **settings)
    except ConfigurationError:
        raise
    except ValueError:
        # Its text may have a part of a password, which the library took for a port.
        raise ConfigurationError(
            "the URL of the shared store is none of Redis; give e.g. 'redis://localhost:6379/0', of a cluster "
            "'redis+cluster://localhost:6379', and write special characters of a user or password as %XX"
        ) from None
    if is_cluster:
        return partial(RedisCluster.from_url, url, **settings), f"the cluster of {where(client)}"
    return lambda: client, where(client)


def where(client: Any) -> str:
    """Return the address of a client's server, without user and password."""
    if isinstance(client, RedisCluster):
        nodes: Any = client.get_nodes()  # type: ignore[no-untyped-call]  # it has no types
        return "a cluster of " + ", ".join(sorted(str(node.name) for node in nodes))
    known = client.connection_pool.connection_kwargs
    return str(known.get("path") or f"{known.get('host', 'localhost')}:{known.get('port', 6379)}")


def run_ids(client: Any) -> str:
    """Return the run IDs of the primary servers; empty where they have none."""
    try:
        if not isinstance(client, RedisCluster):
            return str(client.info("server").get("run_id", ""))
        told = client.info("server", target_nodes=RedisCluster.PRIMARIES)
    except ResponseError as error:
        if passes(error):
            raise
        return ""
    # For a single node the answer is not a dictionary of nodes.
    nodes = [told] if "run_id" in told else told.values()
    return " ".join(sorted(str(each.get("run_id", "")) for each in nodes))


def passes(error: Exception) -> bool:
    """Whether the request may succeed later by itself, once the server or the whole cluster is back."""
    return isinstance(error, _PASSING) and not isinstance(error, _REFUSED)


def told(error: Exception, client: Any) -> str:
    """Return the error and the next step, in one line."""
    if isinstance(error, MovedError) and not isinstance(client, RedisCluster):
        return (
            "it is one node of a cluster, and the IDs are on another; give redis+cluster:// (or "
            "rediss+cluster://) in its URL, or a RedisCluster"
        )
    do = "start it, or correct the URL" if passes(error) else "fix the cause, or correct the URL"
    return f"{one_line(error)}; {do}"


def one_line(error: Exception) -> str:
    """Return the text of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def warn_of_forgetting(client: Any, where: str) -> None:
    """Read the server's settings, and log a warning for each that makes it lose IDs."""
    try:
        save, log, policy = (_setting(client, name) for name in ("save", "appendonly", "maxmemory-policy"))
    except (LostConnectionError, LateError):
        raise
    except RedisError as error:
        logger.info(
            "Redis at %s refuses to return its settings (%s): check that it persists IDs and evicts none",
            where,
            error,
            extra={"event": "redis-settings-unknown"},
        )
        return
    if log == "no":
        logger.warning(
            "Redis at %s has appendonly=no, save=%s: a restart loses %s, and their duplicates are delivered; "
            "set appendonly yes, appendfsync everysec",
            where, shown(save), "all IDs since its last snapshot" if save else "all IDs",
            extra={"event": "redis-not-persistent"},
        )  # fmt: skip
    if policy and policy != "noeviction":
        logger.warning(
            "Redis at %s has maxmemory-policy=%s: when its memory is full it drops IDs within their "
            "window, and duplicates of them are "
            "delivered; set maxmemory-policy noeviction",
            where, policy,
            extra={"event": "redis-evicts"},
        )  # fmt: skip


def _setting(client: Any, name: str) -> str:
    answer = client.config_get(name)
    value = answer.get(name, answer.get(name.encode(), ""))
    return value.decode() if isinstance(value, bytes) else str(value)
