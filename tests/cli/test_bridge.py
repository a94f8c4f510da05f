"""``dedup bridge``: the arguments it refuses, its output, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dedup_sdk.testing import MockKafka
from tests.support.bridging import lying
from tests.support.producing import produce, with_ids

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Dedup

NOBODY = ["--from", "127.0.0.1:9", "--to", "127.0.0.1:9", "--topics", "orders"]


@pytest.fixture
def ends() -> Iterator[tuple[MockKafka, MockKafka]]:
    """Two clusters with the topic "orders"."""
    with MockKafka() as one, MockKafka() as two:
        one.create_topic("orders")
        two.create_topic("orders")
        yield one, two


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*NOBODY, "--topics", "a b"], "'a b' is not a topic name"),
        ([*NOBODY, "--id", "key"], "--no-duplicate-detection"),
        ([*NOBODY, "--rekey-by-id", "--partitions", "same"], "choose one"),
        (
            [*NOBODY, "--to-client-config", "pass word=hunter2"],
            "--to-client-config pass word=*** is not a file",
        ),
        ([*NOBODY, "--to-client-config", "no.such.thing=hunter2"], "the client refuses its settings"),
        ([*NOBODY, "--to-client-config", "acks=1"], "acks='1' lets the brokers lose"),
        ([*NOBODY, "--transactions", "maybe"], "--transactions"),
        (["--from", "", "--to", "b:1"], "--from names no cluster"),
        (["--from-client-config", "no/such", "--to", "b:1"], "--from-client-config no/such cannot be read"),
        (["--from", "a:1", "--to-client-config", "nowhere"], "--to-client-config nowhere cannot be read"),
        (["--client-config", "nowhere"], "--client-config nowhere cannot be read"),
        (["--to", "b:1"], "--from names no cluster; give bootstrap servers"),
        (["--from", "a:1"], "--to names no cluster"),
    ],
)
def test_wrong_usage_is_one_line(dedup: Dedup, arguments: list[str], said: str) -> None:
    """With the value to give instead, and without a value that may be a password."""
    done = dedup("bridge", *arguments, "--quiet")
    assert (done.status, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert said in line
    assert "hunter2" not in line


def test_a_file_without_servers_is_told(dedup: Dedup, tmp_path: Path) -> None:
    """Its settings are not shown."""
    file = tmp_path / "from.properties"
    file.write_text("sasl.password=hunter2")
    done = dedup("bridge", "--from-client-config", str(file), "--to", "b:1")
    assert done.status == 2
    assert done.stderr.startswith("dedup: --from names no cluster; give bootstrap servers")
    assert "hunter2" not in done.stderr


def test_it_copies_what_there_is_and_ends(
    dedup: Dedup, ends: tuple[MockKafka, MockKafka], tmp_path: Path
) -> None:
    """With servers or files, lines on stderr, and one object on stdout."""
    one, two = ends
    two.create_topic("copy.orders")
    produce(one.bootstrap, "orders", [*with_ids("a", "b"), *with_ids("c", header="other")])
    file = tmp_path / "to.properties"
    file.write_text(f"bootstrap.servers={two.bootstrap}\n")
    done = dedup(
        "bridge", "--from", one.bootstrap, "--client-config", "log_level=0", "--client-config",
        "bootstrap.servers=127.0.0.1:9", "--to-client-config", str(file), "--topics", "^ord", "--rename",
        "copy.{topic}",
        "--until-end", "--json",
    )  # fmt: skip
    assert done.status == 0, done.stderr
    counted = json.loads(done.stdout)
    assert (counted["copied"], counted["named"]) == (3, 1)
    first, *_, last = done.stderr.splitlines()
    assert first.startswith("bridge: group dedup-bridge-mockCluster")
    assert first.endswith("two clusters, batches in transactions, offsets after them")
    assert last == "bridge: 3 copied, 1 of them given an ID; 0 behind"
    assert len(lying(two.bootstrap, "copy.orders")) == 3


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_in_order(
    ends: tuple[MockKafka, MockKafka], number: signal.Signals, status: int
) -> None:
    """After the batch in hand: its copies are committed, and said."""
    one, two = ends
    produce(one.bootstrap, "orders", with_ids("a", "b"))
    command = [sys.executable, "-m", "dedup_sdk._cli", "bridge", "--from", one.bootstrap, "--to", two.bootstrap,
               "--topics", "orders",
               "--report-every", "0.1", "--json", "--client-config", "log_level=0"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "2 copied" in line:
                break
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == status
    assert json.loads(out)["copied"] == 2
