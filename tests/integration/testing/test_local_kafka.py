from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from dedup_sdk.errors import DedupError, KafkaHelperError
from dedup_sdk.testing import CuttingProxy, LocalKafka, free_port
from dedup_sdk.testing._java_home import find_java
from dedup_sdk.testing._kafka_jars import kafka_jars
from tests.support.producing import produce, with_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import KafkaError, Message

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def jars() -> Path:
    """Kafka's jars; tests that need them are skipped where they cannot be had."""
    try:
        find_java()
        return kafka_jars()
    except DedupError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    """One broker for the tests of this file that leave it running."""
    with LocalKafka() as broker:
        yield broker


def _read_values(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, 20)]
    finally:
        consumer.close()


def test_data_and_address_survive_a_kill(kafka: LocalKafka) -> None:
    """After SIGKILL and start the same address serves the same records, and goes on from there."""
    topic = kafka.create_topic("survives")
    bootstrap = kafka.bootstrap
    produce(bootstrap, topic, with_ids("a", "b"))

    kafka.kill()
    assert kafka.pid is None
    kafka.start()
    produce(bootstrap, topic, with_ids("c"))

    assert kafka.bootstrap == bootstrap
    assert _read_values(bootstrap, topic, 3) == [b"a", b"b", b"c"]


def test_a_paused_broker_answers_nothing_and_goes_on(kafka: LocalKafka) -> None:
    """While it is paused a delivery fails at its own deadline; after resume the broker works again."""
    topic = kafka.create_topic("paused")
    failures: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        failures.append(error)

    settings = {"bootstrap.servers": kafka.bootstrap, "delivery.timeout.ms": 1500, "log_level": 0}
    producer = Producer({**settings, "linger.ms": 0, "request.timeout.ms": 1000})
    producer.list_topics(topic, timeout=10)
    kafka.pause()
    try:
        producer.produce(topic, b"x", on_delivery=delivered)
        producer.flush(20)
    finally:
        kafka.resume()

    assert [error is not None and error.name() for error in failures] == ["_MSG_TIMED_OUT"]
    produce(kafka.bootstrap, topic, with_ids("y"))


def test_a_topic_that_exists_is_not_created_again(kafka: LocalKafka) -> None:
    """The broker's refusal is one line that names the topic."""
    kafka.create_topic("twice", partitions=3, config={"cleanup.policy": "compact"})

    with pytest.raises(KafkaHelperError, match=r"topic 'twice' was not created at .* already exists"):
        kafka.create_topic("twice")


def test_a_missing_topic_is_missing(kafka: LocalKafka) -> None:
    """A misspelt topic is not made on the way."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})

    assert producer.list_topics("misspelt", timeout=10).topics["misspelt"].error is not None
    assert "misspelt" not in producer.list_topics(timeout=10).topics


def test_the_proxy_makes_real_duplicates() -> None:
    """An application that sends again records that were cut off doubles them, and none is missing."""
    port = free_port()
    with (
        LocalKafka(extra_listeners={"PROXIED": port}) as kafka,
        CuttingProxy(kafka.address("PROXIED"), listen_port=port, every=10, seed=7) as proxy,
    ):
        topic = kafka.create_topic("cut")
        _send_until_delivered(proxy.bootstrap, topic, range(5000))
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "reader"})
        end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)[1]
        consumer.close()
        values = _read_values(kafka.bootstrap, topic, end)

        assert proxy.cuts > 0
    assert {int(value or b"-1") for value in values} == set(range(5000))
    # How many more is not known: the client also repeats by itself what it holds for unsent.
    assert len(values) > 5000


def _send_until_delivered(bootstrap: str, topic: str, numbers: range) -> None:
    """Send each number until its delivery is reported."""
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": False, "retries": 0, "log_level": 0}
    quick = {"reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 20, "batch.num.messages": 100}
    producer = Producer({**settings, **quick, "linger.ms": 1})
    waiting = list(numbers)
    deadline = time.monotonic() + 150
    while waiting:
        assert time.monotonic() < deadline, f"{len(waiting)} numbers were never delivered"
        undelivered: list[int] = []

        def delivered(error: KafkaError | None, message: Message, into: list[int] = undelivered) -> None:
            if error is not None:
                into.append(int(message.value() or b"-1"))

        for number in waiting:
            producer.produce(topic, str(number).encode(), on_delivery=delivered)
            producer.poll(0)
        producer.flush(30)
        waiting = undelivered


PARENT = """
import sys, time
from dedup_sdk.testing import LocalKafka
kafka = LocalKafka()
kafka.start()
if sys.argv[1] == "paused":
    kafka.pause()
print(kafka.pid, kafka.log.parent, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("state", ["running", "paused"])
def test_a_killed_parent_leaves_nothing(state: str) -> None:
    """When the program that started it is killed, the broker ends and its data go."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, state], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, folder = parent.stdout.readline().split()
    broker = psutil.Process(int(pid))
    assert Path(folder).is_dir()

    parent.kill()
    parent.communicate()

    # Not a child of ours: whoever adopted it collects it, so that the end is either of these two.
    gone = _within(60, lambda: not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE)
    assert gone, f"broker {pid} outlived its parent"
    assert _within(60, lambda: not Path(folder).exists()), f"{folder} was left behind"


def test_a_broker_that_is_stopped_leaves_nothing() -> None:
    """After the with block there is no process and no folder, and stopping again does nothing."""
    with LocalKafka() as kafka:
        folder, pid = kafka.log.parent, kafka.pid
        assert pid is not None
        with pytest.raises(KafkaHelperError, match=r"runs already at 127\.0\.0\.1"):
            kafka.start()
    kafka.stop()

    assert not folder.exists()
    assert not psutil.pid_exists(pid)
    with pytest.raises(KafkaHelperError, match="was not started"):
        kafka.log.exists()
    with pytest.raises(KafkaHelperError, match="does not run"):
        kafka.pause()


def test_ctrl_c_reaches_the_program_and_not_the_broker(kafka: LocalKafka) -> None:
    """The broker is out of the terminal's reach: consumers can end in good order first."""
    assert kafka.pid is not None
    assert os.getsid(kafka.pid) != os.getsid(0)


def test_a_refused_setting_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not start says why, and leaves no folder behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(
        KafkaHelperError, match=r"Invalid value many for configuration num\.io\.threads"
    ) as caught:
        LocalKafka(config={"num.io.threads": "many"}).start()

    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_broker_listens_on_the_port_that_was_given(kafka: LocalKafka) -> None:
    """Before and after a kill; a port that is taken is refused before Java is started."""
    port = free_port()
    with LocalKafka(port=port) as broker:
        assert broker.bootstrap == f"127.0.0.1:{port}"
        broker.restart()
        assert broker.create_topic("orders") == "orders"
    taken = kafka.address("CLIENT")[1]
    with pytest.raises(KafkaHelperError, match=f"port={taken} is taken on 127.0.0.1"):
        LocalKafka(port=taken).start()


def test_an_unknown_listener_is_named(kafka: LocalKafka) -> None:
    """The error lists the listeners there are."""
    with pytest.raises(KafkaHelperError, match="no listener 'PROXY': it has CLIENT, CONTROLLER"):
        kafka.address("PROXY")


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
