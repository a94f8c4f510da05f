"""A memory that consumers share, in Redis or Valkey (extra ``[redis]``).

with DedupConsumer(
config, dedup=Lookup(id=header("dedup-id"), window=Window(days=7)), store="var/dedup",
shared=RedisStore("redis://localhost:6379/0"),
) as consumer:
...
"""

try:
    import redis  # noqa: F401 (whether it is there)
except ImportError as error:  # pragma: no cover (the environment has it)
    raise ImportError("dedup_adapters.redis needs redis-py: pip install 'dedup-sdk[redis]'") from error

from dedup_adapters.redis._store import RedisStore

__all__ = ["RedisStore"]
