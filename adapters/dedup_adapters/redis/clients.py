"""Clients of Redis: how one is made of a URL, how its server is named, and what is to be thought of its errors."""

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

from dedup_adapters.redis.url_options import check_options
from dedup_sdk import ConfigurationError

logger = logging.getLogger("dedup_adapters")

CLUSTER_SCHEMES: Final = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
"""How a URL says that its server is any node of a cluster, and what redis-py calls it."""
_PASSING: Final = (
    LostConnectionError,
    LateError,
    ClusterDownError,
    TryAgainError,
    ReadOnlyError,
    # What a cluster's client raises where it finds no node, or not all of them.
    RedisClusterException,
)
_REFUSED: Final = (AuthenticationError, AuthorizationError)
"""Which are lost connections, too, for redis-py."""


def client_maker(server: object, timeout: object) -> tuple[Callable[[], Any], str]:
    """Return what makes the client, and its address without user and password. A cluster's client connects when it is made.

    Raises:
        ConfigurationError: it is neither a client nor a URL, or no timeout.
    """
    if isinstance(server, Redis | RedisCluster):
        if isinstance(server, Redis) and not server.connection_pool.connection_kwargs.get("socket_timeout"):
            logger.warning(
                "the client of Redis at %s has no socket_timeout: while the server does not answer, the "
                "consumer waits with it; give it one, e.g. 1.0",
                where(server),
            )
        return lambda: server, where(server)
    if not isinstance(server, str):
        raise ConfigurationError(
            f"server={server!r}: give a URL, e.g. 'redis://localhost:6379/0', or a client of redis-py"
        )
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0:
        raise ConfigurationError(f"timeout={timeout!r}: give seconds above 0, e.g. 1.0")
    # A connection that was closed while nobody used it is no outage: once more, on another one.
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
    """Return the run IDs of the servers that are written to; empty where they do not tell."""
    try:
        if not isinstance(client, RedisCluster):
            return str(client.info("server").get("run_id", ""))
        told = client.info("server", target_nodes=RedisCluster.PRIMARIES)
    except ResponseError as error:
        if passes(error):
            raise
        return ""
    # Of one node alone it is no dictionary of nodes.
    nodes = [told] if "run_id" in told else told.values()
    return " ".join(sorted(str(each.get("run_id", "")) for each in nodes))


def passes(error: Exception) -> bool:
    """Whether what failed may succeed when the server is back, or the cluster is whole, without anybody's doing."""
    return isinstance(error, _PASSING) and not isinstance(error, _REFUSED)


def told(error: Exception, client: Any) -> str:
    """Return what happened, in one line, and what to do."""
    if isinstance(error, MovedError) and not isinstance(client, RedisCluster):
        return "it is one node of a cluster, and the IDs are on another; give redis+cluster:// (or rediss+cluster://) in its URL, or a RedisCluster"
    do = "start it, or correct the URL" if passes(error) else "see to that, or correct the URL"
    return f"{one_line(error)}; {do}"


def one_line(error: Exception) -> str:
    """Return the text of an error."""
    return " ".join(str(error).split()) or type(error).__name__


def warn_of_forgetting(client: Any, where: str) -> None:
    """Ask the server for its settings, and write a warning for each that makes it forget; it need not answer."""
    try:
        save, log, policy = (_setting(client, name) for name in ("save", "appendonly", "maxmemory-policy"))
    except (LostConnectionError, LateError):
        raise
    except RedisError as error:
        logger.info(
            "Redis at %s does not tell its settings (%s): see to it that it keeps what it is told",
            where,
            error,
        )
        return
    if log == "no":
        logger.warning(
            "Redis at %s has appendonly=no, save=%r: when it restarts it forgets %s, and duplicates of "
            "that are delivered; "
            "set appendonly yes, appendfsync everysec",
            where, save, "what came since its last snapshot" if save else "every ID",
        )  # fmt: skip
    if policy and policy != "noeviction":
        logger.warning(
            "Redis at %s has maxmemory-policy=%s: when its memory is full it drops IDs within their "
            "window, and duplicates of them are "
            "delivered; set maxmemory-policy noeviction",
            where, policy,
        )  # fmt: skip


def _setting(client: Any, name: str) -> str:
    answer = client.config_get(name)
    value = answer.get(name, answer.get(name.encode(), ""))
    return value.decode() if isinstance(value, bytes) else str(value)
