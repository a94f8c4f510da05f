"""The page for a person: its parts that take long to come about."""

from __future__ import annotations

import re
from typing import Any

from dedup_adapters._looks import Look
from dedup_adapters._screen import MOST_PARTITIONS, page
from dedup_sdk import Health, Metrics, PartitionStatus

READY = Health(live=True, ready=True, reasons=())


def status(**given: Any) -> PartitionStatus:
    """The status of a partition that delivers, but for these values."""
    usual: dict[str, Any] = {
        "topic": "orders", "partition": 0, "state": "active", "hindrances": (), "position": 5, "in_flight": 0,
        "waiting": 0, "committed": 5, "lag": 0, "recovery_seconds": 0.1, "recovery_left": 0, "store_bytes": None,
        "store_marks": None, "store_files": None, "effective_window_ms": None, "detail": "",
    }  # fmt: skip
    return PartitionStatus(**{**usual, **given})


def look(*statuses: PartitionStatus, group: str = "billing", **given: Any) -> Look:
    """A look at a consumer with these partitions."""
    usual = {
        "health": READY,
        "metrics": Metrics(group, ()),
        "rates": {},
        "rates_over_s": 0.0,
        "replayed": {},
    }
    return Look(statuses=statuses, **{**usual, **given})


def test_a_recovery_has_a_bar_of_its_progress() -> None:
    """With the offsets that are left, and its own words."""
    recovering = status(state="recovering", recovery_left=4_000, detail="60 % of the log is replayed")
    html = page([look(recovering, replayed={("orders", 0): 0.6})], READY, [])
    assert '<progress max="1" value="0.600"></progress>4,000 left' in html
    assert "60 % of the log is replayed" in html


def test_of_many_partitions_those_in_need_are_shown() -> None:
    """The page stays one that a phone can show."""
    many = [status(partition=number) for number in range(MOST_PARTITIONS + 100)]
    many[-1] = status(partition=MOST_PARTITIONS + 99, hindrances=("paused",))
    html = page([look(*many)], READY, [])
    assert len(re.findall("<tr><td", html)) == MOST_PARTITIONS
    assert f"orders[{MOST_PARTITIONS + 99}]" in html
    assert "100 more, which are active" in html


def test_names_of_others_are_escaped() -> None:
    """A group and a topic are named by whoever made them."""
    evil = "<script>alert('\"')</script>"
    html = page([look(status(topic=evil, detail=evil, state="recovering"), group=evil)], READY, [])
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 4


def test_a_page_without_a_consumer_says_so() -> None:
    """They are gone."""
    gone = Health(live=True, ready=False, reasons=("the consumer is gone: make a new one",), closed=True)
    html = page([None], gone, [])
    assert "no consumer" in html
    assert "the consumer is gone: make a new one" in html
