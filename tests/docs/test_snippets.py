from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from dedup_sdk.errors import DedupError
from dedup_sdk.testing import MockKafka
from dedup_sdk.testing._java_home import find_java
from dedup_sdk.testing._kafka_jars import kafka_jars
from tests.support.pages import PAGES, ROOT, SENT, Stage, page_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WITH_EXAMPLES = [
    page
    for page in PAGES
    if "```python" in page.read_text(encoding="utf-8")
    if page.name not in {"asyncio.md", "frameworks.md"}  # whose loops signals end: `test_frameworks`
]
ONCE = sorted(set(SENT))


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A stage in a folder of its own, from which modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with MockKafka() as kafka:
        kafka.create_topic("orders")
        kafka.create_topic("orders-avro")
        yield Stage(kafka.bootstrap, tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=page_id)
def test_the_examples_of_a_page_run(page: Path, stage: Stage) -> None:
    """Every Python example runs as it stands, in the page's order, and each loop handles each logical message once."""
    ran = 0
    for example in stage.examples(page):
        source = str(example.parsed)
        if "LocalKafka" in source:
            continue
        stage.run(example)
        ran += 1
        if "charge(" in source or "(charge, " in source:
            expected = sorted(SENT) if 'mode="observe"' in source else ONCE
            assert sorted(stage.handled) == expected, f"{page.name}:{example.line}"
    assert ran


def test_each_group_of_the_pages_has_a_folder_of_its_own() -> None:
    """Whoever pastes two blocks has two stores, and `dedup lookup` need not ask for the group."""
    groups: dict[str, set[str]] = {}
    for page in PAGES:
        for block in re.findall(
            r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            of_block = re.findall(r"\"group\.id\": \"([\w-]+)\"", block)
            for folder in re.findall(r"store=\"([\w/]+)\"", block):
                groups.setdefault(folder, set()).update(of_block)
    assert {folder: names for folder, names in groups.items() if len(names) > 1} == {}
    assert groups["var/dedup"] == {"billing"}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_blocks_of_python_can_be_pasted(page: Path) -> None:
    """No line has the prompt of an interpreter: the output is in a block of its own."""
    assert re.findall(r"^(?:>>>|\.\.\.) .*$", page.read_text(encoding="utf-8"), re.MULTILINE) == []


@pytest.mark.broker
@pytest.mark.slow
def test_the_example_with_a_real_broker_runs(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of docs/testing.md that starts a real Kafka starts one, and prints its address."""
    try:
        find_java()
        kafka_jars()
    except DedupError as error:
        pytest.skip(str(error))
    [example] = [
        each for each in stage.examples(ROOT / "docs" / "testing.md") if "LocalKafka()" in str(each.parsed)
    ]
    stage.run(example)
    assert capsys.readouterr().out.startswith("127.0.0.1:")


def test_what_the_loop_of_the_readme_hides_is_a_duplicate(stage: Stage) -> None:
    """The first example of the README hides the two resent orders, as duplicates and for no other reason."""
    first = stage.examples(ROOT / "README.md")[0]
    stage.run(first)
    assert stage.handled == ["order-1", "order-2", "order-3", "last"]
    verdicts = stage.namespace["consumer"].counters.verdicts
    assert {name: count for name, count in verdicts.items() if count} == {"fresh": 4, "duplicate": 2}
