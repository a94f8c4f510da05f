"""The page about a consumer as a browser shows it.

Look at the screenshots of a failing run first: they lie in pytest's folder.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer, TopicPartition

from dedup_adapters.health import HealthServer, serve
from dedup_sdk import MemoryStore
from dedup_sdk.testing import MockKafka
from tests.support.consuming import make_consumer, poll_some, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dedup_sdk import DedupConsumer
    from tests.support.browser import Browser

pytestmark = pytest.mark.browser

SCREENS = [(1280, False), (1280, True), (1010, False), (390, False), (390, True)]
TOPIC = "orders-of-all-shops.europe-west-1.production"
AGES_S = (10, 20, 200, 600, 700, 800, 3_000, 9_000, 20_000, 90_000, 400_000)
OVERFLOWING = """
const wide = document.documentElement.clientWidth;
return [...document.querySelectorAll("body *")]
  .filter(each => each.getBoundingClientRect().right > wide + 0.5 && each.getBoundingClientRect().width)
  .map(each => each.tagName + " " + each.textContent.slice(0, 40));
"""
LOADED = "return performance.getEntriesByType('resource').map(each => each.name)"
SMALLEST_TEXT = """
return Math.min(...[...document.querySelectorAll("body *")].map(each => parseFloat(getComputedStyle(each).fontSize)));
"""
COLOURS = """
const seen = [];
for (const each of document.querySelectorAll("body *")) {
  if (![...each.childNodes].some(node => node.nodeType == 3 && node.textContent.trim())) continue;
  let under = each;
  while (getComputedStyle(under).backgroundColor == "rgba(0, 0, 0, 0)") under = under.parentElement;
  seen.push([each.textContent.slice(0, 30), getComputedStyle(each).color, getComputedStyle(under).backgroundColor]);
}
return seen;
"""
BROKEN = """
const lines = each => { const range = document.createRange(); range.selectNodeContents(each);
  return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size; };
return [...document.querySelectorAll("th, td:nth-child(n+3), .tile b")].filter(each => lines(each) > 1)
  .map(each => each.textContent);
"""
READABLE = 4.5
"""The least contrast of text that is not large, by the guidelines for accessibility (WCAG 2, AA)."""


def send(kafka: MockKafka) -> None:
    """Send messages of two partitions, whose duplicates come after very different times."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    newest_ms = int(time.time() * 1000)
    for number in range(400):
        producer.produce(
            TOPIC,
            partition=number % 2,
            headers={"dedup-id": str(number)},
            timestamp=newest_ms - 500_000_000,
        )
    for age_s in AGES_S:
        name = f"late-{age_s}"
        for sent_ms in (newest_ms - age_s * 1000, newest_ms):
            producer.produce(TOPIC, partition=0, headers={"dedup-id": name}, timestamp=sent_ms)
    assert producer.flush(30) == 0


def hidden(consumer: DedupConsumer) -> float:
    """The number of duplicates that were hidden."""
    return consumer.metrics().value("records", verdict="duplicate")


@pytest.fixture(scope="module")
def server() -> Iterator[HealthServer]:
    """A consumer with a partition that delivers and one that waits for its store, and pages about it."""
    with MockKafka() as kafka:
        kafka.create_topic(TOPIC, partitions=2)
        send(kafka)
        store = MemoryStore()
        with (
            make_consumer(kafka.bootstrap, "billing", store) as owner,
            make_consumer(kafka.bootstrap, "billing", store) as consumer,
        ):
            owner.assign([TopicPartition(TOPIC, 1)])
            poll_some(owner, 200)
            with serve(consumer, port=0, host="127.0.0.1") as made:
                # The first look, from which rates are counted.
                urlopen(f"http://127.0.0.1:{made.port}/", timeout=30).close()
                consumer.assign([TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)])
                poll_some(consumer, 200 + len(AGES_S))
                wait_for(
                    consumer, lambda: "lock" in str(consumer.health().reasons), "the partition that waits"
                )
                wait_for(consumer, lambda: hidden(consumer) == len(AGES_S), "the duplicates")
                logger = logging.getLogger("dedup_sdk")
                logger.warning("%s[%d]@%d: the handler failed (attempts: %d): %s", TOPIC, 0, 7, 3, "no")
                yield made


def luminance(colour: str) -> float:
    """The relative luminance of a colour, as the guidelines define it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, from 1 to 21."""
    high, low = sorted([luminance(one), luminance(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_the_page_is_readable(
    chromium: Browser, server: HealthServer, tmp_path: Path, width: int, *, dark: bool
) -> None:
    """On a phone and on a desk, by day and by night: nothing is cut off, each text has contrast, nothing is loaded."""
    chromium.open(f"http://127.0.0.1:{server.port}/", width=width, dark=dark)
    chromium.driver.save_screenshot(str(tmp_path / f"{width}-{'dark' if dark else 'light'}.png"))
    assert chromium.run(OVERFLOWING) == []
    assert chromium.run(BROKEN) == []
    assert chromium.run(SMALLEST_TEXT) >= 12
    assert chromium.run(LOADED) == []
    assert chromium.said() == []
    colours = chromium.run(COLOURS)
    assert len(colours) > 30
    assert [each for each in colours if contrast(*each[1:]) < READABLE] == []
    is_dark = luminance(chromium.run("return getComputedStyle(document.body).backgroundColor")) < 0.5
    assert is_dark == dark


def test_the_page_shows_the_partition_that_waits_and_the_ages(
    chromium: Browser, server: HealthServer
) -> None:
    """The longest bar is that of the most duplicates."""
    chromium.open(f"http://127.0.0.1:{server.port}/", width=1280)
    text = chromium.run("return document.body.innerText")
    for part in (
        "billing",
        "not ready",
        f"{TOPIC}[0]",
        "recovering: lock",
        "the handler failed (attempts: 3): …",
    ):
        assert part in text
    bars = chromium.run(
        "return [...document.querySelectorAll('.bar')].map(each => [each.firstChild.textContent,"
        " each.querySelector('rect').getBoundingClientRect().width, +each.lastChild.textContent])"
    )
    assert sum(count for *_, count in bars) == len(AGES_S)
    assert max(bars, key=lambda each: each[1])[0] == "to 15 min"


def test_the_page_comes_again_by_itself(chromium: Browser, server: HealthServer) -> None:
    """Without a script of its own, and without a click."""
    chromium.open(f"http://127.0.0.1:{server.port}/", width=390)
    chromium.run("window.first = true")
    until = time.monotonic() + 30
    while chromium.run("return window.first === true"):
        assert time.monotonic() < until
        time.sleep(0.2)
    assert f"{TOPIC}[0]" in chromium.run("return document.body.innerText")
