"""Whether a server forgets, when it restarts or is full, what it was told to remember."""

from __future__ import annotations

import logging
from typing import Any

from redis.exceptions import ConnectionError as LostConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as LateError

logger = logging.getLogger("dedup_adapters")


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
            "Redis at %s has appendonly=no, save=%r: when it restarts it forgets %s, and duplicates of that are delivered; "
            "set appendonly yes, appendfsync everysec",
            where, save, "what came since its last snapshot" if save else "every ID",
        )  # fmt: skip
    if policy and policy != "noeviction":
        logger.warning(
            "Redis at %s has maxmemory-policy=%s: when its memory is full it drops IDs within their window, and duplicates of them are "
            "delivered; set maxmemory-policy noeviction",
            where, policy,
        )  # fmt: skip


def _setting(client: Any, name: str) -> str:
    answer = client.config_get(name)
    value = answer.get(name, answer.get(name.encode(), ""))
    return value.decode() if isinstance(value, bytes) else str(value)
