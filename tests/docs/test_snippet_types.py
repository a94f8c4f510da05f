from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.pages import PAGES, ROOT, page_id

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = """\
from confluent_kafka import Message
from dedup_sdk import DedupConsumer

def charge(message: Message) -> None: ...
def ship(message: Message) -> None: ...
def page_somebody(text: str) -> None: ...
def made() -> DedupConsumer: ...
consumer = made()
"""
"""The names that examples use without making them, as a module."""

NOT_READ = {
    "schema-registry.md": "the annotations of confluent-kafka's serialisers refuse the arguments that they take",
    "spark-clusters.md": "Airflow is not installed; `test_airflow` runs the DAG",
}
"""Pages whose examples cannot be type-checked."""

_BLOCK = re.compile(r"^```python\n(?!>>>)(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_BLOCK = re.compile(r"# (\S+\.py)\n")


def programs(page: Path) -> Iterator[tuple[str, str]]:
    """The programs of a page by file name: its blocks that are files, and all others as one."""
    rest = ["from names import *"]
    for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if file := _FILE_BLOCK.match(block):
            yield file[1], block
        else:
            rest.append(block)
    if len(rest) > 1:
        yield page_id(page).replace("/", "_").replace(".md", ".py"), "\n".join(rest)


@pytest.mark.slow
def test_the_examples_of_the_pages_type_check_and_a_misspelt_method_does_not(tmp_path: Path) -> None:
    """Pyright finds nothing in the programs of all pages but the one where `subscribe` is misspelt."""
    files = {name: text for page in PAGES if page.name not in NOT_READ for name, text in programs(page)}
    readme = files["README.py"]
    files["misspelt.py"] = readme.replace("consumer.subscribe", "consumer.subscirbe")
    for name, text in {**files, "names.py": NAMES, "shop/billing.py": NAMES}.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT), str(ROOT / "adapters")]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    checker = shutil.which("basedpyright", path=Path(sys.executable).parent) or "basedpyright"
    command = [checker, "--outputjson", "--level", "error", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=150)
    found = json.loads(done.stdout)["generalDiagnostics"]
    told = [(Path(each["file"]).relative_to(tmp_path).as_posix(), each["message"]) for each in found]
    assert [name for name, _ in told] == ["misspelt.py"], told
    assert "subscirbe" in told[0][1]
    assert len(files) > 15
