from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

import dedup_sdk
from dedup_sdk import DedupConsumer
from dedup_sdk.testing import MockKafka
from tests.support.pages import ROOT
from tests.support.producing import produce, with_ids

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs" / "redis.md").read_text(encoding="utf-8")


class Redis:
    """Stand-in for a client of redis-py: the keys of the page, without their lifetime."""

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def set(self, name: str, value: int, *, ex: int, nx: bool = False) -> bool | None:
        """Keep a key; None if it was there and ``nx``."""
        assert value == 1
        assert ex == 7 * 86_400
        if nx and name in self.keys:
            return None
        self.keys.add(name)
        return True


@pytest.mark.slow
def test_the_switch_neither_loses_nor_doubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's three loops, one after the other, ship each ID once; also one that only Redis believes handled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        dedup_sdk, "DedupConsumer", lambda *given, **named: DedupConsumer(*given, idle_timeout=2, **named)
    )
    redis, shipped = Redis(), list[str]()
    page: dict[str, Any] = {"ship": lambda message: shipped.append(message.value().decode())}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "redis.md", "exec"), page)  # noqa: S102 (the page's own text)
    with MockKafka() as kafka:
        kafka.create_topic("orders")
        config = {
            "bootstrap.servers": kafka.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
        }  # fmt: skip

        produce(kafka.bootstrap, "orders", with_ids("a", "b", "a", "c"))
        old = Consumer({**config, "enable.auto.commit": False})
        old.subscribe(["orders"])
        page["before"]([old.poll(30) for _ in range(4)], redis)
        old.commit(asynchronous=False)
        old.close()
        assert shipped == ["a", "b", "c"]

        produce(kafka.bootstrap, "orders", with_ids("a", "d", "d"))
        compared = page["compare"](config, redis)
        assert compared == Counter({(False, "duplicate"): 2, (True, "unverified"): 1})
        assert shipped == ["a", "b", "c", "d"]

        redis.keys.add("seen:f")  # a process of before died, and handled nothing
        produce(kafka.bootstrap, "orders", with_ids("a", "b", "d", "e", "f", "f"))
        page["switched"](config, redis)
    assert shipped == ["a", "b", "c", "d", "e", "f"]
    assert {"seen:d", "seen:e", "seen:f"} <= redis.keys
