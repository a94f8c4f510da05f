"""The parts in which `make` runs the suite: each file of tests is in one of them, and in no other."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def parts(*variables: str) -> list[str]:
    """The targets that variables of the Makefile name."""
    lists = [re.search(rf"^{name} := (.*)", MAKEFILE, re.MULTILINE) for name in variables]
    return [name for found in lists if found for name in found[1].split() if not name.startswith("$")]


def files_of(part: str) -> list[Path]:
    """The files of tests that pytest gets from a part."""
    shown = subprocess.run(
        [shutil.which("make") or "make", "--no-print-directory", "--dry-run", part],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    _, _, command = shown.replace("\\\n", " ").partition("/pytest ")
    words = shlex.split(command)
    paths = [ROOT / word for word in words if word.startswith("tests")] or [ROOT / "tests"]
    ignored = [ROOT / word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
    found = [file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py"))]
    return [file for file in found if not any(file.is_relative_to(each) for each in ignored)]


@pytest.mark.parametrize(
    ("variables", "has_to_run"),
    [(("MOCK", "QUICK"), lambda _: True), (("LONG", "JOBS", "BROKERS"), lambda text: "mark.slow" in text)],
    ids=["quick", "long"],
)
def test_each_file_is_in_one_part(variables: tuple[str, ...], has_to_run: Callable[[str], bool]) -> None:
    """A new file, or a new folder, is in a part without anybody's doing."""
    expected = {
        file for file in (ROOT / "tests").rglob("test_*.py") if has_to_run(file.read_text(encoding="utf-8"))
    }
    named = parts(*variables)
    assert len(named) >= 4
    times = Counter(file for part in named for file in files_of(part))
    assert {file: times[file] for file in expected if times[file] != 1} == {}
