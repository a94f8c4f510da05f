"""The options of a Redis URL (``redis://host/0?socket_timeout=2``), checked before a client is made of it.

redis-py hands an unknown option to its connections, and many known ones as text where an object is wanted: the first
call then ends with a `TypeError` or `AttributeError` somewhere inside. A path that is no number it ignores, so that
the IDs would lie in another database. Options for which a URL has no value (a class, a function) must be given with a
client.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from dedup_sdk import ConfigurationError
from dedup_sdk.errors import shown

_MASK: Final = "***"
_NAME: Final = re.compile("[a-z_]{1,40}")
_SECRET: Final = frozenset({"username", "password", "ssl_password"})
_BOOLEANS: Final = frozenset({"0", "f", "false", "n", "no", "1", "t", "true", "y", "yes"})
_REQUIREMENTS: Final = frozenset({"none", "optional", "required"})
_PROTOCOLS: Final = frozenset({"2", "3"})


def _is_text(value: str) -> bool:
    return bool(value)


def _is_seconds(value: str) -> bool:
    try:
        return 0 < float(value) < math.inf
    except ValueError:
        return False


def _is_whole(value: str) -> bool:
    return value.isascii() and value.isdigit()


def _is_positive(value: str) -> bool:
    return _is_whole(value) and int(value) > 0


def _is_boolean(value: str) -> bool:
    return value.lower() in _BOOLEANS


Check = tuple[Callable[[str], bool], str]
"""Whether a text is a value, and the kind of value that is wanted."""
_TEXT: Final[Check] = (_is_text, "a text")
_SECONDS: Final[Check] = (_is_seconds, "seconds above 0")
_WHOLE: Final[Check] = (_is_whole, "a whole number from 0 on")
_POSITIVE: Final[Check] = (_is_positive, "a whole number above 0")
_BOOLEAN: Final[Check] = (_is_boolean, "true or false")

_OF_ALL: Final[Mapping[str, Check]] = {
    "client_name": _TEXT,
    "db": _WHOLE,
    "health_check_interval": _WHOLE,
    "max_connections": _POSITIVE,
    "password": _TEXT,
    "protocol": (_PROTOCOLS.__contains__, "2 or 3"),
    "retry_on_timeout": _BOOLEAN,
    "socket_connect_timeout": _SECONDS,
    "socket_read_size": _POSITIVE,
    "socket_timeout": _SECONDS,
    "username": _TEXT,
}
_OF_TCP: Final[Mapping[str, Check]] = {"socket_keepalive": _BOOLEAN}
_OF_TLS: Final[Mapping[str, Check]] = {
    "ssl_ca_certs": _TEXT,
    "ssl_ca_data": _TEXT,
    "ssl_ca_path": _TEXT,
    "ssl_cert_reqs": (_REQUIREMENTS.__contains__, "none, optional or required"),
    "ssl_certfile": _TEXT,
    "ssl_check_hostname": _BOOLEAN,
    "ssl_ciphers": _TEXT,
    "ssl_keyfile": _TEXT,
    "ssl_password": _TEXT,
}
_KNOWN: Final[Mapping[str, Mapping[str, Check]]] = {
    "redis": {**_OF_ALL, **_OF_TCP},
    "rediss": {**_OF_ALL, **_OF_TCP, **_OF_TLS},
    "unix": _OF_ALL,
}


def check_options(url: str, *, is_cluster: bool) -> None:
    """Check the options of a URL of redis-py, and the number of its database, of which a cluster has one only.

    Raises `ConfigurationError`, in one line that names the option and its value; `ValueError` where it is no URL. Of
    an unknown option the value is not shown, because it may be a password behind a misspelt name; nor is a name that
    may be a part of one.
    """
    parts = urlsplit(url)
    known = _KNOWN.get(parts.scheme)
    # A port that is none may be the beginning of a password with a slash in it.
    if known is None or parts.port == 0:
        raise ValueError
    given = parse_qsl(parts.query, keep_blank_values=True)
    secrets = {unquote(parts.password or ""), *(value for name, value in given if name in _SECRET)} - {""}
    for name, value in given:
        if name not in known:
            told = name if _NAME.fullmatch(name) and name not in secrets else _MASK
            elsewhere = ", but rediss:// does" if name in _OF_TLS else ""
            raise ConfigurationError(
                f"the URL of the shared store in Redis has the option {told}={_MASK}, which {parts.scheme}:// does "
                f"not have{elsewhere}; leave it out, "
                f"or give one of {', '.join(sorted(known))}; give any other with a client of redis-py"
            )
        is_value, wanted = known[name]
        if not is_value(value):
            told = _MASK if name in _SECRET or value in secrets else shown(value)
            raise ConfigurationError(
                f"the URL of the shared store in Redis has the option {name}={told}; give {wanted}, or leave it out"
            )
    if parts.scheme != "unix":
        _check_database(dict(given).get("db", ""), unquote(parts.path).strip("/"), is_cluster=is_cluster)


def _check_database(option: str, path: str, *, is_cluster: bool) -> None:
    if path and not _is_whole(path):
        raise ConfigurationError(
            f"the URL of the shared store in Redis has a path ({_MASK}) that is no number of a database; give e.g. "
            "redis://localhost:6379/0, and "
            "write a slash in a user or password as %2F"
        )
    database = option or path
    if is_cluster and database and int(database):
        raise ConfigurationError(
            f"the URL of the shared store names database {database}, and a cluster has one only: leave it out"
        )
