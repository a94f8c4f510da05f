"""The dashboard and the alerts of `examples/monitoring`, with a real Prometheus that scrapes real consumers.

The rules run as they are, but for their times: minutes are seconds here, and a lag of 1,000 is one of 3.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from confluent_kafka import Message, Producer, TopicPartition

from dedup_adapters.health import HealthServer, serve
from dedup_sdk import METRICS
from dedup_sdk.testing import MockKafka
from dedup_sdk.testing._ports import free_port
from tests.support.consuming import PATIENCE_S, make_consumer
from tests.support.pages import ROOT, site_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dedup_sdk import DedupConsumer

pytestmark = pytest.mark.slow

FOLDER = ROOT / "examples" / "monitoring"
DASHBOARD = site_module("dashboard")
PANELS = [each for each in json.loads((FOLDER / "dashboard.json").read_text())["panels"] if "targets" in each]
SHORT = {r"\[\d+m\]": "[3s]", r"for: \d+m": "for: 1s", "> 1000": "> 3"}
ALERTS = re.findall(r"- alert: (\w+)", (FOLDER / "alerts.yml").read_text())


def test_the_dashboard_is_made_from_the_registry() -> None:
    """After a change: python docs/site/dashboard.py. Each metric has one panel."""
    assert (FOLDER / "dashboard.json").read_text(encoding="utf-8") == DASHBOARD.dashboard()
    assert sorted(metric.full_name for _, metrics in DASHBOARD.ROWS for metric in metrics) == sorted(
        metric.full_name for metric in METRICS
    )


def program(name: str) -> str:
    """The path of a program of Prometheus."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on the PATH: install it (Debian: apt-get install prometheus)")
    return found


@pytest.mark.parametrize(
    "command", [["check", "rules", "alerts.yml"], ["check", "config", "prometheus.yml"]], ids=" ".join
)
def test_promtool_finds_nothing(command: list[str]) -> None:
    """In the files as they are."""
    done = subprocess.run(
        [program("promtool"), *command], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@dataclass
class Bed:
    """A consumer that runs a handler, its pages, and a Prometheus that scrapes them."""

    kafka: MockKafka
    consumer: DedupConsumer
    second: DedupConsumer
    server: HealthServer
    prometheus: str
    work: Event = field(default_factory=Event)
    """Cleared: the handler hangs."""
    sent: int = 0

    def send(self, *values: str, with_id: bool = True) -> None:
        """Send messages of new IDs."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "log_level": 0})
        for value in values:
            self.sent += 1
            headers: dict[str, str | bytes | None] = {"dedup-id": f"order-{self.sent}"} if with_id else {}
            producer.produce("orders", value, headers=headers, partition=0)
        assert producer.flush(30) == 0

    def handle(self, message: Message) -> None:
        """Handle a message."""
        assert self.work.wait(PATIENCE_S)
        if message.value() == b"poison":
            raise ValueError("poison")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Ask Prometheus."""
        return list(self._ask("query", query=expression)["result"])

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = self._ask("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def _ask(self, call: str, **parameters: str) -> dict[str, Any]:
        with urlopen(f"{self.prometheus}/api/v1/{call}?{urlencode(parameters)}", timeout=30) as answer:  # noqa: S310 (of this machine)
            found: dict[str, Any] = json.load(answer)["data"]
        return found

    def until(self, true: Callable[[], bool], name: str) -> None:
        """Wait for something; the second consumer goes on meanwhile."""
        until = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < until, f"{name}; {self.consumer.health()}; firing: {self.firing()}"
            self.second.poll(0.2)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """All of it, with messages handled and a duplicate hidden."""
    folder = tmp_path_factory.mktemp("monitoring")
    with MockKafka() as kafka:
        kafka.create_topic("orders", partitions=1)
        kafka.create_topic("letters", partitions=1)
        store = folder / "dedup"
        with (
            make_consumer(kafka.bootstrap, "billing", store, {"auto.commit.interval.ms": 300}) as consumer,
            make_consumer(kafka.bootstrap, "billing", store) as second,
            serve(consumer, second, port=0, host="127.0.0.1") as server,
            prometheus_beside(server, folder) as address,
        ):
            made = Bed(kafka, consumer, second, server, address)
            made.work.set()
            made.send("a", "b")
            made.sent -= 1
            made.send("b")
            consumer.assign([TopicPartition("orders", 0)])
            options = {"on_error": "dead-letter", "dead_letters": "letters", "attempts": 1}
            thread = Thread(target=consumer.run, args=(made.handle,), kwargs=options)
            thread.start()
            try:
                made.until(lambda: consumer.counters.completed >= 2, "the messages")
                yield made
            finally:
                made.work.set()
                consumer.stop()
                thread.join(PATIENCE_S)


@contextmanager
def prometheus_beside(server: HealthServer, folder: Path) -> Iterator[str]:
    """A Prometheus that scrapes a server, with the example's rules; its address."""
    rules = (FOLDER / "alerts.yml").read_text(encoding="utf-8")
    for long, short in SHORT.items():
        rules, count = re.subn(long, short, rules)
        assert count
    (folder / "alerts.yml").write_text(rules, encoding="utf-8")
    config = (FOLDER / "prometheus.yml").read_text(encoding="utf-8")
    config = config.replace("localhost:8080", f"127.0.0.1:{server.port}").replace("15s", "250ms")
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    port = free_port()
    command = [
        program("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb", "--log.level=error",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=folder)
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + PATIENCE_S
        while not is_answering(f"{address}/-/ready"):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def is_answering(address: str) -> bool:
    """Whether a server gives a page."""
    try:
        with urlopen(address, timeout=5) as answer:  # noqa: S310 (of this machine)
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["description"].partition(".")[0])
def test_each_panel_has_data(bed: Bed, panel: dict[str, Any]) -> None:
    """Its query is one of Prometheus, of a metric that is there."""
    [target] = panel["targets"]
    query = target["expr"].replace("[$__rate_interval]", "[3s]")
    query = query.replace("$group", ".*").replace("$topic", ".*")
    assert "$" not in query
    # The only gauge with a word for each of its values, of which none needs to be true.
    query = query.removesuffix(" == 1") if "dedup_hindered" in query else query
    bed.until(lambda: bool(bed.query(query)), query)


def down(bed: Bed) -> tuple[Callable[[], object], Callable[[], object]]:
    """The pages are gone, and come back."""

    def back() -> None:
        bed.server = serve(bed.consumer, bed.second, port=bed.server.port, host="127.0.0.1")

    return bed.server.close, back


def not_ready(bed: Bed) -> tuple[Callable[[], object], Callable[[], object]]:
    """A second consumer waits for the store of the first."""
    bed.second.assign([TopicPartition("orders", 0)])
    return lambda: None, bed.second.unassign


def hindered(bed: Bed) -> tuple[Callable[[], object], Callable[[], object]]:
    """The program pauses the partition."""
    place = [TopicPartition("orders", 0)]
    return lambda: bed.consumer.pause(place), lambda: bed.consumer.resume(place)


def without_ids(bed: Bed) -> tuple[Callable[[], object], Callable[[], object]]:
    """A producer sends messages without IDs."""
    return lambda: bed.send("c", with_id=False), lambda: None


def hanging(bed: Bed) -> tuple[Callable[[], object], Callable[[], object]]:
    """A handler hangs, while messages come."""
    bed.work.clear()
    return lambda: bed.send("d", "e"), bed.work.set


def failing(bed: Bed) -> tuple[Callable[[], object], Callable[[], object]]:
    """A handler fails for good."""
    bed.send("poison")
    return lambda: None, lambda: None


FAULTS = {
    "DedupDown": down,
    "DedupNotReady": not_ready,
    "DedupHindered": hindered,
    "DedupDuplicatesPass": without_ids,
    "DedupLagGrows": hanging,
    "DedupGivenUp": failing,
}


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_with_its_fault_and_ends_with_it(bed: Bed, alert: str) -> None:
    """Where all is well none fires."""
    bed.until(lambda: not bed.firing(), "all is well")
    fault, cure = FAULTS[alert](bed)
    bed.until(lambda: bool(fault()) or alert in bed.firing(), f"{alert} fires")
    cure()
    bed.until(lambda: alert not in bed.firing(), f"{alert} ends")
