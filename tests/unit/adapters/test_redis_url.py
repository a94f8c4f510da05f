"""URLs of Redis: a wrong option is one line, at once, without a password."""

from __future__ import annotations

import pytest

from dedup_adapters.redis import RedisStore
from dedup_sdk import ConfigurationError


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://me:hunter2@host/0?nonsense=1",
         r"the option nonsense=\*\*\*, which redis:// does not have; leave it out"),
        ("redis://host/0?socket_timeout=abc", "the option socket_timeout='abc'; give seconds above 0"),
        ("redis://host/0?socket_timeout=", "the option socket_timeout=''; give seconds above 0"),
        ("redis://host/0?socket_timeout=nan", "socket_timeout='nan'"),
        ("redis://host/0?socket_connect_timeout=-1", "socket_connect_timeout='-1'"),
        ("redis://host/0?max_connections=0", "max_connections='0'; give a whole number above 0"),
        ("redis://host/0?db=%2B1", r"db='\+1'; give a whole number from 0 on"),
        ("redis://host/0?protocol=9", "protocol='9'; give 2 or 3"),
        ("redis://host/0?retry_on_timeout=perhaps", "retry_on_timeout='perhaps'; give true or false"),
        ("rediss://host/0?ssl_cert_reqs=bogus", "ssl_cert_reqs='bogus'; give none, optional or required"),
        ("redis://host/0?ssl_cert_reqs=none", "which redis:// does not have, but rediss:// does"),
        ("redis://host/0?retry=1", r"the option retry=\*\*\*, .* any other with a client of redis-py"),
        ("redis://host/0?connection_class=x", r"the option connection_class=\*\*\*"),
        ("redis://host/0?encoding=bogus", r"the option encoding=\*\*\*"),
        ("redis+cluster://me:hunter2@host/?nonsense=1", r"the option nonsense=\*\*\*"),
        ("redis+cluster://host/?db=3", "names database 3, and a cluster has one only"),
        ("unix:///run/redis.sock?socket_keepalive=yes", "which unix:// does not have"),
        ("redis://host/orders", "has a path .* that is no number of a database"),
        ("redis://host:port/0", "is none of Redis"),
        ("redis://host/0?passwrod=hunter2", r"the option passwrod=\*\*\*"),
        ("redis://host/0?password=hunter2&socket_timeout=hunter2", r"socket_timeout=\*\*\*"),
        ("redis://:hunter2@host/0?socket_timeout=hunter2", r"socket_timeout=\*\*\*"),
        ("redis://:a?hunter2%0Ab@host/0", "is none of Redis"),
        ("redis://:1?hunter2%0Ab@host/0", r"the option \*\*\*=\*\*\*"),
        ("redis://:hunter2/b@host/0", "write special characters of a user or password as %XX"),
        ("redis://:1/hunter2@host/0", "write a slash in a user or password as %2F"),
    ],
)  # fmt: skip
def test_a_wrong_url_is_refused_in_one_line(url: str, says: str) -> None:
    """When the store is made, before a server is asked; nothing of a password is in the line."""
    with pytest.raises(ConfigurationError, match=says) as caught:
        RedisStore(url)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:pass%2Fword@host:6380/3?socket_timeout=0.5&max_connections=4&protocol=3&client_name=billing%201",
        "redis://host?db=2&health_check_interval=0&socket_keepalive=True&retry_on_timeout=no",
        "rediss://host/0?ssl_cert_reqs=none&ssl_check_hostname=false&ssl_ca_certs=/etc/ca.pem",
        "unix:///run/redis.sock?db=1&username=a&password=b",
        "redis+cluster://host:7000/0",
        "redis+cluster://host:7000/?socket_timeout=2",
    ],
)
def test_a_right_url_is_taken(url: str) -> None:
    """Nothing is asked before the first call."""
    RedisStore(url).close()
