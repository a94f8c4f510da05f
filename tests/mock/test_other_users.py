"""A store that another user made, as where each pod has a user of its own.

Run by root, the two users are two; else they are one, and a folder of root stands for a foreign one.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Send

IS_ROOT: Final = os.geteuid() == 0
FIRST, SECOND = (61_001, 61_002) if IS_ROOT else (os.geteuid(), os.geteuid())
GROUP: Final = 61_000 if IS_ROOT else os.getegid()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that all users can reach; pytest's own belong to one."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def owned(folder: Path, uid: int, mode: int) -> Path:
    """Make a folder of a user and the common group."""
    folder.mkdir()
    os.chown(folder, uid, GROUP)
    folder.chmod(mode)
    return folder


def run(kafka: MockKafka, store: Path, uid: int, count: int) -> Any:
    """Run a consumer as this user, and return what it tells."""
    command = [sys.executable, "-m", "tests.support.other_user", kafka.bootstrap, str(store)]
    done = subprocess.run(
        [*command, str(uid), str(GROUP), str(count)],
        stdout=subprocess.PIPE, text=True, timeout=90, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_a_folder_that_a_group_shares(kafka: MockKafka, send: Send, place: Path) -> None:
    """What the store makes in it can be used by the group, and by nobody else."""
    store = owned(place / "store", 0 if IS_ROOT else FIRST, 0o2770)
    send("a", "b")
    assert run(kafka, store, FIRST, 2) == {"values": ["a", "b"]}
    send("a", "c")
    assert run(kafka, store, SECOND, 1) == {"values": ["c"]}
    send("b", "c", "d")
    assert run(kafka, store, FIRST, 1) == {"values": ["d"]}
    modes = {stat.S_IMODE(path.stat().st_mode) & 0o777 for path in store.rglob("*") if path.is_file()}
    assert modes == {0o660}
    assert {path.stat().st_mode & 0o777 for path in store.rglob("*") if path.is_dir()} == {0o770}


def test_rights_that_are_given_later_stay(kafka: MockKafka, send: Send, place: Path) -> None:
    """The modes of folders that are there are not changed: ``chmod -R g+rwX`` helps."""
    store = owned(place / "store", FIRST, 0o700)
    send("a")
    assert run(kafka, store, FIRST, 1) == {"values": ["a"]}
    subprocess.run(["/bin/chmod", "-R", "g+rwX", str(store)], check=True)
    for uid, more in ((SECOND, "b"), (FIRST, "c"), (SECOND, "d")):
        send("a", more)
        assert run(kafka, store, uid, 1) == {"values": [more]}


@pytest.mark.parametrize("below", ["*", "*/*/*/0"], ids=["the store", "a partition"])
def test_a_foreign_store_is_refused(kafka: MockKafka, send: Send, place: Path, below: str) -> None:
    """When the consumer is made, with both users."""
    store = owned(place / "store", FIRST, 0o2770) if IS_ROOT else Path("/usr")
    foreign = store
    send("a")
    if IS_ROOT:
        assert run(kafka, store, FIRST, 1) == {"values": ["a"]}
        [foreign] = store.glob(below)
        foreign.chmod(0o700)
    told = run(kafka, store, SECOND, 1)
    assert told["error"].startswith("ConfigurationError: store=")
    assert f"{foreign} belongs to user {FIRST if IS_ROOT else 0}" in told["error"]
    assert f"runs as user {SECOND}" in told["error"]
